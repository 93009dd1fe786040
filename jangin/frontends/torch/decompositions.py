"""Choose which of ATen's operators PyTorch decomposes before Jangin reads a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jangin.frontends.torch import composed

KEPT = (
    "linear", "matmul", "scaled_dot_product_attention", "layer_norm", "group_norm", "instance_norm", "lstm",
    "gru", "rnn_tanh", "rnn_relu", "silu", "mish", "hardswish", "hardsigmoid", "softplus", "rms_norm",
    "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d", "upsample_nearest1d",
    "upsample_nearest3d", "pixel_shuffle", "einsum", "log_softmax", "softmax", "logsumexp",
    "special_log_ndtr", "std", "std_mean", "sinc", "binary_cross_entropy",
)  # fmt: skip
"""Operators that Jangin lowers whole, though PyTorch could decompose them into smaller ones."""


def table() -> dict[Any, Any]:
    """Return the decompositions of all operators that are neither in Core ATen nor in KEPT, by operator.

    Added are two fused operators with which torch.nn's transformers run without gradients, the product of
    `torch.nn.Bilinear`, and two operators of mixtures of experts. The latter are the histogram, and the
    grouped product of the package transformers."""
    decompositions: dict[Any, Any] = torch.export.default_decompositions()
    for packet in KEPT:
        for overload in getattr(torch.ops.aten, packet).overloads():
            if overload != "data":  # of packed sequences
                decompositions.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    decompositions[torch.ops.aten._native_multi_head_attention.default] = _multi_head_attention
    decompositions[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    decompositions[torch.ops.aten.histc.default] = _histogram
    decompositions[torch.ops.aten._trilinear.default] = _trilinear
    for overload, decomposition in composed.TABLE.items():  # PyTorch's table has no `|=`
        decompositions[overload] = decomposition
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        decompositions[torch.ops.transformers.grouped_mm_fallback.default] = _grouped_product
    return decompositions


def _multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute attention with several heads. `query`, `key` and `value` are [batch, length, embed_dim].

    `mask` is true at the positions to ignore. The mask is [length, length] if `mask_type` is 0, and [batch,
    length] if it is 1. It has all four axes if `mask_type` is 2."""
    if query is key is value:
        rows = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        rows = tuple(functional.linear(*part) for part in parts)
    q, k, v = (r.unflatten(-1, (num_head, -1)).transpose(1, 2) for r in rows)
    hidden = None if mask is None else mask.bool()
    if hidden is not None and mask_type == 1:
        hidden = hidden[:, None, None, :]
    if need_weights:
        scores = q @ k.transpose(-1, -2) * (embed_dim // num_head) ** -0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1)
        result, weights = weights @ v, weights.mean(1) if average_attn_weights else weights
    else:
        shown = None if hidden is None else ~hidden
        result, weights = functional.scaled_dot_product_attention(q, k, v, shown), query.new_empty(0)
    return functional.linear(result.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def _encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor,
    norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor,
    ffn_weight_2: Tensor, ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Compute a layer of a transformer's encoder. `src` is [batch, length, embed_dim]."""

    def attended(x: Tensor) -> Tensor:
        return _multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True,
            mask_type,
        )[0]  # fmt: skip

    def forward(x: Tensor) -> Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(first(src))
        return x + forward(second(x))
    x = first(src + attended(src))
    return second(x + forward(x))


def _trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """Return the sum over `sumdim` of a product of three tensors, each with more axes of size 1."""
    whole = []
    for x, axes in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        whole.append(x)
    product: Tensor = whole[0] * whole[1] * whole[2]
    return product.sum(list(sumdim)) if sumdim else product


def _histogram(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Return the number of elements in each of `bins` bins between two bounds. If the bounds are equal, they
    are the smallest and the largest element. The last bin includes its upper bound."""
    x = self.reshape(-1)
    least, most = (x.new_full((), bound) for bound in (min, max))
    if min == max:
        least, most = x.amin(), x.amax()
        same = (least == most).to(x.dtype)
        least, most = least - same, most + same
    inside = (x >= least) & (x <= most)
    place = torch.where(inside, (x - least) * bins / (most - least), -1).to(torch.int64).clamp(max=bins - 1)
    counts: Tensor = (place[:, None] == torch.arange(bins)).sum(0).to(self.dtype)
    return counts


def _grouped_product(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Return the product of each row of `input` [n, k] and the matrix of the row's group in `weight` [groups,
    k, m].

    `offs` has the position after the last row of each group. Rows after the last group give 0. The product is
    written as a sum of products, so that one kernel reads the matrices in place. A matrix product would first
    copy a matrix for every row."""
    group = (offs <= torch.arange(input.shape[0])[:, None]).sum(1)
    last = weight.shape[0] - 1
    wide = torch.promote_types(input.dtype, torch.float32)
    products = input.to(wide)[:, :, None] * weight[group.clamp(max=last)].to(wide)
    return torch.where((group <= last)[:, None], products.sum(1), 0).to(input.dtype)
