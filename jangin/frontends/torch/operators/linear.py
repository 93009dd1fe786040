"""ATen's matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.registry import lowers
from jangin.frontends.torch.operators.common import Number, Result
from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ops import attention as neutral
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen
from jangin.ops.linear import einsum as einstein
from jangin.ops.linear import matmul as multiply
from jangin.ops.values import Tensor


def _number(x: Number) -> float:
    if isinstance(x, Expr):
        raise CompileError(f"a factor is the size {x}: it must be a number", [x])
    return float(x)


@lowers("mm", "bmm", "matmul", "mv", "dot")
def matmul(
    b: Builder,
    out: Result,
    self: Tensor,
    mat2: Tensor | None = None,
    other: Tensor | None = None,
    **given: Any,
) -> Tensor:
    right = mat2 or other or given.get("vec") or given.get("tensor")
    assert isinstance(right, Tensor)
    return multiply(b, self, right)


@lowers("addmm", "baddbmm", "addmv", "addbmm")
def addmm(
    b: Builder, out: Result, self: Tensor, beta: Number = 1, alpha: Number = 1, **matrices: Tensor
) -> Tensor:
    """beta * self + alpha * (a product); nothing of `self` is read where beta is 0."""
    left, right = matrices.values()
    y = multiply(b, widen(b, left), widen(b, right))
    if y.rank > len(out.shape):
        y = b.reduce("sum", y, [0])
    return b.cast(_scaled_sum(b, out, y, self, _number(alpha), _number(beta)), out.dtype)


def _scaled_sum(b: Builder, out: Result, y: Tensor, c: Tensor, alpha: float, beta: float) -> Tensor:
    def times(e: Expr, factor: float) -> Expr:
        return e if factor == 1 else e * const(factor, e.dtype)

    if beta == 0:
        return b.map(lambda p: times(p, alpha), y)
    return b.map(lambda p, q: times(p, alpha) + times(q, beta), y, b.cast(c, y.dtype))


@lowers("linear")
def linear(b: Builder, out: Result, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input [..., K] times weight[N, K] transposed, plus bias[N]; 16-bit floats are rounded once."""
    x, w = widen(b, input), widen(b, weight)
    if w.rank == 1:
        y = multiply(b, x, w)
    else:
        rows = b.reshape(x, [1, *x.shape]) if x.rank == 1 else x
        y = b.reshape(b.matmul(rows, w, transpose_b=True), out.shape)
    return b.cast(y if bias is None else b.map(lambda p, q: p + q, y, widen(b, bias)), out.dtype)


@lowers("einsum")
def einsum(b: Builder, out: Result, equation: str, tensors: Sequence[Tensor], path: Any = None) -> Tensor:
    return einstein(b, *tensors, equation=equation)


@lowers("scaled_dot_product_attention", "jangin.attention")
def attention(
    b: Builder, out: Result, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Of query[..., L, E], key[..., S, E] and value[..., S, V]; a query sees the keys up to its own place if
    it is causal."""
    if dropout_p:
        raise CompileError(f"dropout_p={dropout_p}: export the model in eval mode")
    q, k, v = (_with_heads(b, x) for x in (query, key, value))
    mask = attn_mask
    if mask is not None and mask.rank < 4:
        mask = b.reshape(mask, [const(1)] * (4 - mask.rank) + list(mask.shape))
    elif mask is not None and mask.rank > 4:
        mask = b.reshape(b.expand(mask, (*query.shape[:-1], key.shape[-2])), (*q.shape[:3], k.shape[2]))
    window = neutral.Window(right=0) if is_causal else neutral.EVERYWHERE
    y = neutral.attention(b, q, k, v, mask=mask, window=window, scale=scale).y
    return b.reshape(y, out.shape)


def _with_heads(b: Builder, x: Tensor) -> Tensor:
    """[batch, heads, rows, columns]: leading axes beyond that are one."""
    if x.rank == 4:
        return x
    *outer, rows, columns = x.shape
    first = simplify(product(outer[:-1]), b.symbols) if outer else const(1)
    return b.reshape(x, [first, outer[-1] if outer else const(1), rows, columns])


@lowers("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    b: Builder, out: Result, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0,
    is_causal: bool = False, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What PyTorch replaces attention by when gradients were asked for; its sums aren't given."""
    if out.wanted[1]:
        raise CompileError("the sums of exponentials of flash attention are read: export without gradients")
    return attention(b, out, query, key, value, attn_mask, dropout_p, is_causal, scale), None
