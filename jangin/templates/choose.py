"""The templates, in one table, and the choice among their candidates for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.ir.loop import Func
from jangin.schedule.normalize import simplify_func
from jangin.templates import contraction, elementwise, rows, window
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import Problem, Template

TEMPLATES: Mapping[str, Callable[[Problem], Template | None]] = {
    "contraction": contraction.match,
    "window": window.match,
    "elementwise": elementwise.match,
    "rows": rows.match,
}
"""By name, most special first."""


def choose(problem: Problem) -> Scheduled:
    """The kernel scheduled by the first template that fits; `rows` fits everything."""
    for match in TEMPLATES.values():
        found = match(problem)
        if found is not None:
            return found.schedule(found.space()[0])
    raise AssertionError("the last template fits every kernel")


NEST_COST = 2000.0
"""Vector operations taken for one task of a nest: most (a sort, a recurrence) are worth a hand-out."""


def opaque(func: Func) -> Scheduled:
    """A kernel that came as a loop nest runs as it is; its own parallel loop, if any, gives the tasks."""
    return Scheduled("nest", simplify_func(func), (), cost=NEST_COST)
