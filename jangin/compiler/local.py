"""The caller's part of a compilation: look for a cached result and tuned kernels, have a missing model built,
and load it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from jangin.compiler.cache import Cache
from jangin.compiler.request import Progress, Request, carry_out, entry_name
from jangin.compiler.source import Source
from jangin.environment import origin
from jangin.frontends.format import Example, is_live, paired, written
from jangin.frontends.table import prepare
from jangin.options import LATENCY, Options
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.compiled import checked, detached, read_artifact, warn_of_time
from jangin.runtime.device import Device, LoadError, device_of
from jangin.runtime.load import executable, host_functions
from jangin.runtime.threads import counted

if TYPE_CHECKING:
    from jangin.compiler.processes.isolated import Apart
    from jangin.frontends.format import ModelSource
    from jangin.runtime.compiled import Compiled
    from jangin.runtime.load import Runnable
    from jangin.targets import Target

T = TypeVar("T")


def build(apart: Apart | None, model: ModelSource, options: Options, progress: Progress | None) -> Compiled:
    """Do what `driver.build` does, in the process `apart` if it is given, else in this one."""
    if is_live(model):
        model = prepare(model, Example(), options.formats).model
    options = _settled(model, options)
    compiled = _made(lambda made: made, apart, model, options, progress)
    warn_of_time(compiled.metadata)
    return compiled


def _made(
    use: Callable[[Compiled], T],
    apart: Apart | None,
    model: ModelSource,
    options: Options,
    progress: Progress | None,
    hashed: Callable[[], Source | None] | None = None,
) -> T:
    """Return the result of `use` for the compiled model, from the cache or newly built.

    A cached model's constants are checked after `use` has run. If one is damaged, the model is built again,
    and `use` is called for the new one. `hashed` returns the model's source if its hash was begun earlier."""
    model = paired(model, options.weights)
    target, named_by = options.target, origin(options.asked)
    if not (
        options.asked is None or isinstance(options.asked, str)
    ):  # nothing tells it from another target of the same name
        options = options.but(cache=False)
    request = Request(model, options.but(threads=counted(options.threads)))
    if "jgn" not in target.outputs:
        kinds = " or ".join(map(repr, target.outputs))
        raise ValueError(
            f"no .jgn file is made for {target.name}{named_by}: jangin.emit(kind={kinds}) compiles for it"
        )
    if request.budget is not None or len(target.each) > 1:
        device_for(target, named_by)
    with nullcontext(model) if apart is None else written(model) as portable:
        request = replace(request, model=portable)
        entries = None if options.own else request.entries
        if entries is not None and options.tune is None:
            source = Source.of(portable) if hashed is None else hashed()
            request = replace(request, source=source)
            used = _kept(use, request, entries)
            if used is not None:
                return used
        if apart is None:
            return use(detached(carry_out(request, progress)[0]))
        return use(apart.build(request, progress))


def _kept(use: Callable[[Compiled], T], request: Request, entries: Cache) -> T | None:
    """Return the result of `use` for the compiled model in the cache, or None if the cache doesn't have
    it."""
    if request.source is None:
        return None
    name = entry_name(request.source, request.options())
    artifact = entries.load(name, read_artifact)
    if artifact is None:
        return None
    used = use(artifact)
    try:
        checked(artifact)
    except ArtifactError:
        entries.discard(name)
        return None
    return used


def kept(model: ModelSource, options: Options, source: Source) -> Runnable | None:
    """Return the model of this source from the cache, ready to run, or None if the cache doesn't have it."""
    request = Request(paired(model, options.weights), options.but(threads=counted(options.threads)), source)
    entries = request.entries
    return None if entries is None else _kept(partial(_ready, options, None), request, entries)


def _ready(options: Options, device: Device | None, made: Compiled) -> Runnable:
    warn_of_time(made.metadata)
    return executable(made, options.threads, host_functions(options.operators), device)


def compile(
    apart: Apart | None,
    model: Any,
    options: Options,
    progress: Progress | None,
    again: Callable[[], Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Any:
    """Do what `driver.compile` does, in the process `apart` if it is given, else in this one. `again` does
    the same for a live model, from the beginning."""
    hashed, live = None, None
    traced = example_inputs is not None or example_kwargs is not None or is_live(model)
    if not traced:
        options = _settled(model, options)
    if not traced and isinstance(model, (str, os.PathLike)) and options.cache:
        hashed = Source.begun(paired(model, options.weights))
    device = device_for(options.target, origin(options.asked))
    if traced:
        inputs = () if example_inputs is None else example_inputs
        example = Example(inputs, example_kwargs or {}, dynamic_shapes)
        live = prepare(model, example, options.formats)
        model = live.model
        options = _settled(model, options)
        device = device_for(options.target, origin(options.asked))

    loaded = _made(partial(_ready, options, device), apart, model, options, progress, hashed)
    if live is None:
        return loaded
    assert again is not None, "a live model comes from the driver"
    return live.finished(loaded, again)


def _settled(model: ModelSource, options: Options) -> Options:
    """Return the options with the device and threads that suit their objective (see `objective.settle`)."""
    if options.objective == LATENCY:
        return options
    from jangin.compiler.objective import settle

    return settle(model, options)


def confirm(options: Options) -> None:
    """Raise ValueError for a wrong target or number of threads, and LoadError for a target that this machine
    can't run."""
    counted(options.threads)
    device_for(options.target, origin(options.asked))


def device_for(target: Target, origin: str = "") -> Device | None:
    """Return the device that runs a target's code, or None for a target of several devices. Raises LoadError,
    with the target's `origin`, if this machine lacks one of them."""
    devices = [_device(one, origin) for one in target.each]
    return devices[0] if len(devices) == 1 else None


def _device(target: Target, origin: str) -> Device:
    device = device_of(target.device)
    reason = device.why_not(str(target))
    if reason:
        raise LoadError(
            f"this machine can't run code for {target.name}{origin}: {reason}; jangin.build, or "
            "`jangin compile -o`, makes a file for a machine that can"
        )
    return device
