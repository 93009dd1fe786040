"""Lower ONNX's Attention and RotaryEmbedding."""

from __future__ import annotations

import math

from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import BOOL, F64
from jangin.ir.expr import Const, Expr, const
from jangin.ir.graph import CompileError
from jangin.ops.attention import Attended, Window, attention, join_heads, rotary_embedding, split_heads
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def _heads(b: Builder, x: Tensor, heads: int | None) -> Tensor:
    """Return x as [batch, heads, sequence, size]. It has this shape already or is [batch, sequence, heads *
    size]."""
    if x.rank == 4:
        return x
    if x.rank != 3 or not heads:
        raise CompileError(f"attention over {x} needs rank 4, or rank 3 with the number of heads")
    return split_heads(b, x, heads)


def after_past(b: Builder, past: Tensor | None, new: Tensor) -> Tensor:
    """Return keys or values concatenated to those of earlier calls, if there are any."""
    return new if past is None else b.concat([past, new], 2)


def _padded(b: Builder, mask: Tensor | None, keys: Expr) -> Tensor | None:
    """Return the mask padded to the number of keys. Keys beyond the given mask are hidden."""
    have = const(1) if mask is None else mask.shape[-1]
    if mask is None or have in (keys, const(1)) or not (isinstance(have, Const) and isinstance(keys, Const)):
        return mask
    pads = [const(0)] * (2 * mask.rank - 1) + [keys - have]
    return b.pad(mask, pads, value=0 if mask.dtype is BOOL else -math.inf)


@op("Attention", since=23)
def attention_23(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
    past_key: Tensor | None = None, past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None, *, is_causal: int = 0, kv_num_heads: int | None = None,
    q_num_heads: int | None = None, qk_matmul_output_mode: int = 0, scale: float | None = None,
    softcap: float = 0.0, softmax_precision: int = 1, left_window_size: int = -1, right_window_size: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return attention, the keys and values with those of earlier calls, and the scores.
    `qk_matmul_output_mode` tells at which stage of the computation the scores are taken."""
    queries = _heads(b, q, q_num_heads)
    keys = after_past(b, past_key, _heads(b, k, kv_num_heads))
    values = after_past(b, past_value, _heads(b, v, kv_num_heads))
    attended = attention(
        b, queries, keys, values, mask=_padded(b, attn_mask, keys.shape[2]),
        window=Window(bool(is_causal), left_window_size, right_window_size),
        past=0 if past_key is None else past_key.shape[2], valid=nonpad_kv_seqlen, scale=scale,
        softcap=softcap, dtype=F64 if element_type(softmax_precision) is F64 else None,
    )  # fmt: skip
    shown = b.cast(_shown(b, attended, qk_matmul_output_mode), q.dtype)
    return join_heads(b, attended.y) if q.rank == 3 else attended.y, keys, values, shown


def _shown(b: Builder, found: Attended, mode: int) -> Tensor:
    """Return the scores at a stage of the computation: 0 scaled, 1 capped, 2 masked, or 3 after softmax."""
    if mode == 3:
        return found.weights
    scores = found.scores
    if mode == 2:
        return scores.masked(b, found.products)
    return b.map(scores.capped if mode else lambda s: s * scores.scale, found.products)


@op("RotaryEmbedding", since=23)
def rotary_embedding_23(
    b: Builder, x: Tensor, cos_cache: Tensor, sin_cache: Tensor, position_ids: Tensor | None = None, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    if x.rank == 3 and not num_heads:
        raise CompileError(f"rotating {x} of rank 3 needs the attribute num_heads")
    return rotary_embedding(
        b, x, cos_cache, sin_cache, position_ids, interleaved=bool(interleaved), heads=num_heads,
        width=rotary_embedding_dim,
    )  # fmt: skip
