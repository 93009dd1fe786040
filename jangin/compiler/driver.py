"""From a model to an executable: `jangin.build` and `jangin.compile`.

Where another process will compile, or drivers start, they do before what this one needs is imported: both
take as long."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, overload

from jangin.compiler.interrupts import kept_interrupts
from jangin.compiler.isolated import Apart
from jangin.environment import target_name
from jangin.runtime.system.processes import FORKS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from jangin.compiler.request import Progress
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format, ModelSource
    from jangin.ir.limits import Limits
    from jangin.runtime.compiled import Compiled
    from jangin.runtime.load import Runnable
    from jangin.targets import Target


def build(
    model: ModelSource,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    weights: str | Path | None = None,
    winograd: bool = True,
    libraries: str = "never",
    unchecked: bool = False,
    bf16: bool = True,
    operators: Sequence[CustomOperator] = (),
    formats: Sequence[Format] = (),
    cache: bool | str | Path = True,
    tune: str | float | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
    isolated: bool | None = None,
    limits: Limits | None = None,
) -> Compiled:
    """Compile a model (path, bytes or message; of any format that Jangin knows, or of `formats`) for any
    target, whether this machine runs its code or not. `save` writes what comes back as a file that
    `jangin.load` reads.

    `weights`: the path of a Caffe or Darknet model's weights, where they don't lie beside it under its stem.

    `target`: a name ("cpu" is this machine), or one of your own with its back end and device (see
    `jangin.targets.target`); by default what the environment's JANGIN_TARGET names, or else "cpu".
    `threads`: how many it will run on, which tuned kernels are for.
    `shapes` binds symbolic sizes, `winograd` allows its rounding, `libraries` other makers' kernels,
    `unchecked` indices that no run checks, `bf16` a processor's products of 16 bits (see `Options`);
    `cache`: keep and reuse compiled models and what tuning found for this machine, True for the user's cache
    folder, a path for another, False for none;
    `tune`: seconds ("60s", "2m") to measure candidates first, for `sizes` of the symbols;
    `progress(done, total, what)`.
    `operators` are your own (see `jangin.custom`). `formats` are asked before Jangin's: your own (see
    `jangin.frontends.format`), or Jangin's with settings, such as `GgufFormat(cache="int8")`. A model that is
    compiled with something of your own, a target too, is not cached.
    `limits`: what compiling may take of time, memory and nodes (see `jangin.Limits`).
    `isolated`: compile in a process of its own, whose memory is the system's again when it ends; by default
    so where this process hasn't loaded the compiler yet, and never with anything of your own.
    Raises CompileError with the node, its operator and what to do about it, ValueError for an unknown
    target, and LoadError for `tune` where this machine can't run the target's code."""
    with kept_interrupts(), _compiler(isolated, cache, target, operators, formats) as apart:
        from jangin.compiler import local

        return local.build(
            apart, model, target, threads, shapes, weights=weights, winograd=winograd,
            libraries=libraries, unchecked=unchecked, bf16=bf16, operators=operators,
            formats=formats, cache=cache, tune=tune, sizes=sizes,
            progress=progress, limits=limits,
        )  # fmt: skip


@overload
def compile(
    model: ModelSource,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    example_inputs: None = None,
    **options: Any,
) -> Runnable: ...


@overload
def compile(
    model: object,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> Any: ...


def compile(
    model: Any,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    weights: str | Path | None = None,
    operators: Sequence[CustomOperator] = (),
    formats: Sequence[Format] = (),
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> Any:
    """`build` a model, with its `options`, and load it, on `threads` threads (by default as many as the
    process may use).

    A PyTorch module is read by running it on `example_inputs` and `example_kwargs`, with the sizes free that
    `dynamic_shapes` says (see `torch.export.export`); what comes back is called as the module is. Raises
    LoadError, before anything is compiled, where this machine can't run the target's code."""
    isolated = options.pop("isolated", None)
    cache = options.get("cache", True)
    with kept_interrupts(), _compiler(isolated, cache, target, operators, formats) as apart:
        from jangin.runtime.device import begin

        name = target_name() if target is None else target
        if isinstance(name, str):
            begin(name)
        from jangin.compiler import local

        return local.compile(
            apart, model, target, threads, shapes, example_inputs, example_kwargs, dynamic_shapes, operators,
            formats, weights=weights, **options,
        )  # fmt: skip


def _compiler(
    isolated: bool | None,
    cache: bool | str | Path,
    target: object,
    operators: object,
    formats: Sequence[Format],
) -> AbstractContextManager[Apart | None]:
    """The process that is to compile, None for this one. It starts when it is asked for something, or, where
    nothing that was compiled before can be found, at once."""
    own = bool(operators or _foreign(formats)) or not (target is None or isinstance(target, str))
    if isolated and own:
        raise ValueError("what is your own can't go to another process: leave isolated out")
    if isolated is None:
        loaded = "jangin.compiler.pipeline" in sys.modules
        isolated = FORKS and not own and not loaded and _has_interpreter()
    if not isolated:
        return nullcontext()
    return Apart(at_once=cache is False or _is_empty(None if cache is True else cache))


def _is_empty(folder: str | Path | None) -> bool:
    from jangin.compiler.cache import Cache

    return Cache(folder).is_empty()


def _foreign(formats: Sequence[Format]) -> Sequence[Format]:
    if not formats:
        return ()
    from jangin.compiler.local import foreign

    return foreign(formats)


def _has_interpreter() -> bool:
    """Whether there is a Python to start: a frozen program's executable is the program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)
