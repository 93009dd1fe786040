"""Primitives over the loops of a reduction: sums in blocks, in parts and in vectors of partial results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jangin.ir.expr import Binary, Buffer, Const, Expr, Load, Var, binary, const
from jangin.ir.loop import (
    Alloc,
    Block,
    For,
    Func,
    Stmt,
    Store,
    block,
    buffers_written,
    map_children,
    replace_buffer,
    statements,
    substitute_stmt,
)
from jangin.ir.simplify import prove, simplify
from jangin.ir.traversal import free_vars, loads, substitute
from jangin.schedule.checks import ScheduleError, chain, serial, touched, well_formed
from jangin.schedule.primitives import at_loop, find, ranges_at


def block_sum(func: Func, tiles: str, over: Sequence[str], most: int, name: str) -> Func:
    """Sum in blocks: move the outermost loops `over` of the sums in loop `tiles` around it. `tiles` has at
    most `most` iterations.

    All tiles then read one block of their shared operand before the next. The blocks' sums are made by
    themselves and added up in the scratch buffer `name`, so rounding errors grow with the blocks' terms. The
    loops `tiles` that begin and finish the sums get the suffixes _z and _w. Those that begin a block's sums
    and add them get _l and _s.
    """

    def change(s: For) -> Stmt:
        alloc = s.body
        if not isinstance(alloc, Alloc) or not isinstance(alloc.body, Block) or len(alloc.body.body) != 3:
            raise ScheduleError(f"{func.name}: {tiles} doesn't hold one sum that is begun, made and finished")
        init, nest, final = alloc.body.body
        blocks: list[For] = []
        while isinstance(nest, For) and len(blocks) < len(over) and nest.var.name == over[len(blocks)]:
            blocks.append(nest)
            nest = nest.body
        if len(blocks) < len(over) or any(s.var in free_vars(b.extent) for b in blocks):
            raise ScheduleError(f"{func.name}: {list(over)} are not the outer loops of the sum in {tiles}")
        if buffers_written(final) & touched(block(init, nest)) - {alloc.buffer.name}:
            raise ScheduleError(f"{func.name}: {tiles} reads what it stores")
        serial(func, s)
        if not prove(s.extent <= most, ranges_at(func, tiles)):
            raise ScheduleError(f"{func.name}: {tiles} may have more than {most} iterations")
        acc = alloc.buffer
        partial = replace(acc, name=name, shape=(const(most), *acc.shape), memory="scratch")

        def kept(part: Stmt, suffix: str) -> Stmt:
            var = Var(tiles + suffix)
            part = replace_buffer(part, acc.name, partial, lambda i: (var, *i))
            return For(var, s.extent, substitute_stmt(part, {s.var: var}))

        own, index = _element_loops(init, acc.name)
        begin = _copy(own, "_l", acc, index, const(0, acc.dtype))
        at = (s.var, *index)
        add = _copy(own, "_s", partial, at, Load(partial, at) + Load(acc, index))
        main: Stmt = replace(s, body=Alloc(acc, block(begin, nest, add)))
        for b in reversed(blocks):
            main = replace(b, body=main)
        return Alloc(partial, block(kept(init, "_z"), main, kept(final, "_w")))

    return well_formed(at_loop(func, tiles, change))


def partial_sums(func: Func, loop: str) -> Func:
    """Sum each iteration of `loop`, which stands around other loops of one sum, by itself first.

    Errors grow with the square root of the number of terms that are added one after another (Higham, "The
    accuracy of floating point summation", 1993). The order of additions changes.
    """

    def change(s: For) -> Stmt:
        serial(func, s)
        acc = one_sum(func, s)
        own = replace(acc, name=f"{acc.name}.part")
        zero = each_element(acc, f"{loop}_p", lambda i: Store(own, i, const(0, acc.dtype)))
        add = each_element(acc, f"{loop}_q", lambda i: Store(acc, i, Load(acc, i) + Load(own, i)))
        return replace(s, body=Alloc(own, block(zero, replace_buffer(s.body, acc.name, own), add)))

    return well_formed(at_loop(func, loop, change))


def pairwise(func: Func, loop: str) -> Func:
    """Add the terms of `loop` to each other in pairs, and only their sum to the accumulator.

    Rounding errors then grow with the logarithm of the number of terms (Higham 1993). The loop is unrolled;
    it has as many additions as before, in another order.
    """

    def change(s: For) -> Stmt:
        serial(func, s)
        one_sum(func, s)
        _, *inner = chain(s)
        update = (inner[-1] if inner else s).body
        if not isinstance(s.extent, Const) or int(s.extent.value) < 1 or not isinstance(update, Store):
            raise ScheduleError(f"{func.name}: {loop} doesn't add a constant number of terms to one sum")
        if s.var in {v for e in (*update.index, *(p.extent for p in inner)) for v in free_vars(e)}:
            raise ScheduleError(f"{func.name}: {loop} adds to several elements")
        e, before = update.value, Load(update.buffer, update.index)
        assert isinstance(e, Binary)
        term = e.b if e.a is before else e.a
        total = _in_pairs([substitute(term, {s.var: const(n)}) for n in range(int(s.extent.value))])
        sum_of_all: Stmt = replace(update, value=before + total)
        for p in reversed(inner):
            sum_of_all = replace(p, body=sum_of_all)
        return sum_of_all

    return well_formed(at_loop(func, loop, change))


def _in_pairs(terms: Sequence[Expr]) -> Expr:
    half = len(terms) // 2
    return _in_pairs(terms[:half]) + _in_pairs(terms[half:]) if half else terms[0]


def across_lanes(func: Func, loop: str) -> Func:
    """Make a loop over the terms of sums of integers a vector loop: all its lanes add to one element of each
    sum. Raises ScheduleError for sums of floats, whose rounding depends on the order."""

    def mark(s: For) -> Stmt:
        if not one_sum(func, s).dtype.is_int or not isinstance(s.extent, Const):
            raise ScheduleError(f"{func.name}: the lanes of {loop} can't add to one sum of integers")
        return replace(s, kind="vector")

    return at_loop(func, loop, mark)


def one_sum(func: Func, loop: For) -> Buffer:
    """Return the one accumulator to which a loop adds. Raises ScheduleError if there is another store."""
    every = list(statements(loop.body))
    local = {n.buffer.name for n in every if isinstance(n, Alloc)}
    stores = [n for n in every if isinstance(n, Store) and n.buffer.name not in local]
    accs = {n.buffer for n in stores}
    if len(accs) != 1 or not all(_adds(n) for n in stores):
        raise ScheduleError(f"{func.name}: the loop {loop.var} doesn't only add to one accumulator")
    return accs.pop()


def _adds(s: Store) -> bool:
    """Return whether a store adds to its element a term that doesn't read its buffer."""
    e, before = s.value, Load(s.buffer, s.index)
    term = e.b if isinstance(e, Binary) and e.op == "add" and e.a is before else before
    return s.buffer.memory == "register" and all(n.buffer.name != s.buffer.name for n in loads(term))


def each_element(acc: Buffer, name: str, store: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
    """Return `store(index)` for every element of an accumulator, in loops by vectors along its last axis."""
    index = [Var(f"{name}{d}") for d in range(len(acc.shape))]
    inner = store(tuple(index))
    for d in reversed(range(len(index))):
        inner = For(index[d], acc.shape[d], inner, "vector" if d == len(index) - 1 else "unroll")
    return inner


def _element_loops(init: Stmt, acc: str) -> tuple[list[For], tuple[Expr, ...]]:
    """Return the loops that set every element of an accumulator, and its index in them. Raises ScheduleError
    if `init` is another statement."""
    loops = []
    while isinstance(init, For):
        loops.append(init)
        init = init.body
    if not isinstance(init, Store) or init.buffer.name != acc or init.index != tuple(p.var for p in loops):
        raise ScheduleError(f"{acc}: {init} doesn't begin each of its sums")
    return loops, init.index


def _copy(loops: Sequence[For], suffix: str, to: Buffer, index: tuple[Expr, ...], value: Expr) -> Stmt:
    """Return `to[index] = value` for all of `loops`, which are renamed from suffix _z."""
    fresh = {p.var: Var(p.var.name.removesuffix("_z") + suffix) for p in loops}
    copy = substitute_stmt(Store(to, index, value), dict(fresh))
    for p in reversed(loops):
        copy = replace(p, var=fresh[p.var], body=copy)
    return copy


def rfactor(func: Func, loop: str, lanes: int, ways: int) -> Func:
    """Reduce `loop`, the innermost of a reduction, in `ways` vectors of `lanes` partial results. Their
    additions overlap, and they are combined at the end.

    Remaining vectors are added to some of the partial results. The last terms are reduced by themselves, one
    by one. Each would otherwise be rounded as much as the whole sum. The order of additions changes.
    """
    if lanes < 1 or ways < 1:
        raise ScheduleError(f"{func.name}: {loop} can't be reduced in {ways} vectors of {lanes} lanes")
    loops = [
        s
        for s in statements(func.body)
        if isinstance(s, Alloc) and isinstance(s.body, Block) and len(s.body.body) == 3
        if (nest := chain(s.body.body[1])) and nest[-1].var.name == loop
    ]
    if len(loops) != 1:
        raise ScheduleError(f"{func.name}: {loop} isn't the one innermost loop of a reduction")
    serial(func, find(func, loop))
    target = loops[0]

    def go(s: Stmt) -> Stmt:
        return _factored(target, lanes, ways) if s is target else map_children(s, go)

    return well_formed(func.with_body(go(func.body)))


def _factored(alloc: Alloc, lanes: int, ways: int) -> Stmt:
    assert isinstance(alloc.body, Block)
    init, nest, final = alloc.body.body
    *around, k = chain(nest)
    if not isinstance(init, Store) or not isinstance(k.body, Store):
        raise ScheduleError(f"{alloc.buffer.name}: expected a plain reduction over {k.var}")
    update, acc, name = k.body, alloc.buffer, k.var.name
    step = lanes * ways
    partial = replace(acc, name=acc.name + "v", shape=(const(ways), const(lanes)))
    way, lane = Var(f"{name}w"), Var(f"{name}l")

    def each(suffix: str, inner: Stmt, kind: str = "vector") -> Stmt:
        w, v = Var(way.name + suffix), Var(lane.name + suffix)
        inner = substitute_stmt(inner, {way: w, lane: v})
        return For(w, const(ways), For(v, const(lanes), inner, kind), "unroll")

    def to_partial(s: Stmt) -> Stmt:
        return replace_buffer(s, acc.name, partial, lambda _: (way, lane))

    outer, rest = Var(f"{name}o"), Var(f"{name}t")
    body = substitute_stmt(update, {k.var: outer * step + way * lanes + lane})
    main: Stmt = For(outer, simplify(k.extent // step), each("", to_partial(body)))
    done = simplify((k.extent // step) * step)
    if ways > 1:
        left, own, count = Var(f"{name}r"), Var(f"{name}l_r"), simplify((k.extent - done) // lanes)
        # otherwise all are added to the first, because their number isn't known
        fixed = isinstance(count, Const)
        to = {way: left if fixed else const(0), lane: own, k.var: done + left * lanes + own}
        vector = For(own, const(lanes), substitute_stmt(to_partial(update), to), "vector")
        main = block(main, For(left, count, vector, "unroll" if fixed else "serial"))
        done = simplify((k.extent // lanes) * lanes)
    tail = For(rest, simplify(k.extent - done), substitute_stmt(update, {k.var: done + rest}))
    join, begin = _joined(update, partial, name, lanes, ways), each("_z", to_partial(init))
    if not around:
        return Alloc(acc, Alloc(partial, block(begin, main, init, tail, join, final)))
    inside: Stmt = block(main, _by_itself(init, update, tail))
    for p in reversed(around):
        inside = replace(p, body=inside)
    return Alloc(acc, Alloc(partial, block(begin, init, inside, join, final)))


def _by_itself(init: Store, update: Store, nest: Stmt) -> Stmt:
    """Return `nest` with an accumulator of its own, whose final value is then added to the accumulator of
    `update`."""
    acc, e = update.buffer, update.value
    own = replace(acc, name=f"{acc.name}.part")
    assert isinstance(e, Binary)
    add = replace(update, value=binary(e.op, e.a, Load(own, update.index)))
    return Alloc(own, block(*(replace_buffer(s, acc.name, own) for s in (init, nest)), add))


def _joined(update: Store, partial: Buffer, name: str, lanes: int, ways: int) -> Stmt:
    """Return statements that combine the partial results: the vectors in pairs, then the lanes of the last
    vector."""
    acc, e, last = update.buffer.name, update.value, Var(f"{name}l_k")
    if not (isinstance(e, Binary) and isinstance(e.a, Load) and e.a.buffer.name == acc):
        raise ScheduleError(f"{acc}: {e} is no update by a binary combiner")
    folds = list[Stmt]()
    while ways > 1:
        half, ways = ways // 2, ways - ways // 2
        way, lane = Var(f"{name}w_j{ways}"), Var(f"{name}l_j{ways}")
        both = binary(e.op, Load(partial, (way, lane)), Load(partial, (way + ways, lane)))
        vector = For(lane, const(lanes), Store(partial, (way, lane), both), "vector")
        folds.append(For(way, const(half), vector, "unroll"))
    total = Store(update.buffer, update.index, binary(e.op, e.a, Load(partial, (const(0), last))))
    return block(*folds, For(last, const(lanes), total, "vector"))
