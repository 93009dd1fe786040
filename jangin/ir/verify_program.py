"""The verifier of programs. Steps must read existing values of the types that they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jangin.ir.dtype import DType, from_numpy
from jangin.ir.expr import const
from jangin.ir.graph import Array, Shape
from jangin.ir.plan import Plan
from jangin.ir.program import Bind, Branch, HostCall, Loop, Program, Region, Segment, Step
from jangin.ir.verify import Scope

Kind = tuple[DType, Shape] | None
"""The type of a numeric tensor whose shape is declared; None for any other value."""


def verify_program(program: Program, plans: Sequence[Plan]) -> None:
    """Verify a program. Names must be defined before their use, counts must agree, and a plan's arguments
    must have its inputs' types."""
    scope = Scope(f"program {program.name}", {}, {})
    scope.ranges(program.symbols.items())
    constants = {n: _constant(a) for n, a in program.constants.items()}
    _Region(program, plans, constants, scope).check(program.region)
    for name in program.region.outputs:
        if name not in program.region.values:
            scope.fail(f"output {name!r} has no type")


def _constant(array: Array) -> Kind:
    if array.dtype == object:
        return None
    return from_numpy(array.dtype), tuple(const(d) for d in array.shape)


class _Region:
    """Verifies regions. A region can read the constants and its own inputs."""

    def __init__(
        self, program: Program, plans: Sequence[Plan], constants: Mapping[str, Kind], scope: Scope
    ) -> None:
        self.program, self.plans, self.constants, self.scope = program, plans, constants, scope

    def check(self, region: Region) -> None:
        known = {**self.constants, **{n: self._declared(region, n) for n in region.inputs}}
        for step in region.steps:
            if isinstance(step, Segment):
                known.update(self._segment(step, known))
                continue
            self._step(step, known)
            if not isinstance(step, Bind):
                known.update({n: self._declared(region, n) for n in step.outputs})
        self._there(region.outputs, known)

    def _there(self, names: Iterable[str], known: Mapping[str, Kind]) -> None:
        for name in names:
            if name not in known:
                self.scope.fail(f"{name!r} is read, but nothing gives it")

    def _declared(self, region: Region, name: str) -> Kind:
        value = region.values.get(name)
        if value is None:
            self.scope.fail(f"{name!r} has no type")
        if value.dtype is None or value.shape is None:
            return None
        return value.dtype, value.shape

    def _segment(self, step: Segment, known: Mapping[str, Kind]) -> dict[str, Kind]:
        if not 0 <= step.plan < len(self.plans):
            self.scope.fail(f"there is no plan {step.plan}")
        plan = self.plans[step.plan]
        if (step.inputs, step.outputs) != (plan.inputs, plan.outputs):
            self.scope.fail(f"segment {step.plan} and its plan differ in inputs or outputs")
        if not {v for v, _ in plan.symbols} <= self.program.symbols.keys():
            self.scope.fail(f"plan {step.plan} has symbols that the program has not")
        self._there(step.inputs, known)
        kinds = {b.name: (b.dtype, b.shape) for b in plan.buffers}
        for name in step.inputs:
            if known[name] != kinds[name]:
                self.scope.fail(f"{name!r} isn't of the type that plan {step.plan} takes")
        return {n: kinds[n] for n in step.outputs}

    def _step(self, step: Step, known: Mapping[str, Kind]) -> None:
        if isinstance(step, Bind):
            self._there([step.value], known)
            if not set(step.symbols) <= self.program.symbols.keys():
                self.scope.fail(f"{step.value!r} binds symbols that the program has not")
        elif isinstance(step, HostCall):
            self._there(filter(None, step.inputs), known)
        elif isinstance(step, Branch):
            self._there([step.condition, *step.inputs], known)
            for region in (step.then, step.orelse):
                self.check(region)
                self._count(region.outputs, len(step.outputs))
            self._count(step.inputs, len(step.then.inputs) + len(step.orelse.inputs))
        elif isinstance(step, Loop):
            self._there([*filter(None, (step.trips, step.condition)), *step.inputs], known)
            self.check(step.body)
            self._count(step.body.inputs, 2 + len(step.inputs))
            self._count(step.outputs, step.carried + len(step.collected))
            self._count(step.body.outputs, step.conditional + len(step.outputs))
            if not 0 <= step.carried <= len(step.inputs) - len(step.scanned):
                self.scope.fail(f"a loop carries {step.carried} of {len(step.inputs)} values")

    def _count(self, names: Sequence[str], count: int) -> None:
        if len(names) != count:
            self.scope.fail(f"{len(names)} values where {count} belong: {', '.join(names)}")
