"""Sliding windows over spatial axes, for convolutions and pooling: padding and positions.

Tensors are [N, C, spatial axes]. Pads are two for each spatial axis, all begins, then all ends; they may
depend on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir.expr import Const, Expr, ExprLike, const, maximum, minimum, wrap
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ir.simplify import Ranges, simplify
from jangin.ops.axes import ceil_div
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

Sizes = Sequence[int]
"""One number for each spatial axis."""


MOST_TAPS = 1 << 26
"""Most taps of a window. More taps take minutes, so they are a mistake or meant to harm."""


def check_taps(kernel: Sizes) -> None:
    """Raise CompileError if a window has too many taps, or less than one along an axis."""
    if min(kernel, default=1) < 1 or math.prod(kernel) > MOST_TAPS:
        raise CompileError(
            f"a window of {list(kernel)} must have between 1 and {MOST_TAPS} elements: "
            "export the model with a smaller one"
        )


def steps(given: Sizes, rank: int) -> tuple[int, ...]:
    """Return strides or dilations: `given`, or 1 along every axis. Raises CompileError for one below 1."""
    if min(given, default=1) < 1:
        raise CompileError(f"steps of {list(given)}: strides and dilations are from 1 on")
    return tuple(given) or (1,) * rank


def explicit_pads(pads: Sequence[ExprLike], rank: int) -> list[Expr]:
    """Return the pads as expressions; the default is no padding. Raises CompileError if their number doesn't
    fit."""
    if pads and len(pads) != 2 * rank:
        raise CompileError(f"pads {list(pads)} must have {2 * rank} entries, two for each spatial axis")
    return [wrap(p) for p in pads] or [const(0)] * (2 * rank)


def same_pads(
    spatial: Sequence[Expr], kernel: Sizes, strides: Sizes, dilations: Sizes, symbols: Ranges,
    *, lower: bool = False,
) -> list[Expr]:  # fmt: skip
    """Return the pads with which a window has ceil(size / stride) positions. An odd element is added at the
    end, or with `lower` at the beginning."""
    begins, ends = [], []
    for size, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        covered = (ceil_div(size, s) - 1) * s + (k - 1) * d + 1
        total = simplify(maximum(covered - size, 0), symbols)
        small = simplify(total // 2, symbols)
        large = simplify(total - small, symbols)
        begins.append(large if lower else small)
        ends.append(small if lower else large)
    return begins + ends


def padded(b: Builder, x: Tensor, pads: Sequence[Expr], value: float = 0) -> Tensor:
    """Return x with its spatial axes padded; negative pads crop."""
    rank, none = x.rank - 2, [const(0)] * 2
    return b.pad(x, [*none, *pads[:rank], *none, *pads[rank:]], value=value)


@dataclass(frozen=True)
class Window:
    """The positions of a window of `kernel` taps: `extents` positions along each axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Expr, ...]
    extents: tuple[Expr, ...]

    def __post_init__(self) -> None:
        check_taps(self.kernel)

    @staticmethod
    def over(
        b: Builder, x: Tensor, kernel: Sizes, *, strides: Sizes = (), dilations: Sizes = (),
        pads: Sequence[ExprLike] = (), ceil: bool = False,
    ) -> Window:  # fmt: skip
        """Return the window at the positions at which it lies within the padded x. With `ceil` a partial last
        window counts too, unless it would start in the padding at the end."""
        rank = _rank(x, kernel)
        strides, dilations = steps(strides, rank), steps(dilations, rank)
        amounts = explicit_pads(pads, rank)
        extents = []
        for i, size in enumerate(x.shape[2:]):
            begin, stride = amounts[i], strides[i]
            span = size + begin + amounts[i + rank] - ((kernel[i] - 1) * dilations[i] + 1)
            if ceil:
                partial = simplify(ceil_div(span, stride) + 1, b.symbols)
                extents.append(simplify(minimum(partial, (size + begin - 1) // stride + 1), b.symbols))
            else:
                extents.append(simplify(span // stride + 1, b.symbols))
        if any(isinstance(e, Const) and int(e.value) < 0 for e in extents):
            raise CompileError(f"a window of {list(kernel)} is larger than {x} with its padding")
        return Window(tuple(kernel), strides, dilations, tuple(amounts), tuple(extents))

    @staticmethod
    def same(
        b: Builder, x: Tensor, kernel: Sizes, *, strides: Sizes = (), dilations: Sizes = (),
        lower: bool = False,
    ) -> Window:  # fmt: skip
        """Return the window at ceil(size / stride) positions along each axis, with the padding of
        `same_pads`."""
        rank = _rank(x, kernel)
        strides, dilations = steps(strides, rank), steps(dilations, rank)
        pads = same_pads(x.shape[2:], kernel, strides, dilations, b.symbols, lower=lower)
        extents = (simplify(ceil_div(d, s), b.symbols) for d, s in zip(x.shape[2:], strides, strict=True))
        return Window(tuple(kernel), strides, dilations, tuple(pads), tuple(extents))


def _rank(x: Tensor, kernel: Sizes) -> int:
    if x.rank < 3 or len(kernel) != x.rank - 2:
        raise CompileError(
            f"a window of {list(kernel)} over {x}: it must have a size for each spatial axis (N, C, ...)"
        )
    return x.rank - 2
