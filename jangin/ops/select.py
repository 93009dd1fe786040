"""Elements picked by value: the largest, those that hold, the distinct ones, boxes that don't overlap.

A result's size that depends on data is counted first, and the result made once the count is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, eq, land, lor, ne, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.simplify import prove, simplify
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder, Tensor
from jangin.ops.index import index_vars, nest, take_along

ZERO = (const(0),)


def count_true(b: Builder, flags: Tensor) -> Expr:
    """How many elements of a vector of booleans hold, as a size that becomes known there."""
    (n,) = b.bind(b.reduce("sum", b.cast(flags, I64), [0], True))
    return n


def positions(b: Builder, flags: Tensor, count: Expr) -> Tensor:
    """The indices of the elements of a vector that hold, ascending."""
    source, out = Buffer("x0", BOOL, flags.shape), Buffer("out", I64, (count,))
    at, i = Buffer("at", I64, (const(1),), "register"), Var("i")
    next_one = Load(at, ZERO)
    found = block(Store(out, (next_one,), i), Store(at, ZERO, next_one + 1))
    loop = For(i, flags.shape[0], If(land(Load(source, (i,)), next_one < count), found), "serial")
    body = Alloc(at, block(Store(at, ZERO, const(0)), loop))
    return b.loop_nest([flags], body, I64, (count,))


def top_indices(b: Builder, x: Tensor, k: Expr, axis: int, largest: bool) -> Tensor:
    """Indices of the `k` best along `axis`, best first, the lower index first among equals:
    insertion into the result, which holds the best so far."""
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    src, out = Buffer("x0", x.dtype, x.shape), Buffer("out", I64, shape)
    row = index_vars(x.rank)
    i, j, p = Var("i"), Var("j"), Var("p")

    def at(place: Expr) -> tuple[Expr, ...]:
        return (*row[:axis], place, *row[axis + 1 :])

    def beats(place: Expr) -> Expr:
        """Element i goes before what `place` of the result holds (nothing yet from place i on)."""
        mine, other = Load(src, at(i)), Load(src, at(Load(out, at(place))))
        better = mine > other if largest else mine < other
        return select(place >= i, const(True, BOOL), better)

    shifted = select(p > 0, beats(p - 1), const(False, BOOL))
    move = If(shifted, Store(out, at(p), Load(out, at(p - 1))), Store(out, at(p), i))
    insert = For(j, k, Let(p, k - 1 - j, If(beats(p), move)))
    scan = If(k > 0, For(i, x.shape[axis], If(beats(k - 1), insert)))
    clear = For(j, k, Store(out, at(j), const(0)))
    kept = [n for n in range(x.rank) if n != axis]
    body = nest([x.shape[n] for n in kept], [row[n] for n in kept], block(clear, scan), "parallel")
    enough = () if prove(k <= x.shape[axis], b.symbols) else (k <= x.shape[axis],)
    return b.loop_nest([x], body, I64, shape, enough)


def top_k(b: Builder, x: Tensor, k: Expr, *, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements along `axis`, best first, and where they stand (i64).
    CompileError where there are fewer."""
    at = axis_of(axis, x.rank)
    if prove(k > x.shape[at], b.symbols):
        raise CompileError(f"the top {k} of {x}: axis {at} has fewer than {k} entries")
    indices = top_indices(b, x, k, at, largest)
    return take_along(b, x, indices, at), indices


def non_zero(b: Builder, x: Tensor) -> Tensor:
    """numpy.nonzero as one i64 tensor [rank, count]; of a scalar [0, count]."""
    total = simplify(product(x.shape), b.symbols)
    flags = b.map(lambda v: ne(v, const(0, x.dtype)), b.reshape(x, [total]))
    flat = positions(b, flags, n := count_true(b, flags))
    if not x.rank:
        return b.slice(b.reshape(flat, [1, n]), [0, 0], [0, n], [1, 1])
    rows = []
    for axis, size in enumerate(x.shape):
        inner = product(x.shape[axis + 1 :])
        rows.append(b.reshape(b.map(lambda v, s=inner, d=size: v // s % d, flat), [const(1), n]))
    return b.concat(rows, 0)


def unique(b: Builder, x: Tensor, *, axis: int | None = None, ascending: bool = True) -> tuple[Tensor, ...]:
    """Distinct slices along `axis` (elements of the whole tensor without), `ascending`, or else in the
    order of their first appearance; where each appears first, which one each slice is, how often (i64)."""
    at = 0 if axis is None else axis_of(axis, x.rank)
    if axis is None:
        x = b.reshape(x, [simplify(product(x.shape), b.symbols)])
    n = x.shape[at]
    rest = simplify(product(d for i, d in enumerate(x.shape) if i != at), b.symbols)
    perm = [at, *(i for i in range(x.rank) if i != at)]
    rows = b.reshape(b.transpose(x, perm), [n, rest])
    first = _first_equal(b, rows)
    flags = b.compute(BOOL, [n], [first], lambda bufs, i: eq(bufs[0][i], i))
    count = count_true(b, flags)
    heads = positions(b, flags, count)
    if ascending:
        heads = b.gather(heads, _ranks(b, b.gather(rows, heads, 0)), 0)
    inverse = _places(b, first, heads)
    counts = b.reduction(
        I64, [count], [n], "sum", [inverse], lambda bufs, i, k: cast(I64, eq(bufs[0][k[0]], i[0]))
    )
    return b.gather(x, heads, at), heads, inverse, counts


def _first_equal(b: Builder, rows: Tensor) -> Tensor:
    """For each row the first one that equals it."""
    n, m = rows.shape
    source, out = Buffer("x0", rows.dtype, rows.shape), Buffer("out", I64, (n,))
    i, j, k = Var("i"), Var("j"), Var("k")
    same = Buffer("same", BOOL, (const(1),), "register")
    differs = If(ne(Load(source, (i, k)), Load(source, (j, k))), Store(same, ZERO, const(False, BOOL)))
    compare = block(
        Store(same, ZERO, eq(Load(out, (i,)), i)),
        If(Load(same, ZERO), For(k, m, differs)),
        If(Load(same, ZERO), Store(out, (i,), j)),
    )
    body = For(i, n, Alloc(same, block(Store(out, (i,), i), For(j, i, compare))), "parallel")
    return b.loop_nest([rows], body, I64, (n,))


def _ranks(b: Builder, rows: Tensor) -> Tensor:
    """Distinct rows' indices in ascending order: each is counted into the place it belongs to."""
    n, m = rows.shape
    source, out = Buffer("x0", rows.dtype, rows.shape), Buffer("out", I64, (n,))
    i, j, k = Var("i"), Var("j"), Var("k")
    place = Buffer("place", I64, (const(1),), "register")
    order = Buffer("order", I64, (const(1),), "register")
    mine, other, known = Load(source, (i, k)), Load(source, (j, k)), Load(order, ZERO)
    compared = select(other < mine, const(1), select(mine < other, const(2), const(0)))
    less = block(
        Store(order, ZERO, const(0)),
        For(k, m, Store(order, ZERO, select(eq(known, 0), compared, known))),
        Store(place, ZERO, Load(place, ZERO) + cast(I64, eq(known, 1))),
    )
    one = block(Store(place, ZERO, const(0)), For(j, n, less), Store(out, (Load(place, ZERO),), i))
    body = For(i, n, Alloc(place, Alloc(order, one)), "serial")
    return b.loop_nest([rows], body, I64, (n,))


def _places(b: Builder, first: Tensor, heads: Tensor) -> Tensor:
    """For each slice the place among `heads` of the first one that equals it."""
    return b.reduction(
        I64, first.shape, [heads.shape[0]], "sum", [first, heads],
        lambda bufs, i, k: select(eq(bufs[0][i[0]], bufs[1][k[0]]), k[0], const(0)),
    )  # fmt: skip


def non_max_suppression(
    b: Builder, boxes: Tensor, scores: Tensor, *, limit: Tensor, overlap: Tensor | None = None,
    floor: Tensor | None = None, centred: bool = False,
) -> Tensor:  # fmt: skip
    """Rows (batch, class, box) of i64: of each class the boxes of highest score first, at most `limit`,
    without those that score no more than `floor` or overlap a chosen one by more than `overlap`, as
    intersection over union (0 if not given). boxes [batch, boxes, 4]: two corners, or `centred`, a centre and
    sizes; scores [batch, classes, boxes]; the others have one element."""
    chosen = chosen_boxes(b, boxes, scores, limit=limit, overlap=overlap, floor=floor, centred=centred)
    batch, classes, most = chosen.shape
    flat = b.reshape(chosen, [simplify(batch * classes * most, b.symbols)])
    flags = b.map(lambda v: v >= 0, flat)
    where = positions(b, flags, n := count_true(b, flags))
    columns = (
        b.map(lambda v: v // (classes * most), where),
        b.map(lambda v: v // most % classes, where),
        b.gather(flat, where, 0),
    )
    return b.concat([b.reshape(c, [n, const(1)]) for c in columns], 1)


def chosen_boxes(
    b: Builder, boxes: Tensor, scores: Tensor, *, limit: Tensor, overlap: Tensor | None = None,
    floor: Tensor | None = None, centred: bool = False,
) -> Tensor:  # fmt: skip
    """i64 [batch, classes, boxes]: what `non_max_suppression` chooses of each class, best first, then -1."""
    if boxes.rank != 3 or scores.rank != 3:
        raise CompileError(f"suppressing boxes {boxes} with scores {scores}: both must have rank 3")
    batch, classes, n = scores.shape
    settings: list[tuple[str, Tensor | None]] = [("overlap", overlap), ("floor", floor)]
    given = [(name, b.reshape(t, [1])) for name, t in settings if t is not None]
    inputs = [boxes, scores, b.reshape(b.cast(limit, I64), [1]), *(t for _, t in given)]
    bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(inputs)]
    known = {name: Load(bufs[3 + i], ZERO) for i, (name, _) in enumerate(given)}
    body = _suppress(bufs, (batch, classes, n), known, centred)
    return b.loop_nest(inputs, body, I64, (batch, classes, n))


def _suppress(bufs: Sequence[Buffer], shape: Sequence[Expr], settings: dict[str, Any], centred: bool) -> Stmt:
    """Choose the best box that overlaps none chosen, again and again. The result holds, while a class
    is in work, -2 for boxes that are out."""
    boxes, scores, limit = bufs[:3]
    batch, classes, n = shape
    out = Buffer("out", I64, (batch, classes, n))
    state = Buffer("state", I64, (n,), "scratch")
    best, taken = (Buffer(name, I64, (const(1),), "register") for name in ("best", "taken"))
    r, c, i, j, k = (Var(v) for v in "rcijk")
    zero = const(0.0, boxes.dtype)

    def score(at: Expr) -> Expr:
        return Load(scores, (r, c, at))

    passes = const(True, BOOL) if "floor" not in settings else score(i) > settings["floor"]
    start = block(Store(state, (i,), select(passes, const(0), const(1))), Store(out, (r, c, i), const(-1)))
    leader = Load(best, ZERO)
    better = lor(leader < 0, score(j) > score(select(leader < 0, const(0), leader)))
    search = For(j, n, If(land(eq(Load(state, (j,)), 0), better), Store(best, ZERO, j)))
    overlap = _overlap(boxes, r, leader, j, centred)
    drop = For(j, n, If(overlap > settings.get("overlap", zero), Store(state, (j,), const(1))))
    take = block(
        Store(out, (r, c, Load(taken, ZERO)), leader),
        Store(taken, ZERO, Load(taken, ZERO) + 1),
        drop,
        Store(state, (leader,), const(1)),
    )
    enough = Store(taken, ZERO, Load(limit, ZERO))
    step = block(Store(best, ZERO, const(-1)), search, If(leader >= 0, take, enough))
    rounds = For(k, n, If(Load(taken, ZERO) < Load(limit, ZERO), step))
    one = block(For(i, n, start), Store(taken, ZERO, const(0)), rounds)
    inside = Alloc(state, Alloc(best, Alloc(taken, one)))
    return nest((batch, classes), (r, c), inside, "parallel")


def _overlap(boxes: Buffer, r: Var, p: Expr, q: Expr, centred: bool) -> Expr:
    """Intersection over union of two boxes."""

    def sides(box: Expr) -> list[tuple[Expr, Expr]]:
        v = [Load(boxes, (r, box, const(n))) for n in range(4)]
        if centred:
            return [(v[n] - v[n + 2] / 2.0, v[n] + v[n + 2] / 2.0) for n in (0, 1)]
        return [
            (select(v[n] < v[n + 2], v[n], v[n + 2]), select(v[n] < v[n + 2], v[n + 2], v[n])) for n in (0, 1)
        ]

    (a0, a1), (b0, b1) = zip(sides(p), sides(q), strict=True)
    zero = const(0.0, boxes.dtype)
    inter: Expr = const(1.0, boxes.dtype)
    for (low, high), (low2, high2) in ((a0, a1), (b0, b1)):
        width = select(high < high2, high, high2) - select(low > low2, low, low2)
        inter = inter * select(width > zero, width, zero)
    areas = [(s[0][1] - s[0][0]) * (s[1][1] - s[1][0]) for s in (sides(p), sides(q))]
    union = areas[0] + areas[1] - inter
    return select(union > zero, inter / union, zero)
