"""Lower Gradient (ai.onnx.preview.training) by reverse-mode differentiation of the core nodes that were built
before it."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.operators.training import DOMAIN
from jangin.frontends.onnx.registry import op
from jangin.gradients.reverse import gradients
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


@op("Gradient", domain=DOMAIN)
def gradient(b: Builder, *inputs: Tensor, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> list[Tensor]:
    """Return the derivatives of the value named `y`, which earlier nodes compute, by the values named `xs`.
    The inputs must be exactly the values named `xs` and `zs`. Raises CompileError otherwise."""
    named = [b.scope.get(n) for n in (*xs, *zs)]
    result = b.scope.get(y)
    if not isinstance(result, Tensor):
        raise CompileError(f"'{y}' must be computed before its gradient")
    if len(named) != len(inputs) or any(
        not isinstance(v, Tensor) or v.name != x.name for v, x in zip(named, inputs, strict=True)
    ):
        raise CompileError(f"its inputs must be the values {', '.join((*xs, *zs))} themselves")
    return gradients(b, result, inputs[: len(xs)])
