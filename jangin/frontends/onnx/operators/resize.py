"""ONNX Resize and Upsample.

A position in the input is a fraction of integer expressions wherever the scale is rational (it is
a ratio of sizes, or a float that a small fraction rounds to), so that rounding is exact for any
size, also one known only at run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import product as combinations

import numpy as np

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import F32, F64, I64, DType
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    Var,
    call,
    cast,
    const,
    is_const,
    land,
    lor,
    maximum,
    minimum,
    select,
)
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import Ranges, from_poly, prove, simplify, terms
from jangin.ir.te import identity
from jangin.ops.axes import axes_of, clamped, divide
from jangin.ops.builder import Builder, Tensor
from jangin.ops.operands import wide

Ends = tuple[Expr, Expr]
ZERO, ONE = const(0), const(1)


@dataclass(frozen=True)
class Style:
    """How positions and weights are made: ONNX's attributes of Resize."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    """ONNX's `nearest_mode`, or "by_scale": before opset 11, floor, but ceil where an axis shrinks."""
    cubic: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False


@dataclass(frozen=True)
class Line:
    """One axis being resized: `size` to `out` entries, by the scale up / down."""

    axis: int
    size: Expr
    out: Expr
    up: Expr
    down: Expr
    roi: Ends | None = None
    symbols: Ranges = field(default_factory=dict)


@dataclass(frozen=True)
class Position:
    """A position in the input: num / den of integers (den > 0), or a float `at`."""

    num: Expr = ZERO
    den: Expr = ONE
    at: Expr | None = None

    def floor(self) -> Expr:
        return cast(I64, call("floor", self.at)) if self.at is not None else floor_ratio(self.num, self.den)

    def fraction(self, dtype: DType) -> Expr:
        """What the floor leaves, in [0, 1)."""
        if self.at is not None:
            return cast(dtype, self.at - call("floor", self.at))
        rest = simplify(self.num % self.den)
        if is_const(rest, 0):
            return const(0, dtype)
        if isinstance(self.den, Const):
            return cast(dtype, rest) * (1.0 / float(self.den.value))
        return cast(dtype, rest) / cast(dtype, self.den)

    def nearest(self, mode: str) -> Expr:
        """The position rounded as `nearest_mode` says."""
        if mode == "floor":
            return self.floor()
        if self.at is not None:
            half = const(0.5, self.at.dtype)
            rounded = {
                "ceil": call("ceil", self.at),
                "round_prefer_floor": call("ceil", self.at - half),
                "round_prefer_ceil": call("floor", self.at + half),
            }[mode]
            return cast(I64, rounded)
        if mode == "ceil":
            return floor_ratio(self.num + self.den - 1, self.den)
        # x - 1/2 rounded up is (2 num - den + 2 den - 1) // 2 den
        extra = self.den if mode == "round_prefer_ceil" else self.den - 1
        return floor_ratio(self.num * 2 + extra, self.den * 2)


def floor_ratio(num: Expr, den: Expr) -> Expr:
    """num // den with what all varying terms have in common cancelled:
    (g a + c) // (g b) = (a + c // g) // b."""
    num, den = simplify(num), simplify(den)
    if isinstance(den, Const):
        parts = terms(num)
        common = math.gcd(int(den.value), *(c for c, m in parts if m))
        num = from_poly({m: c // common for c, m in parts})
        den = const(int(den.value) // common)
    return simplify(num // den)


def position(line: Line, style: Style, i: Expr) -> Position:
    """Where output index `i` lies in the input, by `coordinate_transformation_mode`."""
    up, down, size, out = line.up, line.down, line.size, line.out
    mode = style.coordinates
    if mode == "asymmetric":
        return _ratio(line, i * down, up)
    if mode == "tf_half_pixel_for_nn":
        return _ratio(line, (i * 2 + 1) * down, up * 2)
    if mode == "align_corners":
        if (up, down) == (out, size):
            up = down = const(1)
            span = simplify(out - 1, line.symbols)
        else:
            span = simplify(size * up - down, line.symbols)  # (size * scale - 1) * down
        if is_const(span, 0):
            return Position()
        den = span if prove(span > 0, line.symbols) else maximum(span, 1)
        return _ratio(line, select(span > 0, i * (size - 1) * down, const(0)), den)
    centre = (i * 2 + 1) * down - up
    if mode == "half_pixel":
        return _ratio(line, centre, up * 2)
    if mode == "pytorch_half_pixel":
        return _ratio(line, select(out > 1, centre, const(0)), up * 2)
    if mode == "half_pixel_symmetric":
        # half_pixel plus (size - out / scale) / 2
        return _ratio(line, centre + size * up - out * down, up * 2)
    if mode == "tf_crop_and_resize":
        return Position(at=_cropped(line, i))
    raise CompileError(f"coordinate_transformation_mode {mode!r} of Resize is not supported")


def _ratio(line: Line, num: Expr, den: Expr) -> Position:
    num, den = simplify(num, line.symbols), simplify(den, line.symbols)
    exact = divide(num, den, line.symbols)
    return Position(num=exact) if simplify(exact * den - num) == const(0) else Position(num, den)


def _cropped(line: Line, i: Expr) -> Expr:
    assert line.roi is not None
    start, end = line.roi
    span = cast(F32, line.size - 1)
    steps = cast(F32, maximum(line.out - 1, 1))
    spread = start * span + cast(F32, i) * (end - start) * span / steps
    return select(line.out > 1, spread, (start + end) * span * 0.5)


# -- weights -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taps:
    """Input entries that an output is made of: offsets from the floor of its position."""

    first: int
    count: int
    reach: float
    """Positions are stretched by this before the filter is applied (1 but when antialiasing)."""


def taps_of(line: Line, style: Style) -> Taps:
    support = 1 if style.mode == "linear" else 2
    if not style.antialias:
        return Taps(1 - support, 2 * support, 1.0)
    up, down = static_shape((line.up,)), static_shape((line.down,))
    if up is None or down is None:
        raise CompileError("Resize with antialias needs known sizes: fix them with shapes=")
    scale = min(up[0] / down[0], 1.0)
    first = math.floor(-support / scale) + 1
    return Taps(first, 2 - 2 * first, scale)


def weight(offset: Expr, style: Style) -> Expr:
    """The filter at a distance from the position: a triangle or Keys' cubic convolution kernel
    (IEEE Trans. ASSP 29(6), 1981, equation 4)."""
    x = call("abs", offset)
    if style.mode == "linear":
        return maximum(1.0 - x, 0.0)
    a = style.cubic
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4 * a
    return select(x <= 1.0, near, select(x < 2.0, far, const(0, x.dtype)))


def _weights(line: Line, style: Style, at: Position, taps: Taps, dtype: DType) -> list[Expr]:
    """The weight of each tap; they sum to 1."""
    part = at.fraction(dtype)
    found = [weight((float(taps.first + t) - part) * taps.reach, style) for t in range(taps.count)]
    if style.mode == "linear" and not style.antialias:
        found = [1.0 - part, part]
    if style.exclude_outside:
        places = [at.floor() + (taps.first + t) for t in range(taps.count)]
        found = [
            select(land(p >= 0, p < line.size), w, const(0, dtype))
            for p, w in zip(places, found, strict=True)
        ]
    if style.exclude_outside or style.antialias:
        total = reduce(lambda v, w: v + w, found)
        return [w / total for w in found]
    return found


def _inside(b: Builder, line: Line, out: Expr, place: Expr) -> Expr:
    """`place` clamped into the axis, where output index `out` may lead outside it."""
    assert isinstance(out, Var)
    return simplify(clamped(place, line.size), {**b.symbols, out: (const(0), line.out - 1)})


def _interpolated(b: Builder, x: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    """Weighted sums over the taps of several axes at once."""
    dtype = wide(const(0, x.dtype)).dtype if x.dtype.is_float else F32
    shape = list(x.shape)
    for line in lines:
        shape[line.axis] = line.out

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        choices = []
        for line in lines:
            place = position(line, style, index[line.axis])
            taps = taps_of(line, style)
            weights = _weights(line, style, place, taps, dtype)
            floor = place.floor()
            choices.append(
                [
                    (_inside(b, line, index[line.axis], floor + (taps.first + t)), w)
                    for t, w in enumerate(weights)
                    if not is_const(w, 0)
                ]
            )
        total: Expr | None = None
        for picked in combinations(*choices):
            source = list(index)
            for line, (place_at, _) in zip(lines, picked, strict=True):
                source[line.axis] = place_at
            factor = reduce(lambda v, w: v * w, (w for _, w in picked))
            term = cast(dtype, bufs[0][tuple(source)]) * factor
            total = term if total is None else total + term
        assert total is not None
        return total

    return b.compute(dtype, shape, [x], at)


def _filtered(b: Builder, x: Tensor, line: Line, style: Style) -> Tensor:
    """One axis through a filter of many taps, as a reduction."""
    taps = taps_of(line, style)
    dtype = x.dtype

    def tap(i: Expr, t: Expr) -> tuple[Expr, Expr]:
        place = position(line, style, i)
        offset = cast(dtype, t + taps.first) - place.fraction(dtype)
        source = place.floor() + t + taps.first
        w = weight(offset * taps.reach, style)
        if style.exclude_outside:
            w = select(land(source >= 0, source < line.size), w, const(0, dtype))
        return clamped(source, line.size), w

    total = b.reduction(dtype, [line.out], [taps.count], "sum", [], lambda _, i, k: tap(i[0], k[0])[1])

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        source, w = tap(index[line.axis], k[0])
        place = (*index[: line.axis], source, *index[line.axis + 1 :])
        return bufs[0][place] * w / bufs[1][index[line.axis]]

    shape = [line.out if i == line.axis else d for i, d in enumerate(x.shape)]
    return b.reduction(dtype, shape, [taps.count], "sum", [x, total], term)


def _nearest(b: Builder, x: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    shape = list(x.shape)
    for line in lines:
        shape[line.axis] = line.out

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        source = list(index)
        for line in lines:
            mode = style.nearest
            if mode == "by_scale":
                mode = "ceil" if prove(line.up < line.down, b.symbols) else "floor"
            i = position(line, style, index[line.axis]).nearest(mode)
            source[line.axis] = _inside(b, line, index[line.axis], i)
        return bufs[0][tuple(source)]

    return b.compute(x.dtype, shape, [x], at)


def resample(b: Builder, x: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    """`x` with the given axes resized."""
    if style.mode not in ("nearest", "linear", "cubic"):
        raise CompileError(f"Resize mode {style.mode!r} is none of nearest, linear, cubic")
    if not lines:
        return x
    if style.mode == "nearest":
        y = _nearest(b, x, lines, style)
    elif style.antialias:
        y = b.cast(x, x.dtype if x.dtype in (F32, F64) else F32)
        for line in lines:
            y = _filtered(b, y, line, style)
    elif style.mode == "linear":
        y = _interpolated(b, x, lines, style)
    else:
        y = x
        for line in lines:
            y = _interpolated(b, y, [line], style)
    if style.coordinates == "tf_crop_and_resize":
        y = _extrapolated(b, y, lines, style)
    return b.map(lambda v: _stored(v, x.dtype), y) if y.dtype != x.dtype else y


def _stored(v: Expr, dtype: DType) -> Expr:
    """A float as an element of `dtype`, saturated where that is an integer type."""
    if not dtype.is_int:
        return cast(dtype, v)
    low, high = identity("max", dtype).value, identity("min", dtype).value
    return cast(dtype, minimum(maximum(v, float(low)), float(high)))


def _extrapolated(b: Builder, y: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        outside: Expr | bool = False
        for line in lines:
            p = position(line, style, index[line.axis]).at
            assert p is not None
            outside = lor(outside, lor(p < 0.0, p > cast(F32, line.size - 1)))
        return select(outside, const(style.extrapolation, y.dtype), bufs[0][index])

    return b.compute(y.dtype, y.shape, [y], at)


# -- operators -----------------------------------------------------------------------------------


def rational(scale: float) -> Fraction:
    """The simple fraction that a f32 scale is the rounding of, or else its exact value."""
    simple = Fraction(float(scale)).limit_denominator(4096)
    close = np.float32(simple.numerator / simple.denominator) == np.float32(scale)
    return simple if close else Fraction(float(scale))


def scaled_lines(
    b: Builder, x: Tensor, axes: Sequence[int], scales: Sequence[float], roi: Sequence[Ends | None]
) -> list[Line]:
    """Axes whose sizes follow from scales: floor(size * roi extent * scale)."""
    lines = []
    for axis, scale, ends in zip(axes, scales, roi, strict=True):
        if scale <= 0:
            raise CompileError(f"Resize of {x}: scale {scale} must be positive")
        ratio = rational(scale)
        part = ratio * rational(_value(ends[1]) - _value(ends[0])) if ends else ratio
        size = x.shape[axis]
        out = divide(size * part.numerator, const(part.denominator), b.symbols)
        up, down = const(ratio.numerator), const(ratio.denominator)
        lines.append(Line(axis, size, out, up, down, ends, b.symbols))
    return lines


def _value(e: Expr) -> float:
    assert isinstance(e, Const)
    return float(e.value)


def sized_lines(
    b: Builder, x: Tensor, axes: Sequence[int], sizes: Sequence[Expr], roi: Sequence[Ends | None], policy: str
) -> list[Line]:
    """Axes of given sizes; other policies than "stretch" give all axes one scale."""
    if policy != "stretch":
        return _proportional(b, x, axes, sizes, roi, policy)
    lines = []
    for axis, out, ends in zip(axes, sizes, roi, strict=True):
        size, out = x.shape[axis], simplify(out, b.symbols)
        up, down = out, size
        if isinstance(out, Const) and isinstance(size, Const):
            common = math.gcd(int(out.value), int(size.value)) or 1
            up, down = const(int(out.value) // common), const(int(size.value) // common)
        lines.append(Line(axis, size, out, up, down, ends, b.symbols))
    return lines


def _proportional(
    b: Builder, x: Tensor, axes: Sequence[int], sizes: Sequence[Expr], roi: Sequence[Ends | None], policy: str
) -> list[Line]:
    old, new = static_shape(tuple(x.shape[a] for a in axes)), static_shape(tuple(sizes))
    if old is None or new is None:
        raise CompileError(f"Resize of {x} with keep_aspect_ratio_policy={policy} needs known sizes")
    if policy not in ("not_larger", "not_smaller"):
        raise CompileError(f"keep_aspect_ratio_policy {policy!r} of Resize is not supported")
    scale = (min if policy == "not_larger" else max)(Fraction(n, d) for n, d in zip(new, old, strict=True))
    up, down = const(scale.numerator), const(scale.denominator)
    return [
        Line(a, const(d), const(math.floor(scale * d + Fraction(1, 2))), up, down, ends, b.symbols)
        for a, d, ends in zip(axes, old, roi, strict=True)
    ]


def changes(line: Line, style: Style) -> bool:
    """Whether resizing this axis does anything."""
    if style.coordinates == "tf_crop_and_resize":
        whole = line.roi is not None and (_value(line.roi[0]), _value(line.roi[1])) == (0.0, 1.0)
        return not (whole and line.size == line.out)
    return line.size != line.out or line.up != line.down


def _present(b: Builder, t: Tensor | None) -> Tensor | None:
    """An optional input; before opset 13 an empty tensor stands for an absent one."""
    return None if t is None or t.shape == (const(0),) else t


@op("Upsample")
def upsample_1(
    b: Builder, x: Tensor, *, height_scale: float, width_scale: float, mode: str = "nearest"
) -> Tensor:
    return upsample_7(b, x, scales=[1.0, 1.0, height_scale, width_scale], mode=mode)


@op("Upsample", since=7)
def upsample_7(b: Builder, x: Tensor, *, scales: Sequence[float], mode: str = "nearest") -> Tensor:
    if len(scales) != x.rank:
        raise CompileError(f"Upsample of {x}: there must be {x.rank} scales, not {len(scales)}")
    lines = scaled_lines(b, x, range(x.rank), scales, [None] * x.rank)
    style = Style("linear" if mode == "bilinear" else mode, "asymmetric", "by_scale")
    return resample(b, x, [n for n in lines if changes(n, style)], style)


@op("Upsample", since=9)
@op("Resize", since=10)
def resize_10(b: Builder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    given = b.require_constant(scales, "the scales of Resize").reshape(-1)
    return upsample_7(b, x, scales=[float(s) for s in given], mode=mode)


@op("Resize", since=11)
def resize(
    b: Builder, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None,
    sizes: Tensor | None = None, *, mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    antialias: int = 0, axes: Sequence[int] | None = None, keep_aspect_ratio_policy: str = "stretch",
) -> Tensor:  # fmt: skip
    style = Style(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside),
        extrapolation_value, bool(antialias),
    )  # fmt: skip
    at = axes_of(range(x.rank) if axes is None else axes, x.rank)
    ends: list[Ends | None] = [None] * len(at)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        bounds = [const(float(v), F32) for v in b.require_constant(roi, "the roi of Resize").reshape(-1)]
        ends = list(zip(bounds[: len(at)], bounds[len(at) :], strict=True))
    scales, sizes = _present(b, scales), _present(b, sizes)
    if sizes is not None:
        wanted = b.require_sizes(sizes, "the sizes of Resize")
        lines = sized_lines(b, x, at, wanted, ends, keep_aspect_ratio_policy)
    else:
        given = b.require_constant(scales, "the scales of Resize").reshape(-1)
        lines = scaled_lines(b, x, at, [float(s) for s in given], ends)
    return resample(b, x, [n for n in lines if changes(n, style)], style)
