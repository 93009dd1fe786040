"""Online softmax: a softmax and the sums that it weights in one pass over their terms, as in flash attention.

A running maximum is kept, and the sums are scaled down when it grows, so no row of weights is stored whole.
The sources are Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
"FlashAttention: fast and memory-efficient exact attention with IO-awareness" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jangin.ir.expr import (
    Buffer,
    Expr,
    Load,
    Select,
    Var,
    call,
    const,
    eq,
    maximum,
    select,
)
from jangin.ir.loop import (
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
    map_children,
    map_stmt,
    statements,
    substitute_stmt,
)
from jangin.ir.records import dataclass
from jangin.ir.simplify import interval, simplify
from jangin.ir.traversal import loads, rewrite, substitute
from jangin.schedule.checks import ScheduleError, bound_inside, well_formed
from jangin.schedule.primitives import find, ranges_at, rename_loops

LOWEST = -math.inf


def online(func: Func, sums: Sequence[str], scores: Sequence[str]) -> Func:
    """Fuse a block of nests into an online softmax.

    The nests make scores [rows, terms], each a sum of products; their softmax (maximum, exponentials, sum,
    weights); and sums weighted by it. Scores and sums have the same register tiles. A tile's loops are
    threads down, threads across, a thread's rows, and its columns. `sums` names the loops over their blocks
    of rows, over their tiles, and over the tiles of their terms. `scores` names the loops over blocks of
    rows, and over tiles. Afterwards a tile of scores is made just before its terms are added, and the sums
    are divided in the end. The order of operations changes.

    New loops over threads down, across and their rows are called begin, power, end and norm, followed by
    _down, _across and _row. The loop that stores a row's exponentials is called power_stored. The loops that
    scale sums have the names of those that begin the sums, followed by an r.
    """
    rows, at, terms = (find(func, n) for n in sums)
    soft, score_loops = _softmax(func), [find(func, n) for n in scores]
    moved: dict[Var, Expr] = {score_loops[0].var: rows.var, score_loops[1].var: terms.var}
    body = _Online(soft, _tile(func, soft, _tiled(func, at, {}), _tiled(func, score_loops[1], moved))).body()
    gone = {b.name for b in soft.local}

    def go(s: Stmt) -> Stmt:
        if s is at:
            return replace(at, body=body)
        if isinstance(s, Alloc) and s.buffer.name in gone:
            return go(s.body)
        if isinstance(s, Block) and s.body[1:5] == soft.nests:
            return go(s.body[-1])
        return map_children(s, go)

    return well_formed(func.with_body(go(func.body)))


# --- the nest as it comes


@dataclass(frozen=True)
class _Reduction:
    """A reducing nest: `begin`, the loop over `terms`, and `end`, around an accumulator, all inside outer
    loops."""

    acc: Buffer
    begin: Stmt
    terms: For
    end: Store

    @property
    def value(self) -> Load:
        return Load(self.acc, (const(0),))


@dataclass(frozen=True)
class _Softmax:
    """The nests between scores and sums. `local` has the buffers of scores, maxima, exponentials, sums and
    weights. `weight` is the value of a weight."""

    nests: tuple[Stmt, ...]
    norm: _Reduction
    weight: Expr
    local: tuple[Buffer, ...]


def _softmax(func: Func) -> _Softmax:
    """Return the kernel's softmax, inside the loops around the whole kernel. Raises ScheduleError if there is
    none between two products."""
    s = func.body
    while isinstance(s, (For, Alloc)):
        s = s.body
    nests = s.body if isinstance(s, Block) and len(s.body) == 6 else ()
    peak, norm = (_reduction(nests[n]) if nests else None for n in (1, 3))
    power, weight = (_map(nests[n]) if nests else None for n in (2, 4))
    stored = [k.buffer for k in statements(nests[0]) if isinstance(k, Store)] if nests else []
    if peak is None or norm is None or power is None or weight is None or not stored:
        raise ScheduleError(f"{func.name} isn't a product, a softmax of it and a product of that")
    local = stored[-1], peak.end.buffer, power.buffer, norm.end.buffer, weight.buffer
    scores, top, powers, sums, _ = local
    row, part = Load(powers, weight.index), Load(sums, weight.index[:-1])
    if not (
        peak.begin == _step(peak, const(LOWEST, scores.dtype))
        and peak.terms.body == _step(peak, maximum(peak.value, _along(scores, peak)))
        and peak.end.value in (peak.value, _or_zero(peak.value))
        and power.value == call("exp", Load(scores, power.index) - Load(top, power.index[:-1]))
        and norm.begin == _step(norm, const(0, scores.dtype))
        and norm.terms.body == _step(norm, norm.value + _along(powers, norm))
        and weight.value in (row * part, row / part)
    ):
        raise ScheduleError(f"{func.name} has no softmax between its products")
    return _Softmax(nests[1:5], norm, weight.value, local)


def _or_zero(peak: Expr) -> Expr:
    """Return the number that is subtracted from scores before the exponential: a row's maximum, or 0 if all
    scores are the lowest."""
    return select(eq(peak, const(LOWEST, peak.dtype)), const(0, peak.dtype), peak)


def _nest(s: Stmt) -> tuple[tuple[For, ...], Stmt]:
    loops = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    return tuple(loops), s


def _reduction(nest: Stmt) -> _Reduction | None:
    loops, s = _nest(nest)
    parts = s.body.body if isinstance(s, Alloc) and isinstance(s.body, Block) else ()
    if not isinstance(s, Alloc) or len(parts) != 3:
        return None
    begin, terms, end = parts
    if not isinstance(terms, For) or not isinstance(end, Store) or end.index != tuple(p.var for p in loops):
        return None
    return _Reduction(s.buffer, begin, terms, end)


def _map(nest: Stmt) -> Store | None:
    loops, s = _nest(nest)
    return s if isinstance(s, Store) and s.index == tuple(p.var for p in loops) else None


def _step(of: _Reduction, value: Expr) -> Store:
    return Store(of.acc, (const(0),), value)


def _along(buffer: Buffer, of: _Reduction) -> Load:
    """Return the term of a reduction over a buffer's rows."""
    return Load(buffer, (*of.end.index, of.terms.var))


@dataclass(frozen=True)
class _Tiled:
    """A product in register tiles: accumulated in `acc`, begun by `begin`, summed by `loop`, finished by
    `end`."""

    acc: Buffer
    begin: Stmt
    loop: For
    end: Stmt


def _tiled(func: Func, around: For, moved: Mapping[Var, Expr]) -> _Tiled:
    s = around.body
    parts = s.body.body if isinstance(s, Alloc) and isinstance(s.body, Block) else ()
    if not isinstance(s, Alloc) or len(parts) != 3 or len(s.buffer.shape) != 4:
        raise ScheduleError(f"{func.name}: {around.var} holds no tile of four loops in registers")
    begin, loop, end = (substitute_stmt(p, moved) for p in parts)
    if not isinstance(loop, For):
        raise ScheduleError(f"{func.name}: {around.var} holds no sums over a loop")
    return _Tiled(s.buffer, begin, loop, end)


@dataclass(frozen=True)
class _Tile:
    """A tile of scores and the sums to which it contributes.

    `read`: the weight's index in the tile that an iteration of the sums' loop reads. `stored`: the index of a
    finished score. `rows` and `terms`: the tile's numbers of rows and of terms.
    """

    scores: _Tiled
    sums: _Tiled
    read: tuple[Expr, Expr]
    stored: tuple[Expr, Expr]
    rows: int
    terms: int


def _tile(func: Func, soft: _Softmax, sums: _Tiled, scores: _Tiled) -> _Tile:
    weights = {n for s in statements(sums.loop) for e in expressions(s) for n in loads(e)}
    read = [n.index for n in weights if n.buffer.name == soft.local[-1].name]
    stored = [s.index for s in statements(scores.end) if isinstance(s, Store)]
    if len(read) != 1 or len(stored) != 1 or scores.acc.shape[:3] != sums.acc.shape[:3]:
        raise ScheduleError(f"{func.name}: {scores.acc.name} and {sums.acc.name} aren't tiled alike")
    ranges = ranges_at(func, sums.loop.var.name)
    for s in (*statements(sums.loop.body), *statements(scores.end)):
        if isinstance(s, For):
            ranges[s.var] = const(0), simplify(s.extent - 1, ranges)
    origin = {v: const(0) for v in bound_inside(sums.loop.body) | bound_inside(scores.end)}
    bases = [simplify(substitute(i, origin), ranges) for i in (*read[0], *stored[0])]
    places = [simplify(i - b, ranges) for i, b in zip((*read[0], *stored[0]), bases, strict=True)]
    spans = [interval(e, ranges) for e in places]
    sizes = [high + 1 for low, high in spans[:2] if low == 0 and high is not None]
    if len(sizes) != 2 or bases[:2] != bases[2:] or spans[:2] != spans[2:]:
        raise ScheduleError(f"{func.name}: {sums.acc.name} reads other tiles than {scores.acc.name} makes")
    return _Tile(scores, sums, (places[0], places[1]), (places[2], places[3]), *sizes)


# --- the online nest


class _Online:
    """Makes the code for a block of rows, with these buffers.

    For each row of each thread, `gain` is the factor for its sums. `peak` is the row's running maximum, and
    `total` the running sum of the thread's exponentials. For all threads of a row, `top` has the maxima of
    their own scores, and `powers` the exponentials.
    """

    def __init__(self, soft: _Softmax, tile: _Tile) -> None:
        self.soft, self.tile = soft, tile
        name, dtype = soft.local[0].name, soft.local[0].dtype
        shape = tile.scores.acc.shape
        rows, terms = const(tile.rows), const(tile.terms)
        self.zero, self.lowest = const(0, dtype), const(LOWEST, dtype)
        self.powers = Buffer(f"{name}.powers", dtype, (rows, terms), "scratch")
        self.top = Buffer(f"{name}.top", dtype, (rows, shape[1]), "scratch")
        self.gain, self.peak, self.total = (
            Buffer(f"{name}.{n}", dtype, shape[:3], "scratch") for n in ("gain", "peak", "total")
        )
        self.loops, end = _nest(tile.scores.end)
        self.guards: list[Expr] = []
        while isinstance(end, If):
            self.guards.append(end.cond)
            end = end.then
        assert isinstance(end, Store)
        self.score = end.value

    def body(self) -> Stmt:
        scores, sums = self.tile.scores, self.tile.sums
        rescaled = block(scores.begin, scores.loop, self._tops(), self._powers())
        turn = block(Alloc(scores.acc, rescaled), self._rescaled(), self._weighted())
        whole = block(sums.begin, replace(sums.loop, body=turn), *self._norms(), self._ended())
        body: Stmt = block(self._begun(), Alloc(sums.acc, whole))
        for b in (self.powers, self.top, self.gain, self.peak, self.total):
            body = Alloc(b, body)
        return body

    def _each(self, name: str, make: Callable[[tuple[Expr, ...], Expr], Stmt]) -> Stmt:
        """Return a statement for each row of each thread, made from the thread row's index and its row in the
        tile."""
        new = {p.var: Var(f"{name}_{n}") for p, n in zip(self.loops, ("down", "across", "row"), strict=False)}
        nest = make(tuple(new.values()), substitute(self.tile.stored[0], dict(new)))
        for p, var in reversed(list(zip(self.loops, new.values(), strict=False))):
            nest = For(var, p.extent, nest)
        return nest

    def _accumulator(self, of: Buffer) -> Buffer:
        return Buffer(f"{of.name}.acc", of.dtype, (const(1),), "register")

    def _begun(self) -> Stmt:
        def make(at: tuple[Expr, ...], row: Expr) -> Stmt:
            return block(Store(self.peak, at, self.lowest), Store(self.total, at, self.zero))

        return self._each("begin", make)

    def _tops(self) -> Stmt:
        """Return statements that finish the scores and find each thread's greatest. Scores outside the rows
        or terms are the lowest."""
        *around, last = self.loops
        own, acc, one = self.tile.scores.acc, self._accumulator(self.top), (const(0),)
        index = tuple(p.var for p in self.loops)
        score = self.score
        for c in reversed(self.guards):
            score = select(c, score, self.lowest)
        step = Store(acc, one, maximum(Load(acc, one), Load(own, index)))
        store = Store(self.top, (self.tile.stored[0], around[1].var), Load(acc, one))
        each = replace(last, body=block(Store(own, index, score), step))
        body: Stmt = Alloc(acc, block(Store(acc, one, self.lowest), each, store))
        for p in reversed(around):
            body = replace(p, body=body)
        return body

    def _powers(self) -> Stmt:
        """Return statements that compute the exponentials of the scores, and the rows' new state. If all
        scores so far are the lowest, exponentials are 0, as they would be with a greater maximum."""
        most, total, one = self._accumulator(self.peak), self._accumulator(self.total), (const(0),)
        dtype, shift = self.zero.dtype, Var("power_shift", self.zero.dtype)
        thread, last = Var("power_thread"), self.loops[-1]
        own, stored, scores = Var("power_column"), Var("power_stored"), self.tile.scores.acc

        def make(at: tuple[Expr, ...], row: Expr) -> Stmt:
            new = {p.var: v for p, v in zip(self.loops, (*at, stored), strict=True)}
            column = substitute(self.tile.stored[1], new)
            power = call("exp", Load(scores, (*at, own)) - shift)
            gain = call("exp", Load(self.peak, at) - shift)
            peak, value = Load(most, one), Var("power_value", dtype)
            greater = Store(most, one, maximum(peak, Load(self.top, (row, thread))))
            add = block(Store(scores, (*at, own), value), Store(total, one, Load(total, one) + value))
            parts = block(
                Store(total, one, self.zero),
                For(own, last.extent, Let(value, power, add), "unroll"),
                For(stored, last.extent, Store(self.powers, (row, column), Load(scores, (*at, stored)))),
                Store(self.gain, at, gain),
                Store(self.total, at, Load(self.total, at) * Load(self.gain, at) + Load(total, one)),
                Store(self.peak, at, peak),
            )
            powers: Stmt = Let(shift, _or_zero(peak), Alloc(total, parts))
            every = For(thread, self.top.shape[1], greater)
            return Alloc(most, block(Store(most, one, Load(self.peak, at)), every, powers))

        return self._each("power", make)

    def _rescaled(self) -> Stmt:
        """Return statements that scale the running sums for the new maximum."""
        begin = rename_loops(self.tile.sums.begin, "r")
        store = next(s for s in statements(begin) if isinstance(s, Store))
        scaled = replace(store, value=Load(store.buffer, store.index) * Load(self.gain, store.index[:3]))
        return _put(begin, store, scaled)

    def _weighted(self) -> Stmt:
        """Return statements that add the terms of a tile, with exponentials instead of weights. Exponentials
        beyond the last term are 0."""
        weights, own = self.soft.local[-1].name, Load(self.powers, self.tile.read)

        def power(e: Expr) -> Expr | None:
            bounded = isinstance(e, Select) and e.a == own
            return own if bounded or (isinstance(e, Load) and e.buffer.name == weights) else None

        return map_stmt(self.tile.sums.loop.body, lambda e: rewrite(e, power))

    def _norms(self) -> Sequence[Stmt]:
        """Return statements that compute each row's normalizer from its sum, and store it in the buffer
        `gain`."""
        norm, acc, one = self.soft.norm, self._accumulator(self.gain), (const(0),)
        thread = Var("norm_thread")

        def end(at: tuple[Expr, ...], row: Expr) -> Stmt:
            return Store(self.top, (row, at[1]), Load(self.total, at))

        def make(at: tuple[Expr, ...], row: Expr) -> Stmt:
            total = Load(acc, one)
            every = For(thread, self.top.shape[1], Store(acc, one, total + Load(self.top, (row, thread))))
            value = rewrite(norm.end.value, lambda e: total if e == norm.value else None)
            return Alloc(acc, block(Store(acc, one, self.zero), every, Store(self.gain, at, value)))

        return self._each("end", end), self._each("norm", make)

    def _ended(self) -> Stmt:
        """Return statements that finish the sums: they are divided, as if they had been made of weights."""
        _, _, powers, norms, _ = self.soft.local

        def done(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.buffer != self.tile.sums.acc:
                return None
            values = {powers.name: e, norms.name: Load(self.gain, e.index[:3])}
            return rewrite(self.soft.weight, lambda n: values[n.buffer.name] if isinstance(n, Load) else None)

        return map_stmt(self.tile.sums.end, lambda e: rewrite(e, done))


def _put(s: Stmt, old: Stmt, new: Stmt) -> Stmt:
    return new if s is old else map_children(s, lambda k: _put(k, old, new))
