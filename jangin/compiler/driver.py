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
from jangin.runtime.device import Device, LoadError, device_of
from jangin.runtime.threads import default_threads
from jangin.runtime.variants import Runnable, executable, host_functions
from jangin.runtime.variants_artifact import detached
from jangin.targets import Target, resolve

if TYPE_CHECKING:
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format, ModelSource
    from jangin.runtime.variants_artifact import Compiled


def build(
    model: ModelSource,
    target: str | Target = "cpu",
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
) -> Compiled:
    """Compile a model (path, bytes or message; ONNX, or of `formats`) for any target, whether this machine
    runs its code or not. `save` writes what comes back as a file that `jangin.load` reads.

    `target`: a name ("cpu" is this machine), or one of your own with its back end and device (see
    `jangin.targets.target`). `threads`: how many it will run on, which tuned kernels are for.
    `shapes` binds symbolic sizes, `winograd` allows its rounding, `libraries` other makers' kernels
    (see `Options`); `cache`: keep and reuse compiled models and what tuning found for this machine,
    True for the user's cache folder, a path for another, False for none; `tune`: seconds ("60s", "2m")
    to measure candidates first, for `sizes` of the symbols; `progress(done, total, what)`.
    `operators` are your own (see `jangin.custom`), and so are `formats`, which are asked before
    Jangin's (see `jangin.frontends.format`); a model that is compiled with some, or for a target of your
    own, is not cached.
    `isolated`: compile in a process of its own, whose memory is the system's again when it ends; by default
    so where this process hasn't loaded the compiler yet, and never with anything of your own.
    Raises CompileError with the node, its operator and what to do about it, ValueError for an unknown
    target, and LoadError for `tune` where this machine can't run the target's code."""
    threads = threads if threads is not None else default_threads()
    seconds = None if tune is None else parse_seconds(tune)
    found = resolve(target)
    if seconds is not None:
        device_for(found)
    own = Extensions(operators, formats, None if isinstance(target, str) else target)
    where = cache if own.target is None else False
    request = Request(model, found, threads, shapes or {}, winograd, libraries, where, seconds, sizes or {})
    if isolated and own:
        raise ValueError("what is your own can't go to another process: leave isolated out")
    if isolated is None:
        isolated = not own and "jangin.compiler.pipeline" not in sys.modules and _has_interpreter()
    entries = None if own else request.entries
    if entries is not None and seconds is None:
        source = Source.of(model)
        request = replace(request, source=source)
        if source is not None:
            kept = entries.load(entry_name(source, request.options()), read_entry)
            if kept is not None:
                return kept
    return build_apart(request, progress) if isolated else detached(carry_out(request, progress, own)[0])


def compile(
    model: ModelSource,
    target: str | Target = "cpu",
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
) -> Runnable:
    """`build` a model and load it, on `threads` threads (by default as many as the process may use). Raises
    LoadError, before anything is compiled, where this machine can't run the target's code."""
    device = device_for(resolve(target))
    built = build(
        model, target, threads, shapes, winograd=winograd, libraries=libraries, operators=operators,
        formats=formats, cache=cache, tune=tune, sizes=sizes, progress=progress, isolated=isolated,
    )  # fmt: skip
    return executable(built, threads, host_functions(operators), device)


def device_for(target: Target) -> Device:
    """The device that runs a target's code. Raises LoadError where this machine can't."""
    device = device_of(target.device)
    reason = device.why_not(str(target))
    if reason:
        raise LoadError(
            f"this machine can't run code for {target.name}: {reason}; jangin.build, or `jangin compile -o`, "
            "makes a file for a machine that can"
        )
    return device


def _has_interpreter() -> bool:
    """Whether there is a Python to start: a frozen program's executable is the program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)
