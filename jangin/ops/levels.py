"""Dynamic quantization: floats become 8-bit levels at run time, so that sums of products with 8-bit weights
are exact.

Ranges are taken row by row, as in LiteRT's `SymmetricQuantizeFloats` and its asymmetric counterpart, or over
all rows, as in ONNX's DynamicQuantizeLinear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from jangin.ir.dtype import F32, F64, I8
from jangin.ir.expr import Expr, call, cast, const, eq, maximum, minimum, select
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.quantized import dynamic_quantize
from jangin.ops.values import Tensor

Sums = Callable[[Tensor, Tensor | None], Tensor]
"""`fn(levels, zero points)`: the exact sums of quantized rows, less their zero points, times weights. Zero
points of None are 0."""


BELOW_HALF = 0.5 - 2.0**-25
"""The greatest f32 below a half. Added to a whole number and a half, it gives the next whole number, because
the sum is rounded to even. No sum with a smaller number reaches the next whole number."""


def rounded(v: Expr) -> Expr:
    """Return the nearest whole f32; halves are rounded away from zero."""
    return call("trunc", v + select(v < 0, const(-BELOW_HALF, F32), const(BELOW_HALF, F32)))


def _within(v: Expr, low: float, high: float) -> Expr:
    """Return a number clamped into [low, high]; NaN becomes `low`."""
    v = select(v > low, v, const(low, F32))
    return select(v < high, v, const(high, F32))


@dataclass(frozen=True)
class Levels(ABC):
    """256 levels over a range of floats that includes 0. The zero point is the level of 0. `together`: all
    rows share one range. `least`: the lowest level."""

    together: bool = False
    least: int = -128

    @abstractmethod
    def row(self, low: Expr, high: Expr) -> tuple[Expr, Expr, Expr]:
        """Return (scale, factor for `level`, zero point) of a range, all f32. `low` is at most 0 and `high`
        at least 0."""

    @abstractmethod
    def level(self, v: Expr, by: Expr, zero: Expr) -> Expr:
        """Return a number's level, a whole f32."""

    @abstractmethod
    def quantized(self, b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return x as levels, and its scale (f32) and zero point for each row along `axes`. The zero point is
        None if it is always 0."""

    def multiplied(self, b: Builder, x: Tensor, axes: Sequence[int], sums: Sums, scales: Tensor) -> Tensor:
        """Return the product of x, quantized along `axes`, and weights, as floats. `scales`: the weights'
        scales, along the result's last axis."""
        q, scale, zero = self.quantized(b, x, axes)
        return b.map(lambda v, s, f: cast(F32, v) * (s * f), sums(q, zero), scale, scales)


@dataclass(frozen=True)
class RowLevels(Levels):
    """Levels of each row by itself. With `asymmetric`, 256 levels cover its range and 0; otherwise 255 levels
    lie around 0."""

    asymmetric: bool = False

    def row(self, low: Expr, high: Expr) -> tuple[Expr, Expr, Expr]:
        if not self.asymmetric:
            return *_symmetric(maximum(high, -low)), const(0.0, F32)
        bottom, top = cast(F64, low), cast(F64, high)
        step = (top - bottom) / 255
        ends = bottom / step, top / step
        nearer = 128 - ends[0] < 127 + ends[1]
        place = rounded(cast(F32, select(nearer, -128 - ends[0], 127 - ends[1])))
        none = eq(step, 0)
        zero = select(none, const(0.0, F32), minimum(maximum(place, -128.0), 127.0))
        scale = select(none, const(1.0, F32), cast(F32, step))
        return scale, 1 / scale, zero

    def level(self, v: Expr, by: Expr, zero: Expr) -> Expr:
        if not self.asymmetric:
            return _within(rounded(v * by), -127.0, 127.0)
        return _within(rounded(zero + v * by), -128.0, 127.0)

    def quantized(self, b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        none = const(0.0, F32)
        if not self.asymmetric:
            size = b.reduce("max", b.map(lambda v: call("abs", v), x), axes, True)
            scale = b.map(lambda s: _symmetric(s)[0], size)
            q = b.map(lambda v, s: cast(I8, self.level(v, _symmetric(s)[1], none)), x, size)
            return q, scale, None
        low, high = (b.reduce(c, x, axes, True) for c in ("min", "max"))

        def part(n: int) -> Tensor:
            return b.map(lambda bottom, top: self.row(minimum(bottom, 0), maximum(top, 0))[n], low, high)

        scale, zero = part(0), part(2)
        q = b.map(lambda v, s, z: cast(I8, self.level(v, 1 / s, z)), x, scale, zero)
        return q, scale, b.cast(zero, I8)


def _symmetric(size: Expr) -> tuple[Expr, Expr]:
    """Return the symmetric scale of a row with largest magnitude `size`, and its reciprocal."""
    none = eq(size, 0)
    return select(none, const(1.0, F32), size / 127), select(none, const(0.0, F32), 127 / size)


@dataclass(frozen=True)
class TensorLevels(Levels):
    """Levels from 0 up for all rows together, rounded half to even: `quantized.dynamic_quantize`."""

    together: bool = True
    least: int = 0

    def row(self, low: Expr, high: Expr) -> tuple[Expr, Expr, Expr]:
        size = high - low
        scale = select(eq(size, 0), const(1.0, F32), size / 255)
        return scale, scale, _within(call("round", -low / scale), 0.0, 255.0)

    def level(self, v: Expr, by: Expr, zero: Expr) -> Expr:
        return _within(call("round", v / by) + zero, 0.0, 255.0)

    def quantized(self, b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        return dynamic_quantize(b, x)
