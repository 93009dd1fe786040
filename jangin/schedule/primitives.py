"""Rewriting primitives: each takes a kernel and returns an equal one, one step nearer the machine.

Loops are named by their variables, which are unique in a kernel. Schedules are lists of primitives
(`schedule.steps`). Every primitive checks its preconditions and raises `ScheduleError`; the tests run each
against the interpreter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from jangin.ir.expr import Binary, Buffer, Cast, Const, Expr, Load, Select, Var, const, minimum, select
from jangin.ir.loop import (
    FOR_KINDS,
    ITEM_KINDS,
    TASK_KINDS,
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Stmt,
    Store,
    block,
    expressions,
    loop_range,
    map_children,
    map_stmt,
    replace_buffer,
    statements,
    sub_statements,
    substitute_stmt,
    with_children,
)
from jangin.ir.simplify import Range, Ranges, interval, prove, simplify
from jangin.ir.traversal import children, conjuncts, free_vars, loads, rebuild, rewrite, substitute, walk
from jangin.schedule.checks import (
    ScheduleError,
    any_order,
    bound_inside,
    independent,
    serial,
    well_formed,
)
from jangin.schedule.normalize import ceil_div

TAILS = ("guard", "cut", "bound")
"""How `split` handles a remainder: see there."""


def find(func: Func, name: str) -> For:
    """Return the loop over `name`. Raises ScheduleError if there is none."""
    for s in statements(func.body):
        if isinstance(s, For) and s.var.name == name:
            return s
    have = [s.var.name for s in statements(func.body) if isinstance(s, For)]
    raise ScheduleError(f"{func.name}: no loop {name!r}; there are {', '.join(have)}")


def loop_names(func: Func) -> list[str]:
    return [s.var.name for s in statements(func.body) if isinstance(s, For)]


def ranges_at(func: Func, name: str) -> dict[Var, Range]:
    """Return the ranges of the variables in force inside the loop `name` (its own included), outermost first.
    There are none if the loop doesn't exist."""
    known: dict[Var, Range] = {}

    def go(s: Stmt, ranges: dict[Var, Range]) -> None:
        if isinstance(s, For):
            ranges = {**ranges, s.var: (const(0), simplify(s.extent - 1, ranges))}
            if s.var.name == name:
                known.update(ranges)
                return
        for sub in sub_statements(s):
            go(sub, ranges)

    go(func.body, dict(func.symbols))
    return known


def at_loop(func: Func, name: str, fn: Callable[[For], Stmt]) -> Func:
    """Return the kernel with the loop `name` replaced by `fn(loop)`."""
    body = _at(func.body, name, fn)
    return well_formed(func.with_body(fn(find(func, name)) if body is None else body))


def _at(s: Stmt, name: str, fn: Callable[[For], Stmt]) -> Stmt | None:
    """Return the statement with its loop replaced; None if it doesn't have the loop."""
    if isinstance(s, For) and s.var.name == name:
        return fn(s)
    parts = sub_statements(s)
    for n, part in enumerate(parts):
        new = _at(part, name, fn)
        if new is not None:
            return with_children(s, (*parts[:n], new, *parts[n + 1 :]))
    return None


def rename_loops(s: Stmt, suffix: str) -> Stmt:
    """Return a copy of a statement whose loops, register buffers and lets have `suffix` after their names."""
    return _renamed(s, lambda name: name + suffix)


def distinct(func: Func) -> Func:
    """Return the kernel with unique names of loops, lets and local buffers. A nest may repeat names, and have
    its parallel loop in rounds."""
    taken: Counter[str] = Counter()

    def fresh(name: str) -> str:
        taken[name] += 1
        return name if taken[name] == 1 else f"{name}_{taken[name]}"

    return func.with_body(_renamed(func.body, fresh))


def _renamed(s: Stmt, name: Callable[[str], str]) -> Stmt:
    if isinstance(s, (For, Let)):
        var = Var(name(s.var.name), s.var.dtype)
        return replace(s, var=var, body=_renamed(substitute_stmt(s.body, {s.var: var}), name))
    if isinstance(s, Alloc):
        new = replace(s.buffer, name=name(s.buffer.name))
        return Alloc(new, _renamed(replace_buffer(s.body, s.buffer.name, new), name))
    return map_children(s, lambda k: _renamed(k, name))


def set_kind(func: Func, loop: str, kind: str) -> Func:
    """Mark a loop as one of FOR_KINDS (vector, unroll, ...). Raises ScheduleError if iterations depend on
    each other in a kind that runs them side by side. Vector, unrolled, thread and warp loops need a constant
    extent."""
    if kind not in FOR_KINDS:
        raise ScheduleError(f"unknown loop kind {kind!r}")

    def mark(s: For) -> Stmt:
        if kind in ("vector", "unroll", *ITEM_KINDS) and not isinstance(s.extent, Const):
            raise ScheduleError(
                f"{func.name}: loop {loop} of extent {s.extent} can't be {kind}: not constant"
            )
        if kind in ("vector", *ITEM_KINDS, *TASK_KINDS):
            independent(func, s, ranges_at(func, loop), kind)
        return replace(s, kind=kind)

    return at_loop(func, loop, mark)


def rename(func: Func, loop: str, name: str) -> Func:
    """Rename a loop."""

    def change(s: For) -> Stmt:
        return replace(s, var=Var(name), body=substitute_stmt(s.body, {s.var: Var(name)}))

    return at_loop(func, loop, change)


def split(func: Func, loop: str, factor: int, tail: str = "guard") -> Func:
    """Split i into `io` (outer, i // factor) and `ii` (inner, i % factor).

    If `factor` doesn't divide the extent, `tail` says what happens. "guard" tests i < extent inside. "cut"
    adds a loop `it` over the remainder. "bound" shortens the last inner loop.
    """
    if factor < 1 or tail not in TAILS:
        raise ScheduleError(f"{func.name}: {loop} can't be split by {factor} with tail {tail!r}")

    def change(s: For) -> Stmt:
        serial(func, s)
        outer, inner = Var(loop + "o"), Var(loop + "i")
        symbols = dict(func.symbols)
        exact = simplify((s.extent // factor) * factor - s.extent, symbols) == const(0)
        index = outer * factor + inner
        known: dict[Expr, Expr] = {s.var: index}
        if factor > 1:  # splits of both parts would hide the identity
            known |= {s.var // factor: outer, s.var % factor: inner}
        body = map_stmt(s.body, lambda e: substitute(e, {s.var: index}, known))
        if exact or tail == "cut":
            main: Stmt = For(outer, simplify(s.extent // factor, symbols), For(inner, const(factor), body))
            if exact:
                return main
            done = simplify((s.extent // factor) * factor, symbols)
            rest = Var(loop + "t")
            copy = rename_loops(substitute_stmt(s.body, {s.var: done + rest}), "t")
            return block(main, For(rest, simplify(s.extent - done, symbols), copy))
        if tail == "bound":
            left = simplify(minimum(factor, s.extent - outer * factor))
            return For(outer, simplify(ceil_div(s.extent, factor), symbols), For(inner, left, body))
        guarded = If(index < s.extent, body)
        return For(outer, simplify(ceil_div(s.extent, factor), symbols), For(inner, const(factor), guarded))

    return at_loop(func, loop, change)


def fuse(func: Func, outer: str, inner: str, name: str) -> Func:
    """Make two directly nested loops one loop, `name`, in the same order. If the outer loop has a single
    iteration, no remainder is taken, because it might later not be recognized as 0."""

    def change(s: For) -> Stmt:
        body = s.body
        if not isinstance(body, For) or body.var.name != inner or s.var in free_vars(body.extent):
            raise ScheduleError(f"{func.name}: {inner} isn't directly inside {outer}")
        serial(func, s)
        serial(func, body)
        var = Var(name)
        values: dict[Var, Expr] = {s.var: var // body.extent, body.var: var % body.extent}
        if s.extent == const(1):
            values = {s.var: const(0), body.var: var}
        extent = simplify(s.extent * body.extent, dict(func.symbols))
        return For(var, extent, substitute_stmt(body.body, values))

    return at_loop(func, outer, change)


def reorder(func: Func, loops: Sequence[str]) -> Func:
    """Reorder nested loops (with nothing but guards between them) to the order of `loops`, outermost first.
    The guards move inside all of these loops."""
    names = set(loops)
    first = next((n for n in loop_names(func) if n in names), "")
    if not first or len(names) < len(loops):
        raise ScheduleError(f"{func.name}: can't reorder {list(loops)}; there are {loop_names(func)}")

    def change(s: For) -> Stmt:
        chain: dict[str, For] = {}
        guards: list[Expr] = []
        body: Stmt = s
        while len(chain) < len(names):
            if isinstance(body, For) and body.var.name in names:
                chain[body.var.name] = body
                body = body.body
            elif isinstance(body, If) and body.orelse is None:
                guards.append(body.cond)
                body = body.then
            else:
                missing = sorted(names - set(chain))
                raise ScheduleError(
                    f"{func.name}: loops {missing} aren't nested in {first} with only guards between"
                )
        for cond in reversed(guards):
            body = If(cond, body)
        any_order(func, s, "reordered")
        for name in reversed(loops):
            body = replace(chain[name], body=body)
            if bound_inside(body.body) & free_vars(body.extent):
                raise ScheduleError(
                    f"{func.name}: {name} has the extent {body.extent}, so it must stay inside the loops "
                    "that the extent depends on"
                )
        return body

    return at_loop(func, first, change)


def privatize(func: Func, acc: str, tile: Sequence[str], padded: Sequence[str] = ()) -> Func:
    """Give each iteration of the `tile` loops its own accumulator, and move the reduction outside them.

    `tile { acc = 0; k { acc += ... }; out = acc }` becomes `tile { acc = 0 }; k { tile { acc += ... } }; tile
    { out = acc }`. Guards between the tile loops stay on the write-back only. Every load of the update must
    still be inside its buffer. The position that a guard bounds is therefore clamped. If it differs by lane
    (the last tile loop), the load is guarded instead. Buffers in `padded` need neither.
    """
    if not tile:
        raise ScheduleError(f"{func.name}: a tile has at least one loop")

    def change(s: For) -> Stmt:
        loops: list[For] = []
        guards: list[Expr] = []
        body: Stmt = s
        while not isinstance(body, Alloc):
            if isinstance(body, For):
                loops.append(body)
                body = body.body
            elif isinstance(body, If) and body.orelse is None:
                guards.append(body.cond)
                body = body.then
            else:
                raise ScheduleError(f"{func.name}: no accumulator {acc} right inside the loops {list(tile)}")
        if [p.var.name for p in loops] != list(tile) or body.buffer.name != acc:
            raise ScheduleError(f"{func.name}: expected loops {list(tile)} around {acc}")
        if not all(isinstance(p.extent, Const) for p in loops):
            raise ScheduleError(f"{func.name}: the loops {list(tile)} of a tile need constant extents")
        return _distribute(body, loops, guards, padded)

    return at_loop(func, tile[0], change)


def _distribute(alloc: Alloc, loops: Sequence[For], guards: Sequence[Expr], padded: Sequence[str]) -> Stmt:
    if not isinstance(alloc.body, Block) or len(alloc.body.body) != 3:
        raise ScheduleError(f"{alloc.buffer.name}: expected initialise, reduce, write back")
    if alloc.buffer.shape != (const(1),):
        raise ScheduleError(f"{alloc.buffer.name} is no single accumulator")
    if not all(isinstance(g, Binary) and g.op == "lt" for g in guards):
        raise ScheduleError(f"{alloc.buffer.name}: its tile has a guard that is no upper limit")
    init, reduce_nest, final = alloc.body.body
    own = {p.var for p in loops}
    wide = replace(alloc.buffer, shape=tuple(p.extent for p in loops))

    def tiled(inner: Stmt, suffix: str, conds: Sequence[Expr]) -> Stmt:
        for cond in reversed(conds):
            inner = If(cond, inner)
        for p in reversed(loops):
            inner = replace(p, body=inner)
        inner = replace_buffer(inner, alloc.buffer.name, wide, lambda _: tuple(p.var for p in loops))
        return rename_loops(inner, suffix) if suffix else inner

    def descend(s: Stmt) -> Stmt:
        if isinstance(s, For):
            if own & free_vars(s.extent):
                raise ScheduleError(f"{alloc.buffer.name}: {s.var} of extent {s.extent} can't leave the tile")
            return replace(s, body=descend(s.body))
        return tiled(_inside(s, guards, loops[-1].var, padded), "", ())

    return Alloc(
        wide,
        block(
            tiled(_inside(init, guards, loops[-1].var, padded), "_z", ()),
            descend(reduce_nest),
            tiled(final, "_w", guards),
        ),
    )


def _inside(s: Stmt, guards: Sequence[Expr], lane: Var, padded: Sequence[str]) -> Stmt:
    """Return the statement with the loads that `guards` protected made safe without them. Vectors along the
    last axis are masked, and other loads read the last valid position. A condition for a load is that of the
    position which is read."""
    limits = {g.a: g.b for g in guards if isinstance(g, Binary) and g.op == "lt"}

    def masked(n: Load) -> set[Expr]:
        last = set(walk(n.index[-1])) if n.index else set()
        return {e for e in limits if lane in free_vars(e) and e in last}

    def clamp(e: Expr, but: Collection[Expr]) -> Expr:
        if e in limits and e not in but:
            return minimum(e, limits[e] - 1)
        return rebuild(e, tuple(clamp(k, but) for k in children(e))) if children(e) else e

    def protected(n: Load) -> bool:
        return n.buffer.name not in padded and n.buffer.memory != "register"

    def safe(n: Expr) -> Expr | None:
        if isinstance(n, Select):
            read = [k for arm in (n.a, n.b) for k in loads(arm) if protected(k)]
            cond = clamp(n.cond, {e for k in read for e in masked(k)}) if read else n.cond
            return None if cond is n.cond else select(cond, n.a, n.b)
        if not isinstance(n, Load) or not protected(n):
            return None
        own = masked(n)
        guarded: Expr = Load(n.buffer, tuple(clamp(i, own) for i in n.index))
        for e in (e for e in limits if e in own):
            guarded = select(e < limits[e], guarded, const(0, n.dtype))
        return guarded

    return map_stmt(s, lambda e: rewrite(e, safe))


def pack(
    func: Func, at: str, load: str | Sequence[str], over: Sequence[str], name: str, memory: str = "scratch"
) -> Func:
    """Copy an expression that reads buffer `load` into a new buffer at the top of loop `at`, and read the
    copy instead.

    The copy, `name` in `memory`, holds the expression for all iterations of the inner loops `over`. If
    several expressions read the buffer, the one that depends on most of these loops is taken. For a list of
    buffers it is the smallest expression that reads them all, in the type it is cast to. The copying loops
    are called `name`_<loop>.
    """
    inside = find(func, at)
    loops = {s.var.name: s for s in statements(inside.body) if isinstance(s, For)}
    missing = [n for n in over if n not in loops]
    if missing:
        raise ScheduleError(f"{func.name}: loops {missing} aren't inside {at}")
    reads = {g for s in statements(inside.body) for e in expressions(s) for g in _readings(e, load)}
    if len(reads) > 1:
        moved = {e: len({loops[n].var for n in over} & free_vars(e)) for e in reads}
        reads = {e for e in reads if moved[e] == max(moved.values())}
    if len(reads) != 1:
        raise ScheduleError(f"{func.name}: {load} is read in {len(reads)} different ways inside {at}")
    expr = reads.pop()
    extents = [loops[n].extent for n in over]
    _check_packable(func, inside, expr, [loops[n] for n in over])
    ranges = ranges_at(func, at)
    shape = [e if free_vars(e) <= {v for v, _ in func.symbols} else _most(e, ranges) for e in extents]
    buffer = Buffer(name, expr.dtype, tuple(shape), memory)
    fresh = {loops[n].var: Var(f"{name}_{n}") for n in over}
    copy: Stmt = Store(buffer, tuple(fresh.values()), substitute(expr, dict(fresh)))
    for n in reversed(over):
        copy = For(fresh[loops[n].var], loops[n].extent, copy)
    index = tuple(loops[n].var for n in over)

    def redirect(e: Expr) -> Expr:
        return rewrite(e, lambda n: Load(buffer, index) if n == expr else None)

    return at_loop(
        func, at, lambda s: replace(s, body=Alloc(buffer, block(copy, map_stmt(s.body, redirect))))
    )


def _most(extent: Expr, ranges: Ranges) -> Expr:
    """Return the largest value of an extent, as a number; the extent itself if it isn't known."""
    high = interval(extent, ranges)[1]
    return extent if high is None else const(high)


def _check_packable(func: Func, at: For, expr: Expr, over: Sequence[For]) -> None:
    """Raise ScheduleError unless the expression can be computed for all of `over` at the top of `at`."""
    unbound = bound_inside(at.body) - {p.var for p in over}
    late = unbound & free_vars(expr) or bound_inside(at.body) & {v for p in over for v in free_vars(p.extent)}
    if late:
        raise ScheduleError(f"{func.name}: {expr} depends on {min(v.name for v in late)} inside {at.var}")
    names = {n.buffer.name for n in loads(expr)}
    if names & {s.buffer.name for s in statements(at.body) if isinstance(s, (Store, Alloc))}:
        raise ScheduleError(f"{func.name}: {expr} is of a buffer that {at.var} itself stores")
    own = set(conjuncts(expr.cond)) if isinstance(expr, Select) else set[Expr]()
    others = (s for s in statements(at.body) if isinstance(s, If) and not own.issuperset(conjuncts(s.cond)))
    guarded = (t for s in others for t in statements(s))
    under = any(expr in guarded_loads(e, name) for s in guarded for e in expressions(s) for name in names)
    if under and not _inside_buffer(
        expr, {**ranges_at(func, at.var.name), **{p.var: loop_range(p) for p in over}}
    ):
        raise ScheduleError(f"{func.name}: {expr} is read under a condition")


def _inside_buffer(e: Expr, ranges: Ranges) -> bool:
    """Return whether a load is inside its buffer regardless of conditions."""
    if not isinstance(e, Load):
        return False
    return all(
        prove(i >= 0, ranges) and prove(i < n, ranges) for i, n in zip(e.index, e.buffer.shape, strict=True)
    )


def guarded_loads(e: Expr, buffer: str) -> set[Expr]:
    """Return the loads of a buffer in `e`. A load that selects guard comes with them."""
    if isinstance(e, Select) and isinstance(e.b, Const) and guarded_loads(e.a, buffer):
        return {e}
    if isinstance(e, Load) and e.buffer.name == buffer:
        return {e}
    return {g for k in children(e) for g in guarded_loads(k, buffer)}


def _readings(e: Expr, buffers: str | Sequence[str]) -> set[Expr]:
    """Return the guarded loads of a buffer in `e`. For several buffers, these are the smallest expressions
    that read all of them, in the type to which they are cast."""
    if isinstance(buffers, str):
        return guarded_loads(e, buffers)
    if not {n.buffer.name for n in loads(e)}.issuperset(buffers):
        return set()
    inner = {g for k in children(e) for g in _readings(k, buffers)}
    return {e} if not inner or (isinstance(e, Cast) and inner == {e.a}) else inner


def peel(func: Func, loop: str, before: int, after: int) -> Func:
    """Peel the first `before` and the last `after` iterations into loops `loop`_b and `loop`_a. Conditions
    that only these iterations need then become constant in the middle."""

    def change(s: For) -> Stmt:
        serial(func, s)

        def part(suffix: str, start: Expr, extent: Expr) -> Stmt:
            var = Var(loop + suffix)
            body = substitute_stmt(s.body, {s.var: start + var})
            return For(var, extent, rename_loops(body, suffix) if suffix else body)

        middle = simplify(s.extent - (before + after), dict(func.symbols))
        if min(before, after) < 0 or not prove(middle >= 0, dict(func.symbols)):
            raise ScheduleError(f"{func.name}: {loop} has too few iterations to peel {before} + {after}")
        parts = [part("_b", const(0), const(before))] if before else []
        parts.append(part("", const(before), middle))
        if after:
            parts.append(part("_a", simplify(s.extent - after, dict(func.symbols)), const(after)))
        return block(*parts)

    return at_loop(func, loop, change)
