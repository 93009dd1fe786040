"""Elements picked by value: the largest, the nonzero, the distinct, and boxes that don't overlap.

If a result's size depends on data, a first kernel counts, and the result is made once the count is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    binary,
    call,
    cast,
    const,
    eq,
    land,
    lor,
    maximum,
    minimum,
    ne,
    select,
)
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.simplify import Ranges, interval, prove, simplify
from jangin.ir.types import tensor_type
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder
from jangin.ops.candidates import Candidates, block_size
from jangin.ops.index import index_vars, nest, take_along
from jangin.ops.nontensor import called, host
from jangin.ops.operands import wide
from jangin.ops.order import element as unkeyed
from jangin.ops.order import key, key_type, keys
from jangin.ops.scatter import scatter_nd
from jangin.ops.values import Tensor

ZERO = (const(0),)


def count_true(b: Builder, flags: Tensor) -> Expr:
    """Return the number of true elements of a bool vector, as a size that becomes known at this point."""
    (n,) = b.bind(b.reduce("sum", b.cast(flags, I64), [0], True))
    return n


def positions(b: Builder, flags: Tensor, count: Expr) -> Tensor:
    """Return the indices of the true elements of a vector, ascending."""
    source, out = Buffer("x0", BOOL, flags.shape), Buffer("out", I64, (count,))
    at, i = Buffer("at", I64, (const(1),), "register"), Var("i")
    next_one = Load(at, ZERO)
    append = block(Store(out, (next_one,), i), Store(at, ZERO, next_one + 1))
    loop = For(i, flags.shape[0], If(land(Load(source, (i,)), next_one < count), append), "serial")
    body = Alloc(at, block(Store(at, ZERO, const(0)), loop))
    return b.loop_nest([flags], body, I64, (count,))


class _Heap:
    """A binary heap of elements' numbers and keys (see `order`).

    An element goes before another if its key is `before` the other's ("lt": less, "gt": greater). Among equal
    keys the larger number goes first, or else the smaller (`larger_first`). The heap's first element goes
    before all others. Its places are those of `numbers`, whose index `place` makes. `most` bounds its size.
    """

    def __init__(
        self, dtype: DType, numbers: Buffer, place: Callable[[Expr], tuple[Expr, ...]], most: Expr, *,
        before: str, larger_first: bool, symbols: Ranges,
    ) -> None:  # fmt: skip
        self.numbers, self.place, self.before, self.larger_first = numbers, place, before, larger_first
        held = key_type(dtype)
        self.values = Buffer("values", held, (maximum(most, const(1)),), "scratch")
        self.at, self.number = (Buffer(n, I64, (const(1),), "register") for n in ("at", "number"))
        self.value = Buffer("value", held, (const(1),), "register")
        self.top = minimum(most - 1, 0)  # an empty heap has no top
        high = interval(most, symbols)[1]
        self.levels = max(1, 62 if high is None else high.bit_length())

    def around(self, body: Stmt) -> Stmt:
        """Return `body` inside the allocations of the heap's buffers."""
        for b in (self.values, self.at, self.number, self.value):
            body = Alloc(b, body)
        return body

    def put(self, at: Expr, number: Expr, value: Expr) -> Stmt:
        return block(Store(self.numbers, self.place(at), number), Store(self.values, (at,), value))

    def sift(self, at: Expr, number: Expr, value: Expr, size: Expr) -> Stmt:
        """Return statements that put a number at place `at`, and let it sink below all that go before it in
        `size` places."""
        here, first, child = Load(self.at, ZERO), Var("first"), Var("child")
        sink = block(self.put(here, *self.held(child)), Store(self.at, ZERO, child))
        second = minimum(first + 1, size - 1)
        better = select(self._goes_before(self.held(second), self.held(first)), second, first)
        mine = Load(self.number, ZERO), Load(self.value, ZERO)
        step = Let(child, better, If(self._goes_before(self.held(child), mine), sink))
        level = Let(first, here * 2 + 1, If(first < size, step))
        return block(
            Store(self.number, ZERO, number),
            Store(self.value, ZERO, value),
            Store(self.at, ZERO, at),
            For(Var("level"), const(self.levels), level),
            self.put(here, *mine),
        )

    def build(self, size: Expr) -> Stmt:
        """Return statements that make a heap of the contents of `size` places."""
        j, p = Var("j"), Var("p")
        return For(j, size // 2, Let(p, size // 2 - 1 - j, self.sift(p, *self.held(p), size)))

    def first(self) -> tuple[Expr, Expr]:
        return self.held(self.top)

    def held(self, at: Expr) -> tuple[Expr, Expr]:
        return Load(self.numbers, self.place(at)), Load(self.values, (at,))

    def _goes_before(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        order = a[0] > b[0] if self.larger_first else a[0] < b[0]
        return lor(binary(self.before, a[1], b[1]), land(eq(a[1], b[1]), order))


def top_indices(b: Builder, x: Tensor, k: Expr, axis: int, largest: bool) -> Tensor:
    """Return the indices of the `k` best along `axis`, best first; among equals the lower index comes first.

    A heap keeps the k best, with the worst of them on top, and each better element replaces the top: O(n log
    k). The worst are then taken off one by one, from the last position to the first. In long rows only
    `candidates` are compared.
    """
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    src, out = Buffer("x0", x.dtype, x.shape), Buffer("out", I64, shape)
    row, n = index_vars(x.rank), x.shape[axis]

    def at(place: Expr) -> tuple[Expr, ...]:
        return (*row[:axis], place, *row[axis + 1 :])

    def element(i: Expr) -> Expr:
        return Load(src, at(i))

    heap = _Heap(x.dtype, out, at, k, before="lt" if largest else "gt", larger_first=True, symbols=b.symbols)
    size = block_size(n, k) if all(d == const(1) for d in x.shape[axis + 1 :]) else 0
    if isinstance(n, Const) and size:
        few = Candidates(x.dtype, element, int(n.value), k, size, largest=largest)
        body = few.around(_best_of(heap, element, few.number, few.held, k, largest))
    else:
        body = _best_of(heap, element, lambda i: i, n, k, largest)
    kept = [d for d in range(x.rank) if d != axis]
    whole = nest([x.shape[d] for d in kept], [row[d] for d in kept], heap.around(body), "parallel")
    enough = () if prove(k <= n, b.symbols) else (k <= n,)
    return b.loop_nest([x], whole, I64, shape, enough)


def _best_of(
    heap: _Heap,
    element: Callable[[Expr], Expr],
    number: Callable[[Expr], Expr],
    count: Expr,
    k: Expr,
    largest: bool,
) -> Stmt:
    """Return statements that find the `k` best of `count` elements, whose numbers are `number(0)`,
    `number(1)`..., in order.

    An element is compared with the worst so far as a float first. Keys are compared only if the element isn't
    clearly worse.
    """
    i, m, last = Var("i"), Var("m"), Var("last")
    mine, worst = Var("mine"), Var("worst")
    fill = For(i, k, Let(mine, number(i), heap.put(i, mine, key(element(mine)))))
    first, value = heap.first()
    own = wide(element(mine))
    limit = Buffer("limit", own.dtype, (const(1),), "register")
    bound = Store(limit, ZERO, unkeyed(value, own.dtype))
    enter = block(heap.sift(const(0), mine, key(element(mine)), k), bound)
    better = binary("gt" if largest else "lt", key(element(mine)), value)
    worse = binary("le" if largest else "ge", own, Load(limit, ZERO))
    tried = If(call("not", worse), If(better, enter) if own.dtype.is_float else enter)
    scan = Alloc(limit, block(bound, For(m, count - k, Let(mine, number(k + m), tried))))
    moved = heap.held(last)
    drop = block(heap.sift(const(0), *moved, last), Store(heap.numbers, heap.place(last), worst))
    order = For(m, k - 1, Let(last, k - 1 - m, Let(worst, first, drop)))
    return If(k > 0, block(fill, heap.build(k), scan, order))


def top_k(b: Builder, x: Tensor, k: Expr, *, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the `k` largest (or smallest) elements along `axis`, best first, and their i64 positions. Raises
    CompileError if the axis has fewer."""
    at = axis_of(axis, x.rank)
    if prove(k > x.shape[at], b.symbols):
        raise CompileError(f"the top {k} of {x}: axis {at} has fewer than {k} entries")
    indices = top_indices(b, x, k, at, largest)
    return take_along(b, x, indices, at), indices


def non_zero(b: Builder, x: Tensor) -> Tensor:
    """Return numpy.nonzero as one i64 tensor [rank, count]; a scalar gives [0, count]."""
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
    """Return the distinct slices along `axis`, or without an axis the distinct elements of the whole tensor.

    The results are the slices, the first position of each, the distinct slice that each slice equals, and the
    count of each. All but the first are i64. They are `ascending`, or in the order of first appearance. As in
    NumPy, NaN elements are equal, but slices that contain NaN are distinct.
    """
    at = 0 if axis is None else axis_of(axis, x.rank)
    if axis is None:
        x = b.reshape(x, [simplify(product(x.shape), b.symbols)])
    n = x.shape[at]
    if b.whole:
        unique_count = b.symbol()
        slices = tensor_type(x.dtype, (*x.shape[:at], unique_count, *x.shape[at + 1 :]))
        numbers = [tensor_type(I64, (d,)) for d in (unique_count, n, unique_count)]
        return host(b, "unique", [x], [slices, *numbers], {"axis": at, "ascending": ascending})
    rest = simplify(product(d for i, d in enumerate(x.shape) if i != at), b.symbols)
    perm = [at, *(i for i in range(x.rank) if i != at)]
    elements = b.reshape(b.transpose(x, perm), [n, rest])
    rows = keys(b, elements)
    first = _first_equal(b, rows if axis is None else elements)
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
    """Return the index of the first row that equals each row."""
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
    """Return row indices in ascending order of the rows; among equals the lower index comes first. Each row
    counts the rows before it, which is its position."""
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
        Store(place, ZERO, Load(place, ZERO) + cast(I64, lor(eq(known, 1), land(eq(known, 0), j < i)))),
    )
    one = block(Store(place, ZERO, const(0)), For(j, n, less), Store(out, (Load(place, ZERO),), i))
    body = For(i, n, Alloc(place, Alloc(order, one)), "serial")
    return b.loop_nest([rows], body, I64, (n,))


def _places(b: Builder, first: Tensor, heads: Tensor) -> Tensor:
    """Return for each slice the position among `heads` of the first slice that equals it."""
    return b.reduction(
        I64, first.shape, [heads.shape[0]], "sum", [first, heads],
        lambda bufs, i, k: select(eq(bufs[0][i[0]], bufs[1][k[0]]), k[0], const(0)),
    )  # fmt: skip


def non_max_suppression(
    b: Builder, boxes: Tensor, scores: Tensor, *, limit: Tensor, overlap: Tensor | None = None,
    floor: Tensor | None = None, centred: bool = False,
) -> Tensor:  # fmt: skip
    """Return the boxes that non-maximum suppression keeps, as i64 rows (batch, class, box).

    For each class the boxes of highest score come first, at most `limit`. Boxes are dropped if their score is
    NaN or at most `floor`. Boxes are also dropped if their intersection over union with a chosen box exceeds
    `overlap` (default 0); a box that has NaN overlaps by 0. boxes [batch, boxes, 4] are two corners, or if
    `centred` a centre and sizes. scores are [batch, classes, boxes]. The other tensors have one element.
    """
    if b.whole:
        limit = b.reshape(b.cast(limit, I64), [1])
        inputs = [boxes, scores, limit, *(t and b.reshape(t, [1]) for t in (overlap, floor))]
        return called(b, "non_max_suppression", inputs, I64, (b.symbol(), const(3)), centred=centred)
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
    """Return i64 [batch, classes, boxes]: the boxes that `non_max_suppression` chooses for each class, best
    first, then -1."""
    if boxes.rank != 3 or scores.rank != 3:
        raise CompileError(f"suppressing boxes {boxes} with scores {scores}: both must have rank 3")
    if b.whole:
        return _by_class(b, scores, boxes, limit=limit, overlap=overlap, floor=floor, centred=centred)
    batch, classes, n = scores.shape
    settings: list[tuple[str, Tensor | None]] = [("overlap", overlap), ("floor", floor)]
    limits = [(name, b.reshape(t, [1])) for name, t in settings if t is not None]
    inputs = [boxes, scores, b.reshape(b.cast(limit, I64), [1]), *(t for _, t in limits)]
    bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(inputs)]
    known = {name: Load(bufs[3 + i], ZERO) for i, (name, _) in enumerate(limits)}
    body = _suppress(bufs, (batch, classes, n), known, centred)
    alike = [eq(d, m) for d, m in zip(boxes.shape, (batch, n, const(4)), strict=True) if d != m]
    return b.loop_nest(inputs, body, I64, (batch, classes, n), alike)


def _by_class(b: Builder, scores: Tensor, boxes: Tensor, **given: Any) -> Tensor:
    """Return `chosen_boxes` made from the rows of a single `non_max_suppression` node. A row's position is
    its distance from the first row of its batch and class."""
    rows = non_max_suppression(b, boxes, scores, **given)
    n, (_, classes, _) = rows.shape[0], scores.shape
    batch, group, box = (b.slice(rows, [0, i], [n, const(1)], [1, 1]) for i in range(3))
    whose = b.map(lambda i, c: i * classes + c, batch, group)
    less = b.map(lambda mine, other: cast(I64, other < mine), whose, b.reshape(whose, [1, n]))
    first = b.reduce("sum", less, [1], True)
    numbers = b.compute(I64, [n, const(1)], [], lambda _, i, j: i)
    place = b.map(lambda i, at: i - at, numbers, first)
    where = b.concat([batch, group, place], 1)
    return scatter_nd(b, b.expand(b.scalar(-1, I64), scores.shape), where, b.reshape(box, [n]))


ABSENT = float(np.finfo(np.float32).min)
"""The score of a box that isn't there."""


def suppressed(
    b: Builder, boxes: Tensor, scores: Tensor, floor: float, overlap: float, most: int
) -> tuple[Tensor, Tensor]:
    """Return for each class the `most` boxes of highest score above `floor`, without those that overlap a
    better one by more than `overlap`.

    The results are scores f32 [images, classes, most], best first, `ABSENT` for boxes left out, and corners
    [images, classes, most, 4]. boxes [images, classes or 1, count, 4] are corners; scores are [images,
    classes, count].
    """
    n, classes, count = scores.shape
    likely = b.map(lambda v: select(v > floor, v, const(ABSENT, F32)), scores)
    best, where = top_k(b, likely, const(most), axis=2)
    spread = b.expand(boxes, [n, classes, count, 4])
    near = take_along(b, spread, b.expand(b.reshape(where, [n, classes, most, 1]), [n, classes, most, 4]), 2)
    rows = n * classes
    chosen = chosen_boxes(
        b, b.reshape(near, [rows, most, 4]), b.reshape(best, [rows, 1, most]),
        limit=b.const(np.array([most])), overlap=b.const(np.array([overlap], np.float32)),
        floor=b.const(np.array([ABSENT], np.float32)),
    )  # fmt: skip
    places = b.reshape(chosen, [n, classes, most])
    inside = b.map(lambda v: select(v < 0, const(0), v), places)
    kept = b.map(lambda p, s: select(p < 0, const(ABSENT, F32), s), places, take_along(b, best, inside, 2))
    wide = b.expand(b.reshape(inside, [n, classes, most, 1]), [n, classes, most, 4])
    return kept, take_along(b, near, wide, 2)


def _suppress(bufs: Sequence[Buffer], shape: Sequence[Expr], settings: dict[str, Any], centred: bool) -> Stmt:
    """Return statements that take the boxes from a heap, the best first, and keep those that overlap no kept
    box."""
    boxes, scores, limit = bufs[:3]
    batch, classes, n = shape
    out = Buffer("out", I64, (batch, classes, n))
    order = Buffer("order", I64, (maximum(n, const(1)),), "scratch")
    left, taken = (Buffer(name, I64, (const(1),), "register") for name in ("left", "taken"))
    free = Buffer("free", BOOL, (const(1),), "register")
    r, c, i, j, t = (Var(v) for v in "rcijt")
    best, last = Var("best"), Var("last")
    heap = _Heap(scores.dtype, order, lambda p: (p,), n, before="gt", larger_first=False, symbols={})
    size, count = Load(left, ZERO), Load(taken, ZERO)

    score = Load(scores, (r, c, i))
    passes = score > settings["floor"] if "floor" in settings else eq(score, score)
    enter = block(heap.put(size, i, key(score)), Store(left, ZERO, size + 1))
    fill = For(i, n, block(Store(out, (r, c, i), const(-1)), If(passes, enter)))
    overlap = overlap_of(boxes, r, Load(out, (r, c, j)), best, centred)
    covers = overlap > settings.get("overlap", const(0.0, boxes.dtype))
    check = For(j, count, If(Load(free, ZERO), If(covers, Store(free, ZERO, const(False, BOOL)))))
    keep = block(Store(out, (r, c, count), best), Store(taken, ZERO, count + 1))
    moved = Load(order, (last,)), Load(heap.values, (last,))
    pop = Let(last, size - 1, block(heap.sift(const(0), *moved, last), Store(left, ZERO, last)))
    one = block(Store(free, ZERO, const(True, BOOL)), check, If(Load(free, ZERO), keep), pop)
    take = For(t, n, If(land(count < Load(limit, ZERO), size > 0), Let(best, heap.first()[0], one)))
    whole = block(Store(left, ZERO, const(0)), Store(taken, ZERO, const(0)), fill, heap.build(size), take)
    for b in (order, left, taken, free):
        whole = Alloc(b, whole)
    return nest((batch, classes), (r, c), heap.around(whole), "parallel")


def overlap_of(boxes: Buffer, r: Expr, p: Expr, q: Expr, centred: bool = False) -> Expr:
    """Return the intersection over union of two boxes, `p` and `q` of the batch's item `r`."""

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
