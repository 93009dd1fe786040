"""Runs the kernels of `accesses` on emulated processors: Debian's compilers link them with `accesses.c`."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from accesses import PAGE, Case, numbers

from jangin.ir.dtype import BOOL, U8
from jangin.ir.graph import Array

_REGIONS = "pages", "plain", "table", "out"


def run(
    cases: Sequence[Case], objects: Sequence[bytes], machine: tuple[str, str, str], folder: Path
) -> list[Array]:
    """Run the kernels of some objects on an emulated machine (compiler, emulator, processor), and return what
    each wrote.

    The error for a crash names the kernel. The test is skipped if the machine isn't installed."""
    compiler, emulator, processor = machine
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"needs {compiler} to link with and {emulator} to run with")
    files = [folder / f"{n}.o" for n in range(len(objects))]
    for file, content in zip(files, objects, strict=True):
        file.write_bytes(content)
    table, program, data, out = (folder / n for n in ("table.c", "program", "data", "out"))
    names = [c.name for c in cases]
    table.write_text(f"extern char {', '.join(names)};\nchar *kernels[] = {{&{', &'.join(names)}}};\n")
    source = Path(__file__).with_name("accesses.c")
    subprocess.run([compiler, "-O1", "-static", "-o", program, source, table, *files, "-lm"], check=True)
    data.write_bytes(_data(cases))
    done = subprocess.run([emulator, "-cpu", processor, program, data, out], timeout=300, capture_output=True)
    results = np.frombuffer(out.read_bytes(), np.uint8)
    ends = np.cumsum([0, *(c.blank().nbytes for c in cases)])
    if done.returncode:
        ran = int(np.searchsorted(ends, results.size))
        raise AssertionError(f"{cases[ran].name}: {emulator} ended with {done.returncode}: {done.stderr!r}")
    return [results[a:b] for a, b in pairwise(ends)]


def _data(cases: Sequence[Case]) -> bytes:
    pages = [numbers(dtype).tobytes() for dtype in (U8, BOOL)]
    parts = [struct.pack("<3q", len(cases), len(pages[0]), PAGE), *pages]
    for case in cases:
        calls, table = case.calls(), case.places().tobytes()
        kinds = (case.memory is BOOL) + 2 * (case.other is BOOL)
        parts.append(struct.pack("<5q", len(table), case.blank().nbytes, len(calls[0][1]), len(calls), kinds))
        parts.append(table)
        for value, places in calls:
            words = [value, *(w for name, at in places for w in (_REGIONS.index(name), at))]
            parts.append(struct.pack(f"<{len(words)}q", *words))
    return b"".join(parts)
