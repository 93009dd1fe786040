"""Multi-head attention, its key and value caches, and rotary position embedding.

Queries are [batch, heads, queries, size], keys [batch, groups, keys, size], values [batch, groups, keys,
width]. The number of heads is a multiple of the number of groups. Neighbouring heads share a group's keys and
values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jangin.ir.dtype import BOOL, F32, F64, I8, I64, DType
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    ExprLike,
    call,
    cast,
    const,
    eq,
    land,
    minimum,
    select,
)
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ops.axes import clamped, divide
from jangin.ops.builder import Builder
from jangin.ops.dropout import dropout
from jangin.ops.index import in_range
from jangin.ops.operands import wide
from jangin.ops.quantized import saturated
from jangin.ops.values import Tensor


def split_heads(b: Builder, x: Tensor, heads: int) -> Tensor:
    """Reshape [batch, sequence, heads * size] to [batch, heads, sequence, size]."""
    n, s, width = x.shape
    split = b.reshape(x, (n, s, heads, divide(width, const(heads), b.symbols)))
    return b.transpose(split, (0, 2, 1, 3))


def join_heads(b: Builder, x: Tensor) -> Tensor:
    """Reshape [batch, heads, sequence, size] to [batch, sequence, heads * size]."""
    n, h, s, d = x.shape
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (n, s, h * d))


@dataclass(frozen=True)
class Scores:
    """How products of queries and keys become attention weights. A `softcap` of 0 means no cap."""

    scale: float
    softcap: float
    masks: tuple[Tensor, ...]
    """A bool mask says which keys a query sees; a float mask is added to the products."""
    blind: bool
    """Whether a query may see no key at all."""

    def capped(self, s: Expr) -> Expr:
        """Return the scaled product, bent by tanh into (-softcap, softcap) if there is a cap (Gemma Team
        2024)."""
        s = s * self.scale
        return call("tanh", s / self.softcap) * self.softcap if self.softcap else s

    def masked(self, b: Builder, products: Tensor) -> Tensor:
        """Return the scores: capped products plus float masks, and -inf at keys that a bool mask hides.

        A hidden key's score is -inf even if its product is NaN. ONNX's definition adds -inf instead, so there
        a NaN in a hidden key reaches the result.
        """

        def body(s: Expr, *masks: Expr) -> Expr:
            s = self.capped(s)
            for m in masks:
                hidden = const(-math.inf, s.dtype)
                s = select(m, s, hidden) if m.dtype is BOOL else s + cast(s.dtype, m)
            return s

        return b.map(body, products, *self.masks)

    def weights(self, b: Builder, products: Tensor) -> Tensor:
        """Return the softmax of the scores. A query that sees no key has scores of -inf alone, and gets
        weights of 0 if `blind`.

        Masks of the lowest finite number don't hide keys in this way: equal scores give equal weights.
        """
        return b.softmax(self.masked(b, products), 3, blind=self.blind)


@dataclass(frozen=True)
class Window:
    """The keys that a query sees: the query at position i, and key j.

    With `causal` a query sees no key after its own position. `left` and `right` are the most positions that
    it sees to either side (-1: any number).
    """

    causal: bool = False
    left: int = -1
    right: int = -1

    def allows(self, i: Expr, j: Expr) -> Expr:
        seen: Expr = const(True, BOOL)
        if self.causal:
            seen = land(seen, j <= i)
        if self.left >= 0:
            seen = land(seen, i - j <= self.left)
        return land(seen, j - i <= self.right) if self.right >= 0 else seen

    def mask(
        self, b: Builder, queries: Expr, keys: Expr, past: ExprLike, valid: Tensor | None
    ) -> Tensor | None:
        """Return the bool mask, or None if every query sees every key.

        Without `valid` the mask is [queries, keys], and the first query is at position `past`. With `valid`
        [batch], the number of valid keys of each item, the mask is [batch, 1, queries, keys]. An item's
        queries are then the last of its valid keys.
        """
        if valid is None:
            if not self.causal and self.left < 0 and self.right < 0:
                return None
            return b.compute(BOOL, (queries, keys), (), lambda bufs, i, j: self.allows(i + past, j))

        def at(bufs: Sequence[Buffer], n: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
            count = cast(I64, bufs[0][n])
            return land(j < count, self.allows(i + count - queries, j))

        return b.compute(BOOL, (valid.shape[0], 1, queries, keys), [valid], at)


EVERYWHERE = Window()
"""Every query sees every key."""


class Attended(NamedTuple):
    """The result of `attention`: y [batch, heads, queries, width] in the queries' dtype, and intermediate
    values. The products and weights are [batch, heads, queries, keys], in the dtype of the computation."""

    y: Tensor
    products: Tensor
    weights: Tensor
    scores: Scores


def attention(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None,
    window: Window = EVERYWHERE, past: ExprLike = 0, valid: Tensor | None = None,
    scale: float | None = None, softcap: float = 0.0, dtype: DType | None = None, dropped: float = 0.0,
) -> Attended:  # fmt: skip
    """Return scaled dot-product attention, softmax(scale * q kᵀ) v (Vaswani et al. 2017), with grouped heads
    (Ainslie et al. 2023).

    `dtype` is the dtype of the computation; the default is f64 for f64 queries, else f32. The default `scale`
    is 1 / √size. `mask` broadcasts to [batch, heads, queries, keys]: bool, or a float added to the scores
    (-inf hides a key). `past` and `valid` [batch] place the queries among the keys (see `Window.mask`). A
    query that sees no key gives 0. `dropped` is the chance that training leaves a weight out.
    """
    if scale is None:
        if not isinstance(q.shape[3], Const):
            raise CompileError(f"the head size of {q} must be known, or the scale given", q.shape[-1:])
        scale = _scale_of(q.shape[3])
    dtype = dtype or (F64 if q.dtype is F64 else F32)
    placed = window.mask(b, q.shape[2], k.shape[2], past, valid)
    masks = tuple(m for m in (mask, placed) if m is not None)
    blind = mask is not None or valid is not None or window.left >= 0 or window.right >= 0
    scores = Scores(scale, softcap, masks, blind)
    queries, keys = b.cast(q, dtype), b.cast(k, dtype)
    shared = b.matmul(_sharing(b, queries, k.shape[1]), keys, transpose_b=True)
    products = b.reshape(shared, (*q.shape[:3], k.shape[2]))
    weights = scores.weights(b, products)
    if dropped:
        weights, _ = dropout(b, weights, dropped)
    mixed = b.matmul(_sharing(b, weights, v.shape[1]), b.cast(v, dtype))
    y = b.cast(b.reshape(mixed, (*q.shape[:3], v.shape[3])), q.dtype)
    return Attended(y, products, weights, scores)


def _scale_of(size: Const) -> float:
    """Return the default scale of heads of a size. Heads without numbers have scores of 0 by any scale."""
    return 1 / math.sqrt(max(1, size.value))


class Kept(NamedTuple):
    """Keys or values as a cache stores them, [batch, positions, groups, size]. They are floats, or int8 with
    f32 `scales` [batch, positions, groups]: one factor for each position and group."""

    numbers: Tensor
    scales: Tensor | None = None


def keep(b: Builder, x: Tensor, dtype: DType) -> Kept:
    """Convert keys or values [batch, groups, tokens, size] to a cache's format.

    For I8 they are quantized symmetrically by token and group: the scale is the largest magnitude / 127, and
    halves are rounded to even. For a float dtype they are cast.
    """
    x = b.transpose(x, (0, 2, 1, 3))
    if dtype is not I8:
        return Kept(b.cast(x, dtype))
    largest = b.reduce("max", b.map(lambda v: call("abs", v), x), (3,), keepdims=True)
    scales = b.map(lambda v: v / 127, largest)

    def rounded(v: Expr, scale: Expr) -> Expr:
        return select(scale > 0, saturated(call("round", v / scale), I8), const(0, I8))

    return Kept(b.map(rounded, x, scales), b.reshape(scales, x.shape[:3]))


def unkept(b: Builder, kept: Kept, dtype: DType) -> Tensor:
    """Return the cache's contents dequantized to floats [batch, groups, positions, size]."""
    x = b.cast(kept.numbers, dtype)
    if kept.scales is not None:
        x = b.map(lambda v, scale: v * scale, x, b.reshape(kept.scales, [*x.shape[:3], 1]))
    return b.transpose(x, (0, 2, 1, 3))


def attend_one(b: Builder, q: Tensor, past: tuple[Kept, Kept], own: tuple[Tensor, Tensor]) -> Tensor:
    """Return the `attention` of a single query [batch, heads, 1, size] on a cache and the query's own key and
    value.

    The `past` keys and values are read in place, in the cache's format, and widened at their multiplication.
    The `own` key and value are [batch, groups, 1, size]. The scale is 1 / √size; the size must be known.
    """
    keys, values = past
    batch, before, groups, size = keys.numbers.shape
    if not isinstance(size, Const):
        raise CompileError(f"the head size of {q} must be known", q.shape[-1:])
    scale = _scale_of(size)
    shared = _sharing(b, b.map(lambda v: v * scale, q), groups)
    lead, width = shared.shape[:3], own[1].shape[3]

    def product(bufs: Sequence[Buffer], at: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        (n, g, h, j), (d,) = at, k
        return bufs[0][n, g, h, d] * cast(q.dtype, bufs[1][n, j, g, d])

    def mixed(bufs: Sequence[Buffer], at: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        (n, g, h, d), (j,) = at, k
        return bufs[0][n, g, h, j] * cast(q.dtype, bufs[1][n, j, g, d])

    def scaled(x: Tensor, kept: Kept) -> Tensor:
        """Multiply x [batch, groups, heads, positions] by the int8 cache's scale for each position and group.
        Return x unchanged if the cache holds floats."""
        if kept.scales is None:
            return x
        by_group = b.transpose(kept.scales, (0, 2, 1))
        return b.map(lambda v, scale: v * scale, x, b.reshape(by_group, [batch, groups, 1, before]))

    products = b.reduction(q.dtype, (*lead, before), [size], "sum", [shared, keys.numbers], product)
    scores = [scaled(products, keys), b.matmul(shared, own[0], transpose_b=True)]
    weights = b.softmax(b.concat(scores, 3), 3)
    seen = scaled(b.slice(weights, [0] * 4, [*lead, before], [1] * 4), values)
    last = b.slice(weights, [0, 0, 0, before], [*lead, 1], [1] * 4)
    y = b.reduction(q.dtype, (*lead, width), [before], "sum", [seen, values.numbers], mixed)
    return b.reshape(b.map(lambda y, w, v: y + w * v, y, last, own[1]), q.shape)


def _sharing(b: Builder, x: Tensor, groups: Expr) -> Tensor:
    """Reshape [batch, heads, rows, columns] to [batch, groups, heads of a group * rows, columns]. Heads that
    share keys become rows of one matrix."""
    n, heads, rows, columns = x.shape
    return b.reshape(x, (n, groups, divide(heads * rows, groups, b.symbols), columns))


def update_cache(b: Builder, old: Tensor | None, new: Tensor, start: Tensor, room: ExprLike) -> Tensor:
    """Return a cache [batch, groups, room, size] that has the new entries of each item from position `start`
    [batch] on.

    The other positions hold the old entries, or 0. Without an old cache the result is the new entries alone.
    """
    tokens = new.shape[2]
    if old is None:
        return new

    def at(bufs: Sequence[Buffer], n: Expr, h: Expr, j: Expr, d: Expr) -> Expr:
        place = j - bufs[2][n]
        added = bufs[1][n, h, clamped(place, tokens), d]
        held = bufs[0][n, h, minimum(j, old.shape[2] - 1), d]
        kept = select(land(place < 0, j < old.shape[2]), held, const(0, new.dtype))
        return select(land(place >= 0, place < tokens), added, kept)

    return b.compute(new.dtype, (*new.shape[:2], room, new.shape[3]), [old, new, start], at)


def rotary_embedding(
    b: Builder, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *,
    interleaved: bool = False, heads: int = 0, width: int = 0,
) -> Tensor:  # fmt: skip
    """Return x with rotary position embedding, which rotates pairs of a head's elements by their position's
    angle (Su et al. 2021).

    x is [batch, heads, sequence, size], or [batch, sequence, heads * size] if `heads` is given. cos and sin
    are [positions, pairs] if `positions` [batch, sequence] is given, else [batch, sequence, pairs]. A pair is
    two neighbours if `interleaved`, else one element from each half. Only the first `width` elements of a
    head are rotated (0: all).
    """
    head = x.shape[3] if x.rank == 4 else divide(x.shape[2], const(heads), b.symbols)
    turned: Expr = const(width) if width else head
    half = divide(turned, const(2), b.symbols)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        n, s = index[0], index[2] if x.rank == 4 else index[1]
        d = index[-1] if x.rank == 4 else index[-1] % head
        first = eq(d % 2, 0) if interleaved else d < half
        step = const(1) if interleaved else half
        pair = d // 2 if interleaved else select(first, d, d - half)
        row: tuple[Expr, ...] = (n, s)
        if positions is not None:
            row = (clamped(cast(I64, bufs[3][n, s]), cos.shape[0]),)
        own = wide(bufs[0][index])
        other = wide(bufs[0][(*index[:-1], select(first, index[-1] + step, index[-1] - step))])
        c, si = wide(bufs[1][(*row, pair)]), wide(bufs[2][(*row, pair)])
        value = own * c + select(first, -other, other) * si
        return select(d < turned, value, own)

    extra = [] if positions is None else [in_range(b, positions, cos.shape[0], from_end=False)]
    return b.compute(x.dtype, x.shape, [x, cos, sin, *extra], at)
