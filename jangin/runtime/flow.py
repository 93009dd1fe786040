"""Branches and loops run by native code, without Python between their segments.

Consecutive steps whose sizes are all known before the first of them are one *flow*. A flow may end with a
loop of which only the number of collected slices is unknown. For given sizes the flow becomes a script
(`runtime.script`). A run inserts the addresses of its inputs and outputs, and makes one call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.expr import Var
from jangin.ir.graph import Value
from jangin.ir.program import Bind, Branch, HostCall, Loop, Region, Segment, Slicing, Step
from jangin.ir.records import dataclass
from jangin.ir.traversal import free_vars
from jangin.runtime.executable import Executable
from jangin.runtime.idle import kept, renewed_in_children
from jangin.runtime.layout import LAYOUTS
from jangin.runtime.script import Script

Driver = Callable[[int], int]
"""The function `jangin_flow`, which runs the operations at an address and returns 0 or the failure's
number."""


@dataclass(frozen=True)
class Flow:
    """Consecutive steps of a region that native code runs in one call. `inputs` are values from other steps,
    and `outputs` are values that other steps read. `counted` is the last step if it is a loop that counts its
    collected slices."""

    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    counted: Loop | None = None


def flows(region: Region, segments: Sequence[Executable], known: Iterable[Var]) -> list[Step | Flow]:
    """Return a region's steps, in which consecutive native steps are joined to flows. Native steps without a
    branch or loop among them aren't joined. `known` are the symbols that have a value before the region's
    inputs are given."""
    sized = {*known, *_symbols(region.values[n] for n in region.inputs)}
    steps: list[Step | Flow] = []
    run: list[Step] = []
    for at, step in enumerate(region.steps):
        if _is_native(step, region, segments, sized):
            run.append(step)
            continue
        if isinstance(step, Loop) and _is_counted(step, region, segments, sized):
            steps += _joined([*run, step], region, region.steps[at + 1 :], step)
        else:
            steps += [*_joined(run, region, region.steps[at:]), step]
        run = []
        sized.update(step.symbols if isinstance(step, Bind) else ())
        names = () if isinstance(step, (Bind, Segment)) else step.outputs
        sized.update(_symbols(region.values[n] for n in names))
    return steps + _joined(run, region, ())


def _joined(
    run: Sequence[Step], region: Region, rest: Sequence[Step], counted: Loop | None = None
) -> list[Step | Flow]:
    if not any(isinstance(s, (Branch, Loop)) for s in run):
        return list(run)
    defined = {o for s in run for o in outputs(s)}
    read = dict.fromkeys(n for s in run for n in reads(s))
    needed = {n for s in rest for n in reads(s)} | {*region.outputs, *(counted.stacks if counted else ())}
    inputs = tuple(n for n in read if n not in defined)
    return [Flow(tuple(run), inputs, tuple(sorted(defined & needed)), counted)]


def reads(step: Step | Flow) -> tuple[str, ...]:
    """Return the names of the values that a step takes from its region."""
    if isinstance(step, Bind):
        return (step.value,)
    if isinstance(step, Branch):
        return (step.condition, *step.inputs)
    if isinstance(step, Loop):
        return (*filter(None, (step.trips, step.condition)), *step.inputs)
    return tuple(filter(None, step.inputs))


def outputs(step: Step | Flow) -> tuple[str, ...]:
    """Return the names of the values that a step gives to its region."""
    return () if isinstance(step, Bind) else step.outputs


def _symbols(values: Iterable[Value]) -> Iterator[Var]:
    for value in values:
        shape = value.type.shape if value.type is not None else value.shape
        for dim in shape or ():
            yield from free_vars(dim)


def _is_native(step: Step, region: Region, segments: Sequence[Executable], known: set[Var]) -> bool:
    if isinstance(step, Segment):
        return {v for v, _ in segments[step.plan].plan.symbols} <= known
    if isinstance(step, HostCall):
        return step.function == "Raise"
    if isinstance(step, Bind) or not all(_is_sized(region.values[n], known) for n in step.outputs):
        return False
    return _has_native_bodies(step, segments, known)


def _is_counted(step: Loop, region: Region, segments: Sequence[Executable], known: set[Var]) -> bool:
    """Return whether everything about a loop is known before it runs, except the number of collected
    slices."""
    carried = [region.values[n] for n in step.outputs[: step.carried]]
    stacked = [region.values[n] for n in step.stacks]
    if any(s != Slicing() for s in step.collected) or any(v.type or v.shape is None for v in stacked):
        return False
    slices = (replace(v, shape=v.shape[1:]) for v in stacked if v.shape)
    if not all(_is_sized(v, known) for v in (*carried, *slices)):
        return False
    return _has_native_bodies(step, segments, known)


def _has_native_bodies(step: Branch | Loop, segments: Sequence[Executable], known: set[Var]) -> bool:
    inner = (step.then, step.orelse) if isinstance(step, Branch) else (step.body,)
    return all(
        all(_is_sized(v, known) for v in body.values.values())
        and all(_is_native(s, body, segments, known) for s in body.steps)
        for body in inner
    )


def _is_sized(value: Value, known: set[Var]) -> bool:
    return (value.type is None or value.type.is_numeric) and known.issuperset(_symbols([value]))


class FlowRunner:
    """Runs a flow. Calls at once from several threads each use their own script."""

    def __init__(
        self,
        flow: Flow,
        region: Region,
        segments: Sequence[Executable],
        constants: Mapping[str, Any],
        driver: Driver,
    ) -> None:
        self._flow, self._region, self._segments, self._constants = flow, region, segments, constants
        self._driver = driver
        self._inputs = [n for n in flow.inputs if n not in constants]
        self._idle: OrderedDict[Any, list[Script]] = OrderedDict()
        self._lock = threading.Lock()
        self._kept = kept()
        renewed_in_children(self)

    def release(self) -> None:
        """Drop the scripts and working memory of finished runs."""
        self._idle.clear()

    def renew(self) -> None:
        """Drop locks and working memory, in a forked process (see `jangin.runtime.idle`)."""
        self._lock = threading.Lock()
        self.release()

    def __call__(self, values: dict[str, Any], symbols: dict[Var, int]) -> None:
        arrays = [values[n] for n in self._inputs]
        arrays = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
        key = (tuple(symbols.values()), *[a.shape for a in arrays])
        with self._lock:
            idle = self._idle.setdefault(key, [])
            self._idle.move_to_end(key)
            if len(self._idle) > LAYOUTS:
                self._idle.popitem(last=False)
            script = idle.pop() if idle else None
        if script is None:
            f = self._flow
            script = Script(
                f.steps, self._region, self._inputs, f.outputs, arrays, self._segments, self._constants,
                symbols, f.counted,
            )  # fmt: skip
        try:
            outputs = script.run(self._driver, arrays)
        finally:
            if len(idle) < self._kept:
                idle.append(script)
        values.update(zip(self._flow.outputs, outputs, strict=True))
