"""Operators whose result's size depends on data: counted first, and made once the count is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.onnx.operators.index import nest
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, eq, land, lor, ne, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, If, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder, Tensor

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


@op("NonZero", since=9)
def non_zero(b: Builder, x: Tensor) -> Tensor:
    total = simplify(product(x.shape), b.symbols)
    flags = b.map(lambda v: ne(v, const(0, x.dtype)), b.reshape(x, [total]))
    flat = positions(b, flags, n := count_true(b, flags))
    if not x.rank:  # no row, says the standard
        return b.slice(b.reshape(flat, [1, n]), [0, 0], [0, n], [1, 1])
    rows = []
    for axis, size in enumerate(x.shape):
        inner = product(x.shape[axis + 1 :])
        rows.append(b.reshape(b.map(lambda v, s=inner, d=size: v // s % d, flat), [const(1), n]))
    return b.concat(rows, 0)


@op("Compress", since=9)
def compress(b: Builder, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices where `condition` holds (missing entries of it don't)."""
    at = 0 if axis is None else axis_of(axis, x.rank)
    if axis is None:
        x = b.reshape(x, [simplify(product(x.shape), b.symbols)])
    return b.gather(x, positions(b, condition, count_true(b, condition)), at)


@op("Unique", since=11)
def unique(b: Builder, x: Tensor, *, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
    """Distinct slices along `axis` (elements of the whole tensor without), in ascending order or that
    of their first appearance; where each appears first, which one each slice is, and how often."""
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
    if sorted:
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


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    b: Builder,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Rows (batch, class, box): of each class the boxes of highest score first, without those that
    overlap a chosen one by more than the threshold."""
    chosen = _chosen(
        b, boxes, scores, max_output_boxes_per_class, iou_threshold, score_threshold, center_point_box
    )
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


def _chosen(
    b: Builder, boxes: Tensor, scores: Tensor, most: Tensor | None, overlap: Tensor | None,
    floor: Tensor | None, centered: int,
) -> Tensor:  # fmt: skip
    """The boxes chosen of each class, best first, then -1."""
    if boxes.rank != 3 or scores.rank != 3:
        raise CompileError(f"NonMaxSuppression of {boxes} and {scores}: both must have rank 3")
    batch, classes, n = scores.shape
    limit = b.sizes([0]) if most is None else most
    settings: list[tuple[str, Tensor | None]] = [("overlap", overlap), ("floor", floor)]
    given = [(name, b.reshape(t, [1])) for name, t in settings if t is not None]
    limit = b.reshape(b.cast(limit, I64), [1])
    inputs = [boxes, scores, limit, *(t for _, t in given)]
    bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(inputs)]
    known = {name: Load(bufs[3 + i], ZERO) for i, (name, _) in enumerate(given)}
    body = _suppress(bufs, (batch, classes, n), known, centered)
    return b.loop_nest(inputs, body, I64, (batch, classes, n))


def _suppress(bufs: Sequence[Buffer], shape: Sequence[Expr], settings: dict[str, Any], centered: int) -> Stmt:
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
    overlap = _overlap(boxes, r, leader, j, centered)
    drop = For(j, n, If(overlap > settings.get("overlap", zero), Store(state, (j,), const(1))))
    take = block(
        Store(out, (r, c, Load(taken, ZERO)), leader),
        Store(taken, ZERO, Load(taken, ZERO) + 1),
        drop,
        Store(state, (leader,), const(1)),
    )
    step = block(Store(best, ZERO, const(-1)), search, If(leader >= 0, take))
    rounds = For(k, n, If(Load(taken, ZERO) < Load(limit, ZERO), step))
    one = block(For(i, n, start), Store(taken, ZERO, const(0)), rounds)
    inside = Alloc(state, Alloc(best, Alloc(taken, one)))
    return nest((batch, classes), (r, c), inside, "parallel")


def _overlap(boxes: Buffer, r: Var, p: Expr, q: Expr, centered: int) -> Expr:
    """Intersection over union of two boxes."""

    def sides(box: Expr) -> list[tuple[Expr, Expr]]:
        v = [Load(boxes, (r, box, const(n))) for n in range(4)]
        if centered:
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
