"""Access to the arguments of an operator in its lowering, and fixed-point rescaling, which quantized
operators share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.tflite.fixed import HIGH, Multiplier, rounded
from jangin.ir.dtype import BOOL, F32, F64, I4, I8, I16, I32, I64, U8, DType
from jangin.ir.expr import Expr, binary, cast, const, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Quantization:
    """A tensor's type and quantization: real value = (q - zero) * scale. There is one scale, or one for each
    entry along `axis`.

    `scales` is None if the tensor isn't quantized. A `complex` tensor has pairs of f32 along an additional
    last axis."""

    dtype: DType | None
    scales: Array | None = None
    zeros: Array | None = None
    axis: int = 0
    complex: bool = False

    @property
    def integer(self) -> bool:
        """Tell if the tensor is quantized to at most 16 bits. LiteRT's kernels ignore the scales of wider
        integers."""
        return self.scales is not None and self.dtype in (I4, I8, U8, I16)

    @property
    def scale(self) -> float:
        """The only scale, rounded to f32. Raises CompileError if there are several or none."""
        if self.scales is None or self.scales.size != 1:
            raise CompileError("an operand must be quantized by one scale")
        return float(self.scales[0])

    @property
    def zero(self) -> int:
        return 0 if self.zeros is None else int(self.zeros[0])

    @property
    def limits(self) -> tuple[int, int]:
        assert self.dtype is not None
        return self.dtype.limits


@dataclass(frozen=True)
class Call:
    """An operator that is being lowered.

    `given` and `gives` are the quantization of its inputs and outputs. `between` is that of its intermediate
    tensors."""

    b: Builder
    inputs: tuple[Item | None, ...]
    given: tuple[Quantization, ...]
    gives: tuple[Quantization, ...]
    options: Mapping[str, Any]
    between: tuple[Quantization, ...] = ()

    def x(self, i: int = 0) -> Tensor:
        """Return input number `i`. Raises CompileError if it isn't a tensor."""
        tensor = self.inputs[i] if i < len(self.inputs) else None
        if not isinstance(tensor, Tensor):
            raise CompileError(f"input {i} must be a tensor")
        return tensor

    def optional(self, i: int) -> Tensor | None:
        tensor = self.inputs[i] if i < len(self.inputs) else None
        return tensor if isinstance(tensor, Tensor) else None

    def integers(self, i: int) -> list[int]:
        """Return the elements of a constant input as ints. Raises CompileError if it isn't constant."""
        value = self.b.require_constant(self.x(i), f"input {i}")
        return [int(v) for v in value.reshape(-1)]

    def sizes(self, i: int) -> list[Expr]:
        return self.b.require_sizes(
            self.b.reshape(self.x(i), [1]) if not self.x(i).rank else self.x(i), "sizes"
        )

    @property
    def out(self) -> Quantization:
        return self.gives[0]

    @property
    def is_integer(self) -> bool:
        """Tell if the operator computes on quantized integers: its first input and its result are
        quantized."""
        return self.out.integer and self.given[0].integer

    def only(self, *dtypes: DType) -> None:
        """Raise CompileError if the operator is quantized to a type that LiteRT's reference kernel doesn't
        support."""
        if self.given[0].dtype not in dtypes or self.out.dtype not in dtypes:
            raise self._unsupported()

    def _unsupported(self) -> CompileError:
        return CompileError(f"its tensors are quantized to {self.given[0].dtype}, which is not supported")

    def only_floats(self) -> None:
        """Raise CompileError if the operator is quantized. A result computed in floats would differ from the
        reference kernel's."""
        if any(q.integer for q in (*self.given[:1], self.out)):
            raise self._unsupported()


# -- fused activations ---------------------------------------------------------------------------

NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
RELU_0_TO_1 = 6
"""The activation with the bounds 0 and 1. It is only an operator, because operators can't fuse it."""
_BOUNDS = {
    NONE: (None, None), RELU: (0.0, None), RELU_N1_TO_1: (-1.0, 1.0), RELU6: (0.0, 6.0),
    RELU_0_TO_1: (0.0, 1.0),
}  # fmt: skip


def activated(call: Call, y: Tensor) -> Tensor:
    """Return floats after the operator's fused activation. Raises CompileError if LiteRT has no such
    activation."""
    kind = call.options.get("fused_activation_function", NONE)
    if kind not in _BOUNDS:
        raise CompileError(f"the fused activation {kind} is not supported: LiteRT's kernels leave it out")
    low, high = _BOUNDS[kind]
    return y if low is None else call.b.map(lambda v: clipped(v, low, high), y)


def clipped(v: Expr, low: float | None, high: float | None) -> Expr:
    v = v if low is None else maximum(v, const(low, v.dtype))
    return v if high is None else minimum(v, const(high, v.dtype))


def limits(call: Call, kind: int | None = None) -> tuple[int, int]:
    """Return the lowest and the highest quantized result after the fused activation, as LiteRT's
    `CalculateActivationRangeQuantized` does. `kind` is another activation than the operator's."""
    kind = call.options.get("fused_activation_function", NONE) if kind is None else kind
    low, high = call.out.limits
    if kind == NONE:
        return low, high
    if kind not in _BOUNDS:
        raise CompileError(f"the fused activation {kind} of quantized numbers is not supported")

    def place(v: float) -> int:
        return call.out.zero + rounded(float(np.float32(v) / np.float32(call.out.scale)))

    bottom, top = _BOUNDS[kind]
    return (
        low if bottom is None else max(low, place(bottom)),
        high if top is None else min(high, place(top)),
    )


# -- rescaling -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factors:
    """Operands of `rescaled`, which stand for fixed-point multipliers. They are single numbers, or tensors
    that are broadcast along one axis.

    `zero` is the zero point that rescaling with these operands also adds, or 0."""

    operands: tuple[Tensor | Expr, ...]
    zero: int = 0

    @classmethod
    def of(
        cls, b: Builder, factors: Sequence[float], axis: int = 0, rank: int = 0, *, once: bool = False,
        long: bool = False, up: bool = False, narrow: bool = False, reach: float = math.inf, zero: int = 0,
    ) -> Factors:  # fmt: skip
        """Return the operands of `rescaled` for real factors. If there are several, they are along the axis
        `axis` of tensors with `rank` axes.

        `once` and `long` are those of `Multiplier`. With `narrow`, the numbers to rescale are int32 even if
        there is only one factor. `reach` is the largest absolute value of these numbers. The operands can
        only include `zero` if it is finite. With `up`, negative numbers may give any result that isn't above
        0."""
        multipliers = [Multiplier.of(f, once, long) for f in factors]
        below_one = all(m.shift <= 0 for m in multipliers) and not long
        rows: Sequence[tuple[int, ...]]
        if below_one and reach < math.inf and (rescaling := _near(multipliers, reach, zero, up)) is not None:
            rows, zero = rescaling
            dtype = I32
        else:
            short = below_one and not once and (narrow or len(multipliers) > 1)
            rows, zero = [*map(_short_parts if short else _parts, multipliers)], 0
            dtype = I32 if short else I64
        columns = [*zip(*rows, strict=True)]
        if len(multipliers) == 1:
            return cls(tuple(const(v, dtype) for (v,) in columns), zero)
        shape = [len(multipliers) if i == axis else 1 for i in range(rank)]
        return cls(
            tuple(
                const(c[0], dtype) if len(set(c)) == 1 else b.const(np.array(c, dtype.numpy).reshape(shape))
                for c in columns
            ),
            zero,
        )


def _near(
    found: Sequence[Multiplier], reach: float, zero: int, up: bool
) -> tuple[Sequence[tuple[int, ...]], int] | None:
    """Return the operands of a rescaling whose sums fit in i32, and the zero point that it adds. Return None
    if a sum could overflow for numbers up to `reach`.

    The zero point is 0 if adding the real one could overflow. The rescaling keeps one bit of the product
    behind the point, so that one shift does both roundings. It adds half of the bits that the shift drops,
    and 1 for the rounding of the product.

    If there are two roundings, a negative number is first made smaller by 1, which is 2 here. This correction
    is left out with `up`."""
    for added in dict.fromkeys((zero, 0)):
        rows = []
        for m in found:
            right = 1 - m.shift
            twice = right > 1 and not m.once
            whole = (1 << (right - 1)) + twice + (added << right)
            rows.append((m.value, whole, right, 0 if up else 2 * twice))
        if 2 * reach + max(abs(row[1]) for row in rows) < HIGH - 2:
            return rows, added
    return None


def _parts(m: Multiplier) -> tuple[int, ...]:
    if m.long:
        return m.upper, 1 << (14 - m.shift), 15 - m.shift
    if m.once:
        return m.value, 1 << (30 - m.shift), 31 - m.shift
    right = max(-m.shift, 0)
    return m.value << max(m.shift, 0), (1 << right) >> 1, int(right > 0), right


def _short_parts(m: Multiplier) -> tuple[int, ...]:
    """Return the operands of `rescaled` in i32 for a factor below 1. They are the multiplier's value, a mask
    of the bits that the last shift drops, and the shift's distance."""
    return m.value, (1 << -m.shift) - 1, -m.shift


def constants(m: Multiplier) -> tuple[Expr, ...]:
    """Return a multiplier as operands of `rescaled` that are constants in i64."""
    return tuple(const(v, I64) for v in _parts(m))


def operands(m: Multiplier) -> tuple[Expr, ...]:
    """Return a multiplier of int32 numbers as the operands after x of `rescaled`. They are constants in i32
    if the factor is below 1, else in i64."""
    if m.shift > 0:
        return constants(m)
    return tuple(const(v, I32) for v in _short_parts(m))


def factor_of(one: float, other: float, result: float) -> float:
    """Return the factor that converts products of numbers with two scales to a third scale. It is computed in
    f32."""
    return float(np.float32(one) * np.float32(other) / np.float32(result))


def rescaled(x: Expr, value: Expr, half: Expr, *rest: Expr) -> Expr:
    """Return an integer multiplied by a fixed-point factor, equal to the result of `fixed.Multiplier.times`.

    The operands after x come from `Factors.of`, `constants` or `operands`. If they are i32, so are the last
    steps, because a vector has more elements of i32. Otherwise all steps are in i64."""
    product = cast(I64, x) * cast(I64, value)
    if value.dtype is I32:
        return _nearly(product, half, *rest) if len(rest) > 1 else _shifted(product, half, *rest)
    if len(rest) == 1:
        return binary("shr", product + half, rest[0])
    below, right = rest
    high = binary("shr", product + (1 << 30), const(31, I64))
    return binary("shr", high + half - select(high < 0, below, const(0, I64)), right)


def _nearly(product: Expr, whole: Expr, right: Expr, below: Expr) -> Expr:
    """Round and rescale a 64-bit product by shifts in i32. `whole`, `right` and `below` are a row of `_near`:
    what is added, the shift's distance, and what is subtracted from negative numbers."""
    x = cast(I32, binary("shr", product, const(30, I64)))
    total = x + whole
    if below != const(0, I32):
        total = total - select(x < 0, below, const(0, I32))
    return binary("shr", total, right)


def _shifted(product: Expr, dropped: Expr, right: Expr) -> Expr:
    """Return the upper half of an i64 product, shifted to the right by `right` bits and rounded as
    `fixed.divided` does. `dropped` is a mask of the bits that the shift drops. The result can't overflow,
    because 1 is added only if these bits exceed a half."""
    x = cast(I32, binary("shr", product + (1 << 30), const(31, I64)))
    over = binary("and", x, dropped) > binary("shr", dropped, const(1, I32)) + cast(I32, x < 0)
    return binary("shr", x, right) + cast(I32, over)


def leading_zeros(v: Expr) -> Expr:
    """Return the number of leading zeros of a positive int32. They follow from the exponent of the number in
    f64."""
    exponent = binary("shr", intrinsic("bitcast_i64", cast(F64, v)), const(52, I64))
    return const(31 + 1023, I64) - exponent


def mapped(b: Builder, body: Callable[..., Expr], *operands: Tensor | Expr) -> Tensor:
    """Return `body` of operands, some of which may be constants, for each element."""
    tensors = [t for t in operands if isinstance(t, Tensor)]

    def fn(*elements: Expr) -> Expr:
        rest = iter(elements)
        return body(*(next(rest) if isinstance(t, Tensor) else t for t in operands))

    return b.map(fn, *tensors)


def stored(v: Expr, zero: int, low: int, high: int, dtype: DType) -> Expr:
    """Return a sum (i32 or i64) as a quantized result: the zero point is added, and the result is clamped to
    `low` and `high`."""
    ends = (const(end - zero, v.dtype) for end in (low, high))
    return cast(dtype, minimum(maximum(v, next(ends)), next(ends)) + zero)


def requantized(call: Call, sums: Tensor, factors: Factors, kind: int | None = None) -> Tensor:
    """Return integer sums rescaled to the result's quantization and clamped to the activation's limits."""
    low, high = limits(call, kind)
    dtype, zero = call.out.dtype, call.out.zero - factors.zero
    assert dtype is not None
    return mapped(
        call.b,
        lambda v, *f: stored(rescaled(v, *f), zero, low, high, dtype),
        sums, *factors.operands,
    )  # fmt: skip


def is_rounded_up(call: Call, kind: int | None = None) -> bool:
    """Tell if all negative sums give the lowest result. For all other sums, the two roundings of a product
    are equal to one that rounds a half up."""
    return limits(call, kind)[0] >= call.out.zero


def lookup(call: Call, fn: Callable[[int], int]) -> Tensor:
    """Return a function of an 8-bit input by a lookup table. `fn` gives the result for each possible
    input."""
    q, dtype = call.given[0], call.out.dtype
    call.only(I8, U8)
    assert dtype is not None
    low, high = q.limits
    table = call.b.const(np.array([fn(i) for i in range(low, high + 1)], dtype.numpy))
    places = call.b.map(lambda v: cast(I64, v) - low, call.x())
    return call.b.gather(table, places, 0)


def real(call: Call, i: int = 0) -> Tensor:
    """Return input number `i` as floats. A quantized input is dequantized to f32. Raises CompileError for
    integers that aren't quantized."""
    q = call.given[i]
    x = call.x(i)
    if not q.integer and x.dtype.is_int:
        raise CompileError(f"{x.dtype} without a scale, or of a type that isn't dequantized")
    if not q.integer:
        return call.b.cast(x, F32) if x.dtype.is_float else x
    assert q.scales is not None and q.zeros is not None
    shape = [q.scales.size if n == q.axis and q.scales.size > 1 else 1 for n in range(x.rank)]
    scale = call.b.const(q.scales.astype(np.float32).reshape(shape))
    zero = call.b.const(q.zeros.astype(np.float32).reshape(shape))
    return call.b.map(lambda v, s, z: (cast(F32, v) - z) * s, x, scale, zero)


def undefined(dtype: DType) -> CompileError:
    """Return the error for an operator's input of a type for which TensorFlow Lite doesn't define it."""
    return CompileError(f"it is not defined for {dtype}: convert the model again, with a Cast before it")


def number(call: Call) -> Tensor:
    """Return the first input of an operator that isn't defined for truths. Raises CompileError for them."""
    if call.x().dtype is BOOL:
        raise undefined(BOOL)
    return call.x()


def floats(call: Call) -> Tensor:
    """Return the first input of an operator that is defined only for floats. Raises CompileError for other
    types."""
    if not call.x().dtype.is_float:
        raise undefined(call.x().dtype)
    return call.x()
