"""Lower the steps of optimizers in ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.dtype import F64
from jangin.ir.expr import Expr, call, cast, const, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

DOMAIN = "ai.onnx.preview.training"
Step = Callable[..., tuple[Expr, ...]]


def _each(
    b: Builder, rate: Tensor, count: Tensor, values: Sequence[Tensor], kinds: int, step: Step
) -> list[Tensor]:
    """Apply `step(rate, count, weight, gradient, *state)` to every weight. Return all new weights, then each
    kind of new state for all weights.

    `values` has all weights, all gradients, then each kind of state for all weights. `kinds` is the number of
    tensors for each weight. Raises CompileError if `values` can't be divided by it."""
    if len(values) % kinds:
        raise CompileError(f"{len(values)} tensors are given; there must be {kinds} for each weight")
    weights = len(values) // kinds
    groups: list[list[Tensor]] = [[] for _ in range(kinds - 1)]
    for n in range(weights):
        for part, results in enumerate(groups):
            operands = [rate, count, *values[n::weights]]
            results.append(b.map(lambda *xs, part=part: step(*xs)[part], *operands))
    return [t for results in groups for t in results]


@op("Adagrad", domain=DOMAIN)
def adagrad(
    b: Builder, rate: Tensor, count: Tensor, *values: Tensor, decay_factor: float = 0.0,
    epsilon: float = 1e-6, norm_coefficient: float = 0.0,
) -> list[Tensor]:  # fmt: skip
    """Return the new weights and states after a step of Adagrad (Duchi et al. 2011)."""

    def step(r: Expr, t: Expr, x: Expr, g: Expr, h: Expr) -> tuple[Expr, ...]:
        g = g + x * norm_coefficient
        squares = h + g * g
        rated = cast(x.dtype, r / (cast(r.dtype, t) * decay_factor + 1.0))
        return x - rated * g / (call("sqrt", squares) + epsilon), squares

    return _each(b, rate, count, values, 3, step)


@op("Adam", domain=DOMAIN)
def adam(
    b: Builder, rate: Tensor, count: Tensor, *values: Tensor, alpha: float = 0.9, beta: float = 0.999,
    epsilon: float = 1e-6, norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> list[Tensor]:  # fmt: skip
    """Return the new weights and states after a step of Adam (Kingma & Ba 2015)."""

    def step(r: Expr, t: Expr, x: Expr, g: Expr, v: Expr, h: Expr) -> tuple[Expr, ...]:
        g = g + x * norm_coefficient
        means, squares = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
        turns, wide = cast(F64, t), cast(F64, r)
        unbiased = call("sqrt", 1.0 - operation("pow", const(beta, F64), turns))
        adjusted = wide * unbiased / (1.0 - operation("pow", const(alpha, F64), turns))
        rated = cast(x.dtype, select(t > 0, adjusted, wide))
        new = x - rated * means / (call("sqrt", squares) + epsilon)
        return new * (1 - norm_coefficient_post), means, squares

    return _each(b, rate, count, values, 4, step)


@op("Momentum", domain=DOMAIN)
def momentum(
    b: Builder, rate: Tensor, count: Tensor, *values: Tensor, alpha: float, beta: float, mode: str,
    norm_coefficient: float,
) -> list[Tensor]:  # fmt: skip
    """Return the new weights and states after a step of gradient descent with momentum. `mode` is "standard"
    or "nesterov" (Sutskever et al. 2013)."""
    one_of("mode", mode, ("standard", "nesterov"))

    def step(r: Expr, t: Expr, x: Expr, g: Expr, v: Expr) -> tuple[Expr, ...]:
        g = g + x * norm_coefficient
        new = v * alpha + g * select(t > 0, const(beta, g.dtype), const(1, g.dtype))
        direction = g + new * alpha if mode == "nesterov" else new
        return x - cast(x.dtype, r) * direction, new

    return _each(b, rate, count, values, 3, step)
