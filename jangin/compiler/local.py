"""What the caller's process does to compile: looks for what was compiled and tuned here before, has made what
wasn't, and loads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jangin.compiler.isolated import Apart
from jangin.compiler.options import Extensions
from jangin.compiler.request import Progress, Request, carry_out, entry_name, parse_seconds
from jangin.compiler.source import Source
from jangin.frontends.format import Example, is_live, paired, written
from jangin.frontends.table import is_own, prepare
from jangin.ir.limits import Limits, chosen
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.compiled import checked, detached, read_artifact
from jangin.runtime.device import Device, LoadError, device_of
from jangin.runtime.load import executable, host_functions
from jangin.runtime.threads import counted
from jangin.targets import Target, origin, resolve

if TYPE_CHECKING:
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format, ModelSource
    from jangin.runtime.compiled import Compiled
    from jangin.runtime.load import Runnable

T = TypeVar("T")


def build(apart: Apart | None, model: ModelSource, *given: Any, **options: Any) -> Compiled:
    """`driver.build`, by the process `apart` or this one."""
    if is_live(model):
        model = prepare(model, Example(), options.get("formats", ())).model
    return _made(lambda made: made, apart, model, *given, **options)


def _made(
    use: Callable[[Compiled], T],
    apart: Apart | None,
    model: ModelSource,
    target: str | Target | None,
    threads: int | None,
    shapes: Mapping[str, Any] | None,
    *,
    hashed: Callable[[], Source | None] | None = None,
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
    limits: Limits | None = None,
) -> T:
    """What `use` gives for what is compiled, or was before: then constants are checked beside it, and where
    one is damaged all is made again. `hashed`: gives what the model is read from."""
    model = paired(model, weights)
    threads = counted(threads)
    seconds = None if tune is None else parse_seconds(tune)
    found = resolve(target)
    if "jgn" not in found.outputs:
        made = " or ".join(found.outputs)
        raise ValueError(
            f"no .jgn file is made for {found.name}{origin(target)}: jangin.emit(kind={made!r}) compiles "
            "for it"
        )
    if seconds is not None or len(found.each) > 1:
        device_for(found, origin(target))
    own = Extensions(operators, foreign(formats), target if isinstance(target, Target) else None)
    where = cache if own.target is None else False
    with nullcontext(model) if apart is None else written(model) as given:
        request = Request(
            given, found, threads, shapes or {}, winograd, libraries, where, seconds, sizes or {},
            unchecked, [f for f in formats if is_own(f)], bf16=bf16, limits=chosen(limits),
        )  # fmt: skip
        entries = None if own else request.entries
        if entries is not None and seconds is None:
            source = Source.of(given) if hashed is None else hashed()
            request = replace(request, source=source)
            if source is not None:
                name = entry_name(source, request.options())
                kept = entries.load(name, read_artifact)
                if kept is not None:
                    used = use(kept)
                    try:
                        checked(kept)
                        return used
                    except ArtifactError:
                        entries.discard(name)
        if apart is None:
            return use(detached(carry_out(request, progress, own)[0]))
        return use(apart.build(request, progress))


def compile(
    apart: Apart | None,
    model: Any,
    target: str | Target | None,
    threads: int | None,
    shapes: Mapping[str, Any] | None,
    example_inputs: Sequence[Any] | None,
    example_kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    operators: Sequence[CustomOperator],
    formats: Sequence[Format],
    **options: Any,
) -> Any:
    """`driver.compile`, by the process `apart` or this one."""
    hashed, live = None, None
    traced = example_inputs is not None or example_kwargs is not None or is_live(model)
    if not traced and isinstance(model, (str, os.PathLike)) and options.get("cache", True):
        hashed = Source.begun(paired(model, options.get("weights")))
    device = device_for(resolve(target), origin(target))
    if traced:
        example = Example(example_inputs or (), example_kwargs or {}, dynamic_shapes)
        live = prepare(model, example, formats)
        model = live.model

    def load(made: Compiled) -> Runnable:
        return executable(made, threads, host_functions(operators), device)

    loaded = _made(
        load, apart, model, target, threads, shapes, operators=operators, formats=formats, hashed=hashed,
        **options,
    )  # fmt: skip
    return loaded if live is None else live.finished(loaded)


def foreign(formats: Sequence[Format]) -> list[Format]:
    """Those that aren't Jangin's."""
    return [f for f in formats if not is_own(f)]


def device_for(target: Target, origin: str = "") -> Device | None:
    """The device that runs a target's code; None where the target is several, each of which is here. Raises
    LoadError, with the target's `origin`, where this machine can't."""
    found = [_device(one, origin) for one in target.each]
    return found[0] if len(found) == 1 else None


def _device(target: Target, origin: str) -> Device:
    device = device_of(target.device)
    reason = device.why_not(str(target))
    if reason:
        raise LoadError(
            f"this machine can't run code for {target.name}{origin}: {reason}; jangin.build, or "
            "`jangin compile -o`, makes a file for a machine that can"
        )
    return device
