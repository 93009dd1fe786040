"""Lower convolutions, pools, products, normalizations and resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.coreml.layers.network import Layer, Network, Say, same, word
from jangin.ir.graph import CompileError


def _padding(net: Network, m: Any) -> dict[str, Any]:
    kind = m.WhichOneof("ConvolutionPaddingType" if hasattr(m, "nGroups") else "PoolingPaddingType")
    if kind == "same":
        lower = word(m.same, "asymmetryMode") == "TOP_LEFT_HEAVY"
        return {"pad_type": "same_lower" if lower else "same"}
    if kind == "includeLastPixel":
        both = [int(n) for n in m.includeLastPixel.paddingAmounts] or [0, 0]
        return {"pad_type": "custom", "pad": np.repeat(both, 2), "ceil_mode": True}
    edges = [(int(b.startEdgeSize), int(b.endEdgeSize)) for b in m.valid.paddingAmounts.borderAmounts]
    return {"pad_type": "custom", "pad": np.array(edges or [(0, 0), (0, 0)]).reshape(-1)}


def _convolution(net: Network, layer: Layer, m: Any) -> None:
    kernel = list(m.kernelSize) or [3, 3]
    out, groups, channels = int(m.outputChannels), int(m.nGroups) or 1, int(m.kernelChannels)
    shape = [channels, out // groups, *kernel] if m.isDeconvolution else [out, channels, *kernel]
    args = {
        "weight": net.weights(m.weights, shape, "weights"), "strides": list(m.stride) or [1, 1],
        "dilations": list(m.dilationFactor) or [1, 1], "groups": groups, **_padding(net, m),
        "bias": net.weights(m.bias, [out], "biases") if m.hasBias else None,
    }  # fmt: skip
    if m.isDeconvolution and len(m.outputShape):
        args["output_shape"] = [1, out, *m.outputShape]
    net.add(layer, "conv_transpose" if m.isDeconvolution else "conv", args)


def _pooling(net: Network, layer: Layer, m: Any) -> None:
    kind = word(m, "type")
    if m.globalPooling:
        how = {"MAX": "reduce_max", "AVERAGE": "reduce_mean", "L2": "reduce_l2_norm"}[kind]
        net.add(layer, how, {"axes": [-2, -1], "keep_dims": True})
        return
    args = {
        "kernel_sizes": list(m.kernelSize) or [3, 3], "strides": list(m.stride) or [1, 1], **_padding(net, m),
    }  # fmt: skip
    if kind == "AVERAGE":
        args["exclude_padding_from_average"] = bool(m.avgPoolExcludePadding)
    net.add(layer, {"MAX": "max_pool", "AVERAGE": "avg_pool", "L2": "l2_pool"}[kind], args)


def _upsample(net: Network, layer: Layer, m: Any) -> None:
    scales = list(m.fractionalScalingFactor) or list(m.scalingFactor) or [1, 1]
    args: dict[str, Any] = {
        f"scale_factor_{n}": np.float32(s) for n, s in zip(("height", "width"), scales, strict=True)
    }
    if word(m, "mode") == "NN":
        net.add(layer, "upsample_nearest_neighbor", args)
        return
    how = word(m, "linearUpsampleMode")
    args |= {
        "align_corners": how == "ALIGN_CORNERS_TRUE",
        "half_pixel_centers": how == "ALIGN_CORNERS_FALSE",
    }
    net.add(layer, "upsample_bilinear", args)


def _pad(net: Network, layer: Layer, m: Any) -> None:
    kind = m.WhichOneof("PaddingType") or "constant"
    edges = [(int(b.startEdgeSize), int(b.endEdgeSize)) for b in m.paddingAmounts.borderAmounts]
    args = {"pad": np.array(edges or [(0, 0), (0, 0)]).reshape(-1)}
    modes = {"constant": "constant", "reflection": "reflect", "replication": "replicate"}
    net.add(layer, "pad", {**args, "mode": modes[kind], "constant_val": np.float32(m.constant.value)})


def _constant_pad(net: Network, layer: Layer, m: Any) -> None:
    if m.padToGivenOutputSizeMode or len(layer.input) > 1:
        raise CompileError(f"{net.source}: padding up to an output size is not supported")
    net.add(
        layer, "pad", {"pad": list(m.padAmounts), "mode": "constant", "constant_val": np.float32(m.value)}
    )


def _inner_product(net: Network, layer: Layer, m: Any) -> None:
    out = int(m.outputChannels)
    args = {
        "weight": net.weights(m.weights, [out, int(m.inputChannels)], "weights"),
        "bias": net.weights(m.bias, [out], "biases") if m.hasBias else None,
    }
    if net.exact:
        net.add(layer, "linear", args)
        return
    flat = net.add(layer, "flatten2d", {"axis": 1}, end=f"{layer.output[0]} flat")
    rows = net.add(layer, "linear", args, start=flat, end=f"{layer.output[0]} rows")
    net.add(layer, "expand_dims", {"axes": [2, 3]}, start=rows)


def _batched_matmul(net: Network, layer: Layer, m: Any) -> None:
    """Multiply two inputs, or one input by weights. The weights are stored transposed."""
    args: dict[str, Any] = {"transpose_x": bool(m.transposeA), "transpose_y": bool(m.transposeB)}
    if len(layer.input) > 1:
        net.add(layer, "matmul", args, inputs=("x", "y"))
        return
    shape = [int(m.weightMatrixSecondDimension), int(m.weightMatrixFirstDimension)]
    end = f"{layer.output[0]} product" if m.hasBias else ""
    product = net.add(layer, "matmul", {**args, "y": net.weights(m.weights, shape, "weights").T}, end=end)
    if m.hasBias:
        net.add(layer, "add", {"y": net.weights(m.bias, shape[:1], "biases")}, start=product)


def _looked_up(net: Network, layer: Layer, m: Any, words: int, width: int, axes: Sequence[int]) -> str:
    """Look up rows of the layer's table by indices, which are floats. Return the name of the rows.

    The table has `words` rows of `width` elements. The axes `axes` of the indices, which have size 1, are
    removed."""
    table = np.ascontiguousarray(net.weights(m.weights, [width, words], "weights").T)
    if m.hasBias:
        table = table + net.weights(m.bias, [width], "biases")
    out = layer.output[0]
    places = net.add(layer, "squeeze", {"axes": list(axes)}, end=f"{out} places")
    whole = net.add(layer, "cast", {"dtype": "int32"}, start=places, end=f"{out} integers")
    return net.add(
        layer, "gather", {"x": table, "axis": 0}, inputs=("indices",), start=whole, end=f"{out} rows"
    )


def _embedding(net: Network, layer: Layer, m: Any) -> None:
    """Look up rows by indices [..., 1]. The result is [..., width]."""
    rows = _looked_up(net, layer, m, int(m.vocabSize), int(m.embeddingSize), [-1])
    net.add(layer, "identity", start=rows)


def _batchnorm(net: Network, layer: Layer, m: Any) -> None:
    parts = {"gamma": m.gamma, "beta": m.beta}
    args: dict[str, Any] = {k: net.weights(v, [int(m.channels)], k) for k, v in parts.items()}
    args["epsilon"] = np.float32(m.epsilon or 1e-5)
    instance, computed = bool(m.instanceNormalization), bool(m.computeMeanVar)
    if computed and not instance:
        raise CompileError(f"{net.source}: the mean and variance of a batch are not supported")
    if instance and (computed or not len(m.mean.ListFields())):
        net.add(layer, "instance_norm", args)
        return
    args |= {k: net.weights(getattr(m, k), [int(m.channels)], k) for k in ("mean", "variance")}
    net.add(layer, "batch_norm", args)


def _layer_norm(net: Network, layer: Layer, m: Any) -> None:
    shape = [int(n) for n in m.normalizedShape]
    parts = {k: net.weights(getattr(m, k), shape, k) for k in ("gamma", "beta")}
    net.add(layer, "layer_norm", {**parts, "axes": list(range(-len(shape), 0)), "epsilon": np.float32(m.eps)})


def _mvn(net: Network, layer: Layer, m: Any) -> None:
    """Subtract the mean and divide by the standard deviation, of each channel or of all channels together.
    The mean is subtracted twice, for exactness, as in `ops.normalize.moments`."""
    axes, out = list(range(-3 if m.acrossChannels else -2, 0)), layer.output[0]
    whole = {"axes": axes, "keep_dims": True}
    near, last = layer.input[0], layer.input[0]
    for left, centred in (("", f"{out} near"), (" left", f"{out} centred" if m.normalizeVariance else out)):
        mean = net.add(layer, "reduce_mean", whole, start=near, end=f"{out} mean{left}")
        net.node("mil.sub", {"x": [near], "y": [mean]}, [centred])
        near = last = centred
    if m.normalizeVariance:
        square = net.add(layer, "square", start=last, end=f"{out} square")
        variance = net.add(layer, "reduce_mean", whole, start=square, end=f"{out} variance")
        epsilon = {"epsilon": np.float32(m.epsilon or 1e-6)}
        scale = net.add(layer, "rsqrt", epsilon, start=variance, end=f"{out} scale")
        net.node("mil.mul", {"x": [last], "y": [scale]}, [out])


def _resized(net: Network, layer: Layer, m: Any) -> None:
    sizes = list(m.targetSize) or [1, 1]
    modes = {
        "STRICT_ALIGN_ENDPOINTS_MODE": "STRICT_ALIGN_CORNERS", "ALIGN_ENDPOINTS_MODE": "ALIGN_CORNERS",
        "UPSAMPLE_MODE": "DEFAULT", "ROI_ALIGN_MODE": "OFFSET_CORNERS",
    }  # fmt: skip
    args = {f"target_size_{n}": int(s) for n, s in zip(("height", "width"), sizes, strict=True)}
    net.add(layer, "resize_bilinear", {**args, "sampling_mode": modes[word(m.mode, "samplingMethod")]})


def _solid(m: Any) -> dict[str, Any]:
    """Return MIL's arguments for the strides and paddings of three spatial axes."""
    sides = (("Front", "Back"), ("Top", "Bottom"), ("Left", "Right"))
    pads = [int(getattr(m, f"customPadding{s}")) for pair in sides for s in pair]
    strides = [int(getattr(m, f"stride{n}")) or 1 for n in ("Depth", "Height", "Width")]
    return {"strides": strides, "pad_type": word(m, "paddingType").lower(), "pad": pads}


def _of_three(m: Any, what: str) -> list[int]:
    return [int(getattr(m, f"{what}{n}")) or 1 for n in ("Depth", "Height", "Width")]


def _solid_convolution(net: Network, layer: Layer, m: Any) -> None:
    if m.isDeconvolution:
        raise CompileError(f"{net.source}: transposed convolutions of three axes are not supported")
    out, groups = int(m.outputChannels), int(m.nGroups) or 1
    shape = [out, int(m.inputChannels) // groups, *_of_three(m, "kernel")]
    net.add(layer, "conv", {
        **_solid(m), "weight": net.weights(m.weights, shape, "weights"), "groups": groups,
        "dilations": _of_three(m, "dilation"),
        "bias": net.weights(m.bias, [out], "biases") if m.hasBias else None,
    })  # fmt: skip


def _solid_pooling(net: Network, layer: Layer, m: Any) -> None:
    kind = {"MAX": "max_pool", "AVERAGE": "avg_pool"}[word(m, "type")]
    args = {**_solid(m), "kernel_sizes": _of_three(m, "kernel")}
    if kind == "avg_pool":
        args["exclude_padding_from_average"] = bool(m.countExcludePadding)
    net.add(layer, kind, args)


def _solid_global(net: Network, layer: Layer, m: Any) -> None:
    kind = {"MAX": "reduce_max", "AVERAGE": "reduce_mean"}[word(m, "type")]
    net.add(layer, kind, {"axes": [-3, -2, -1], "keep_dims": True})


def _embedded(net: Network, layer: Layer, m: Any) -> None:
    """Look up rows by indices [..., 1, 1, 1]. The result is [..., width, 1, 1]."""
    rows = _looked_up(net, layer, m, int(m.inputDim), int(m.outputChannels), [-3, -2, -1])
    net.add(layer, "expand_dims", {"axes": [-2, -1]}, start=rows)


LAYERS: Mapping[str, Say] = {
    "batchedMatmul": _batched_matmul, "batchnorm": _batchnorm, "constantPad": _constant_pad,
    "convolution": _convolution, "convolution3d": _solid_convolution, "embedding": _embedded,
    "embeddingND": _embedding, "globalPooling3d": _solid_global, "innerProduct": _inner_product,
    "l2normalize": lambda net, layer, m: net.add(layer, "l2_norm", {
        "epsilon": np.float32(m.epsilon or 1e-6)}),
    "layerNormalization": _layer_norm,
    "lrn": lambda net, layer, m: net.add(layer, "local_response_norm", {
        "size": int(m.localSize), "alpha": np.float32(m.alpha), "beta": np.float32(m.beta),
        "k": np.float32(m.k or 1)}),
    "mvn": _mvn, "padding": _pad, "pooling": _pooling, "pooling3d": _solid_pooling,
    "resizeBilinear": _resized, "softmax": same("softmax", axis=-3),
    "softmaxND": lambda net, layer, m: net.add(layer, "softmax", {"axis": int(m.axis)}),
    "upsample": _upsample,
}  # fmt: skip
