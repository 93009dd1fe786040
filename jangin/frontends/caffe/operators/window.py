"""Lower layers with windows, and matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.caffe.operators.common import Layer, sizes_of
from jangin.frontends.registry import lowers
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Expr, cast, const
from jangin.ir.graph import CompileError
from jangin.ops import move, pool
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.conv import conv, conv_transpose
from jangin.ops.elementwise import power
from jangin.ops.normalize import local_response_norm
from jangin.ops.resize import Style, resize, scaled_lines, sized_lines
from jangin.ops.resize_positions import align_corners, asymmetric
from jangin.ops.sample import roi_group_pool, roi_max_pool
from jangin.ops.scatter import unpool
from jangin.ops.values import Tensor
from jangin.ops.window import Window

Pair = tuple[int, int]


def _sliding(layer: Layer) -> tuple[Pair, Pair, Pair, Pair, int]:
    """Return a convolution's kernel, strides, dilations, pads and groups."""
    p = "convolution_param."
    kernel = layer.pair(p, "kernel_size", "kernel_h", "kernel_w", None)
    strides = layer.pair(p, "stride", "stride_h", "stride_w", 1)
    pads = layer.pair(p, "pad", "pad_h", "pad_w", 0)
    dilation = layer.wholes(p + "dilation") or [1]
    if layer.axis(p + "axis", 1) != 1:
        raise CompileError("only axis 1 may be the axis of channels")
    return kernel, strides, (dilation[0], dilation[-1]), pads, layer.whole(p + "group", 1)


def _biases(layer: Layer, param: str, count: int) -> Tensor | None:
    if not layer.flag(f"{param}.bias_term", True):
        return None
    return layer.b.reshape(layer.blob(1, "biases"), [count])


@lowers("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution")
def convolution(layer: Layer) -> Tensor:
    b, x = layer.b, layer.x()
    kernel, strides, dilations, pads, groups = _sliding(layer)
    filters, channels = (
        layer.whole("convolution_param.num_output"),
        sizes_of(layer.blob(0, "weights"), "the weights"),
    )
    w = b.reshape(layer.blobs[0], [filters, channels[-3] if len(channels) > 2 else 1, *kernel])
    biases = _biases(layer, "convolution_param", filters)
    return conv(b, x, w, biases, strides=strides, dilations=dilations, pads=pads * 2, groups=groups)


@lowers("Deconvolution")
def deconvolution(layer: Layer) -> Tensor:
    b, x = layer.b, layer.x()
    kernel, strides, dilations, pads, groups = _sliding(layer)
    filters = layer.whole("convolution_param.num_output")
    if groups < 1 or filters % groups:
        raise CompileError(f"{groups} groups don't divide {filters} outputs")
    w = b.reshape(layer.blob(0, "weights"), [x.shape[1], filters // groups, *kernel])
    biases = _biases(layer, "convolution_param", filters)
    return conv_transpose(b, x, w, biases, strides=strides, dilations=dilations, pads=pads * 2, groups=groups)


@lowers("InnerProduct")
def inner_product(layer: Layer) -> Tensor:
    b, x = layer.b, layer.x()
    axis, count = layer.axis("inner_product_param.axis", 1), layer.whole("inner_product_param.num_output")
    transposed = layer.flag("inner_product_param.transpose", False)
    depth = product(x.shape[axis:])
    rows = b.reshape(x, [product(x.shape[:axis]), depth])
    w = b.reshape(layer.blob(0, "weights"), [depth, count] if transposed else [count, depth])
    y = b.matmul(rows, w, transpose_b=not transposed)
    biases = _biases(layer, "inner_product_param", count)
    y = y if biases is None else b.map(lambda v, o: v + o, y, biases)
    return b.reshape(y, [*x.shape[:axis], count])


@lowers("Pooling")
def pooling(layer: Layer) -> Tensor | tuple[Tensor, Tensor]:
    """Return the maxima or the means of windows. The last window may extend beyond the input, and means count
    the padding.

    A second top gets the positions of the maxima in their channels. Raises CompileError for stochastic
    pooling."""
    b, x, p = layer.b, layer.x(), "pooling_param."
    kind = layer.choice(p + "pool", ("MAX", "AVE", "STOCHASTIC"), "MAX")
    ceil = layer.choice(p + "round_mode", ("CEIL", "FLOOR"), "CEIL") == "CEIL" and layer.flag(
        p + "ceil_mode", True
    )
    strides, pads = (layer.pair(p, n, f"{n}_h", f"{n}_w", d) for n, d in (("stride", 1), ("pad", 0)))
    if kind == "STOCHASTIC":
        raise CompileError("stochastic pooling draws random numbers: it is not supported")
    if layer.flag(p + "global_pooling", False):
        if kind == "AVE":
            count = product(x.shape[2:])
            return b.map(lambda v: v / cast(F32, count), b.reduce("sum", x, [2, 3], True))
        if layer.tops == 1:
            return b.reduce("max", x, [2, 3], True)
        kernel: Pair = tuple(sizes_of(x, "the bottom")[2:])  # type: ignore[assignment]
    else:
        kernel = layer.pair(p, "kernel_size", "kernel_h", "kernel_w", None)
    window = Window.over(b, x, kernel, strides=strides, pads=pads * 2, ceil=ceil)
    if kind == "AVE":
        return pool.average_pool(b, x, window, count_padding=True)
    if layer.tops == 1:
        return pool.max_pool(b, x, window)
    best, places = pool.max_pool_with_indices(b, x, window)
    area = product(x.shape[2:])
    return best, b.map(lambda v: cast(F32, v % area), places)


@lowers("LRN")
def lrn(layer: Layer) -> Tensor:
    b, x, p = layer.b, layer.x(), "lrn_param."
    size, alpha, beta = (
        layer.whole(p + "local_size", 5),
        layer.number(p + "alpha", 1),
        layer.number(p + "beta", 0.75),
    )
    offset = layer.number(p + "k", 1)
    if size % 2 == 0:
        raise CompileError(f"local_size is {size}, and must be odd")
    if (
        layer.choice(p + "norm_region", ("ACROSS_CHANNELS", "WITHIN_CHANNEL"), "ACROSS_CHANNELS")
        == "ACROSS_CHANNELS"
    ):
        return local_response_norm(b, x, size=size, alpha=alpha, beta=beta, bias=offset)
    window = Window.over(b, x, [size] * 2, pads=[size // 2] * 4)
    means = pool.average_pool(b, b.map(lambda v: v * v, x), window, count_padding=True)
    return b.map(lambda v, m: v / power(m * alpha + 1.0, beta), x, means)


@lowers("Upsample")
def upsample(layer: Layer) -> Tensor:
    """Repeat each element by the scale. With a second bottom, put each element at the position in its channel
    that the second bottom gives, instead."""
    b, x, p = layer.b, layer.x(), "upsample_param."
    scales = layer.pair(p, "scale", "scale_h", "scale_w", 2)
    if len(layer.inputs) == 1:
        return resize(b, x, scaled_lines(b, x, [2, 3], scales), Style("nearest", asymmetric, "floor"))
    sizes = [(layer.wholes(p + n) or [0])[-1] for n in ("upsample_h", "upsample_w")]
    layer.flag(p + "pad_out_h", False), layer.flag(p + "pad_out_w", False)
    area = [const(s) if s else d * k for s, d, k in zip(sizes, x.shape[2:], scales, strict=True)]
    return _put_back(layer, area)


def _put_back(layer: Layer, area: Sequence[Expr]) -> Tensor:
    """Put the first bottom's elements at the positions in the second bottom. The result's channels have the
    sizes `area`."""
    b, x = layer.b, layer.x()
    n, c = x.shape[:2]

    def place(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        return (index[0] * c + index[1]) * area[0] * area[1] + cast(I64, bufs[0][index])

    return unpool(b, x, b.compute(I64, x.shape, [layer.x(1)], place), (n, c, *area))


@lowers("Unpooling")
def unpooling(layer: Layer) -> Tensor:
    """Put each element at the position that DeconvNet's pooling returned as its second top."""
    x, p = layer.x(), "unpooling_param."
    kind = layer.choice(p + "unpool", ("MAX", "AVE", "TILE"), "MAX")
    if kind != "MAX":
        raise CompileError(f"unpool: {kind} is not supported, MAX is")
    kernel = layer.pair(p, "kernel_size", "kernel_h", "kernel_w", None)
    strides, pads = (layer.pair(p, n, f"{n}_h", f"{n}_w", d) for n, d in (("stride", 1), ("pad", 0)))
    sizes = layer.pair(p, "unpool_size", "unpool_h", "unpool_w", 0)
    area = [
        const(n) if n else (d - 1) * s + k - 2 * q
        for n, d, s, k, q in zip(sizes, x.shape[2:], strides, kernel, pads, strict=True)
    ]
    return _put_back(layer, area)


@lowers("MatMul")
def matmul(layer: Layer) -> Tensor:
    """Multiply the last two axes of two bottoms as matrices.

    If the layer gives the matrices' sizes, each bottom is reshaped to matrices of these sizes first."""
    b, x, y, p = layer.b, layer.x(), layer.x(1), "matmul_param."
    dims = [layer.whole(p + f"dim_{n}") for n in (1, 2, 3)]
    turned = [layer.flag(p + f"transpose_{n}", False) for n in "ab"]
    if any(dims):
        rows, depth, columns = dims
        x, y = b.reshape(x, [x.shape[0], rows, depth]), b.reshape(y, [y.shape[0], depth, columns])
    return b.matmul(x, y, transpose_a=turned[0], transpose_b=turned[1])


@lowers("Interp")
def interp(layer: Layer) -> Tensor:
    """Resize bilinearly with aligned corners, as DeepLab does."""
    b, x, p = layer.b, layer.x(), "interp_param."
    if any(layer.whole(p + n) for n in ("pad_beg", "pad_end")):
        raise CompileError("pads are not supported")
    zoom, shrink = layer.whole(p + "zoom_factor", 1), layer.whole(p + "shrink_factor", 1)
    targets = [layer.whole(p + n) for n in ("height", "width")]
    sizes = [const(g) if g else (s - 1) // shrink + 1 for g, s in zip(targets, x.shape[2:], strict=True)]
    sizes = sizes if all(targets) else [s + (s - 1) * (zoom - 1) for s in sizes]
    return resize(b, x, sized_lines(b, x, [2, 3], sizes), Style("linear", align_corners))


@lowers("Reorg")
def reorg(layer: Layer) -> Tensor:
    if layer.flag("reorg_param.reverse", False):
        raise CompileError("a reversed layer is not supported")
    return move.reorg(layer.b, layer.x(), layer.whole("reorg_param.stride", 2))


@lowers("ROIPooling")
def roi_pooling(layer: Layer) -> Tensor:
    p = "roi_pooling_param."
    size, scale = (
        layer.pair(p, "pooled_size", "pooled_h", "pooled_w", None),
        layer.number(p + "spatial_scale", 1),
    )
    regions = layer.x(1)
    rows = regions if regions.rank == 2 else _as_rows(layer.b, regions)
    return roi_max_pool(layer.b, layer.x(), rows, size=size, scale=scale)


@lowers("PSROIPooling")
def position_sensitive_pooling(layer: Layer) -> Tensor:
    """Average regions cell by cell, as R-FCN does. Each cell of a region reads its own group of channels."""
    p = "psroi_pooling_param."
    group, outputs = layer.whole(p + "group_size"), layer.whole(p + "output_dim")
    regions = layer.x(1)
    rows = regions if regions.rank == 2 else _as_rows(layer.b, regions)
    return roi_group_pool(layer.b, layer.x(), rows, group, outputs, layer.number(p + "spatial_scale", 1))


def _as_rows(b: Builder, regions: Tensor) -> Tensor:
    """Return regions as a matrix of five columns. In Caffe they may have further axes of size 1."""
    return b.reshape(regions, [product(regions.shape) // 5, 5])
