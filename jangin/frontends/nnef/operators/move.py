"""Lower NNEF's operations on shapes and those that move elements."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.nnef.operators.common import Operand, tensor
from jangin.frontends.registry import lowers
from jangin.ir.expr import Buffer, Expr, const, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ops import index, move
from jangin.ops.axes import axes_of, axis_of, divide
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

Padding = Sequence[Sequence[int]]
"""The padding (before, after) of each axis."""
BORDERS = {"constant": "constant", "replicate": "edge", "reflect": "reflect"}
"""Names of borders, with the names of the same borders in the core operator `pad`."""


def bordered(b: Builder, x: Tensor, padding: Padding, border: str, value: float = 0.0) -> Tensor:
    """Pad all axes of x. A negative number crops. Raises CompileError for an unsupported border."""
    if len(padding) != x.rank:
        raise CompileError(f"padding {list(padding)} must have {x.rank} entries, one an axis")
    pads = [const(p[i]) for i in (0, 1) for p in padding]
    if border == "reflect-even":
        return _mirrored(b, x, padding)
    if border not in BORDERS:
        raise CompileError(
            f"border '{border}' is none of {', '.join(BORDERS)}, reflect-even, and is not supported"
        )
    return b.pad(x, pads, BORDERS[border], value)


def _mirrored(b: Builder, x: Tensor, padding: Padding) -> Tensor:
    """Return x mirrored at its borders, where the outermost elements are repeated."""
    shape = [simplify(d + p + q) for d, (p, q) in zip(x.shape, padding, strict=True)]

    def at(bufs: Sequence[Buffer], *place: Expr) -> Expr:
        source = []
        for i, (p, _), d in zip(place, padding, x.shape, strict=True):
            e = i - p
            inner = select(e < 0, -1 - e, select(e >= d, d * 2 - 1 - e, e))
            source.append(minimum(maximum(inner, 0), d - 1))
        return bufs[0][tuple(source)]

    return b.compute(x.dtype, shape, [x], at)


@lowers("pad")
def pad(b: Builder, input: Operand, padding: Padding, border: str, value: float) -> Tensor:
    return bordered(b, tensor(b, input), padding, border, value)


@lowers("reshape")
def reshape(
    b: Builder, input: Operand, shape: Sequence[int], axis_start: int = 0, axis_count: int = -1
) -> Tensor:
    x = tensor(b, input)
    end = x.rank if axis_count == -1 else axis_start + axis_count
    if not 0 <= axis_start <= end <= x.rank:
        raise CompileError(f"there are no {axis_count} axes from {axis_start} on")
    inner: list[Expr] = []
    for i, d in enumerate(shape):
        if d < -1 or (d == 0 and axis_start + i >= x.rank):
            raise CompileError(f"entry {i} of shape {list(shape)} is {d}, which stands for no size")
        inner.append(const(d) if d else x.shape[axis_start + i])
    return move.reshape_to(b, x, [*x.shape[:axis_start], *inner, *x.shape[end:]], keep_zero=True)


@lowers("transpose")
def transpose(b: Builder, input: Operand, axes: Sequence[int]) -> Tensor:
    """Permute the first axes of the input. Axes that aren't in `axes` stay at the end."""
    x = tensor(b, input)
    if sorted(axes) != list(range(len(axes))) or len(axes) > x.rank:
        raise CompileError(f"axes {list(axes)} are no permutation of the first axes of {x}")
    return b.transpose(x, [*axes, *range(len(axes), x.rank)])


@lowers("concat")
def concat(b: Builder, values: Sequence[Operand], axis: int) -> Tensor:
    if not values:
        raise CompileError("there is nothing to concatenate")
    xs = [tensor(b, v) for v in values]
    axis_of(axis, xs[0].rank)
    return b.concat(xs, axis)


@lowers("split")
def split(b: Builder, value: Operand, axis: int, ratios: Sequence[int]) -> Sequence[Tensor]:
    x = tensor(b, value)
    total, at = sum(ratios), axis_of(axis, x.rank)
    if min(ratios, default=0) < 1:
        raise CompileError(f"the ratios {list(ratios)} must be positive")
    unit = divide(x.shape[at], const(total), b.symbols)
    return move.split_into(b, x, at, [simplify(unit * r, b.symbols) for r in ratios])


@lowers("slice")
def slice_(
    b: Builder, input: Operand, axes: Sequence[int], begin: Sequence[int], end: Sequence[int],
    stride: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """Slice as NumPy does, except that with stride 1 an end of 0 stands for the end of the axis."""
    steps = list(stride) or [1] * len(axes)
    if not len(axes) == len(begin) == len(end) == len(steps):
        raise CompileError("axes, begin, end and stride differ in length")
    ends = [move.UNBOUNDED if e == 0 and s == 1 else e for e, s in zip(end, steps, strict=True)]
    return move.slice_axes(b, tensor(b, input), list(map(const, begin)), list(map(const, ends)), axes, steps)


@lowers("squeeze")
def squeeze(b: Builder, input: Operand, axes: Sequence[int]) -> Tensor:
    x = tensor(b, input)
    gone = axes_of(axes, x.rank)
    return b.reshape(x, [d for i, d in enumerate(x.shape) if i not in gone])


@lowers("unsqueeze")
def unsqueeze(b: Builder, input: Operand, axes: Sequence[int]) -> Tensor:
    x = tensor(b, input)
    new = axes_of(axes, x.rank + len(axes))
    rest = iter(x.shape)
    return b.reshape(x, [const(1) if i in new else next(rest) for i in range(x.rank + len(axes))])


@lowers("stack")
def stack(b: Builder, values: Sequence[Operand], axis: int) -> Tensor:
    return concat(b, [unsqueeze(b, v, [axis]) for v in values], axis)


@lowers("unstack")
def unstack(b: Builder, value: Operand, axis: int) -> Sequence[Tensor]:
    x = tensor(b, value)
    return [
        squeeze(b, p, [axis]) for p in move.split_into(b, x, axis_of(axis, x.rank), [const(1)] * b.results)
    ]


@lowers("tile")
def tile(b: Builder, input: Operand, repeats: Sequence[int]) -> Tensor:
    return move.repeat(b, tensor(b, input), list(map(const, repeats)))


@lowers("gather")
def gather(b: Builder, input: Operand, indices: Operand, axis: int = 0) -> Tensor:
    return index.gather(b, tensor(b, input), tensor(b, indices), axis=axis)
