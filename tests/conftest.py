"""For all tests: every compilation verifies its IR after each pass; `--update-golden` writes golden files;
the count of the official tests that pass is printed; `refused` damages the files of a format."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.compiler import pipeline, request
from jangin.compiler.options import Options
from jangin.frontends.format import ModelSource
from jangin.frontends.lower import lower
from jangin.frontends.table import load


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*/*.txt anew")


@pytest.fixture(autouse=True, scope="session")
def verified() -> Iterator[None]:
    """`jangin.compile` checks the IR between passes, and in this process, which has the compiler."""
    assert pipeline.__name__ in sys.modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "Options", partial(Options, verify=True))
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            group = report.nodeid.split("::")
            if len(group) == 3 and group[1].startswith("OnnxBackend"):
                counts.setdefault(group[1], Counter())[outcome] += 1
    for name, count in sorted(counts.items()):
        kind = name.removeprefix("OnnxBackend").removesuffix("ModelTest")
        terminalreporter.write_line(
            f"ONNX {kind} tests: {count['passed']} of {count.total()} pass, "
            f"{count['skipped']} are left out for a stated reason, {count['failed']} fail"
        )


LONGEST = 3000
"""Characters of an error that a person still reads."""


@pytest.fixture(params=[pytest.param(40, id="quick"), pytest.param(1000, id="many", marks=pytest.mark.slow)])
def refused(request: pytest.FixtureRequest) -> Callable[[ModelSource, list[Path]], float]:
    """The share of a file's damaged versions that aren't read; see `_refused`."""
    return lambda model, files: _refused(model, files, request.param) / request.param / len(files)


def damaged(data: bytes, rounds: int) -> Iterator[bytes]:
    """Every second one cut off; three bytes changed, most of them near the start, where structure is."""
    rng = np.random.default_rng(0)
    for n in range(rounds):
        some = bytearray(data[: rng.integers(1, len(data))] if n % 2 else data)
        reach = len(some) if n % 3 else min(len(some), 2000)
        for at in rng.integers(0, reach, 3):
            some[at] = rng.integers(0, 256)
        yield bytes(some)


def _refused(model: ModelSource, files: list[Path], rounds: int) -> int:
    """How many damaged versions of the files, one at a time, aren't read; any error but CompileError is a
    defect and raised."""
    count = 0
    for file in files:
        whole = file.read_bytes()
        for some in damaged(whole, rounds):
            file.write_bytes(some)
            try:
                lower(load(model))
            except jangin.CompileError as error:
                count += 1
                assert len(str(error)) < LONGEST
        file.write_bytes(whole)
    return count
