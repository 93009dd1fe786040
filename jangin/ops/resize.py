"""Resizing of axes: nearest, linear and cubic, with antialiasing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from jangin.ir.dtype import F32, F64, DType
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
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ir.interpret import evaluate_stage
from jangin.ir.records import dataclass
from jangin.ir.simplify import prove, simplify
from jangin.ir.te import Axis, Stage, compute, identity
from jangin.ops.axes import clamped, divide
from jangin.ops.builder import Builder
from jangin.ops.operands import wide
from jangin.ops.resize_positions import (
    Ends,
    Line,
    Position,
    cropped,
    half_pixel,
    number,
)
from jangin.ops.values import Tensor

if TYPE_CHECKING:
    from fractions import Fraction


# -- weights -------------------------------------------------------------------------------------


def triangle(offset: Expr) -> Expr:
    """Return the weight of linear interpolation at a distance from the position."""
    return maximum(1.0 - call("abs", offset), 0.0)


def cubic(offset: Expr, a: float = -0.75) -> Expr:
    """Return the weight of cubic convolution (Keys, IEEE Trans. ASSP 29(6), 1981, equation 4)."""
    x = call("abs", offset)
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4 * a
    return select(x <= 1.0, near, select(x < 2.0, far, const(0, x.dtype)))


@dataclass(frozen=True)
class Style:
    """How a resize computes positions and weights.

    - `mode`: nearest, linear or cubic.
    - `coordinates`: the place of an output index in the input.
    - `rounding` (for nearest): floor, ceil, half_down, half_up, or "by_scale": ceil if the axis shrinks, else
      floor.
    - `a`: the cubic kernel's parameter.
    - `exclude_outside`: entries outside the input have no weight, instead of the border's value.
    - `extrapolation`: the value outside the input, for `cropped` alone.
    - `antialias`: the kernel is stretched if an axis shrinks.
    """

    mode: str = "nearest"
    coordinates: Callable[[Line, Expr], Position] = half_pixel
    rounding: str = "half_down"
    a: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False

    @property
    def kernel(self) -> Callable[[Expr], Expr]:
        return triangle if self.mode == "linear" else partial(cubic, a=self.a)


@dataclass(frozen=True)
class Taps:
    """The input entries that contribute to an output, as offsets from the floor of its position."""

    first: int
    count: int
    reach: float
    """Distances are multiplied by this factor before the filter is applied; it is 1 without antialiasing."""


def taps_of(line: Line, style: Style) -> Taps:
    support = 1 if style.mode == "linear" else 2
    if not style.antialias:
        return Taps(1 - support, 2 * support, 1.0)
    up, down = static_shape((line.up,)), static_shape((line.down,))
    if up is None or down is None:
        sizes = line.up, line.down
        raise CompileError("resizing with antialias needs known sizes: fix them with shapes=", sizes)
    scale = min(up[0] / down[0], 1.0)
    first = math.floor(-support / scale) + 1
    return Taps(first, 2 - 2 * first, scale)


def _weights(line: Line, style: Style, at: Position, taps: Taps, dtype: DType) -> list[Expr]:
    """Return the weight of each tap; they sum to 1."""
    part = at.fraction(dtype)
    shares = [style.kernel((float(taps.first + t) - part) * taps.reach) for t in range(taps.count)]
    if style.mode == "linear" and not style.antialias:
        shares = [1.0 - part, part]
    if style.exclude_outside:
        places = [at.floor() + (taps.first + t) for t in range(taps.count)]
        shares = [
            select(land(p >= 0, p < line.size), w, const(0, dtype))
            for p, w in zip(places, shares, strict=True)
        ]
    if style.exclude_outside or style.antialias:
        total = reduce(lambda v, w: v + w, shares)
        return [w / total for w in shares]
    return shares


def _inside(b: Builder, line: Line, out: Expr, place: Expr) -> Expr:
    """Return `place` clamped into the axis, unless every output index `out` is proven to stay inside."""
    assert isinstance(out, Var)
    return simplify(clamped(place, line.size), {**b.symbols, out: (const(0), line.out - 1)})


def _by_axes(
    b: Builder, x: Tensor, lines: Sequence[Line], dtype: DType,
    along: Callable[[Buffer, Line], Callable[..., Expr]],
) -> Tensor:  # fmt: skip
    """Return x resized along one axis after the other, as elements of `dtype`. `along` gives the function of
    a resized buffer's elements.

    The pass `chains` makes one expression of all stages, or a kernel of each."""
    x = b.materialize(x)
    source, stages = Buffer("x0", x.dtype, x.shape), list[Stage]()
    for n, line in enumerate(_in_order(lines)):
        shape = tuple(line.out if i == line.axis else d for i, d in enumerate(source.shape))
        out = Buffer("out" if n == len(lines) - 1 else f"axis{line.axis}", dtype, shape)
        stages.append(compute(out, along(source, line)))
        source = out
    return b.stages(stages, [x])


def _interpolated(b: Builder, x: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    """Return x resized along several axes, as weighted sums over the taps of each axis."""
    dtype = wide(const(0, x.dtype)).dtype if x.dtype.is_float else F32
    return _by_axes(b, x, lines, dtype, lambda source, line: _along(b, source, line, style, dtype))


def _in_order(lines: Sequence[Line]) -> list[Line]:
    """Return the lines in the order of resizing: the axes that shrink, by how much they do, then the
    last axis, then the others. Neighbours along the last axis are read one by one, so there should be few."""
    last = max(line.axis for line in lines)

    def key(line: Line) -> tuple[float, bool]:
        sizes = static_shape((line.size, line.out))
        growth = sizes[1] / sizes[0] if sizes and sizes[0] else 1.0
        return (1.0 if line.axis == last else min(growth, 1.0)), line.axis != last

    return sorted(lines, key=key)


def _along(b: Builder, source: Buffer, line: Line, style: Style, dtype: DType) -> Callable[..., Expr]:
    """Return the function that gives an element of `source` resized along one axis."""

    def at(*index: Expr) -> Expr:
        place = style.coordinates(line, index[line.axis])
        taps, floor = taps_of(line, style), place.floor()
        total: Expr | None = None
        for t, weight in enumerate(_weights(line, style, place, taps, dtype)):
            if is_const(weight, 0):
                continue
            picked = list(index)
            picked[line.axis] = _inside(b, line, index[line.axis], floor + (taps.first + t))
            term = cast(dtype, source[tuple(picked)]) * weight
            total = term if total is None else total + term
        assert total is not None
        return total

    return at


def _filtered(b: Builder, x: Tensor, line: Line, style: Style) -> Tensor:
    """Resize one axis by a filter of many taps: a sum of neighbouring entries, whose beginnings and weights
    are constants."""
    begins, weights = _filter(line, style)
    operands = x, b.const(begins), b.const(weights.astype(x.dtype.numpy))

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        source, first, weight = bufs
        own = index[line.axis]
        place = (*index[: line.axis], first[own] + k[0], *index[line.axis + 1 :])
        return source[place] * weight[own, k[0]]

    shape = [line.out if i == line.axis else d for i, d in enumerate(x.shape)]
    return b.reduction(x.dtype, shape, [weights.shape[1]], "sum", operands, term)


def _filter(line: Line, style: Style) -> tuple[Array, Array]:
    """Return the first entry that each result sums, and the weights [results, entries]. Weights beyond the
    ends are those of the end."""
    taps, (size, out) = taps_of(line, style), static_shape((line.size, line.out)) or (0, 0)
    own, tap = Axis(Var("i"), const(out)), Axis(Var("t"), const(taps.count))
    place = style.coordinates(line, own.var)
    offset = cast(F64, tap.var + taps.first) - place.fraction(F64)

    def table(e: Expr) -> Array:
        buffer = Buffer("out", e.dtype, (own.extent, tap.extent))
        return evaluate_stage(Stage(buffer, (own, tap), e), {}, {})

    source = table(place.floor() + (tap.var + taps.first))
    weight = table(style.kernel(offset * taps.reach))
    if style.exclude_outside:
        weight[(source < 0) | (source >= size)] = 0.0
    weight /= weight.sum(1, keepdims=True)
    source = source.clip(0, size - 1)
    used = np.where(weight != 0, source, size).min(1)
    width = int((np.where(weight != 0, source, 0).max(1) - used).max()) + 1
    begins = np.minimum(used, size - width)
    at = source - begins[:, None]
    weights = np.zeros((out, width))
    rows, columns = np.nonzero(weight)
    np.add.at(weights, (rows, at[rows, columns]), weight[rows, columns])
    return begins, weights


def _nearest(b: Builder, x: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    def along(source: Buffer, line: Line) -> Callable[..., Expr]:
        mode = style.rounding
        if mode == "by_scale":
            mode = "ceil" if prove(line.up < line.down, b.symbols) else "floor"

        def at(*index: Expr) -> Expr:
            picked, own = list(index), index[line.axis]
            picked[line.axis] = _inside(b, line, own, style.coordinates(line, own).nearest(mode))
            return source[tuple(picked)]

        return at

    return _by_axes(b, x, lines, x.dtype, along)


def resize(b: Builder, x: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    """Return x with the given axes resized, in x's dtype; integers are interpolated in f32 and saturate.
    Raises CompileError for an unknown mode."""
    if style.mode not in ("nearest", "linear", "cubic"):
        raise CompileError(f"the mode {style.mode!r} of resizing is none of nearest, linear, cubic")
    lines = [n for n in lines if n.changes]
    if not lines:
        return x
    if any(is_const(n.out, 0) for n in lines):  # positions in the input would be divided by 0
        sizes = {n.axis: n.out for n in lines}
        shape = [sizes.get(axis, size) for axis, size in enumerate(x.shape)]
        return b.compute(x.dtype, shape, (), lambda *_: const(0, x.dtype))
    if any(is_const(n.size, 0) and isinstance(n.out, Const) for n in lines):
        raise CompileError(f"{x} has an axis without entries, which can't be resized to more")
    if style.mode == "nearest":
        y = _nearest(b, x, lines, style)
    elif style.antialias:
        y = b.cast(x, x.dtype if x.dtype in (F32, F64) else F32)
        for line in _in_order(lines):
            y = _filtered(b, y, line, style)
    elif style.mode == "linear":
        y = _interpolated(b, x, lines, style)
    else:
        y = x
        for line in _in_order(lines):
            y = _interpolated(b, y, [line], style)
    if style.coordinates is cropped:
        y = _extrapolated(b, y, lines, style)
    return b.map(lambda v: _stored(v, x.dtype), y) if y.dtype != x.dtype else y


def _stored(v: Expr, dtype: DType) -> Expr:
    """Return a float as an element of `dtype`, saturated if it is an integer type."""
    if not dtype.is_int:
        return cast(dtype, v)
    low, high = identity("max", dtype).value, identity("min", dtype).value
    return cast(dtype, minimum(maximum(v, float(low)), float(high)))


def _extrapolated(b: Builder, y: Tensor, lines: Sequence[Line], style: Style) -> Tensor:
    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        outside: Expr | bool = False
        for line in lines:
            p = style.coordinates(line, index[line.axis]).at
            assert p is not None
            outside = lor(outside, lor(p < 0.0, p > cast(F32, line.size - 1)))
        return select(outside, const(style.extrapolation, y.dtype), bufs[0][index])

    return b.compute(y.dtype, y.shape, [y], at)


# -- sizes ---------------------------------------------------------------------------------------


def rational(scale: float) -> Fraction:
    """Return a simple fraction that rounds to this f32 scale, or the scale's exact value if there is none."""
    from fractions import Fraction

    simple = Fraction(float(scale)).limit_denominator(4096)
    close = np.float32(simple.numerator / simple.denominator) == np.float32(scale)
    return simple if close else Fraction(float(scale))


def scaled_lines(
    b: Builder, x: Tensor, axes: Sequence[int], scales: Sequence[float], crops: Sequence[Ends | None] = ()
) -> list[Line]:
    """Return the lines of axes whose sizes follow from scales: floor(size * the crop's extent * scale)."""
    lines = []
    for axis, scale, ends in zip(axes, scales, crops or [None] * len(axes), strict=True):
        if scale <= 0:
            raise CompileError(f"resizing {x}: scale {scale} must be positive")
        ratio = rational(scale)
        part = ratio * rational(number(ends[1]) - number(ends[0])) if ends else ratio
        size = x.shape[axis]
        out = divide(size * part.numerator, const(part.denominator), b.symbols)
        up, down = const(ratio.numerator), const(ratio.denominator)
        lines.append(Line(axis, size, out, up, down, ends, b.symbols))
    return lines


def sized_lines(
    b: Builder, x: Tensor, axes: Sequence[int], sizes: Sequence[Expr], crops: Sequence[Ends | None] = ()
) -> list[Line]:
    """Return the lines of axes of given sizes; the scales follow from the sizes."""
    lines = []
    for axis, out, ends in zip(axes, sizes, crops or [None] * len(axes), strict=True):
        size, out = x.shape[axis], simplify(out, b.symbols)
        up, down = out, size
        if isinstance(out, Const) and isinstance(size, Const):
            common = math.gcd(int(out.value), int(size.value)) or 1
            up, down = const(int(out.value) // common), const(int(size.value) // common)
        lines.append(Line(axis, size, out, up, down, ends, b.symbols))
    return lines
