"""Attention and rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, F32, F64, I64
from jangin.ir.expr import Buffer, Const, Expr, call, cast, const, eq, land, maximum, select
from jangin.ir.graph import CompileError
from jangin.ops.axes import clamped, divide, element_type
from jangin.ops.builder import Builder, Tensor
from jangin.ops.operands import wide

_LOWEST = {F32: -3.4028234663852886e38, F64: -1.7976931348623157e308}


@dataclass(frozen=True)
class _Scores:
    """How products of queries and keys become weights."""

    scale: float
    softcap: float
    masks: tuple[Tensor, ...]
    """Which keys a query sees (bool), or what is added to the products (float)."""

    def capped(self, b: Builder, products: Tensor) -> Tensor:
        return b.map(lambda s: self._cap(s), products)

    def masked(self, b: Builder, products: Tensor, floor: float) -> Tensor:
        """The scores, `floor` where a key is hidden."""

        def body(s: Expr, *masks: Expr) -> Expr:
            s = self._cap(s)
            for m in masks:
                hidden = const(floor, s.dtype)
                s = select(m, s, hidden) if m.dtype is BOOL else maximum(s + cast(s.dtype, m), hidden)
            return s

        return b.map(body, products, *self.masks)

    def _cap(self, s: Expr) -> Expr:
        s = s * self.scale
        return call("tanh", s / self.softcap) * self.softcap if self.softcap else s


@dataclass(frozen=True)
class _Window:
    """Which keys j a query i may see by their places, i being `offset` places into the sequence."""

    causal: bool
    left: int
    right: int

    def allows(self, i: Expr, j: Expr) -> Expr:
        seen: Expr = const(True, BOOL)
        if self.causal:
            seen = land(seen, j <= i)
        if self.left >= 0:
            seen = land(seen, i - j <= self.left)
        return land(seen, j - i <= self.right) if self.right >= 0 else seen


def _heads(b: Builder, x: Tensor, heads: int | None) -> Tensor:
    """[batch, heads, sequence, size] of an input in that form, or of [batch, sequence, heads * size]."""
    if x.rank == 4:
        return x
    if x.rank != 3 or not heads:
        raise CompileError(f"attention over {x} needs rank 4, or rank 3 with the number of heads")
    n, s, width = x.shape
    split = b.reshape(x, (n, s, heads, divide(width, const(heads), b.symbols)))
    return b.transpose(split, (0, 2, 1, 3))


def _placed(
    b: Builder, window: _Window, size: tuple[Expr, Expr], past: Expr, valid: Tensor | None
) -> Tensor | None:
    """The mask that places make: [queries, keys], or [batch, 1, queries, keys] where each item has
    its own count of `valid` keys. None where everything is seen."""
    if valid is None:
        if not window.causal and window.left < 0 and window.right < 0:
            return None
        return b.compute(BOOL, size, (), lambda bufs, i, j: window.allows(i + past, j))

    def at(bufs: Sequence[Buffer], n: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        count = cast(I64, bufs[0][n])
        return land(j < count, window.allows(i + count - size[0], j))

    return b.compute(BOOL, (valid.shape[0], 1, *size), [valid], at)


def _padded(b: Builder, mask: Tensor, keys: Expr) -> Tensor:
    """A mask over fewer keys hides the rest."""
    have = mask.shape[-1]
    if have == keys or not (isinstance(have, Const) and isinstance(keys, Const)) or have == const(1):
        return mask
    pads = [const(0)] * (2 * mask.rank - 1) + [keys - have]
    return b.pad(mask, pads, value=0 if mask.dtype is BOOL else -math.inf)


@op("Attention", since=23)
def attention(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 1,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """softmax(scale * q k^T + mask) v for several heads, which may share keys and values (GQA);
    gives also the present keys and values, and the stage of the scores that the mode picks. A query
    that sees no key gives 0. 16-bit floats are computed in f32."""
    queries = _heads(b, q, q_num_heads)
    keys, values = _heads(b, k, kv_num_heads), _heads(b, v, kv_num_heads)
    if past_key is not None and past_value is not None:
        keys, values = b.concat([past_key, keys], 2), b.concat([past_value, values], 2)
    past = const(0) if past_key is None else past_key.shape[2]
    extent = queries.shape[3]
    if scale is None:
        if not isinstance(extent, Const):
            raise CompileError(f"the head size of {q} must be known, or the attribute scale given")
        scale = 1 / math.sqrt(extent.value)
    dtype = F64 if F64 in (q.dtype, element_type(softmax_precision)) else F32
    size = queries.shape[2], keys.shape[2]
    window = _Window(bool(is_causal), left_window_size, right_window_size)
    placed = _placed(b, window, size, past, nonpad_kv_seqlen)
    given = [] if attn_mask is None else [_padded(b, attn_mask, size[1])]
    scores = _Scores(scale, softcap, (*given, *([] if placed is None else [placed])))
    blind = bool(given) or nonpad_kv_seqlen is not None or window.left >= 0 or window.right >= 0
    products = _products(b, b.cast(queries, dtype), b.cast(keys, dtype))
    weights = _weights(b, scores, products, blind)
    shown = _shown(b, scores, products, weights, qk_matmul_output_mode)
    y = b.cast(_weighted(b, weights, b.cast(values, dtype)), q.dtype)
    if q.rank == 3:
        n, h, s, d = y.shape
        y = b.reshape(b.transpose(y, (0, 2, 1, 3)), (n, s, h * d))
    return y, keys, values, b.cast(shown, q.dtype)


def _shared(b: Builder, x: Tensor, groups: Expr) -> Tensor:
    """[batch, heads, rows, columns] as [batch, groups, heads of a group * rows, columns]: heads that
    share keys stand below one another, in one matrix."""
    n, heads, rows, columns = x.shape
    return b.reshape(x, (n, groups, divide(heads * rows, groups, b.symbols), columns))


def _products(b: Builder, queries: Tensor, keys: Tensor) -> Tensor:
    shared = b.matmul(_shared(b, queries, keys.shape[1]), keys, transpose_b=True)
    return b.reshape(shared, (*queries.shape[:3], keys.shape[2]))


def _weighted(b: Builder, weights: Tensor, values: Tensor) -> Tensor:
    shared = b.matmul(_shared(b, weights, values.shape[1]), values)
    return b.reshape(shared, (*weights.shape[:3], values.shape[3]))


def _weights(b: Builder, scores: _Scores, products: Tensor, blind: bool) -> Tensor:
    """Softmax of the scores; where a query may see nothing (`blind`), what is hidden becomes 0 after it."""
    lowest = _LOWEST[products.dtype]
    masked = scores.masked(b, products, lowest)
    weights = b.softmax(masked, 3)
    if not blind:
        return weights
    return b.map(lambda w, s: select(s <= lowest, const(0, w.dtype), w), weights, masked)


def _shown(b: Builder, scores: _Scores, products: Tensor, weights: Tensor, mode: int) -> Tensor:
    """What the fourth output is: 0 the scaled products, 1 capped, 2 masked, 3 the weights."""
    if mode == 3:
        return weights
    if mode == 2:
        return scores.masked(b, products, -math.inf)
    return _Scores(scores.scale, scores.softcap if mode == 1 else 0.0, ()).capped(b, products)


@op("RotaryEmbedding", since=23)
def rotary_embedding(
    b: Builder,
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Pairs of a head's elements turned by their position's angle (Su et al. 2021). x: [batch, heads,
    sequence, size] or [batch, sequence, heads * size]; caches: [positions, pairs] with
    `position_ids`, else [batch, sequence, pairs]; pairs are neighbours, or one from each half."""
    if x.rank == 3 and not num_heads:
        raise CompileError(f"rotating {x} of rank 3 needs the attribute num_heads")
    head = x.shape[3] if x.rank == 4 else divide(x.shape[2], const(num_heads), b.symbols)
    turned: Expr = const(rotary_embedding_dim) if rotary_embedding_dim else head
    half = divide(turned, const(2), b.symbols)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        n, s = index[0], index[2] if x.rank == 4 else index[1]
        d = index[-1] if x.rank == 4 else index[-1] % head
        first = eq(d % 2, 0) if interleaved else d < half
        step = const(1) if interleaved else half
        pair = d // 2 if interleaved else select(first, d, d - half)
        row: tuple[Expr, ...] = (n, s)
        if position_ids is not None:
            row = (clamped(cast(I64, bufs[3][n, s]), cos_cache.shape[0]),)
        own = wide(bufs[0][index])
        other = wide(bufs[0][(*index[:-1], select(first, index[-1] + step, index[-1] - step))])
        cos, sin = wide(bufs[1][(*row, pair)]), wide(bufs[2][(*row, pair)])
        value = own * cos + select(first, -other, other) * sin
        return select(d < turned, value, own)

    extra = [] if position_ids is None else [position_ids]
    return b.compute(x.dtype, x.shape, [x, cos_cache, sin_cache, *extra], at)
