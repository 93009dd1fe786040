"""Operands that a kernel reads in another layout, or rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.expr import Call, Expr, Load, Select, call, const, is_const, select
from jangin.ir.loop import (
    For,
    Func,
    Stmt,
    Store,
    expressions,
    loop_range,
    map_children,
    replace_buffer,
    statements,
)
from jangin.ir.simplify import Ranges, simplify
from jangin.ir.traversal import loads, walk
from jangin.schedule.checks import ScheduleError
from jangin.schedule.normalize import ceil_div


def relayout(
    func: Func, buffer: str, perm: Sequence[int], axis: int, groups: int, width: int, terms: int = 1
) -> Func:
    """Read parameter `buffer` in the layout of a `Packing`: [..., N, ...] -> [..., groups, panels, ...,
    width].

    The axes are permuted by `perm`. Then axis `axis` (of this order) is split into `groups`, and each group
    into panels of `width`, the last axis. If there are `terms`, the axis before the width is divided by their
    number, and they become the last axis. The caller packs the data likewise.
    """
    old = next((b for b in func.params if b.name == buffer), None)
    if old is None:
        raise ScheduleError(f"{func.name} has no parameter {buffer!r}")
    fitting = sorted(perm) == list(range(len(old.shape))) and 0 <= axis < len(perm)
    if not fitting or min(groups, width, terms) < 1 or (terms > 1 and axis == len(perm) - 1):
        raise ScheduleError(f"{func.name}: {buffer} has no layout {list(perm)}, {axis}, {groups}, {width}")
    shape = [old.shape[d] for d in perm]
    ranges = dict(func.symbols) | {s.var: loop_range(s) for s in statements(func.body) if isinstance(s, For)}
    size = simplify(shape[axis] // groups, ranges)
    panels = simplify(ceil_div(size, width), ranges)
    inside = [*shape[axis + 1 :], const(width)]
    if terms > 1:
        if simplify(inside[-2] % terms, ranges) != const(0):
            raise ScheduleError(f"{func.name}: pieces of {terms} don't divide the terms of {buffer}")
        inside = [*inside[:-2], simplify(inside[-2] // terms, ranges), const(width), const(terms)]
    new = replace(old, shape=(*shape[:axis], const(groups), panels, *inside))

    def index(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        moved = [i[d] for d in perm]
        group, inner = (const(0), moved[axis]) if groups == 1 else _quotient(moved[axis], size, ranges)
        before, after = (*moved[:axis], group, inner // width), moved[axis + 1 :]
        if terms == 1:
            return (*before, *after, inner % width)
        return (*before, *after[:-1], after[-1] // terms, inner % width, after[-1] % terms)

    params = tuple(new if b.name == buffer else b for b in func.params)
    return replace(func, params=params, body=replace_buffer(func.body, buffer, new, index))


def round_copies(func: Func, buffer: str, fn: str = "tf32") -> Func:
    """Round the numbers of a local copy by `fn` where they are stored. The caller rounds a parameter's.

    All reads of the buffer must be factors of products that round them, or copy it to buffers that are read
    so. Rounding twice gives the same number.
    """
    if not _only_factor(func, buffer, fn):
        raise ScheduleError(f"{func.name}: {buffer} is read by other operations than products that round")
    if any(b.name == buffer for b in func.params):
        return func

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer.name == buffer:
            return replace(s, value=_rounded(s.value, fn))
        return map_children(s, go)

    return func.with_body(go(func.body))


def _only_factor(func: Func, buffer: str, fn: str) -> bool:
    """Return whether a buffer is read, and only as a factor of products that round it. Copies to local
    buffers that are read so are allowed."""
    copies, read, results = set[str](), False, {b.name for b in func.params}
    for s in statements(func.body):
        for e in expressions(s):
            count = sum(n.buffer.name == buffer for n in loads(e))
            if not count:
                continue
            read = True
            if isinstance(s, Store) and e is s.value and isinstance(e, Load):
                copies.add(s.buffer.name)
                continue
            products = [
                n for n in walk(e) if isinstance(n, Call) and n.product is not None and n.product.rounds == fn
            ]
            factors = [a for n in products for a in n.args if isinstance(a, Load)]
            if sum(a.buffer.name == buffer for a in factors) != count:
                return False
    return read and not copies & results and all(_only_factor(func, name, fn) for name in copies)


def _rounded(e: Expr, fn: str) -> Expr:
    """Return a number rounded by `fn`, and a choice rounded in its arms."""
    if isinstance(e, Select):
        return select(e.cond, _rounded(e.a, fn), _rounded(e.b, fn))
    return e if is_const(e, 0) else call(fn, e)


def _quotient(e: Expr, by: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    return simplify(e // by, ranges), simplify(e % by, ranges)
