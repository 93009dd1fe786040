"""Lower ONNX Runtime's transformer operators (com.microsoft) by the standard's Attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.frontends.onnx.operators.attention import after_past
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import F32, I32, I64
from jangin.ir.expr import Buffer, Expr, cast, const, eq, is_const, land, maximum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ops.attention import Window, attention, join_heads, rotary_embedding, split_heads, update_cache
from jangin.ops.axes import divide
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widened
from jangin.ops.index import gather, in_range
from jangin.ops.linear import matmul
from jangin.ops.move import parts_of
from jangin.ops.normalize import layer_norm
from jangin.ops.values import Tensor

DOMAIN = "com.microsoft"


def _added(b: Builder, x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else b.map(widened(lambda v, w: v + w), x, bias)


def _key_mask(b: Builder, mask: Tensor | None, keys: Expr, hidden: float) -> Tensor | None:
    """Return a bias for scores [batch, heads, queries, keys]: `hidden` for keys that the mask hides, else 0.

    A mask of one axis has the number of keys of each item. Other masks are 0 for hidden keys, and are [batch,
    keys] or [batch, queries, keys]."""
    if mask is None:
        return None
    if mask.rank == 1:

        def before(bufs: Sequence[Buffer], n: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
            return select(j < cast(I64, bufs[0][n]), const(0, F32), const(hidden, F32))

        return b.compute(F32, (mask.shape[0], 1, 1, keys), [mask], before)
    if mask.rank not in (2, 3):
        raise CompileError(f"a mask like {mask} is not supported; one of rank 1, 2 or 3 is")
    shape = (mask.shape[0], *[const(1)] * (4 - mask.rank), *mask.shape[1:])
    seen = b.reshape(mask, shape)
    return b.map(lambda m: select(m > 0, const(0, F32), const(hidden, F32)), seen)


def _sum(b: Builder, *masks: Tensor | None) -> Tensor | None:
    present = [m for m in masks if m is not None]
    if len(present) == 2:
        return b.map(lambda v, w: cast(F32, v) + cast(F32, w), *present)
    return present[0] if present else None


def _half(b: Builder, past: Tensor, which: int) -> Tensor:
    part = b.slice(past, [which, 0, 0, 0, 0], [1, *past.shape[1:]], [1] * 5)
    return b.reshape(part, past.shape[1:])


@op("Attention", domain=DOMAIN)
def fused_attention(
    b: Builder, x: Tensor, weights: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    past: Tensor | None = None, attention_bias: Tensor | None = None, past_length: Tensor | None = None,
    *, num_heads: int, unidirectional: int = 0, qkv_hidden_sizes: Sequence[int] = (),
    scale: float = 0.0, mask_filter_value: float = -10000.0, do_rotary: int = 0,
    rotary_embedding_dim: int = 0, past_present_share_buffer: int = 0,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return self-attention of x. Its queries, keys and values are the products of x with `weights` [width, q
    + k + v].

    The second result is the keys and values with those of `past` before them, [2, batch, heads, keys, size].
    It is None if nothing reads it."""
    if do_rotary or past_present_share_buffer:
        raise CompileError("com.microsoft.Attention with do_rotary or a shared past buffer is not supported")
    third = divide(weights.shape[1], const(3), b.symbols)
    sizes = [const(n) for n in qkv_hidden_sizes] if qkv_hidden_sizes else [third] * 3
    q, k, v = (
        split_heads(b, part, num_heads)
        for part in parts_of(b, _added(b, matmul(b, x, weights), bias), 2, sizes)
    )
    earlier: Expr = const(0)
    if past is not None:
        earlier = past.shape[3]
        k, v = b.concat([_half(b, past, 0), k], 2), b.concat([_half(b, past, 1), v], 2)
    added = _sum(b, _key_mask(b, mask, k.shape[2], mask_filter_value), attention_bias)
    window = Window(causal=bool(unidirectional))
    y = attention(b, q, k, v, mask=added, window=window, past=earlier, scale=scale or None).y
    present = None
    if b.results > 1:
        present = b.concat([b.reshape(t, (1, *t.shape)) for t in (k, v)], 0)
    return join_heads(b, y), present


@op("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(
    b: Builder, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
    bias: Tensor | None = None, mask: Tensor | None = None, attention_bias: Tensor | None = None,
    past_key: Tensor | None = None, past_value: Tensor | None = None, past_length: Tensor | None = None,
    *, num_heads: int, mask_filter_value: float = -10000.0, scale: float = 0.0, unidirectional: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return attention of projected queries, keys and values. The other results are the keys and values with
    those of earlier calls.

    The inputs are three tensors, or all packed in the first as [batch, sequence, heads, 3, size]. Keys and
    values may also be packed, as [batch, sequence, heads, 2, size]. Keys and values may have an axis of
    heads."""
    if past_length is not None:
        raise CompileError("com.microsoft.MultiHeadAttention with a shared past buffer is not supported")
    query, key, value = _unpacked(b, query, key, value)
    if bias is not None:
        parts = parts_of(b, bias, 0, [query.shape[-1], query.shape[-1], value.shape[-1]])
        query, key, value = (
            t if t.rank == 4 else _added(b, t, part)
            for t, part in zip((query, key, value), parts, strict=True)
        )
    q, k, v = (t if t.rank == 4 else split_heads(b, t, num_heads) for t in (query, key, value))
    k, v = after_past(b, past_key, k), after_past(b, past_value, v)
    added = _sum(b, _key_mask(b, mask, k.shape[2], mask_filter_value), attention_bias)
    window, earlier = Window(causal=bool(unidirectional)), const(0) if past_key is None else past_key.shape[2]
    y = attention(b, q, k, v, mask=added, window=window, past=earlier, scale=scale or None).y
    return join_heads(b, y), k, v


def _unpacked(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    def parts(x: Tensor, count: int) -> list[Tensor]:
        n, s, h, _, d = x.shape
        cut = [b.slice(x, [0, 0, 0, i, 0], [n, s, h, 1, d], [1] * 5) for i in range(count)]
        return [b.reshape(t, (n, s, h * d)) for t in cut]

    if query.rank == 5:
        query, key, value = parts(query, 3)
    elif key is not None and key.rank == 5:
        key, value = parts(key, 2)
    if key is None or value is None:
        raise CompileError("keys and values must be given, or be packed with the queries")
    return query, key, value


@op("RotaryEmbedding", domain=DOMAIN)
def fused_rotary_embedding(
    b: Builder, x: Tensor, position_ids: Tensor, cos_cache: Tensor, sin_cache: Tensor, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
    is_packed_batching: int = 0,
) -> Tensor:  # fmt: skip
    """Return x rotated by the positions of its tokens. `position_ids` has each token's position, or only the
    first token's."""
    if scale != 1.0 or is_packed_batching:
        raise CompileError("com.microsoft.RotaryEmbedding with a scale or packed batches is not supported")
    if position_ids.rank == 1:
        tokens = x.shape[2] if x.rank == 4 else x.shape[1]
        position_ids = b.compute(
            I64, (x.shape[0], tokens), [position_ids], lambda bufs, n, s: cast(I64, bufs[0][0]) + s
        )
    if x.rank == 3 and not num_heads:
        size = cos_cache.shape[1] * 2
        x4 = b.reshape(x, (*x.shape[:2], divide(x.shape[2], size, b.symbols), size))
        turned = rotary_embedding(
            b, b.transpose(x4, (0, 2, 1, 3)), cos_cache, sin_cache, position_ids,
            interleaved=bool(interleaved),
        )  # fmt: skip
        return join_heads(b, turned)
    return rotary_embedding(
        b, x, cos_cache, sin_cache, position_ids, interleaved=bool(interleaved), heads=num_heads,
        width=rotary_embedding_dim,
    )  # fmt: skip


@op("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, past_key: Tensor | None,
    past_value: Tensor | None, seqlens_k: Tensor, total_sequence_length: Tensor,
    cos_cache: Tensor | None = None, sin_cache: Tensor | None = None, position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None, *, num_heads: int, kv_num_heads: int, scale: float = 0.0,
    softcap: float = 0.0, local_window_size: int = -1, do_rotary: int = 0, rotary_interleaved: int = 0,
    smooth_softmax: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return causal attention with a cache, and the cache's new keys and values. Several query heads share
    one head of keys and values.

    Item n has `seqlens_k[n]` + 1 keys, of which the last are new. The new cache has room for the past's and
    the new tokens. If `total_sequence_length` is constant, the room is this number, or the past's room if
    that is greater."""
    if smooth_softmax:
        raise CompileError("GroupQueryAttention with smooth_softmax is not supported")
    q, k, v = _grouped_heads(b, query, key, value, num_heads, kv_num_heads)
    tokens = q.shape[2]
    room = _room(b, past_key, tokens, total_sequence_length)
    lengths = in_range(b, b.reshape(seqlens_k, (q.shape[0],)), room, from_end=False)
    counts = b.map(lambda n: cast(I64, n) + 1, lengths)
    prompt = past_key is None or is_const(past_key.shape[2], 0)
    before = b.map(lambda n: const(0) if prompt else maximum(n - tokens, 0), counts)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise CompileError("do_rotary needs cos_cache and sin_cache")
        places = position_ids or b.compute(
            I64, (q.shape[0], tokens), [before], lambda bufs, n, s: bufs[0][n] + s
        )
        pairs = static_shape(cos_cache.shape[1:])
        width, pairwise = 2 * pairs[0] if pairs else 0, bool(rotary_interleaved)
        q, k = (
            rotary_embedding(b, t, cos_cache, sin_cache, places, interleaved=pairwise, width=width)
            for t in (q, k)
        )
    keys, values = (update_cache(b, old, new, before, room) for old, new in ((past_key, k), (past_value, v)))

    def seen(bufs: Sequence[Buffer], n: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        place = bufs[0][n] + i
        near = land(j <= place, place - j < local_window_size) if local_window_size > 0 else j <= place
        return select(near, const(0, F32), const(-math.inf, F32))

    mask = b.compute(F32, (q.shape[0], 1, tokens, room), [before], seen)
    added = _sum(b, mask, attention_bias)
    y = attention(b, q, keys, values, mask=added, scale=scale or None, softcap=softcap).y
    return join_heads(b, y), keys, values


def _grouped_heads(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    if key is None or value is None:
        size = divide(query.shape[2], const(heads + 2 * groups), b.symbols)
        query, key, value = parts_of(b, query, 2, [size * heads, size * groups, size * groups])
    return split_heads(b, query, heads), split_heads(b, key, groups), split_heads(b, value, groups)


def _room(b: Builder, past: Tensor | None, tokens: Expr, total: Tensor) -> Expr:
    """Return the number of keys for which the new cache has room."""
    if past is None:
        return tokens
    known = None if total.data is None else total.data.reshape(-1)[0]
    return past.shape[2] + tokens if known is None else maximum(past.shape[2], known)


@op("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(
    b: Builder, words: Tensor, segments: Tensor | None, word_table: Tensor, position_table: Tensor,
    segment_table: Tensor | None, gamma: Tensor, beta: Tensor, mask: Tensor | None = None,
    position_ids: Tensor | None = None, *, epsilon: float = 1e-12, mask_index_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return LayerNormalization of the sum of the embeddings of words, positions and segments. The other
    results are each item's number of tokens, and the sum."""
    n, s = words.shape
    positions = position_ids if position_ids is not None else b.compute(I64, (1, s), [], lambda _, i, j: j)

    def rows(table: Tensor, places: Tensor) -> Tensor:
        return gather(b, table, places, from_end=False)

    total = _added(b, rows(word_table, words), rows(position_table, positions))
    if segments is not None and segment_table is not None:
        total = _added(b, total, rows(segment_table, segments))
    y = layer_norm(b, total, gamma, beta, epsilon=epsilon)
    if mask is None:
        return y, b.expand(b.scalar(0, I32), (n,)), total
    count = b.reduce("sum", b.map(lambda m: cast(I32, eq(m, const(1, m.dtype))), mask), [1])
    return y, count, total
