"""Lower ATen's matrix products, linear algebra and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.registry import lowers
from jangin.frontends.torch.operators.common import Number, Result
from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ops import attention as neutral
from jangin.ops import factorize
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen
from jangin.ops.linear import einsum as einstein
from jangin.ops.linear import matmul as multiply
from jangin.ops.operands import broadcast
from jangin.ops.quantized import integer_matmul
from jangin.ops.values import Tensor


def _number(x: Number) -> float:
    if isinstance(x, Expr):
        raise CompileError(f"a factor is the size {x}, which must be known", [x])
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
    _check_types(self, right)
    return multiply(b, self, right)


def _check_types(x: Tensor, y: Tensor) -> None:
    """Raise CompileError if PyTorch refuses a product. Graphs may have one, because PyTorch's tensors without
    contents don't compare the types."""
    if x.dtype is not y.dtype:
        raise CompileError(f"a product of {x.dtype} and {y.dtype}: PyTorch takes two tensors of one type")


@lowers("addmm", "baddbmm", "addmv", "addbmm")
def addmm(
    b: Builder, out: Result, self: Tensor, beta: Number = 1, alpha: Number = 1, **matrices: Tensor
) -> Tensor:
    """Return beta * self + alpha * (the product of the two other tensors). `self` isn't read if beta is 0."""
    left, right = matrices.values()
    _check_types(left, right)
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
    """Return the product of the input [..., K] and the transposed weight [N, K], plus the bias [N]. 16-bit
    floats are rounded only at the end."""
    _check_types(input, weight)
    x, w = widen(b, input), widen(b, weight)
    if w.rank == 1:
        y = multiply(b, x, w)
    else:
        rows = b.reshape(x, [1, *x.shape]) if x.rank == 1 else x
        y = b.reshape(b.matmul(rows, w, transpose_b=True), out.shape)
    return b.cast(y if bias is None else b.map(lambda p, q: p + q, y, widen(b, bias)), out.dtype)


@lowers("_int_mm")
def int_mm(b: Builder, out: Result, self: Tensor, mat2: Tensor) -> Tensor:
    return integer_matmul(b, self, mat2)


@lowers("linalg_inv_ex")
def inv_ex(b: Builder, out: Result, A: Tensor, check_errors: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return the inverse of a matrix. A singular matrix gives infinite numbers or NaN. The second result,
    which would report this, isn't computed. Raises CompileError if it is read."""
    _untold(out, 1)
    return b.cast(factorize.inverse(b, widen(b, A)), out.dtype), None


@lowers("inverse", "linalg_inv")
def inv(b: Builder, out: Result, self: Tensor | None = None, A: Tensor | None = None) -> Tensor:
    x = self if A is None else A
    assert x is not None
    return b.cast(factorize.inverse(b, widen(b, x)), out.dtype)


@lowers("_linalg_solve_ex")
def solve_ex(
    b: Builder, out: Result, A: Tensor, B: Tensor, left: bool = True, check_errors: bool = False
) -> tuple[Tensor | None, ...]:
    _untold(out, 1)
    return _solved(b, out, A, B, left), *[None] * (len(out.all) - 1)


def _solved(b: Builder, out: Result, a: Tensor, y: Tensor, left: bool) -> Tensor:
    """Return the solution of a linear system with the matrices a and the right sides y.

    The right sides are vectors if y has one axis fewer than a, or if y's shape is a's without the last
    axis."""
    a, y = widen(b, a), widen(b, y)
    vector = y.rank == 1 or (y.rank == a.rank - 1 and y.shape == a.shape[:-1])
    if vector:
        y = b.reshape(y, [*y.shape, 1])
    lead = broadcast(a.shape[:-2], y.shape[:-2])
    a, y = (b.expand(t, [*lead, *t.shape[-2:]]) for t in (a, y))
    if not left:
        a, y = _turned(b, a), _turned(b, y)
    x = factorize.solved(b, a, y)
    return b.reshape(b.cast(x if left else _turned(b, x), out.dtype), out.shape)


def _turned(b: Builder, x: Tensor) -> Tensor:
    return b.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@lowers("linalg_cholesky_ex")
def cholesky_ex(
    b: Builder, out: Result, self: Tensor, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the Cholesky factor. A matrix that isn't positive definite gives NaN. The second result, which
    would report this, isn't computed. Raises CompileError if it is read."""
    _untold(out, 1)
    return cholesky(b, out, self, upper), None


@lowers("cholesky", "linalg_cholesky")
def cholesky(b: Builder, out: Result, self: Tensor, upper: bool = False) -> Tensor:
    x = widen(b, self)
    y = factorize.cholesky(b, _turned(b, x) if upper else x)
    return b.cast(_turned(b, y) if upper else y, out.dtype)


@lowers("linalg_solve_triangular")
def solve_triangular(
    b: Builder, out: Result, self: Tensor, B: Tensor, upper: bool, left: bool = True,
    unitriangular: bool = False,
) -> Tensor:  # fmt: skip
    lead = out.shape[:-2]
    a, y = (b.expand(widen(b, t), [*lead, *t.shape[-2:]]) for t in (self, B))
    if not left:
        a, y, upper = _turned(b, a), _turned(b, y), not upper
    x = factorize.triangular(b, a, y, upper, unitriangular)
    return b.cast(x if left else _turned(b, x), out.dtype)


def _untold(out: Result, first: int) -> None:
    if any(out.wanted[first:]):
        raise CompileError(
            "its first result is compiled alone, and the model reads another one: "
            "export the model without that"
        )


@lowers("einsum")
def einsum(b: Builder, out: Result, equation: str, tensors: Sequence[Tensor], path: Any = None) -> Tensor:
    return einstein(b, *tensors, equation=equation)


@lowers("scaled_dot_product_attention", "jangin.attention")
def attention(
    b: Builder, out: Result, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return attention of the query [..., L, E], key [..., S, E] and value [..., S, V]. With `is_causal`, a
    query attends to the keys up to its own position."""
    if dropout_p and not b.trained:
        raise CompileError(f"dropout_p={dropout_p}: export the model in eval mode")
    q, k, v = (_with_heads(b, x) for x in (query, key, value))
    mask = attn_mask
    if mask is not None and mask.rank < 4:
        mask = b.reshape(mask, [const(1)] * (4 - mask.rank) + list(mask.shape))
    elif mask is not None and mask.rank > 4:
        mask = b.reshape(b.expand(mask, (*query.shape[:-1], key.shape[-2])), (*q.shape[:3], k.shape[2]))
    window = neutral.Window(right=0) if is_causal else neutral.EVERYWHERE
    y = neutral.attention(b, q, k, v, mask=mask, window=window, scale=scale, dropped=dropout_p).y
    return b.reshape(y, out.shape)


def _with_heads(b: Builder, x: Tensor) -> Tensor:
    """Return x as [batch, heads, rows, columns]. If there are more leading axes, all but the last of them are
    joined into the batch."""
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
    """Return attention. PyTorch exports this operator in place of `scaled_dot_product_attention` if gradients
    were requested. Its second result isn't computed. Raises CompileError if it is read."""
    if out.wanted[1]:
        raise CompileError("the sums of exponentials of flash attention are read: export without gradients")
    return attention(b, out, query, key, value, attn_mask, dropout_p, is_causal, scale), None
