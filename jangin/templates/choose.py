"""The templates, in one table, and the choice among their candidates for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.ir.expr import Const, loads
from jangin.ir.loop import For, Func, If, Stmt, Store, sub_statements, task_loops
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
"""Vector operations that a task of a nest counts for at least: most (a sort, a scan) loop over sizes or
conditions that aren't known."""
LANES = 8
"""Elements taken for one vector."""


def opaque(func: Func) -> Scheduled:
    """A kernel that came as a loop nest runs as it is; its own parallel loop, if any, gives the tasks."""
    nest = simplify_func(func)
    loop = task_loops(nest.body)[1]
    return Scheduled("nest", nest, (), cost=max(NEST_COST, 0.0 if loop is None else _operations(loop.body)))


def _operations(s: Stmt) -> float:
    """Stores, and loads for them, as far as constant loops repeat them."""
    if isinstance(s, Store):
        return 1.0 + sum(1.0 for n in loads(s.value) if n.buffer.memory != "register")
    inside = [_operations(sub) for sub in sub_statements(s)]
    if isinstance(s, If):
        return max(inside)
    if isinstance(s, For) and isinstance(s.extent, Const):
        return sum(inside) * int(s.extent.value) / (LANES if s.kind == "vector" else 1)
    return sum(inside)
