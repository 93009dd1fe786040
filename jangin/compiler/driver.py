"""From a model to an executable: what was compiled and tuned here before, and which process compiles."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.compiler.isolated import build_apart
from jangin.compiler.options import Extensions
from jangin.compiler.request import Progress, Request, carry_out, entry_name, parse_seconds, read_entry
from jangin.compiler.source import Source
from jangin.runtime.executable import Executable
from jangin.runtime.program import ProgramExecutable, executable, host_functions
from jangin.runtime.threads import default_threads

if TYPE_CHECKING:
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format, ModelSource


def compile(
    model: ModelSource,
    target: str = "cpu",
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    winograd: bool = True,
    libraries: str = "never",
    operators: Sequence[CustomOperator] = (),
    formats: Sequence[Format] = (),
    cache: bool | str | Path = True,
    tune: str | float | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
    isolated: bool | None = None,
) -> Executable | ProgramExecutable:
    """Compile a model (path, bytes or message; ONNX, or of `formats`) and load it.

    `shapes` binds symbolic sizes, `winograd` allows its rounding, `libraries` other makers' kernels
    (see `Options`); `cache`: keep and reuse compiled models and what tuning found for this machine,
    True for the user's cache folder, a path for another, False for none; `tune`: seconds ("60s", "2m")
    to measure candidates first, for `sizes` of the symbols; `progress(done, total, what)`.
    `operators` are your own (see `jangin.custom`), and so are `formats`, which are asked before
    Jangin's (see `jangin.frontends.format`); a model that is compiled with some is not cached.
    `isolated`: compile in a process of its own, whose memory is the system's again when it ends; by default
    so where this process hasn't loaded the compiler yet, and never with anything of your own.
    Raises CompileError with the node, its operator and what to do about it."""
    threads = threads if threads is not None else default_threads()
    seconds = None if tune is None else parse_seconds(tune)
    request = Request(
        model, target, threads, shapes or {}, winograd, libraries, cache, seconds, sizes or {}
    )  # fmt: skip
    own = Extensions(operators, formats)
    if isolated and own:
        raise ValueError("operators and formats of your own can't go to another process: leave isolated out")
    if isolated is None:
        isolated = not own and "jangin.compiler.pipeline" not in sys.modules and _has_interpreter()
    built = None
    entries = None if own else request.entries
    if entries is not None and seconds is None:
        source = Source.of(model)
        request = replace(request, source=source)
        if source is not None:
            built = entries.load(entry_name(source, request.options()), read_entry)
    if built is None and isolated:
        built = build_apart(request, progress)
    elif built is None:
        built, _ = carry_out(request, progress, own)
    return executable(built, threads, host_functions(operators))


def _has_interpreter() -> bool:
    """Whether there is a Python to start: a frozen program's executable is the program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)
