"""ONNX poolings: windows of max, mean and Lp norm, and their global forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Const, Expr, binary, call, cast, const, eq, land, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ir.te import identity
from jangin.ops.axes import ceil_div, product, window_pads
from jangin.ops.builder import Builder, Tensor
from jangin.ops.core_window import window_count
from jangin.ops.operands import wide

FAR = (1 << 63) - 1


@dataclass(frozen=True)
class Window:
    """The attributes of a core `pool` node, and the input padded where its pads are not constants."""

    x: Tensor
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    extents: tuple[Expr, ...]

    def attrs(self, combiner: str, average: str = "") -> dict[str, Any]:
        return {
            "combiner": combiner,
            "average": average,
            "kernel": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "extents": self.extents,
            "layout": "first",
        }


@dataclass(frozen=True)
class Sliding:
    """The window attributes of an ONNX operator, as given."""

    kernel_shape: Sequence[int]
    strides: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0

    def amounts(self, b: Builder, x: Tensor) -> list[Expr]:
        """The pads, begins then ends."""
        ones = [1] * (x.rank - 2)
        strides, dilations = self.strides or ones, self.dilations or ones
        return window_pads(
            self.auto_pad, self.pads, x.shape[2:], self.kernel_shape, strides, dilations, b.symbols
        )

    def over(self, b: Builder, x: Tensor, fill: float | None = None) -> Window:
        """The window over `x`. Where the pads depend on unknown sizes, `x` is padded with `fill`
        beforehand (None: that would change the result)."""
        rank = x.rank - 2
        kernel = tuple(self.kernel_shape)
        if rank < 1 or len(kernel) != rank:
            raise CompileError(
                f"a window of {list(kernel)} over {x}: it must have a size for each spatial axis (N, C, ...)"
            )
        strides, dilations = tuple(self.strides or [1] * rank), tuple(self.dilations or [1] * rank)
        pads = self.amounts(b, x)
        extents = tuple(
            self._extent(b, x.shape[2 + i], kernel[i], strides[i], dilations[i], pads[i], pads[i + rank])
            for i in range(rank)
        )
        if any(isinstance(e, Const) and int(e.value) < 0 for e in extents):
            raise CompileError(f"a window of {list(kernel)} is larger than {x} with its padding")
        amounts = static_shape(tuple(pads))
        if amounts is None:
            if fill is None:
                raise CompileError(
                    f"auto_pad={self.auto_pad} of {x} with strides {list(strides)} needs the spatial sizes: "
                    "fix them with shapes=, or export the model with explicit pads"
                )
            none = [const(0)] * 2
            x = b.pad(x, [*none, *pads[:rank], *none, *pads[rank:]], "constant", fill)
            amounts = (0,) * (2 * rank)
        return Window(x, kernel, strides, dilations, amounts, extents)

    def _extent(
        self, b: Builder, size: Expr, kernel: int, stride: int, dilation: int, begin: Expr, end: Expr
    ) -> Expr:
        """Positions of the window along one axis; in ceil mode a partial last one counts, unless it
        would start in the padding at the end."""
        if self.auto_pad.startswith("SAME"):
            return simplify(ceil_div(size, stride), b.symbols)
        span = size + begin + end - ((kernel - 1) * dilation + 1)
        if not self.ceil_mode:
            return simplify(span // stride + 1, b.symbols)
        partial = simplify(ceil_div(span, stride) + 1, b.symbols)
        return simplify(minimum(partial, (size + begin - 1) // stride + 1), b.symbols)


@op("MaxPool")
def max_pool(b: Builder, x: Tensor, *, storage_order: int = 0, **window: Any) -> tuple[Tensor, ...]:
    plain = b.results == 1  # places are counted in the input itself, which must not be padded then
    w = Sliding(**window).over(b, x, float(identity("max", x.dtype).value) if plain else None)
    best = b.pool(w.x, **w.attrs("max"))
    return (best,) if plain else (best, _places(b, w, best, bool(storage_order)))


def _places(b: Builder, w: Window, best: Tensor, column_major: bool) -> Tensor:
    """Flat index of each window's first maximum in the whole input; `column_major` orders the
    spatial axes the other way round."""
    x, rank = w.x, len(w.kernel)

    def term(bufs: Sequence[Buffer], index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        inside: Expr = const(True, BOOL)
        place = list(index[:2])
        for i in range(rank):
            p = index[2 + i] * w.strides[i] + k[i] * w.dilations[i] - w.pads[i]
            inside = land(inside, land(p >= 0, p < x.shape[2 + i]))
            place.append(p)
        flat = place[0]
        for p, d in zip(place[1:], x.shape[1:], strict=True):
            flat = flat * d + p
        found = select(inside, eq(bufs[0][tuple(place)], bufs[1][index]), const(False, BOOL))
        return select(found, flat, const(FAR))

    def reorder(flat: Expr, _: tuple[Expr, ...]) -> Expr:
        if not column_major:
            return flat
        area = product(x.shape[2:])
        step: Expr = const(1)
        inner, out = flat % area, flat // area * area
        rest = area
        for d in x.shape[2:]:
            rest = rest // d
            out, inner, step = out + inner // rest * step, inner % rest, step * d
        return out

    return b.reduction(I64, best.shape, w.kernel, "min", [x, best], term, reorder)


@op("AveragePool")
def average_pool(b: Builder, x: Tensor, *, count_include_pad: int = 0, **window: Any) -> Tensor:
    sliding = Sliding(**window)
    average = "all" if count_include_pad else "valid"
    pads = sliding.amounts(b, x)
    if static_shape(tuple(pads)) is not None:
        w = sliding.over(b, x)
        return b.pool(w.x, **w.attrs("sum", average))
    w = sliding.over(b, x, 0)
    total = b.pool(w.x, **w.attrs("sum"))
    attrs = {**w.attrs("sum", average), "pads": pads}

    def mean(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        value = wide(bufs[0][index])
        return value / cast(value.dtype, window_count(x.shape[2:], index[2:], attrs))

    return b.compute(x.dtype, total.shape, [total], mean)


def _power(x: Expr, p: float) -> Expr:
    """|x| ** p, in f32 or wider."""
    x = wide(x)
    if p == 1:
        return call("abs", x)
    return x * x if p == 2 else binary("pow", call("abs", x), p)


def _root(x: Expr, p: float) -> Expr:
    if p == 1:
        return x
    return call("sqrt", x) if p == 2 else binary("pow", x, 1 / p)


@op("LpPool")
def lp_pool(b: Builder, x: Tensor, *, p: float = 2, **window: Any) -> Tensor:
    powers = b.map(lambda v: _power(v, p), x)
    w = Sliding(**window).over(b, powers, 0)
    total = b.pool(w.x, **w.attrs("sum"))
    return b.map(lambda v: cast(x.dtype, _root(v, p)), total)


def _spatial(x: Tensor) -> range:
    if x.rank < 3:
        raise CompileError(f"a global pool of {x}: it must have spatial axes (N, C, ...)")
    return range(2, x.rank)


@op("GlobalMaxPool")
def global_max_pool(b: Builder, x: Tensor) -> Tensor:
    return b.reduce("max", x, _spatial(x), keepdims=True)


@op("GlobalAveragePool")
def global_average_pool(b: Builder, x: Tensor) -> Tensor:
    axes = _spatial(x)
    total = b.reduce("sum", b.map(wide, x) if x.dtype.bits < 32 else x, axes, keepdims=True)
    count = simplify(product(x.shape[a] for a in axes), b.symbols)
    return b.map(lambda v: cast(x.dtype, v / cast(v.dtype, count)), total)


@op("GlobalLpPool")
def global_lp_pool(b: Builder, x: Tensor, *, p: float = 2) -> Tensor:
    total = b.reduce("sum", b.map(lambda v: _power(v, p), x), _spatial(x), keepdims=True)
    return b.map(lambda v: cast(x.dtype, _root(v, p)), total)
