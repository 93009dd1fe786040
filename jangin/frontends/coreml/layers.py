"""Neural networks (specifications 1 to 5): each layer said in MIL's operations, which have the lowerings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.graph import Array, CompileError, ImportedAttributes, Node

Layer = Any
EXACT = 1
"""How inputs' shapes are meant: as they are, or (0) as a sequence, a batch, channels, rows and columns."""


class Network:
    """The layers of a network as nodes. `exact`: shapes are as they are said; else arrays have four axes, the
    first of them the batch."""

    def __init__(self, message: Any) -> None:
        self.layers = message.layers
        self.exact = message.arrayInputShapeMapping == EXACT
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.source = self.name = ""
        if message.preprocessing:
            raise CompileError("preprocessing of images is not supported: it belongs before the network")

    def read(self) -> None:
        for layer in self.layers:
            kind = layer.WhichOneof("layer") or "empty"
            self.name, self.source = layer.name, f"{kind} '{layer.name}'"
            if not layer.output:
                raise CompileError(f"{self.source} gives nothing")
            if kind in LAYERS:
                LAYERS[kind](self, layer, getattr(layer, kind))
            else:
                self.node(f"nn.{kind}", {"x": list(layer.input)}, list(layer.output))

    # -- nodes ----------------------------------------------------------------------------------

    def add(
        self, layer: Layer, kind: str, given: Mapping[str, Any] | None = None, *,
            inputs: Sequence[str] = ("x",),
        start: str = "", end: str = "",
    ) -> str:  # fmt: skip
        """A node of MIL's for the layer in hand: its inputs by MIL's names, constants and texts beside them.
        `start` stands for the first input, `end` for the first output."""
        names = list(layer.input)
        if start:
            names[0] = start
        if len(names) < len(inputs):
            raise CompileError(f"{self.source} needs {len(inputs)} inputs, and has {len(names)}")
        found = {n: [name] for n, name in zip(inputs, names, strict=False)}
        outputs = [end] if end else list(layer.output)
        return self.node(f"mil.{kind}", found, outputs, given or {})

    def node(
        self,
        kind: str,
        inputs: Mapping[str, list[str]],
        outputs: list[str],
        given: Mapping[str, Any] | None = None,
    ) -> str:
        whole = {k: list(v) for k, v in inputs.items()}
        texts = {}
        for key, value in (given or {}).items():
            if isinstance(value, str):
                texts[key] = value
            elif value is not None:
                name = f"{key} of {outputs[0]}"
                self.constants[name] = np.asarray(value)
                whole[key] = [name]
        lists = tuple((k, len(v)) for k, v in whole.items())
        attrs = ImportedAttributes(f"coreml.{kind}", {**texts, "inputs": lists})
        read = tuple(n for v in whole.values() for n in v)
        self.nodes.append(Node(outputs[0], read, tuple(outputs), attrs, self.source))
        return outputs[0]

    def several(self, layer: Layer, kind: str, given: Mapping[str, Any]) -> None:
        """A node of all inputs together."""
        self.node(f"mil.{kind}", {"values": list(layer.input)}, list(layer.output), given)

    def chain(self, layer: Layer, kind: str) -> None:
        """A node of two inputs after another, for as many as there are."""
        names, last = list(layer.input), layer.output[0]
        for n, name in enumerate(names[1:], 1):
            end = last if n == len(names) - 1 else f"{last} {n}"
            self.node(f"mil.{kind}", {"x": [names[0]], "y": [name]}, [end])
            names[0] = end

    def weights(self, message: Any, shape: Sequence[int], what: str) -> Array:
        """Weights as f32, in whichever form they are kept."""
        count = int(np.prod(shape))
        if len(message.floatValue):
            found = np.array(message.floatValue, np.float32)
        elif message.float16Value:
            found = np.frombuffer(message.float16Value, np.float16).astype(np.float32)
        elif message.rawValue:
            found = _unpacked(message, shape, count, f"{what} of {self.source}")
        else:
            found = np.zeros(0, np.float32)
        if found.size != count:
            raise CompileError(f"{self.source}: its {what} are {found.size}, and should be {list(shape)}")
        return found.reshape(shape)


def _unpacked(message: Any, shape: Sequence[int], count: int, what: str) -> Array:
    """Quantized weights: so many bits each, the highest first; by a scale for each output, or a table."""
    q, bits = message.quantization, int(message.quantization.numberOfBits)
    if not 1 <= bits <= 8:
        raise CompileError(f"the {what} are of {bits} bits each, which is not supported")
    flags = np.unpackbits(np.frombuffer(message.rawValue, np.uint8))[: count * bits]
    if flags.size != count * bits:
        raise CompileError(f"the {what} are too few")
    codes = (flags.reshape(-1, bits).astype(np.int64) << np.arange(bits)[::-1]).sum(1)
    if q.WhichOneof("QuantizationType") == "lookupTableQuantization":
        table = np.array(q.lookupTableQuantization.floatValue, np.float32)
        return np.asarray(table[np.minimum(codes, max(table.size - 1, 0))])
    scale, bias = (np.array(v, np.float32) for v in (q.linearQuantization.scale, q.linearQuantization.bias))
    rows = codes.reshape(shape[0], -1)
    offset = bias.reshape(-1, 1) if bias.size else np.float32(0)
    return np.asarray(rows * scale.reshape(-1, 1) + offset, np.float32)


def _word(m: Any, field: str) -> str:
    return str(m.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(m, field)].name)


Say = Callable[[Network, Layer, Any], Any]


def _same(kind: str, **given: Any) -> Say:
    return lambda net, layer, m: net.add(layer, kind, given)


def _two(kind: str) -> Say:
    return lambda net, layer, m: net.add(layer, kind, inputs=("x", "y"))


def _with_number(kind: str) -> Say:
    """Of two inputs, or of one and the number `alpha`."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        if len(layer.input) > 1:
            net.chain(layer, kind)
        else:
            net.add(layer, kind, {"y": np.float32(m.alpha)})

    return say


def _padding(net: Network, m: Any) -> dict[str, Any]:
    kind = m.WhichOneof("ConvolutionPaddingType" if hasattr(m, "nGroups") else "PoolingPaddingType")
    if kind == "same":
        lower = _word(m.same, "asymmetryMode") == "TOP_LEFT_HEAVY"
        return {"pad_type": "same_lower" if lower else "same"}
    if kind == "includeLastPixel":
        raise CompileError(f"{net.source}: padding that includes the last pixel is not supported")
    edges = [(int(b.startEdgeSize), int(b.endEdgeSize)) for b in m.valid.paddingAmounts.borderAmounts]
    return {"pad_type": "custom", "pad": np.array(edges or [(0, 0), (0, 0)]).reshape(-1)}


def _convolution(net: Network, layer: Layer, m: Any) -> None:
    kernel = list(m.kernelSize) or [3, 3]
    out, groups, channels = int(m.outputChannels), int(m.nGroups) or 1, int(m.kernelChannels)
    shape = [channels, out // groups, *kernel] if m.isDeconvolution else [out, channels, *kernel]
    given = {
        "weight": net.weights(m.weights, shape, "weights"), "strides": list(m.stride) or [1, 1],
        "dilations": list(m.dilationFactor) or [1, 1], "groups": groups, **_padding(net, m),
        "bias": net.weights(m.bias, [out], "biases") if m.hasBias else None,
    }  # fmt: skip
    if m.isDeconvolution and len(m.outputShape):
        given["output_shape"] = [1, out, *m.outputShape]
    net.add(layer, "conv_transpose" if m.isDeconvolution else "conv", given)


def _pooling(net: Network, layer: Layer, m: Any) -> None:
    kind = _word(m, "type")
    if m.globalPooling:
        how = {"MAX": "reduce_max", "AVERAGE": "reduce_mean", "L2": "reduce_l2_norm"}[kind]
        net.add(layer, how, {"axes": [-2, -1], "keep_dims": True})
        return
    given = {
        "kernel_sizes": list(m.kernelSize) or [3, 3], "strides": list(m.stride) or [1, 1], **_padding(net, m),
        "exclude_padding_from_average": bool(m.avgPoolExcludePadding),
    }  # fmt: skip
    net.add(layer, {"MAX": "max_pool", "AVERAGE": "avg_pool", "L2": "l2_pool"}[kind], given)


ACTIVATIONS = {
    "linear": "linear_activation", "ReLU": "relu", "leakyReLU": "leaky_relu",
    "thresholdedReLU": "thresholded_relu",
    "tanh": "tanh", "scaledTanh": "scaled_tanh", "sigmoid": "sigmoid", "sigmoidHard": "sigmoid_hard",
    "ELU": "elu",
    "softsign": "softsign", "softplus": "softplus",
}  # fmt: skip


def _activation(net: Network, layer: Layer, m: Any) -> None:
    kind = m.WhichOneof("NonlinearityType") or ""
    if kind == "PReLU":
        alpha = m.PReLU.alpha
        net.add(layer, "prelu", {"alpha": net.weights(alpha, [len(alpha.floatValue)], "slopes")})
    elif kind in ACTIVATIONS:
        inner = getattr(m, kind)
        given = {f.name: np.float32(getattr(inner, f.name)) for f in inner.DESCRIPTOR.fields}
        net.add(layer, ACTIVATIONS[kind], given)
    else:
        raise CompileError(f"{net.source}: the activation {kind} is not supported")


def _inner_product(net: Network, layer: Layer, m: Any) -> None:
    out = int(m.outputChannels)
    given = {
        "weight": net.weights(m.weights, [out, int(m.inputChannels)], "weights"),
        "bias": net.weights(m.bias, [out], "biases") if m.hasBias else None,
    }
    if net.exact:
        net.add(layer, "linear", given)
        return
    flat = net.add(layer, "flatten2d", {"axis": 1}, end=f"{layer.output[0]} flat")
    rows = net.add(layer, "linear", given, start=flat, end=f"{layer.output[0]} rows")
    net.add(layer, "expand_dims", {"axes": [2, 3]}, start=rows)


def _batchnorm(net: Network, layer: Layer, m: Any) -> None:
    parts = {"gamma": m.gamma, "beta": m.beta}
    given: dict[str, Any] = {k: net.weights(v, [int(m.channels)], k) for k, v in parts.items()}
    given["epsilon"] = np.float32(m.epsilon)
    if m.instanceNormalization:
        net.add(layer, "instance_norm", given)
        return
    given |= {k: net.weights(getattr(m, k), [int(m.channels)], k) for k in ("mean", "variance")}
    net.add(layer, "batch_norm", given)


def _unary(net: Network, layer: Layer, m: Any) -> None:
    """A function of the input times a scale plus a shift."""
    kind = _word(m, "type")
    known = {
        "SQRT": ("sqrt", {}), "RSQRT": ("rsqrt", {"epsilon": np.float32(m.epsilon)}), "EXP": ("exp", {}),
        "INVERSE": ("inverse", {"epsilon": np.float32(m.epsilon)}), "ABS": ("abs", {}),
        "LOG": ("log", {"epsilon": np.float32(m.epsilon)}), "POWER": ("pow", {"y": np.float32(m.alpha)}),
        "THRESHOLD": ("threshold", {"alpha": np.float32(m.alpha)}),
    }  # fmt: skip
    start = ""
    scale = m.scale if m.scale else 1.0
    if (scale, m.shift) != (1.0, 0.0):
        line = {"alpha": np.float32(scale), "beta": np.float32(m.shift)}
        start = net.add(layer, "linear_activation", line, end=f"{layer.output[0]} scaled")
    name, given = known[kind]
    net.add(layer, name, given, start=start)


def _upsample(net: Network, layer: Layer, m: Any) -> None:
    scales = list(m.fractionalScalingFactor) or list(m.scalingFactor) or [1, 1]
    given: dict[str, Any] = {
        f"scale_factor_{n}": np.float32(s) for n, s in zip(("height", "width"), scales, strict=True)
    }
    if _word(m, "mode") == "NN":
        net.add(layer, "upsample_nearest_neighbor", given)
        return
    how = _word(m, "linearUpsampleMode")
    given |= {
        "align_corners": how == "ALIGN_CORNERS_TRUE",
        "half_pixel_centers": how == "ALIGN_CORNERS_FALSE",
    }
    net.add(layer, "upsample_bilinear", given)


def _pad(net: Network, layer: Layer, m: Any) -> None:
    kind = m.WhichOneof("PaddingType") or "constant"
    edges = [(int(b.startEdgeSize), int(b.endEdgeSize)) for b in m.paddingAmounts.borderAmounts]
    given = {"pad": np.array(edges or [(0, 0), (0, 0)]).reshape(-1)}
    modes = {"constant": "constant", "reflection": "reflect", "replication": "replicate"}
    net.add(layer, "pad", {**given, "mode": modes[kind], "constant_val": np.float32(m.constant.value)})


def _constant_pad(net: Network, layer: Layer, m: Any) -> None:
    if m.padToGivenOutputSizeMode or len(layer.input) > 1:
        raise CompileError(f"{net.source}: padding to sizes that are given is not supported")
    net.add(
        layer, "pad", {"pad": list(m.padAmounts), "mode": "constant", "constant_val": np.float32(m.value)}
    )


def _line(net: Network, layer: Layer, factor: Array | None, offset: Array | None) -> None:
    """Times a factor, plus an offset, of [C], [C, 1, 1] or [C, H, W]."""
    start = ""
    if factor is not None:
        end = "" if offset is None else f"{layer.output[0]} scaled"
        start = net.add(layer, "mul", {"y": factor}, end=end)
    if offset is not None:
        net.add(layer, "add", {"y": offset}, start=start)


def _shaped(shape: Sequence[int]) -> list[int]:
    return [int(shape[0]), 1, 1] if len(shape) == 1 else [int(n) for n in shape]


def _scale(net: Network, layer: Layer, m: Any) -> None:
    offset = net.weights(m.bias, _shaped(m.shapeBias), "biases") if m.hasBias else None
    _line(net, layer, net.weights(m.scale, _shaped(m.shapeScale), "factors"), offset)


def _bias(net: Network, layer: Layer, m: Any) -> None:
    _line(net, layer, None, net.weights(m.bias, _shaped(m.shape), "biases"))


def _reduced(kind: str) -> Say:
    def say(net: Network, layer: Layer, m: Any) -> None:
        axes = None if m.reduceAll else list(m.axes)
        net.add(layer, f"reduce_{kind}", {"axes": axes, "keep_dims": bool(m.keepDims)})

    return say


def _reduce(net: Network, layer: Layer, m: Any) -> None:
    """Of an older network: over channels, rows or columns, which stay."""
    kinds = {
        "SUM": "sum", "AVG": "mean", "PROD": "prod", "LOGSUM": "log_sum", "SUMSQUARE": "sum_square",
        "L1": "l1_norm",
        "L2": "l2_norm", "MAX": "max", "MIN": "min",
    }  # fmt: skip
    axes = {"CHW": [-3, -2, -1], "HW": [-2, -1], "C": [-3], "H": [-2], "W": [-1]}[_word(m, "axis")]
    kind = _word(m, "mode")
    if kind not in kinds:
        raise CompileError(f"{net.source}: the mode {kind} is not supported")
    net.add(layer, f"reduce_{kinds[kind]}", {"axes": axes, "keep_dims": True})


def _constant(net: Network, layer: Layer, m: Any) -> None:
    net.constants[layer.output[0]] = net.weights(m.data, [int(n) for n in m.shape], "numbers")


def _permute(net: Network, layer: Layer, m: Any) -> None:
    """The order of sequence, channels, rows and columns, the first of which stays."""
    axes = [int(a) for a in m.axis]
    if axes[:1] != [0] or net.exact:
        raise CompileError(f"{net.source}: moving the sequence's axis is not supported")
    net.add(layer, "transpose", {"perm": axes})


def _flatten(net: Network, layer: Layer, m: Any) -> None:
    """Channels, rows and columns as channels."""
    start = ""
    if _word(m, "mode") == "CHANNEL_LAST":
        start = net.add(layer, "transpose", {"perm": [0, 2, 3, 1]}, end=f"{layer.output[0]} turned")
    rows = net.add(layer, "flatten2d", {"axis": 1}, start=start, end=f"{layer.output[0]} flat")
    net.add(layer, "expand_dims", {"axes": [2, 3]}, start=rows)


def _reshape(net: Network, layer: Layer, m: Any) -> None:
    if _word(m, "mode") == "CHANNEL_LAST":
        raise CompileError(f"{net.source}: reshaping with channels last is not supported")
    target = [int(n) for n in m.targetShape]
    net.add(layer, "reshape", {"shape": [-1, *target[-3:]]})


def _slice(net: Network, layer: Layer, m: Any) -> None:
    axis = {"CHANNEL_AXIS": -3, "HEIGHT_AXIS": -2, "WIDTH_AXIS": -1}[_word(m, "axis")]
    first, last, stride = ([0] * 4, [0] * 4, [1] * 4)
    first[axis], last[axis], stride[axis] = int(m.startIndex), int(m.endIndex), int(m.stride) or 1
    mask = [n != 4 + axis for n in range(4)]
    given = {"begin": first, "end": last, "stride": stride, "begin_mask": mask}
    net.add(layer, "slice_by_index", {**given, "end_mask": mask})


def _slice_static(net: Network, layer: Layer, m: Any) -> None:
    given = {
        "begin": list(m.beginIds), "end": list(m.endIds), "stride": list(m.strides),
        "begin_mask": list(m.beginMasks), "end_mask": list(m.endMasks),
        "squeeze_mask": list(m.squeezeMasks) or None,
    }  # fmt: skip
    net.add(layer, "slice_by_index", given)


def _batched_matmul(net: Network, layer: Layer, m: Any) -> None:
    given: dict[str, Any] = {"transpose_x": bool(m.transposeA), "transpose_y": bool(m.transposeB)}
    if len(layer.input) > 1:
        net.add(layer, "matmul", given, inputs=("x", "y"))
        return
    shape = [int(m.weightMatrixFirstDimension), int(m.weightMatrixSecondDimension)]
    end = f"{layer.output[0]} product" if m.hasBias else ""
    product = net.add(layer, "matmul", {**given, "y": net.weights(m.weights, shape, "weights")}, end=end)
    if m.hasBias:
        net.add(layer, "add", {"y": net.weights(m.bias, shape[1:], "biases")}, start=product)


def _layer_norm(net: Network, layer: Layer, m: Any) -> None:
    shape = [int(n) for n in m.normalizedShape]
    parts = {k: net.weights(getattr(m, k), shape, k) for k in ("gamma", "beta")}
    net.add(layer, "layer_norm", {**parts, "axes": list(range(-len(shape), 0)), "epsilon": np.float32(m.eps)})


def _embedding(net: Network, layer: Layer, m: Any) -> None:
    """Weights [width, words], by the last axis, of size 1."""
    width, words = int(m.embeddingSize), int(m.vocabSize)
    table = np.ascontiguousarray(net.weights(m.weights, [width, words], "weights").T)
    if m.hasBias:
        table = table + net.weights(m.bias, [width], "biases")
    rows = net.add(layer, "squeeze", {"axes": [-1]}, end=f"{layer.output[0]} places")
    whole = net.add(layer, "cast", {"dtype": "int32"}, start=rows, end=f"{layer.output[0]} integers")
    net.add(layer, "gather", {"x": table, "axis": 0}, inputs=("indices",), start=whole)


def _arg(kind: str) -> Say:
    def say(net: Network, layer: Layer, m: Any) -> None:
        places = net.add(
            layer,
            f"reduce_{kind}",
            {"axis": int(m.axis), "keep_dims": not m.removeDim},
            end=f"{layer.output[0]} places",
        )
        net.add(layer, "cast", {"dtype": "fp32"}, start=places)

    return say


def _reorganized(net: Network, layer: Layer, m: Any) -> None:
    kind, size = _word(m, "mode"), int(m.blockSize)
    name = "upscale_factor" if kind == "PIXEL_SHUFFLE" else "block_size"
    net.add(layer, kind.lower(), {name: size})


def _axis(kind: str, *names: str) -> Say:
    return lambda net, layer, m: net.several(layer, kind, {n: getattr(m, n) for n in names})


def _compared(kind: str) -> Say:
    """Of two inputs, or of one and the number `alpha`; a truth is 1."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        end = f"{layer.output[0]} truth"
        if len(layer.input) > 1:
            truth = net.add(layer, kind, inputs=("x", "y"), end=end)
        else:
            truth = net.add(layer, kind, {"y": np.float32(m.alpha)}, end=end)
        net.add(layer, "cast", {"dtype": "fp32"}, start=truth)

    return say


def _where(net: Network, layer: Layer, m: Any) -> None:
    truth = net.add(layer, "cast", {"dtype": "bool"}, end=f"{layer.output[0]} truth")
    net.add(layer, "select", inputs=("cond", "a", "b"), start=truth)


def _top(net: Network, layer: Layer, m: Any) -> None:
    """The values, and their places as floats."""
    if len(layer.input) > 1:
        raise CompileError(f"{net.source}: a count that is computed is not supported")
    best, *places = layer.output
    given = {"axis": int(m.axis), "k": int(m.K), "ascending": bool(m.useBottomK)}
    made = [f"{n} integers" for n in places]
    net.node("mil.topk", {"x": [layer.input[0]]}, [best, *made], given)
    for name, integers in zip(places, made, strict=True):
        net.node("mil.cast", {"x": [integers]}, [name], {"dtype": "fp32"})


def _mvn(net: Network, layer: Layer, m: Any) -> None:
    """Less the mean of each channel, or of all, and divided by the deviation."""
    axes, out = list(range(-3 if m.acrossChannels else -2, 0)), layer.output[0]
    whole = {"axes": axes, "keep_dims": True}
    mean = net.add(layer, "reduce_mean", whole, end=f"{out} mean")
    last = f"{out} centred" if m.normalizeVariance else out
    net.node("mil.sub", {"x": [layer.input[0]], "y": [mean]}, [last])
    if m.normalizeVariance:
        square = net.add(layer, "square", start=last, end=f"{out} square")
        variance = net.add(layer, "reduce_mean", whole, start=square, end=f"{out} variance")
        epsilon = {"epsilon": np.float32(m.epsilon)}
        scale = net.add(layer, "rsqrt", epsilon, start=variance, end=f"{out} scale")
        net.node("mil.mul", {"x": [last], "y": [scale]}, [out])


_PLAIN = [
    "ceil",
    "floor",
    "sign",
    "round",
    "exp2",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
]
LAYERS: Mapping[str, Say] = {
    **{name: _same(name) for name in _PLAIN},
    **{f"{n}Broadcastable": _two(k) for n, k in (
        ("mod", "mod"), ("min", "minimum"), ("max", "maximum"), ("add", "add"), ("pow", "pow"), ("divide",
            "real_div"),
        ("floorDiv", "floor_div"), ("multiply", "mul"), ("subtract", "sub"))},
    **{f"reduce{n}": _reduced(k) for n, k in (
        ("L1", "l1_norm"), ("L2", "l2_norm"), ("Max", "max"), ("Min", "min"), ("Sum", "sum"), ("Prod",
            "prod"),
        ("Mean", "mean"), ("LogSum", "log_sum"), ("SumSquare", "sum_square"), ("LogSumExp", "log_sum_exp"))},
    **{n: _compared(k) for n, k in (
        ("equal", "equal"), ("notEqual", "not_equal"), ("lessThan", "less"), ("lessEqual", "less_equal"),
        ("greaterThan", "greater"), ("greaterEqual", "greater_equal"))},
    "activation": _activation, "add": _with_number("add"), "argMax": _arg("argmax"), "argMin": _arg("argmin"),
    "batchedMatmul": _batched_matmul, "batchnorm": _batchnorm, "bias": _bias,
    "clip": lambda net, layer, m: net.add(layer, "clip", {"alpha": np.float32(m.minVal),
    "beta": np.float32(m.maxVal)}),
    "concat": lambda net, layer, m: net.several(layer, "concat", {"axis": -3}),
    "concatND": _axis("concat", "axis", "interleave"), "constantPad": _constant_pad,
    "convolution": _convolution,
    "cumSum": lambda net, layer, m: net.add(layer, "cumsum", {
        "axis": int(m.axis), "exclusive": bool(m.excludeFinalSum), "reverse": bool(m.reverse)}),
    "copy": _same("identity"), "embeddingND": _embedding,
    "expandDims": lambda net, layer, m: net.add(layer, "expand_dims", {"axes": list(m.axes)}),
    "flatten": _flatten, "flattenTo2D": lambda net, layer, m: net.add(layer, "flatten2d",
    {"axis": int(m.axis)}),
    "gelu": lambda net, layer, m: net.add(layer, "gelu", {"mode": _word(m, "mode")}),
    "innerProduct": _inner_product,
    "l2normalize": lambda net, layer, m: net.add(layer, "l2_norm", {"epsilon": np.float32(m.epsilon)}),
    "layerNormalization": _layer_norm, "loadConstant": _constant, "loadConstantND": _constant,
    "lrn": lambda net, layer, m: net.add(layer, "local_response_norm", {
        "size": int(m.localSize), "alpha": np.float32(m.alpha), "beta": np.float32(m.beta),
        "k": np.float32(m.k)}),
    "max": lambda net, layer, m: net.chain(layer, "maximum"), "min": lambda net, layer, m: net.chain(layer,
    "minimum"),
    "multiply": _with_number("mul"), "padding": _pad, "permute": _permute, "pooling": _pooling,
    "rankPreservingReshape": lambda net, layer, m: net.add(layer, "reshape", {"shape": list(m.targetShape)}),
    "reduce": _reduce, "reorganizeData": _reorganized, "reshape": _reshape,
    "reshapeStatic": lambda net, layer, m: net.add(layer, "reshape", {"shape": list(m.targetShape)}),
    "scale": _scale, "slice": _slice, "sliceStatic": _slice_static, "softmax": _same("softmax", axis=-3),
    "softmaxND": lambda net, layer, m: net.add(layer, "softmax", {"axis": int(m.axis)}),
    "split": _same("split", axis=-3),
    "splitND": lambda net, layer, m: net.add(
        layer, "split", {"axis": int(m.axis), "split_sizes": list(m.splitSizes) or None}),
    "squeeze": lambda net, layer, m: net.add(layer, "squeeze",
    {"axes": None if m.squeezeAll else list(m.axes)}),
    "stack": _axis("stack", "axis"),
    "tile": lambda net, layer, m: net.add(layer, "tile", {"reps": list(m.reps)}),
    "mvn": _mvn, "topK": _top, "transpose": lambda net, layer, m: net.add(layer, "transpose",
    {"perm": list(m.axes)}), "unary": _unary,
    "upsample": _upsample, "whereBroadcastable": _where,
}  # fmt: skip
"""By the names of the layers' parameters."""
