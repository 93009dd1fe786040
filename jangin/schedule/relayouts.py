"""A parameter that a kernel reads in another layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.expr import Expr, const
from jangin.ir.loop import (
    For,
    Func,
    loop_range,
    replace_buffer,
    statements,
)
from jangin.ir.simplify import Ranges, simplify
from jangin.schedule.checks import (
    ScheduleError,
)
from jangin.schedule.normalize import ceil_div


def relayout(func: Func, buffer: str, perm: Sequence[int], axis: int, groups: int, width: int) -> Func:
    """Read parameter `buffer` in the layout of a `Packing`: [..., N, ...] -> [..., groups, panels, ...,
    width].

    The axes are permuted by `perm`. Then axis `axis` (of this order) is split into `groups`, and each group
    into panels of `width`, the last axis. The caller packs the data likewise.
    """
    old = next((b for b in func.params if b.name == buffer), None)
    if old is None:
        raise ScheduleError(f"{func.name} has no parameter {buffer!r}")
    if sorted(perm) != list(range(len(old.shape))) or not 0 <= axis < len(perm) or min(groups, width) < 1:
        raise ScheduleError(f"{func.name}: {buffer} has no layout {list(perm)}, {axis}, {groups}, {width}")
    shape = [old.shape[d] for d in perm]
    ranges = dict(func.symbols) | {s.var: loop_range(s) for s in statements(func.body) if isinstance(s, For)}
    size = simplify(shape[axis] // groups, ranges)
    panels = simplify(ceil_div(size, width), ranges)
    new = replace(old, shape=(*shape[:axis], const(groups), panels, *shape[axis + 1 :], const(width)))

    def index(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        moved = [i[d] for d in perm]
        group, inner = (const(0), moved[axis]) if groups == 1 else _quotient(moved[axis], size, ranges)
        return (*moved[:axis], group, inner // width, *moved[axis + 1 :], inner % width)

    params = tuple(new if b.name == buffer else b for b in func.params)
    return replace(func, params=params, body=replace_buffer(func.body, buffer, new, index))


def _quotient(e: Expr, by: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    return simplify(e // by, ranges), simplify(e % by, ranges)
