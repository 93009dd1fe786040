"""Lower ONNX matrix products: MatMul, Gemm, Einsum, and ONNX Runtime's FusedMatMul and FusedGemm."""

from __future__ import annotations

from typing import Any

from jangin.frontends.onnx.operators.activation import NAMES
from jangin.frontends.onnx.operators.families import family
from jangin.frontends.onnx.registry import op
from jangin.ir.graph import CompileError
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.builder import Builder
from jangin.ops.linear import einsum, gemm, matmul, scaled
from jangin.ops.values import Tensor

MATMUL = family({"MatMul": matmul})
EINSUM = family({"Einsum": einsum}, since=12)


@op("Gemm")
def gemm_(
    b: Builder, x: Tensor, y: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0, broadcast: int = 0,
) -> Tensor:  # fmt: skip
    """Return Gemm. C is always broadcast, so that the attribute `broadcast` of opset 1 has no effect."""
    turns = {"transpose_x": bool(transA), "transpose_y": bool(transB)}
    return gemm(b, x, y, c, alpha=alpha, beta=beta, **turns)


@op("FusedGemm", domain="com.microsoft")
def fused_gemm(
    b: Builder, x: Tensor, y: Tensor, c: Tensor | None = None, *, activation: str = "", **how: Any
) -> Tensor:
    """Return the activation of Gemm. The names of the activation's attributes begin with `activation_`."""
    mark = "activation_"
    settings = {n.removeprefix(mark): v for n, v in how.items() if n.startswith(mark)}
    z = gemm_(b, x, y, c, **{n: v for n, v in how.items() if not n.startswith(mark)})
    if not activation:
        return z
    if activation not in NAMES:
        known = ", ".join(NAMES)
        raise CompileError(f"activation {activation!r} is none of {known}, and is not supported")
    return b.map(lambda v: ACTIVATIONS[NAMES[activation]](v, **settings), z)


def _rows_last(b: Builder, t: Tensor) -> Tensor:
    """Return t [rows, *batch, columns] as [*batch, rows, columns]."""
    return b.transpose(t, [*range(1, t.rank - 1), 0, t.rank - 1]) if t.rank > 2 else t


@op("SparseToDenseMatMul", domain="com.microsoft")
@op("FusedMatMul", domain="com.microsoft")
def fused_matmul(
    b: Builder,
    x: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """Return alpha times the product of x and y. A sparse x is dense here.

    With `transBatchA` or `transBatchB`, the operand's rows are its first axis, before the batch's axes."""
    x, y = (_rows_last(b, t) if turn else t for t, turn in ((x, transBatchA), (y, transBatchB)))
    if x.rank < 2 or y.rank < 2:
        out = matmul(b, x, y)
    else:
        out = b.matmul(x, y, transpose_a=bool(transA), transpose_b=bool(transB))
    return out if alpha == 1 else b.map(lambda p: scaled(p, alpha), out)
