"""A program's regions, made ready to run: each step is a function of the values and sizes so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jangin.host.table import HostFunction
from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import Value
from jangin.ir.program import Bind, Branch, HostCall, Loop, Region, Segment, Slicing, Step
from jangin.ir.simplify import Range, linear
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars, substitute
from jangin.ir.types import ANY
from jangin.runtime.executable import Executable
from jangin.runtime.flow import Driver, Flow, FlowRunner, flows, outputs, reads
from jangin.runtime.script import StepError
from jangin.runtime.sizes import Evaluator, same_as

Values = dict[str, Any]
Symbols = dict[Var, int]
Compute = Callable[[Values, Symbols], Sequence[Any]]
Runner = Callable[[Values, Symbols], None]
_OTHER_RANGE = "; where it is an input's, compile the model again with another range for it in shapes="


class Resources:
    """The state that regions share: segments, host functions, constants and the symbols' ranges.

    It also has `driver`, the native code that runs flows, and `flows`, all of those flows."""

    def __init__(
        self,
        segments: Sequence[Executable],
        functions: Mapping[str, HostFunction],
        constants: Mapping[str, Any],
        ranges: Mapping[Var, Range],
        driver: Driver | None,
    ) -> None:
        self.segments, self.functions, self.constants = segments, functions, constants
        self.driver = driver
        self.flows: list[FlowRunner] = []
        self.ranges = {v: tuple(_number(e) for e in r) for v, r in ranges.items()}

    def check(self, var: Var, size: int, what: str, remedy: str = "") -> None:
        low, high = self.ranges.get(var, (None, None))
        if (low is not None and size < low) or (high is not None and size > high):
            limits = f"{'any' if low is None else low} to {'any' if high is None else high}"
            raise StepError(f"{what}: the size {var} is {size}, but may be {limits}{remedy}")


def _number(e: Expr | None) -> int | None:
    return int(e.value) if isinstance(e, Const) else None


class RegionRunner:
    """Runs a region. Values are dropped after their last use. `known` are the symbols that have a value
    before the region runs. For `joined` see `Graph`."""

    def __init__(
        self,
        region: Region,
        resources: Resources,
        known: frozenset[Var] = frozenset(),
        joined: Mapping[str, Sources] | None = None,
    ) -> None:
        self.inputs, self.outputs = region.inputs, region.outputs
        dims = {n: region.values[n].shape for n in region.inputs}
        why = partial(same_as, joined or {}, dims)
        self._inputs = [Matcher(region.values[n], resources, why=partial(why, n)) for n in region.inputs]
        steps: Sequence[Step | Flow] = region.steps
        if resources.driver is not None:
            steps = flows(region, resources.segments, known)
        read = {n for s in steps for n in reads(s)} | {*region.outputs}
        self._fixed = {n: a for n, a in resources.constants.items() if n in read}
        self._steps = [(_runner(s, region, resources), dead) for s, dead in _with_deaths(region, steps)]

    def __call__(self, given: Sequence[Any], symbols: Symbols) -> list[Any]:
        """Run the region on inputs in order, and return its outputs. Sizes that become known are added to
        `symbols`."""
        values: Values = {**self._fixed, **dict(zip(self.inputs, given, strict=True))}
        for value, match in zip(given, self._inputs, strict=True):
            match(value, symbols)
        for run, dead in self._steps:
            run(values, symbols)
            for name in dead:
                del values[name]
        return [values[n] for n in self.outputs]


def _with_deaths(region: Region, steps: Sequence[Step | Flow]) -> list[tuple[Step | Flow, list[str]]]:
    """Return each step with the names of the values that no later step needs."""
    needed = set(region.outputs)
    defined = {*region.inputs, *(o for s in steps for o in outputs(s))}
    deaths: list[tuple[Step | Flow, list[str]]] = []
    for step in reversed(steps):
        touched = {*reads(step), *outputs(step)} & defined
        deaths.append((step, sorted(touched - needed)))
        needed |= touched
    return deaths[::-1]


class Matcher:
    """Compares a tensor's shape with the declared one, and binds the symbols that aren't known yet. Raises
    StepError if they differ. `why` returns the end of the message for an axis of another size."""

    def __init__(
        self, value: Value, resources: Resources, what: str = "", why: Callable[[int], str] = lambda _: ""
    ) -> None:
        self.what, self.why = what or value.name, why
        shape = value.type.shape if value.type is not None else value.shape
        tensor = value.type is None or value.type.kind == "tensor"
        dims = shape if tensor and shape is not None and ANY not in shape else None
        self.dims = None if dims is None else tuple(int(d.value) if isinstance(d, Const) else d for d in dims)
        self.dtype = None if value.dtype is None else value.dtype.numpy
        self.resources = resources

    def __call__(self, value: Any, symbols: Symbols) -> None:
        if self.dims is None:
            return
        if not isinstance(value, np.ndarray):
            raise StepError(f"{self.what} should be a tensor, not a {type(value).__name__}")
        if self.dtype is not None and value.dtype != self.dtype:
            raise StepError(f"{self.what} should be of {self.dtype}, not {value.dtype}")
        if value.shape == self.dims:
            return
        if len(value.shape) != len(self.dims):
            raise StepError(f"{self.what} should be of rank {len(self.dims)}, not of shape {value.shape}")
        for dim, size in zip(self.dims, value.shape, strict=True):
            if isinstance(dim, Var) and dim not in symbols:
                self.resources.check(dim, size, self.what, _OTHER_RANGE)
                symbols[dim] = size
        for axis, (dim, size) in enumerate(zip(self.dims, value.shape, strict=True)):
            if isinstance(dim, int):
                expected = dim
            else:
                expected = symbols[dim] if isinstance(dim, Var) else self._size(dim, size, symbols)
            if expected != size:
                raise StepError(
                    f"{self.what} has shape {value.shape}, but axis {axis} should have {expected} ({dim})"
                    f"{self.why(axis)}"
                )

    def _size(self, dim: Expr, size: int, symbols: Symbols) -> int:
        """Return the declared size of an axis. If one symbol of it is unknown and the size is linear in it,
        the symbol is solved for."""
        unknown = free_vars(dim) - symbols.keys()
        if len(unknown) == 1:
            (var,) = unknown
            match linear(substitute(dim, {v: const(n) for v, n in symbols.items()}), var):
                case Const(value=slope), Const(value=rest) if slope:
                    symbols[var] = (size - int(rest)) // int(slope)
        return Evaluator(symbols)(dim)


def _runner(step: Step | Flow, region: Region, resources: Resources) -> Runner:
    if isinstance(step, Flow):
        return _flow(step, region, resources)
    if isinstance(step, Segment):
        return _segment(step, resources)
    if isinstance(step, Bind):
        return _bind(step, resources)
    matches = [Matcher(region.values[n], resources, f"{step.source}: {n}") for n in step.outputs]
    compute: Compute = {HostCall: _host, Branch: _branch, Loop: _loop}[type(step)](step, resources)  # type: ignore[operator]
    outputs = step.outputs

    def run(values: Values, symbols: Symbols) -> None:
        results = compute(values, symbols)
        for name, match, result in zip(outputs, matches, results, strict=True):
            match(result, symbols)
            values[name] = result

    return run


def _flow(flow: Flow, region: Region, resources: Resources) -> Runner:
    assert resources.driver is not None
    native = FlowRunner(flow, region, resources.segments, resources.constants, resources.driver)
    resources.flows.append(native)
    loop = flow.counted
    if loop is None:
        return native
    matches = [(n, Matcher(region.values[n], resources, f"{loop.source}: {n}")) for n in loop.stacks]

    def run(values: Values, symbols: Symbols) -> None:
        native(values, symbols)
        for name, match in matches:
            match(values[name], symbols)

    return run


def _segment(step: Segment, resources: Resources) -> Runner:
    exe = resources.segments[step.plan]
    wanted = tuple(v for v, _ in exe.plan.symbols)
    inputs, outputs = step.inputs, step.outputs

    def run(values: Values, symbols: Symbols) -> None:
        arrays = [np.ascontiguousarray(values[n]) if values[n].ndim else values[n] for n in inputs]
        results = exe.execute(arrays, tuple(symbols[v] for v in wanted))
        values.update(zip(outputs, results, strict=True))

    return run


def _bind(step: Bind, resources: Resources) -> Runner:
    def run(values: Values, symbols: Symbols) -> None:
        for var, size in zip(step.symbols, values[step.value].reshape(-1).tolist(), strict=True):
            resources.check(var, size, str(step.source))
            symbols[var] = size

    return run


def _host(step: HostCall, resources: Resources) -> Compute:
    function, single = resources.functions[step.function], len(step.outputs) == 1

    def run(values: Values, symbols: Symbols) -> Sequence[Any]:
        try:
            outputs = function(*(values[n] if n else None for n in step.inputs), **step.attrs)
        except MemoryError as error:
            raise MemoryError(f"{step.source}: there is no memory for its results") from error
        except Exception as error:
            raise StepError(f"{step.source}: {error}") from error
        return (outputs,) if single else outputs

    return run


def _branch(step: Branch, resources: Resources) -> Compute:
    then, orelse = RegionRunner(step.then, resources), RegionRunner(step.orelse, resources)
    count = len(step.then.inputs)

    def run(values: Values, symbols: Symbols) -> Sequence[Any]:
        holds = bool(values[step.condition].reshape(-1)[0])
        names = step.inputs[:count] if holds else step.inputs[count:]
        return (then if holds else orelse)([values[n] for n in names], dict(symbols))

    return run


def _loop(step: Loop, resources: Resources) -> Compute:
    body = RegionRunner(step.body, resources)
    carries, scans = step.carried, len(step.scanned)

    def run(values: Values, symbols: Symbols) -> Sequence[Any]:
        operands = [values[n] for n in step.inputs]
        carried, scanned, rest = (
            operands[:carries],
            operands[carries : carries + scans],
            operands[carries + scans :],
        )
        limit = int(values[step.trips].item()) if step.trips else None
        going = values[step.condition] if step.condition else np.array(True)
        kept: list[list[Any]] = [[] for _ in step.collected]
        n = 0
        while (limit is None or n < limit) and going.all():
            slices = [_slice(x, s, n) for x, s in zip(scanned, step.scanned, strict=True)]
            results = body([np.array(n), going, *carried, *slices, *rest], dict(symbols))
            if step.conditional:
                going, *results = results
            carried = results[:carries]
            for group, value in zip(kept, results[carries:], strict=True):
                group.append(value)
            n += 1
        return [
            *carried,
            *(
                _stacked(g, s, step, i, symbols)
                for i, (g, s) in enumerate(zip(kept, step.collected, strict=True))
            ),
        ]

    return run


def _slice(x: Any, s: Slicing, n: int) -> Any:
    index = x.shape[s.axis] - 1 - n if s.reverse else n
    return np.asarray(x[(slice(None),) * s.axis + (index,)])


def _stacked(parts: list[Any], s: Slicing, step: Loop, index: int, symbols: Symbols) -> Any:
    """Stack the slices of all iterations to a loop's output. Without iterations, sizes that only the body
    knows are 0."""
    if parts:
        return np.stack(parts[::-1] if s.reverse else parts, s.axis)
    value = step.body.values.get(step.body.outputs[step.conditional + step.carried + index])
    if value is None or value.dtype is None or value.shape is None:
        raise StepError(f"{step.source}: no iteration ran, so that the shape of its output is not known")
    size = Evaluator(symbols)
    dims = [size(d) if free_vars(d) <= symbols.keys() else 0 for d in value.shape]
    dims.insert(s.axis if s.axis >= 0 else len(dims) + 1 + s.axis, 0)
    return np.empty(dims, value.dtype.numpy)
