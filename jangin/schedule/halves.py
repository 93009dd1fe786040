"""A schedule primitive for processors that multiply pairs of int16, where weights are words of four int8."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.expr import Binary, Buffer, Call, Expr, Load, call, const
from jangin.ir.loop import Alloc, Func, Stmt, Store, block, expressions, map_children, map_stmt, statements
from jangin.ir.products import DOT4
from jangin.ir.traversal import loads, rewrite
from jangin.ir.words import HALVES
from jangin.schedule.checks import ScheduleError, well_formed


def in_halves(func: Func, name: str) -> Func:
    """Keep each word of four int8 in the local buffer `name` as two words of two int16. The buffer gets a new
    last axis of size 2.

    Each product `dot4` of its words becomes two products `dot2`. The sums don't change, because they are
    exact. Raises ScheduleError if there isn't exactly one such buffer, or if its words are read in any other
    way.
    """
    allocations = [s for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == name]
    if len(allocations) != 1:
        raise ScheduleError(f"{func.name}: no buffer is called {name}")
    (alloc,) = allocations
    halved = replace(alloc.buffer, shape=(*alloc.buffer.shape, const(2)))

    def changed(s: Stmt) -> Stmt:
        if isinstance(s, Alloc) and s.buffer.name == name:
            return Alloc(halved, changed(s.body))
        if isinstance(s, Store) and s.buffer.name == name:
            parts = ((*s.index, const(n)) for n in range(len(HALVES)))
            return block(*(Store(halved, i, call(fn, s.value)) for i, fn in zip(parts, HALVES, strict=True)))
        return map_children(s, changed)

    body = map_stmt(changed(func.body), lambda e: rewrite(e, lambda n: _in_two(n, halved)))
    left = [e for s in statements(body) for e in expressions(s) for n in loads(e) if _unhalved(n, halved)]
    if left:
        raise ScheduleError(f"{func.name}: {name} is read by {left[0]}, which is no sum with a product")
    return well_formed(replace(func, body=body))


def _unhalved(e: Load, halved: Buffer) -> bool:
    return e.buffer.name == halved.name and len(e.index) < len(halved.shape)


def _in_two(e: Expr, halved: Buffer) -> Expr | None:
    """Return a sum of `dot4` of the buffer's word and something else, with two `dot2` instead. Return None
    for any other expression."""
    if not isinstance(e, Binary) or e.op != "add":
        return None
    for product, total in ((e.a, e.b), (e.b, e.a)):
        if not isinstance(product, Call) or product.fn != DOT4.name:
            continue
        left, right = product.args
        if isinstance(left, Load) and left.buffer.name == halved.name:
            for n, fn in enumerate(HALVES):
                total = total + call("dot2", Load(halved, (*left.index, const(n))), call(fn, right))
            return total
    return None
