"""Lower ONNX's random numbers. With a seed, they are equal to those of ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import BOOL, F32, F64, I32, I64, DType
from jangin.ir.expr import Buffer, Expr, call, cast, const, lor, minimum, select
from jangin.ops.builder import Builder
from jangin.ops.random import normal, uniform
from jangin.ops.scan import cumulate
from jangin.ops.values import Tensor


def _like(x: Tensor, dtype: int | DType | None) -> DType:
    return x.dtype if dtype is None else element_type(dtype)


def _shaped(b: Builder, values: Tensor, factor: float, offset: float, dtype: DType) -> Tensor:
    return b.map(lambda v: cast(dtype, v * factor + offset), values)


@op("RandomUniform")
def random_uniform(
    b: Builder, *, shape: Sequence[int], dtype: int = 1, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    values = uniform(b, tuple(const(d) for d in shape), seed)
    return _shaped(b, values, high - low, low, element_type(dtype))


@op("RandomUniformLike")
def random_uniform_like(
    b: Builder, x: Tensor, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return _shaped(b, uniform(b, x.shape, seed), high - low, low, _like(x, dtype))


@op("RandomNormal")
def random_normal(
    b: Builder, *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    values = normal(b, tuple(const(d) for d in shape), seed)
    return _shaped(b, values, scale, mean, element_type(dtype))


@op("RandomNormalLike")
def random_normal_like(
    b: Builder, x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return _shaped(b, normal(b, x.shape, seed), scale, mean, _like(x, dtype))


@op("Bernoulli")
def bernoulli(b: Builder, x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """Return 1 with the probability that the input has, else 0."""
    to = _like(x, dtype)
    return b.map(lambda p, u: cast(to, cast(F64, p) > u), x, uniform(b, x.shape, seed))


@op("Multinomial")
def multinomial(
    b: Builder, x: Tensor, *, dtype: int | DType = I32, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    """Draw `sample_size` classes for each row of x. x has the logarithms of probabilities, which needn't sum
    to 1."""
    classes = x.shape[1]
    upto = cumulate(b, b.softmax(b.cast(x, F64), 1), "sum", axis=1)
    drawn = uniform(b, (x.shape[0], const(sample_size)), seed)

    def passed(bufs: Sequence[Buffer], i: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        return cast(I64, bufs[0][i[0], k[0]] <= bufs[1][i[0], i[1]])

    counts = b.reduction(I64, drawn.shape, [classes], "sum", [upto, drawn], passed)
    to = element_type(dtype)
    return b.map(lambda n: cast(to, minimum(n, classes - 1)), counts)


def _truth(b: Builder, t: Tensor | None) -> bool | None:
    """Return a constant as a truth value, or None if it is only known at run time. A missing input is false,
    and a number is true unless it is 0."""
    if t is None:
        return False
    value = b.constant_value(t)
    return None if value is None else bool(value.reshape(-1)[0])


@op("Dropout", since=12)
def dropout(
    b: Builder, x: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None,
    *, seed: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return x with random elements set to 0, and the mask of the kept elements. In inference, or with a
    ratio of 0, all elements are kept.

    In training, the kept elements are multiplied by 1 / (1 - ratio)."""
    training = _truth(b, training_mode)
    share = b.scalar(0.5, F32) if ratio is None else b.reshape(ratio, ())
    if training is False or _truth(b, share) is False:
        return _kept(b, x, BOOL)
    flag = b.scalar(True, BOOL) if training_mode is None else b.reshape(training_mode, ())
    mask = b.map(
        lambda u, r, on: lor(u >= cast(F64, r), call("not", on)), uniform(b, x.shape, seed), share, flag
    )

    def scaled(v: Expr, m: Expr, r: Expr, on: Expr) -> Expr:
        work = v.dtype.wide
        kept = cast(work, v) * (1.0 / (1.0 - cast(work, r)))
        return select(on, cast(v.dtype, select(m, kept, const(0, work))), v)

    return b.map(scaled, x, mask, share, flag), mask


def _kept(b: Builder, x: Tensor, mask_dtype: DType) -> tuple[Tensor, Tensor]:
    return x, b.map(lambda v: const(1, mask_dtype), x)


@op("Dropout", since=10)
def dropout_10(b: Builder, x: Tensor, ratio: float = 0.5) -> tuple[Tensor, Tensor]:
    return _kept(b, x, BOOL)


@op("Dropout")
def dropout_1(b: Builder, x: Tensor, ratio: float = 0.5, is_test: int = 1) -> tuple[Tensor, Tensor]:
    """Return x unchanged, and a mask. `is_test` has no effect, because later versions of the standard don't
    have it."""
    return _kept(b, x, x.dtype)
