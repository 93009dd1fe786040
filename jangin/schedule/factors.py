"""What is the same in many terms of a sum, taken out of it."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.expr import Binary, Buffer, Expr, Load, Var, const, free_vars, loads, substitute
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
from jangin.schedule.checks import ScheduleError, bound_inside, serial, well_formed
from jangin.schedule.primitives import at_loop, find, ranges_at
from jangin.schedule.stages import each_element, one_sum


def factor_out(func: Func, loop: str, at: str) -> Func:
    """Of `loop`, around the other loops of one sum of `x * (w * f + o)`, where f and o are the same in all
    terms of an iteration: add up `x * w` first, which f multiplies then, and o the sum of x, which is made
    for all iterations at the top of loop `at`. The order of additions changes."""
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


def _parts(func: Func, store: Store, summed: set[Var], ranges: Ranges) -> tuple[Expr, Expr, Expr, Expr]:
    """x, w, f and o of a term, o zero where it has none."""
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
    """The operands of an operation, both ways; none where it is another."""
    return [(e.a, e.b), (e.b, e.a)] if isinstance(e, Binary) and e.op == op else []


def _sums(func: Func, x: Expr, around: For, inside: For, summed: set[Var]) -> tuple[Load, Stmt]:
    """The sums of x over the loops `summed`, as they are read, and what makes them."""
    loops = [s for s in statements(around.body) if isinstance(s, For)]
    over = [s for s in loops if s.var in free_vars(x) and s.var not in summed]
    terms = [s for s in loops if s.var in summed]
    if bound_inside(around.body) & {v for s in (*over, *terms) for v in free_vars(s.extent)}:
        raise ScheduleError(f"{func.name}: loops of {inside.var} have no constant extents in {around.var}")
    name = inside.var.name
    sums = Buffer(f"{name}_sums", x.dtype, tuple(s.extent for s in over), "scratch")
    one = Buffer(f"{name}_sum", x.dtype, (const(1),), "register")
    first = (const(0),)
    fresh: dict[Var, Expr] = {s.var: Var(f"{name}_{s.var}_s") for s in (*over, *terms)}
    nest: Stmt = Store(one, first, Load(one, first) + x)
    for s in reversed(terms):
        nest = For(s.var, s.extent, nest)
    index = tuple(s.var for s in over)
    nest = Alloc(one, block(Store(one, first, const(0, x.dtype)), nest, Store(sums, index, Load(one, first))))
    for s in reversed(over):
        nest = For(s.var, s.extent, nest)
    return Load(sums, index), _renamed(substitute_stmt(nest, fresh), fresh)


def _renamed(s: Stmt, fresh: dict[Var, Expr]) -> Stmt:
    if isinstance(s, For):
        var = fresh[s.var]
        assert isinstance(var, Var)
        s = replace(s, var=var)
    return map_children(s, lambda k: _renamed(k, fresh))


def _swapped(s: Stmt, old: Store, new: Store) -> Stmt:
    return new if s is old else map_children(s, lambda k: _swapped(k, old, new))
