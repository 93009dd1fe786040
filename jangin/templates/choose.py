"""The candidates for a kernel, in one table, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jangin import te
from jangin.ir.expr import Buffer, Var
from jangin.ir.loop import Func
from jangin.ir.simplify import Range
from jangin.schedule.normalize import simplify_func
from jangin.targets.target import Target
from jangin.templates import contraction, elementwise, rows, window
from jangin.templates.scheduled import Scheduled

Constants = Mapping[str, tuple[int, ...]]
Candidate = Callable[
    [str, Sequence[te.Stage], Sequence[Buffer], Mapping[Var, Range], Constants, Target], Scheduled | None
]


def _contraction(
    name: str, stages: Sequence[te.Stage], inputs: Sequence[Buffer], symbols: Mapping[Var, Range],
    constants: Constants, target: Target,
) -> Scheduled | None:  # fmt: skip
    if len(stages) != 1 or not stages[0].body.dtype.is_float:
        return None
    return contraction.schedule(name, stages[0], inputs, symbols, constants, target)


def _window(
    name: str, stages: Sequence[te.Stage], inputs: Sequence[Buffer], symbols: Mapping[Var, Range],
    constants: Constants, target: Target,
) -> Scheduled | None:  # fmt: skip
    if len(stages) != 1 or not stages[0].reduce_axes:
        return None
    return window.schedule(name, stages[0], inputs, symbols, constants, target)


def _elementwise(
    name: str, stages: Sequence[te.Stage], inputs: Sequence[Buffer], symbols: Mapping[Var, Range],
    constants: Constants, target: Target,
) -> Scheduled | None:  # fmt: skip
    if len(stages) != 1 or stages[0].reduce_axes:
        return None
    return elementwise.schedule(name, stages[0], inputs, symbols, target)


def _rows(
    name: str, stages: Sequence[te.Stage], inputs: Sequence[Buffer], symbols: Mapping[Var, Range],
    constants: Constants, target: Target,
) -> Scheduled | None:  # fmt: skip
    return rows.schedule(name, stages, inputs, symbols, target)


CANDIDATES: Mapping[str, Candidate] = {
    "contraction": _contraction,
    "window": _window,
    "elementwise": _elementwise,
    "rows": _rows,
}
"""By template name, most special first: the first that fits is taken."""


def choose(
    name: str,
    stages: Sequence[te.Stage],
    inputs: Sequence[Buffer],
    symbols: Mapping[Var, Range],
    constants: Constants,
    target: Target,
) -> Scheduled:
    """The kernel scheduled by the first template that fits; `rows` fits everything."""
    for candidate in CANDIDATES.values():
        found = candidate(name, stages, inputs, symbols, constants, target)
        if found is not None:
            return found
    raise AssertionError("the last template fits every kernel")


NEST_COST = 2000.0
"""Vector operations taken for one task of a nest: most (a sort, a recurrence) are worth a hand-out."""


def opaque(func: Func) -> Scheduled:
    """A kernel that came as a loop nest runs as it is; its own parallel loop, if any, gives the tasks."""
    return Scheduled("nest", simplify_func(func), (), cost=NEST_COST)
