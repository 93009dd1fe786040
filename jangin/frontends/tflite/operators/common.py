"""What a builtin operator's lowering is called with, and what quantized ones share: rescaling by fixed-point
multipliers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.tflite.fixed import HIGH, Multiplier, rounded
from jangin.ir.dtype import F32, F64, I4, I8, I16, I32, I64, U8, DType
from jangin.ir.expr import Expr, binary, cast, const, maximum, minimum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Quantization:
    """A tensor's type, and what its integers stand for: (q - zero) * scale, single or along `axis`; `scales`
    is None where they stand for themselves. `complex`: f32 in pairs along one axis more."""

    dtype: DType | None
    scales: Array | None = None
    zeros: Array | None = None
    axis: int = 0
    complex: bool = False

    @property
    def integer(self) -> bool:
        """Whether it is quantized; a scale of larger integers says nothing to LiteRT's kernels."""
        return self.scales is not None and self.dtype in (I4, I8, U8, I16)

    @property
    def scale(self) -> float:
        """The single scale, a f32."""
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
    """An operator being lowered: its inputs, how they and its outputs are quantized, its options, and how
    what lies `between` its parts is quantized."""

    b: Builder
    inputs: tuple[Item | None, ...]
    given: tuple[Quantization, ...]
    gives: tuple[Quantization, ...]
    options: Mapping[str, Any]
    between: tuple[Quantization, ...] = ()

    def x(self, i: int = 0) -> Tensor:
        """An input that must be there."""
        found = self.inputs[i] if i < len(self.inputs) else None
        if not isinstance(found, Tensor):
            raise CompileError(f"input {i} must be a tensor")
        return found

    def optional(self, i: int) -> Tensor | None:
        found = self.inputs[i] if i < len(self.inputs) else None
        return found if isinstance(found, Tensor) else None

    def integers(self, i: int) -> list[int]:
        """An input whose elements must be known."""
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
        """Whether it computes on quantized integers."""
        return self.out.integer and self.given[0].integer

    def only(self, *dtypes: DType) -> None:
        """CompileError where it is quantized to another type than the reference kernel takes."""
        if self.given[0].dtype not in dtypes or self.out.dtype not in dtypes:
            raise CompileError(f"quantized to {self.given[0].dtype}, this operator is not supported")

    def only_floats(self) -> None:
        """CompileError where it is quantized: a result in floats would not be the reference's."""
        if any(q.integer for q in (*self.given[:1], self.out)):
            raise CompileError(f"quantized to {self.given[0].dtype}, this operator is not supported")


# -- fused activations ---------------------------------------------------------------------------

NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
RELU_0_TO_1 = 6
"""An operator alone: nothing fuses it."""
_BOUNDS = {
    NONE: (None, None), RELU: (0.0, None), RELU_N1_TO_1: (-1.0, 1.0), RELU6: (0.0, 6.0),
    RELU_0_TO_1: (0.0, 1.0),
}  # fmt: skip


def activated(call: Call, y: Tensor) -> Tensor:
    """The fused activation of floats."""
    kind = call.options.get("fused_activation_function", NONE)
    if kind not in _BOUNDS:
        raise CompileError(f"the fused activation {kind} is not supported: LiteRT's kernels leave it out")
    low, high = _BOUNDS[kind]
    return y if low is None else call.b.map(lambda v: clipped(v, low, high), y)


def clipped(v: Expr, low: float | None, high: float | None) -> Expr:
    v = v if low is None else maximum(v, const(low, v.dtype))
    return v if high is None else minimum(v, const(high, v.dtype))


def limits(call: Call, kind: int | None = None) -> tuple[int, int]:
    """Where quantized results lie after the fused activation (`CalculateActivationRangeQuantized`)."""
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
    """Fixed-point multipliers as operands of `rescaled`: single ones, or one an index of an axis, as tensors
    that broadcast. `zero`: what they add to what they give."""

    operands: tuple[Tensor | Expr, ...]
    zero: int = 0

    @classmethod
    def of(
        cls, b: Builder, factors: Sequence[float], axis: int = 0, rank: int = 0, *, once: bool = False,
        long: bool = False, up: bool = False, narrow: bool = False, reach: float = math.inf, zero: int = 0,
    ) -> Factors:  # fmt: skip
        """`narrow`: what is rescaled is an int32 also where the factor is a single one. `reach`: what it
        doesn't pass, and then `zero` is to be added. `up`: where it is below 0 any result up to 0 will do."""
        found = [Multiplier.of(f, once, long) for f in factors]
        below_one = all(m.shift <= 0 for m in found) and not long
        rows: Sequence[tuple[int, ...]]
        if below_one and reach < math.inf and (made := _near(found, reach, zero, up)) is not None:
            rows, zero = made
            dtype = I32
        else:
            short = below_one and not once and (narrow or len(found) > 1)
            rows, zero = [*map(_short_parts if short else _parts, found)], 0
            dtype = I32 if short else I64
        columns = [*zip(*rows, strict=True)]
        if len(found) == 1:
            return cls(tuple(const(v, dtype) for (v,) in columns), zero)
        shape = [len(found) if i == axis else 1 for i in range(rank)]
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
    """What rescales an int32 that doesn't pass `reach` in i32, but for its product, and what that adds: the
    zero point, unless it is beyond an i32 then. None where all is.

    Of the product one bit behind the point is kept, whose rounding is one with that of the shift: half of
    what the shift drops is added, and 1 that rounds the product. Only where both round, a negative number
    begins by 1 less, which here is 2; not where what is below 0 may be anything up to 0."""
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
    """Of a factor below 1: its value, and how far the last shift goes, before it the bits that it drops."""
    return m.value, (1 << -m.shift) - 1, -m.shift


def constants(m: Multiplier) -> tuple[Expr, ...]:
    """A multiplier as the operands of `rescaled`."""
    return tuple(const(v, I64) for v in _parts(m))


def operands(m: Multiplier) -> tuple[Expr, ...]:
    """As `constants`, for an int32, in i32 where the factor is below 1."""
    if m.shift > 0:
        return constants(m)
    return tuple(const(v, I32) for v in _short_parts(m))


def factor_of(one: float, other: float, result: float) -> float:
    """What a product of two scales is in another, in f32."""
    return float(np.float32(one) * np.float32(other) / np.float32(result))


def rescaled(x: Expr, value: Expr, half: Expr, *rest: Expr) -> Expr:
    """`fixed.Multiplier.times` of an integer, in i64, or of an int32 by a factor below 1 in i32, as there are
    more lanes of it. `half` is what rounds the last shift; `rest` is how far that goes, and of an int64,
    where it is the second, before it 1 or, if there is nothing to shift, 0."""
    product = cast(I64, x) * cast(I64, value)
    if value.dtype is I32:
        return _nearly(product, half, *rest) if len(rest) > 1 else _shifted(product, half, *rest)
    if len(rest) == 1:
        return binary("shr", product + half, rest[0])
    below, right = rest
    high = binary("shr", product + (1 << 30), const(31, I64))
    return binary("shr", high + half - select(high < 0, below, const(0, I64)), right)


def _nearly(product: Expr, whole: Expr, right: Expr, below: Expr) -> Expr:
    """As `_near` says."""
    x = cast(I32, binary("shr", product, const(30, I64)))
    total = x + whole
    if below != const(0, I32):
        total = total - select(x < 0, below, const(0, I32))
    return binary("shr", total, right)


def _shifted(product: Expr, dropped: Expr, right: Expr) -> Expr:
    """The product's upper half, and `fixed.divided` of it, which can't overflow: what is dropped adds 1 where
    it is over a half."""
    x = cast(I32, binary("shr", product + (1 << 30), const(31, I64)))
    over = binary("and", x, dropped) > binary("shr", dropped, const(1, I32)) + cast(I32, x < 0)
    return binary("shr", x, right) + cast(I32, over)


def leading_zeros(v: Expr) -> Expr:
    """Leading zeros of an int32 above 0, by the exponent of the f64 that it is."""
    exponent = binary("shr", intrinsic("bitcast_i64", cast(F64, v)), const(52, I64))
    return const(31 + 1023, I64) - exponent


def mapped(b: Builder, body: Callable[..., Expr], *operands: Tensor | Expr) -> Tensor:
    """`Builder.map` of operands some of which are constants."""
    tensors = [t for t in operands if isinstance(t, Tensor)]

    def fn(*elements: Expr) -> Expr:
        rest = iter(elements)
        return body(*(next(rest) if isinstance(t, Tensor) else t for t in operands))

    return b.map(fn, *tensors)


def stored(v: Expr, zero: int, low: int, high: int, dtype: DType) -> Expr:
    """A sum (i32 or i64) as a quantized result."""
    ends = (const(end - zero, v.dtype) for end in (low, high))
    return cast(dtype, minimum(maximum(v, next(ends)), next(ends)) + zero)


def requantized(call: Call, sums: Tensor, factors: Factors, kind: int | None = None) -> Tensor:
    """Integer sums times the multipliers, plus the result's zero point, within the activation's limits."""
    low, high = limits(call, kind)
    dtype, zero = call.out.dtype, call.out.zero - factors.zero
    assert dtype is not None
    return mapped(
        call.b,
        lambda v, *f: stored(rescaled(v, *f), zero, low, high, dtype),
        sums, *factors.operands,
    )  # fmt: skip


def is_rounded_up(call: Call, kind: int | None = None) -> bool:
    """Whether rescaled sums below 0 all become the least result. Of others a half goes up in both roundings
    of a product, which are one then."""
    return limits(call, kind)[0] >= call.out.zero


def lookup(call: Call, fn: Callable[[int], int]) -> Tensor:
    """A function of an 8-bit input as a table, which `fn` gives exactly."""
    q, dtype = call.given[0], call.out.dtype
    call.only(I8, U8)
    assert dtype is not None
    low, high = q.limits
    table = call.b.const(np.array([fn(i) for i in range(low, high + 1)], dtype.numpy))
    places = call.b.map(lambda v: cast(I64, v) - low, call.x())
    return call.b.gather(table, places, 0)


def real(call: Call, i: int = 0) -> Tensor:
    """A quantized input as what it stands for, f32."""
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
