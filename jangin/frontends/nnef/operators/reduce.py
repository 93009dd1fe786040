"""Lower NNEF's reductions, normalizations and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jangin.frontends.nnef.operators.common import Operand, aligned, mapped, tensor
from jangin.frontends.registry import Table, lowers
from jangin.ir.expr import call, const
from jangin.ir.simplify import simplify
from jangin.ops import linear as neutral
from jangin.ops import normalize
from jangin.ops.axes import axes_of, product
from jangin.ops.builder import Builder
from jangin.ops.reduce import arg_extreme, reduce_over
from jangin.ops.values import Tensor


def _reduce(kind: str) -> Callable[..., Tensor]:
    def lower(b: Builder, input: Operand, axes: Sequence[int]) -> Tensor:
        x = tensor(b, input)
        return reduce_over(b, kind, x, axes_of(axes, x.rank), True)

    return lower


def _extreme(combiner: str) -> Callable[..., Tensor]:
    def lower(b: Builder, input: Operand, axes: Sequence[int]) -> Tensor:
        """Return the position of the first extreme, counted through all reduced axes in row-major order."""
        x = tensor(b, input)
        over = sorted(axes_of(axes, x.rank))
        kept = [i for i in range(x.rank) if i not in over]
        y = b.transpose(x, [*kept, *over])
        y = b.reshape(y, [*(x.shape[i] for i in kept), simplify(product(x.shape[i] for i in over))])
        position = arg_extreme(b, y, len(kept), combiner)
        return b.reshape(position, [const(1) if i in over else d for i, d in enumerate(x.shape)])

    return lower


REDUCTIONS = Table({
    "max_reduce": _reduce("max"), "min_reduce": _reduce("min"), "mean_reduce": _reduce("mean"),
    "any_reduce": _reduce("max"), "all_reduce": _reduce("min"),
    "argmax_reduce": _extreme("max"), "argmin_reduce": _extreme("min"),
})  # fmt: skip


@lowers("sum_reduce")
def sum_reduce(b: Builder, input: Operand, axes: Sequence[int], normalize: bool = False) -> Tensor:
    return _reduce("mean" if normalize else "sum")(b, input, axes)


@lowers("moments")
def moments(b: Builder, input: Operand, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    x = tensor(b, input)
    stats = normalize.moments(b, x, axes_of(axes, x.rank))
    return stats.mean, stats.variance


@lowers("softmax")
def softmax(b: Builder, x: Operand, axes: Sequence[int] = (1,)) -> Tensor:
    t = tensor(b, x)
    if len(axes) == 1:
        return b.softmax(t, axes_of(axes, t.rank)[0])
    peak = _reduce("max")(b, t, axes)
    e = b.map(lambda v, m: call("exp", v - m), t, peak)
    return b.map(lambda v, s: v / s, e, _reduce("sum")(b, e, axes))


@lowers("log_softmax")
def log_softmax(b: Builder, x: Operand, axes: Sequence[int]) -> Tensor:
    t = tensor(b, x)
    return b.softmax(t, axes_of(axes, t.rank)[0], log=True)


@lowers("layer_normalization")
def layer_normalization(b: Builder, x: Operand, axes: Sequence[int], epsilon: float) -> Tensor:
    return b.normalize(tensor(b, x), axes, epsilon)


@lowers("rms_normalization")
def rms_normalization(b: Builder, x: Operand, axes: Sequence[int], epsilon: float) -> Tensor:
    return b.normalize(tensor(b, x), axes, epsilon, rms=True)


@lowers("batch_normalization")
def batch_normalization(
    b: Builder, input: Operand, mean: Operand, variance: Operand, offset: Operand, scale: Operand,
    epsilon: float,
) -> Tensor:  # fmt: skip
    x, m, v, o, s = aligned(b, input, mean, variance, offset, scale)
    return normalize.batch_norm(b, x, s, o, m, v, epsilon=epsilon)


@lowers("matmul")
def matmul(b: Builder, A: Operand, B: Operand, transposeA: bool = False, transposeB: bool = False) -> Tensor:
    return b.matmul(tensor(b, A), tensor(b, B), transpose_a=transposeA, transpose_b=transposeB)


@lowers("linear")
def linear(b: Builder, input: Operand, filter: Operand, bias: Operand = 0.0) -> Tensor:
    gemm = partial(neutral.gemm, b, tensor(b, input), tensor(b, filter), transpose_y=True)
    if not isinstance(bias, Tensor):
        return gemm() if bias == 0 else mapped(b, lambda v, c: v + c, gemm(), bias)
    return gemm(b.reshape(bias, bias.shape[-1:]) if bias.shape[:-1] == (const(1),) else bias)
