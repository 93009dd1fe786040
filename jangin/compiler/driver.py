"""The compilation of a model to an executable: `jangin.build` and `jangin.compile`.

Another process that compiles, or a device's driver, is started before this process imports what it needs,
because both take as long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

from jangin.compiler.processes.interrupts import kept_interrupts
from jangin.environment import target_name
from jangin.options import Given, Options, Ready, takes
from jangin.runtime.collecting import uncollected
from jangin.runtime.system.processes import FORKS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from jangin.compiler.processes.isolated import Apart
    from jangin.compiler.request import Progress
    from jangin.frontends.format import ModelSource
    from jangin.runtime.compiled import Compiled
    from jangin.runtime.load import Runnable
    from jangin.targets import Target


@takes(Given)
def build(
    model: ModelSource,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
    **given: Unpack[Given],
) -> Compiled:
    """Compile a model for any target, whether or not this machine can run its code. `save` writes the result
    as a file that `jangin.load` reads.

    `model` is a path, bytes or a message, of any format that Jangin knows, or of `formats`.

    `target` is a name ("cpu" is this machine), or a target of your own with its back end and device (see
    `jangin.targets.target`). The default is the target that the environment's JANGIN_TARGET names, or else
    "cpu".

    `threads` is the number of threads that the model will run on. Tuned kernels are for this number.

    `shapes` binds sizes. {"batch": 1} binds a symbol, {"seq": (1, 512)} its inclusive range, {"image": (1, 3,
    224, 224)} a whole input.

    `progress(done, total, what)` is called at each step.

    A model that is compiled with a target, format or operator of your own isn't cached.

    Raises CompileError with the node, its operator and a remedy. Raises ValueError for an unknown target and
    TypeError for an unknown option. Raises LoadError for `tune` if this machine can't run the target's code.
    """
    return build_by(Options(target, shapes, threads, **given), model, progress)


def build_by(options: Options, model: ModelSource, progress: Progress | None = None) -> Compiled:
    """Do what `build` does, with the options in one record."""
    with kept_interrupts(), _compiler(options) as apart:
        from jangin.compiler import local

        return local.build(apart, model, options, progress)


@overload
def compile(
    model: ModelSource,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    example_inputs: None = None,
    progress: Progress | None = None,
    **given: Unpack[Ready],
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
    progress: Progress | None = None,
    **given: Unpack[Ready],
) -> Any: ...


@takes(Ready)
def compile(
    model: Any,
    target: str | Target | None = None,
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    progress: Progress | None = None,
    **given: Unpack[Ready],
) -> Any:
    """Build a model as `build` does, and load it, on `threads` threads (by default as many as the process may
    use).

    A PyTorch module is exported by running it on `example_inputs` and `example_kwargs`, with the free sizes
    of `dynamic_shapes` (see `torch.export.export`). The result is called like the module. Raises LoadError,
    before anything is compiled, if this machine can't run the target's code."""
    example = example_inputs, example_kwargs, dynamic_shapes
    return compile_by(Options(target, shapes, threads, **given), model, progress, *example)


def compile_by(options: Options, model: Any, progress: Progress | None = None, *example: Any) -> Any:
    """Do what `compile` does, with the options in one record. `example` holds the inputs, keyword inputs and
    free sizes with which a PyTorch module is exported."""
    if not options.wait and _may_go_ahead(options, model, example):
        with uncollected():
            from jangin.compiler.awaited import ready_soon

            return ready_soon(model, options, progress, _lacks_all(options))
    with kept_interrupts(), _compiler(options) as apart:
        from jangin.runtime.device import begin

        name = target_name() if options.asked is None else options.asked
        if isinstance(name, str):
            begin(name)
        from jangin.compiler import local

        again = partial(compile_by, options, model, progress, *example)
        return local.compile(apart, model, options, progress, again, *example)


def _may_go_ahead(options: Options, model: Any, example: Sequence[Any]) -> bool:
    """Return whether a model can run before it is compiled. It is compiled by another process, from a file or
    from bytes that can't change meanwhile, and with nothing of the caller's own."""
    simple = isinstance(model, (str, os.PathLike, bytes)) and all(e is None for e in example)
    alone = FORKS and _has_interpreter() and options.isolated is not False
    if not simple or not alone or options.own or options.tune is not None:
        return False
    return options.for_host or len(options.target.each) == 1


def _compiler(options: Options) -> AbstractContextManager[Apart | None]:
    """Return the other process that compiles, or None to compile in this one. The process starts at the first
    request, or at once if the cache is off or empty.

    By default another process compiles if the system can fork, this process hasn't compiled yet, and the
    options hold no code of the caller's. Raises ValueError for `isolated` with code of the caller's."""
    isolated = options.isolated
    if isolated and options.own:
        raise ValueError(
            "targets, formats and operators of your own can't go to another process: leave isolated out"
        )
    if isolated is None:
        loaded = "jangin.compiler.pipeline" in sys.modules
        isolated = FORKS and not loaded and _has_interpreter() and not options.own
    if not isolated:
        return nullcontext()
    from jangin.compiler.processes.isolated import Apart

    return Apart(at_once=_lacks_all(options))


def _lacks_all(options: Options) -> bool:
    """Return whether the cache is off or empty, so that it can't have the model."""
    from jangin.compiler.cache import Cache

    cache = options.cache
    return cache is False or Cache(None if isinstance(cache, bool) else cache).is_empty()


def _has_interpreter() -> bool:
    """Return whether `sys.executable` is a Python interpreter. A frozen program's executable is the program
    itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)
