"""`jangin blas`: write BLAS routines as C or a shared library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from jangin.blas.library import emit
from jangin.commands.common import Settings, progress, terminal


def blas(
    routines: Sequence[str], settings: Settings, folder: Path, kind: str, target: str | None, force: bool
) -> None:
    """Compile routines, write them into a folder, and print the files' names."""
    start = time.perf_counter()
    options = settings.options(target, (), 1)
    with progress(settings) as tell:
        files = emit(folder, routines, kind, options, force=force, progress=tell)
    shown = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
    terminal().print(f"{folder}: {shown}; compiled in {time.perf_counter() - start:.2f} s", soft_wrap=True)
