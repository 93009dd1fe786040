"""Takes common factors of a sum's terms out of the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jangin.ir.dtype import I32
from jangin.ir.expr import Binary, Buffer, Cast, Const, Expr, Load, Var, binary, cast, const, select
from jangin.ir.loop import (
    Alloc,
    For,
    Func,
    If,
    Stmt,
    Store,
    block,
    buffers_written,
    map_children,
    statements,
    substitute_stmt,
)
from jangin.ir.simplify import Ranges, simplify
from jangin.ir.traversal import free_vars, loads, substitute
from jangin.schedule.checks import ScheduleError, bound_inside, serial, well_formed
from jangin.schedule.primitives import at_loop, find, ranges_at
from jangin.schedule.sums import each_element, one_sum

SIGN = 31
"""The number of the sign bit of an i32, counted from 0."""


def factor_out(func: Func, loop: str, at: str) -> Func:
    """Factor f and o out of a sum of terms `x * (w * f + o)`, where f and o are constant within an iteration
    of `loop`.

    `loop` is around the other loops of the sum. First `x * w` is summed and multiplied by f. Then the sum of
    x times o is added; these sums are made for all iterations at the top of loop `at`. The order of additions
    changes.
    """
    around, inside = find(func, at), find(func, loop)
    serial(func, inside)
    acc = one_sum(func, inside)
    stores = [s for s in statements(inside.body) if isinstance(s, Store)]
    if len(stores) > 1 or any(isinstance(s, If) for s in statements(inside.body)):
        raise ScheduleError(f"{func.name}: the sum in {loop} has a remainder or a condition")
    (store,) = stores
    place = {i for i in store.index if isinstance(i, Var)}
    summed = bound_inside(inside.body) - place
    innermost = [s.var.name for s in statements(inside) if isinstance(s, For)][-1]
    x, w, f, o = _parts(func, store, summed, ranges_at(func, innermost))
    kept = {n.buffer.name for e in (x, f, o) for n in loads(e)}
    if kept & buffers_written(around):
        raise ScheduleError(f"{func.name}: {at} itself stores what {loop} would factor out")
    sums, copy = _sums(func, x, around, inside, summed)
    own = replace(acc, name=f"{acc.name}.part")

    def whole(index: tuple[Expr, ...]) -> Stmt:
        here = {i: n for i, n in zip(store.index, index, strict=True) if isinstance(i, Var)}
        value = Load(acc, index) + Load(own, index) * substitute(f, here)
        if o != const(0, o.dtype):
            value = value + substitute(sums, here) * substitute(o, here)
        return Store(acc, index, value)

    def change(s: For) -> Stmt:
        zero = each_element(acc, f"{loop}_p", lambda i: Store(own, i, const(0, acc.dtype)))
        add = Store(own, store.index, Load(own, store.index) + x * w)
        terms = _swapped(s.body, store, add)
        return replace(s, body=Alloc(own, block(zero, terms, each_element(acc, f"{loop}_q", whole))))

    func = at_loop(func, loop, change)
    if o != const(0, o.dtype):
        func = at_loop(func, at, lambda s: replace(s, body=Alloc(sums.buffer, block(copy, s.body))))
    return well_formed(func)


def mask_in_place(func: Func, loop: str, at: str) -> Func:
    """Save the shifts in a sum of terms `x * f32((w >> s) & mask)` in `loop`.

    The bits of a word stay in place and are multiplied by `x / 2**s`, which is computed for all terms at the
    top of loop `at`. Bits that would reach the sign are shifted as before. The result is the same, unless `x
    / 2**s` is subnormal.
    """
    around, inside = find(func, at), find(func, loop)
    serial(func, inside)
    acc = one_sum(func, inside)
    stores = [n for n in statements(inside.body) if isinstance(n, Store) and n.buffer == acc]
    terms = [n.value.b for n in stores if isinstance(n.value, Binary)]
    masked = [(x, bits) for e in terms for x, n in _turned(e, "mul") if (bits := _shifted(n))]
    if len(stores) > 1 or not masked:
        raise ScheduleError(f"{func.name}: {loop} has no sum of products with bits of words")
    (store,), (x, (w, s, mask)) = stores, masked[0]
    if {n.buffer.name for n in loads(x)} & buffers_written(around):
        raise ScheduleError(f"{func.name}: {at} itself stores what {loop} multiplies")
    below = s < SIGN + 1 - int(mask.value).bit_length()
    moved = select(below, binary("shl", const(1, I32), s), const(1, I32))
    where = [n for n in _loops(func, around) if n.var in free_vars(x) | free_vars(s)]
    rows = Buffer(f"{loop}_rows", x.dtype, tuple(n.extent for n in where), "scratch")
    index = tuple(n.var for n in where)
    copy: Stmt = Store(rows, index, x / cast(x.dtype, moved))
    for n in reversed(where):
        copy = For(n.var, n.extent, copy)
    copy = _renamed(copy, {n.var: Var(f"{loop}_{n.var}_x") for n in where})
    left, apart = binary("and", w, mask * moved), binary("and", binary("shr", w, s), mask)
    value = Load(acc, store.index) + Load(rows, index) * cast(x.dtype, select(below, left, apart))
    update = Store(acc, store.index, value)
    func = at_loop(func, loop, lambda n: replace(n, body=_swapped(n.body, store, update)))
    return well_formed(at_loop(func, at, lambda n: replace(n, body=Alloc(rows, block(copy, n.body)))))


def _shifted(e: Expr) -> tuple[Expr, Expr, Const] | None:
    """Return (w, s, mask) of a float made of `(w >> s) & mask`, of 32-bit numbers; None for any other
    expression."""
    if not (isinstance(e, Cast) and e.dtype.is_float and e.a.dtype is I32):
        return None
    for moved, mask in _turned(e.a, "and"):
        if isinstance(moved, Binary) and moved.op == "shr" and isinstance(mask, Const):
            return moved.a, moved.b, mask
    return None


def _loops(func: Func, around: For) -> list[For]:
    """Return the loops inside `around`, outermost first. Raises ScheduleError if a loop's extent depends on
    another loop."""
    loops = [s for s in statements(around.body) if isinstance(s, For)]
    if bound_inside(around.body) & {v for s in loops for v in free_vars(s.extent)}:
        raise ScheduleError(f"{func.name}: loops in {around.var} have no constant extents")
    return loops


def _parts(func: Func, store: Store, summed: set[Var], ranges: Ranges) -> tuple[Expr, Expr, Expr, Expr]:
    """Return x, w, f and o of a term; o is zero if there is none. Raises ScheduleError if the term has no
    factor that is constant over `summed`."""
    assert isinstance(store.value, Binary)
    term = simplify(store.value.b, ranges)
    zero = const(0, store.buffer.dtype)
    for x, y in _turned(term, "mul"):
        for product, o in (*_turned(y, "add"), (y, zero)):
            for w, f in _turned(product, "mul"):
                if not summed & (free_vars(f) | free_vars(o)) and summed & free_vars(x):
                    return x, w, f, o
    raise ScheduleError(f"{func.name}: {term} has no factor that is the same for several terms")


def _turned(e: Expr, op: str) -> list[tuple[Expr, Expr]]:
    """Return the operands of the operation `op` in both orders. The list is empty for any other
    expression."""
    return [(e.a, e.b), (e.b, e.a)] if isinstance(e, Binary) and e.op == op else []


def _sums(func: Func, x: Expr, around: For, inside: For, summed: set[Var]) -> tuple[Load, Stmt]:
    """Return the load of the sums of x over the loops `summed`, and the nest that computes them."""
    loops = _loops(func, around)
    over = [s for s in loops if s.var in free_vars(x) and s.var not in summed]
    terms = [s for s in loops if s.var in summed]
    name = inside.var.name
    sums = Buffer(f"{name}_sums", x.dtype, tuple(s.extent for s in over), "scratch")
    one = Buffer(f"{name}_sum", x.dtype, (const(1),), "register")
    first = (const(0),)
    fresh = {s.var: Var(f"{name}_{s.var}_s") for s in (*over, *terms)}
    nest: Stmt = Store(one, first, Load(one, first) + x)
    for s in reversed(terms):
        nest = For(s.var, s.extent, nest)
    index = tuple(s.var for s in over)
    nest = Alloc(one, block(Store(one, first, const(0, x.dtype)), nest, Store(sums, index, Load(one, first))))
    for s in reversed(over):
        nest = For(s.var, s.extent, nest)
    return Load(sums, index), _renamed(nest, fresh)


def _renamed(s: Stmt, fresh: Mapping[Var, Var]) -> Stmt:
    """Return a statement whose loops have new variables."""

    def loops(n: Stmt) -> Stmt:
        return map_children(replace(n, var=fresh[n.var]) if isinstance(n, For) else n, loops)

    return loops(substitute_stmt(s, dict(fresh)))


def _swapped(s: Stmt, old: Store, new: Store) -> Stmt:
    return new if s is old else map_children(s, lambda k: _swapped(k, old, new))
