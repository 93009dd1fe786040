"""Decompositions for graphs with gradients. PyTorch draws the random numbers of dropout, and no weights of
attention are kept for the backward graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jangin.frontends.torch.decompositions import table

aten = torch.ops.aten


def training_table() -> dict[Any, Any]:
    """Return the decompositions of `table`, and those of operators that appear only in training."""
    decompositions = table()
    decompositions[aten.native_dropout.default] = _dropout
    decompositions[aten.bernoulli.p] = _bernoulli
    decompositions[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _attention_backward
    return decompositions


def _dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return `input` with some elements set to 0 and the others scaled, and the mask of the others.

    PyTorch draws the mask. The mask takes no tensor, so it is drawn before the compiled graph runs."""
    if not train or p in (0, 1):
        mask = torch.full_like(input, not (train and p), dtype=torch.bool)
        return input * mask, mask
    mask = _drawn(input, 1 - p)
    return input * (mask.to(input.dtype) * (1 / (1 - p))), mask


def _bernoulli(self: Tensor, p: float, generator: Any = None) -> Any:
    """Draw as PyTorch does, but independently of what `self` holds."""
    return (
        NotImplemented
        if generator is not None or self.dtype is torch.bool
        else _drawn(self, p).to(self.dtype)
    )


def _drawn(like: Tensor, keep: float) -> Tensor:
    """Return a mask with the sizes of `like`, drawn in the order in which PyTorch's own mask lies in memory.
    The operator is one that PyTorch knows as random, so that it doesn't take two masks for one."""
    lying = torch.empty_like(like)
    if lying.is_contiguous():
        return torch.bernoulli(torch.empty(lying.shape, dtype=torch.bool), keep)
    order = sorted(range(lying.dim()), key=lambda axis: -lying.stride(axis))
    drawn = torch.bernoulli(torch.empty([lying.shape[axis] for axis in order], dtype=torch.bool), keep)
    return drawn.permute([order.index(axis) for axis in range(lying.dim())])


DRAWING = frozenset({
    aten.bernoulli.p, aten.rand.default, aten.rand_like.default, aten.randn.default, aten.randn_like.default,
})  # fmt: skip
"""Operators that PyTorch runs under `torch.compile`, so that a seed gives eager's numbers."""


def is_mask(node: torch.fx.Node) -> bool:
    """Tell if a node draws a mask as `_drawn` does, or makes the empty tensor that gives such a mask its "
    "sizes."""
    if node.target is aten.empty.memory_format:
        return bool(node.users) and all(map(is_mask, node.users))
    return node.target is aten.bernoulli.p and node.args[0].target is aten.empty.memory_format


def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    dropout_p: float, is_causal: bool, attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    return torch.ops.jangin.attention_backward(grad_out, query, key, value, attn_mask, is_causal, scale=scale)


def _attention_gradients(
    grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
    is_causal: bool, scale: float | None = None,
) -> Any:  # fmt: skip
    kwargs = {"attn_mask": attn_mask, "scale": scale}
    outputs = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, **kwargs)
    gradients: Any = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_output, query, key, value, *outputs, 0.0, is_causal, **kwargs
    )
    return tuple(g.contiguous() for g in gradients)


def _attention_shapes(
    grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> Any:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))


torch.library.define(
    "jangin::attention_backward",
    "(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, *, "
    "float? scale=None) -> (Tensor, Tensor, Tensor)",
)
torch.library.impl("jangin::attention_backward", "CPU", _attention_gradients)
torch.library.register_fake("jangin::attention_backward", _attention_shapes)
