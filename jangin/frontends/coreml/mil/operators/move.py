"""Lower operations that move, reduce, sort and select elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.frontends.coreml.mil.operators.common import Call
from jangin.frontends.registry import Lowering, Table, lowers
from jangin.ir.dtype import I32, I64
from jangin.ir.expr import Buffer, Expr, const, land, lor, select
from jangin.ir.graph import CompileError
from jangin.ops import index, move, scan, scatter
from jangin.ops.axes import axes_of, axis_of, product
from jangin.ops.reduce import arg_extreme, log_sum_exp, reduce_over
from jangin.ops.select import non_zero, top_k
from jangin.ops.values import Tensor


@lowers("concat")
def concat(c: Call) -> Tensor:
    xs = c.several("values")
    axis = axis_of(c.integer("axis"), xs[0].rank)
    if not c.flag("interleave"):
        return c.b.concat(xs, axis)
    stacked = stack_at(c, xs, axis + 1)
    return c.b.reshape(stacked, [d * len(xs) if n == axis else d for n, d in enumerate(xs[0].shape)])


def stack_at(c: Call, xs: Sequence[Tensor], axis: int) -> Tensor:
    return c.b.concat([c.b.reshape(x, [*x.shape[:axis], 1, *x.shape[axis:]]) for x in xs], axis)


@lowers("stack")
def stack(c: Call) -> Tensor:
    xs = c.several("values")
    return stack_at(c, xs, axis_of(c.integer("axis"), xs[0].rank + 1))


@lowers("split")
def split(c: Call) -> list[Tensor]:
    x, axis = c.x(), c.axis()
    sizes = [const(n) for n in c.integers("split_sizes", [])]
    if c.integer("num_splits", c.outputs) != c.outputs:
        raise CompileError(f"it has {c.outputs} outputs, but num_splits is {c.integer('num_splits')}")
    return list(move.split_into(c.b, x, axis, sizes or move.equal_sizes(c.b, x, axis, c.outputs)))


@lowers("sliding_windows")
def sliding_windows(c: Call) -> Tensor:
    """Return the windows along an axis. The axis then has one entry for each window, and a new axis after it
    has the window's elements."""
    b, x, axis = c.b, c.x(), c.axis()
    size, stride = c.integer("size"), c.integer("stride", 1)
    if size < 1 or stride < 1:
        raise CompileError(f"the size {size} and the stride {stride} of windows must be at least 1")
    count = (x.shape[axis] - size) // stride + 1

    def element(bufs: Sequence[Buffer], *at: Expr) -> Expr:
        return bufs[0][(*at[:axis], at[axis] * stride + at[axis + 1], *at[axis + 2 :])]

    return b.compute(x.dtype, (*x.shape[:axis], count, const(size), *x.shape[axis + 1 :]), [x], element)


@lowers("reshape")
def reshape(c: Call) -> Tensor:
    return move.reshape_to(c.b, c.x(), c.sizes("shape"), keep_zero=False)


@lowers("flatten2d")
def flatten(c: Call) -> Tensor:
    x, axis = c.x(), c.integer("axis", 1)
    return move.reshape_to(c.b, x, [product(x.shape[: axis % (x.rank + 1)]), const(-1)], keep_zero=True)


@lowers("transpose")
def transpose(c: Call) -> Tensor:
    return c.b.transpose(c.x(), axes_of(c.integers("perm"), c.x().rank))


@lowers("expand_dims")
def expand_dims(c: Call) -> Tensor:
    x, axes = c.x(), c.integers("axes")
    new = axes_of(axes, x.rank + len(axes))
    rest = iter(x.shape)
    return c.b.reshape(x, [const(1) if n in new else next(rest) for n in range(x.rank + len(new))])


@lowers("squeeze")
def squeeze(c: Call) -> Tensor:
    x = c.x()
    ones = [n for n, d in enumerate(x.shape) if d == const(1)]
    gone = axes_of(c.integers("axes", ones), x.rank)
    return c.b.reshape(x, [d for n, d in enumerate(x.shape) if n not in gone])


@lowers("slice_by_index")
def slice_by_index(c: Call) -> Tensor:
    b, x = c.b, c.x()
    begin, end = c.sizes("begin"), c.sizes("end")
    stride = c.integers("stride", [1] * x.rank)
    begins, ends, gone = (
        [bool(v) for v in c.numbers(f"{n}_mask", [0] * x.rank)] for n in ("begin", "end", "squeeze")
    )
    far = 1 << 40
    starts = [const(far if s < 0 else 0) if m else v for v, m, s in zip(begin, begins, stride, strict=True)]
    stops = [const(-far if s < 0 else far) if m else v for v, m, s in zip(end, ends, stride, strict=True)]
    for n, squeezed in enumerate(gone):
        if squeezed:
            starts[n], stride[n] = begin[n], 1
            stops[n] = const(far) if begin[n] == const(-1) else begin[n] + 1
    y = move.slice_axes(b, x, starts, stops, None, stride)
    return b.reshape(y, [d for n, d in enumerate(y.shape) if not gone[n]])


@lowers("slice_by_size")
def slice_by_size(c: Call) -> Tensor:
    x, begin, size = c.x(), c.sizes("begin"), c.sizes("size")
    shape = [d - s if n == const(-1) else n for n, s, d in zip(size, begin, x.shape, strict=True)]
    return c.b.slice(x, begin, shape, [1] * x.rank)


@lowers("pad")
def pad(c: Call) -> Tensor:
    """Pad the last axes of x. MIL lists the pads axis by axis: the begin and the end of the first padded
    axis, then of the next."""
    x, edges = c.x(), c.integers("pad")
    none = [0] * (x.rank - len(edges) // 2)
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}.get(c.text("mode", "constant"))
    if mode is None:
        raise CompileError(f"the mode {c.text('mode', '')} is none of constant, reflect, replicate")
    pads = [*none, *edges[0::2], *none, *edges[1::2]]
    value = c.number("constant_val", 0.0)
    return c.b.pad(x, pads, mode=mode, value=value if mode == "constant" else 0)


@lowers("tile")
def tile(c: Call) -> Tensor:
    return move.repeat(c.b, c.x(), c.sizes("reps"))


@lowers("shape")
def shape(c: Call) -> Tensor:
    return c.b.sizes(c.x().shape, I32)


@lowers("fill")
def fill(c: Call) -> Tensor:
    value = c.optional("value")
    held = c.b.const(np.zeros((), np.float32)) if value is None else value
    return c.b.expand(c.b.reshape(held, ()), c.sizes("shape"))


@lowers("range_1d")
def range_1d(c: Call) -> Tensor:
    return move.arange(c.b, c.x("start"), c.x("end"), c.x("step"))


@lowers("reverse")
def reverse(c: Call) -> Tensor:
    x = c.x()
    axes = axes_of(c.integers("axes", list(range(x.rank))), x.rank)
    far = 1 << 40
    return move.slice_axes(
        c.b, x, [const(far)] * len(axes), [const(-far)] * len(axes), axes, [-1] * len(axes)
    )


@lowers("depth_to_space")
def depth_to_space(c: Call) -> Tensor:
    return move.depth_to_space(c.b, c.x(), c.integer("block_size"))


@lowers("space_to_depth")
def space_to_depth(c: Call) -> Tensor:
    return move.space_to_depth(c.b, c.x(), c.integer("block_size"))


@lowers("pixel_shuffle")
def pixel_shuffle(c: Call) -> Tensor:
    return move.depth_to_space(c.b, c.x(), c.integer("upscale_factor"), depth_last=False)


@lowers("pixel_unshuffle")
def pixel_unshuffle(c: Call) -> Tensor:
    return move.space_to_depth(c.b, c.x(), c.integer("downscale_factor"), depth_last=False)


@lowers("band_part")
def band_part(c: Call) -> Tensor:
    x, lower, upper = c.x(), c.integer("lower", -1), c.integer("upper", -1)

    def at(bufs: Sequence[Buffer], *place: Expr) -> Expr:
        row, column = place[-2], place[-1]
        below = lor(row <= column, row - column <= lower) if lower >= 0 else row <= row
        above = lor(column <= row, column - row <= upper) if upper >= 0 else row <= row
        return select(land(below, above), bufs[0][place], const(0, x.dtype))

    return c.b.compute(x.dtype, x.shape, [x], at)


# -- by indices ----------------------------------------------------------------------------------


def _places(c: Call, name: str = "indices") -> Tensor:
    return c.b.cast(c.x(name), I64)


@lowers("gather")
def gather(c: Call) -> Tensor:
    x, places, axis = c.x(), _places(c), c.axis(default=0)
    batch = c.integer("batch_dims", 0)
    if batch:
        raise CompileError(f"batch_dims {batch} is not supported")
    return index.gather(c.b, x, places, axis=axis)


@lowers("gather_along_axis")
def gather_along_axis(c: Call) -> Tensor:
    return index.gather_elements(c.b, c.x(), _places(c), axis=c.axis(default=0))


@lowers("gather_nd")
def gather_nd(c: Call) -> Tensor:
    return index.gather_nd(c.b, c.x(), _places(c), batch_dims=c.integer("batch_dims", 0))


MODES = {"update": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _mode(c: Call, default: str) -> str:
    mode = c.text("mode", default)
    if mode not in MODES:
        raise CompileError(f"the mode {mode} is none of {', '.join(MODES)}")
    return MODES[mode]


@lowers("scatter_along_axis")
def scatter_along_axis(c: Call) -> Tensor:
    x = c.x("data")
    axis = c.axis(default=0, rank=x.rank)
    return scatter.scatter_elements(c.b, x, _places(c), c.x("updates"), axis=axis, reduction=_mode(c, "add"))


@lowers("scatter_nd")
def scatter_nd(c: Call) -> Tensor:
    return scatter.scatter_nd(c.b, c.x("data"), _places(c), c.x("updates"), reduction=_mode(c, "add"))


@lowers("one_hot")
def one_hot(c: Call) -> Tensor:
    b, places = c.b, _places(c)
    on, off = c.numbers("on_value", [1]), c.numbers("off_value", [0])
    kind = np.int32 if isinstance(on[0], int) else np.float32
    axis = c.axis(default=-1, rank=places.rank + 1)
    return index.one_hot(
        b, places, c.sizes("one_hot_vector_size")[0], b.const(np.array([off[0], on[0]], kind)), axis=axis
    )


@lowers("non_zero")
def non_zero_(c: Call) -> Tensor:
    return c.b.cast(c.b.transpose(non_zero(c.b, c.x()), [1, 0]), I32)


# -- reductions, order ---------------------------------------------------------------------------


def _reduction(kind: str) -> Lowering:
    def lower(c: Call) -> Tensor:
        x = c.x()
        axes = axes_of(c.integers("axes", list(range(x.rank))), x.rank)
        if kind == "log_sum_exp":
            return log_sum_exp(c.b, x, axes, c.flag("keep_dims"))
        return reduce_over(c.b, kind, x, axes, c.flag("keep_dims"))

    return lower


def _arg(kind: str) -> Lowering:
    def lower(c: Call) -> Tensor:
        x, axis = c.x(), c.axis(default=-1)
        best = c.b.cast(arg_extreme(c.b, x, axis, kind), c.dtype("output_dtype", "int32"))
        whole = [const(1) if n == axis else d for n, d in enumerate(x.shape)]
        return c.b.reshape(
            best, whole if c.flag("keep_dims") else [d for n, d in enumerate(x.shape) if n != axis]
        )

    return lower


REDUCTIONS = Table({
    "reduce_sum": _reduction("sum"), "reduce_mean": _reduction("mean"), "reduce_prod": _reduction("prod"),
    "reduce_max": _reduction("max"), "reduce_min": _reduction("min"), "reduce_l1_norm": _reduction("l1_norm"),
    "reduce_l2_norm": _reduction("l2_norm"), "reduce_sum_square": _reduction("sum_of_squares"),
    "reduce_log_sum": _reduction("log_sum"), "reduce_log_sum_exp": _reduction("log_sum_exp"),
    "reduce_argmax": _arg("max"), "reduce_argmin": _arg("min"),
})  # fmt: skip


@lowers("cumsum")
def cumsum(c: Call) -> Tensor:
    return scan.cumulate(
        c.b, c.x(), "sum", axis=c.axis(default=0), exclusive=c.flag("exclusive"), reverse=c.flag("reverse")
    )


@lowers("topk")
def topk(c: Call) -> tuple[Tensor, ...]:
    best, places = top_k(
        c.b, c.x(), c.sizes("k")[0], axis=c.axis(default=-1), largest=not c.flag("ascending")
    )
    return (best, c.b.cast(places, c.dtype("output_indices_dtype", "int32")))[: c.outputs]


@lowers("argsort")
def argsort(c: Call) -> Tensor:
    x, axis = c.x(), c.axis(default=-1)
    return c.b.cast(top_k(c.b, x, x.shape[axis], axis=axis, largest=not c.flag("ascending"))[1], I32)
