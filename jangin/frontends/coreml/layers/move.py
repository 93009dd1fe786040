"""Lower layers that move, sort, select and create elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.coreml.layers.network import Layer, Network, Say, same, word
from jangin.ir.graph import CompileError


def _constant(net: Network, layer: Layer, m: Any) -> None:
    net.constants[layer.output[0]] = net.weights(m.data, [int(n) for n in m.shape], "numbers")


def _permute(net: Network, layer: Layer, m: Any) -> None:
    """Permute the axes sequence, channels, rows and columns. Raises CompileError if the sequence's axis
    doesn't stay first."""
    axes = [int(a) for a in m.axis]
    if axes[:1] != [0] or net.exact:
        raise CompileError(f"{net.source}: moving the sequence's axis is not supported")
    net.add(layer, "transpose", {"perm": axes})


def _flatten(net: Network, layer: Layer, m: Any) -> None:
    """Flatten channels, rows and columns into the axis of channels. Rows and columns then have size 1."""
    start = ""
    if word(m, "mode") == "CHANNEL_LAST":
        start = net.add(layer, "transpose", {"perm": [0, 2, 3, 1]}, end=f"{layer.output[0]} turned")
    rows = net.add(layer, "flatten2d", {"axis": 1}, start=start, end=f"{layer.output[0]} flat")
    net.add(layer, "expand_dims", {"axes": [2, 3]}, start=rows)


def _reshape(net: Network, layer: Layer, m: Any) -> None:
    """Reshape to the target's channels, rows and columns. The elements are taken in this order of axes, or
    with the channels as the last axis."""
    c, h, w = [int(n) for n in m.targetShape][-3:]
    if word(m, "mode") == "CHANNEL_FIRST":
        net.add(layer, "reshape", {"shape": [-1, c, h, w]})
        return
    out = layer.output[0]
    turned = net.add(layer, "transpose", {"perm": [0, 2, 3, 1]}, end=f"{out} turned")
    shaped = net.add(layer, "reshape", {"shape": [-1, h, w, c]}, start=turned, end=f"{out} shaped")
    net.add(layer, "transpose", {"perm": [0, 3, 1, 2]}, start=shaped)


def _slice(net: Network, layer: Layer, m: Any) -> None:
    axis = {"CHANNEL_AXIS": -3, "HEIGHT_AXIS": -2, "WIDTH_AXIS": -1}[word(m, "axis")]
    first, last, stride = ([0] * 4, [0] * 4, [1] * 4)
    first[axis], last[axis], stride[axis] = int(m.startIndex), int(m.endIndex), int(m.stride) or 1
    mask = [n != 4 + axis for n in range(4)]
    args = {"begin": first, "end": last, "stride": stride, "begin_mask": mask}
    net.add(layer, "slice_by_index", {**args, "end_mask": mask})


def _slice_static(net: Network, layer: Layer, m: Any) -> None:
    args = {
        "begin": list(m.beginIds), "end": list(m.endIds), "stride": list(m.strides),
        "begin_mask": list(m.beginMasks), "end_mask": list(m.endMasks),
        "squeeze_mask": list(m.squeezeMasks) or None,
    }  # fmt: skip
    net.add(layer, "slice_by_index", args)


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
    kind, size = word(m, "mode"), int(m.blockSize)
    name = "upscale_factor" if kind == "PIXEL_SHUFFLE" else "block_size"
    net.add(layer, kind.lower(), {name: size})


def _axis(kind: str, *names: str) -> Say:
    return lambda net, layer, m: net.several(layer, kind, {n: getattr(m, n) for n in names})


def _top(net: Network, layer: Layer, m: Any) -> None:
    """Add nodes for the largest or smallest values along an axis, and for their positions. The positions are
    floats."""
    if len(layer.input) > 1:
        raise CompileError(f"{net.source}: a count that is computed is not supported")
    best, *places = layer.output
    args = {"axis": int(m.axis), "k": int(m.K), "ascending": bool(m.useBottomK)}
    indices = [f"{n} integers" for n in places]
    net.node("mil.topk", {"x": [layer.input[0]]}, [best, *indices], args)
    for name, integers in zip(places, indices, strict=True):
        net.node("mil.cast", {"x": [integers]}, [name], {"dtype": "fp32"})


LONGEST = 1 << 24
"""The most elements of a range that is stored as a constant, 64 MiB of f32. Damaged files would otherwise
take all memory."""


def _crop(net: Network, layer: Layer, m: Any) -> None:
    """Crop rows and columns by the given amounts."""
    edges = [(int(b.startEdgeSize), int(b.endEdgeSize)) for b in m.cropAmounts.borderAmounts]
    if len(layer.input) > 1 or len(edges) != 2:
        raise CompileError(f"{net.source}: cropping to another input's size is not supported")
    rank = 4
    begin, end = [0] * rank, [0] * rank
    for n, (low, high) in enumerate(edges, rank - 2):
        begin[n], end[n] = low, -high
    mask = [e == 0 for e in end]
    net.add(layer, "slice_by_index", {"begin": begin, "end": end, "end_mask": mask})


def _by_places(kind: str) -> Say:
    """Return a function that adds an operation on elements at indices, along the layer's axis if it has
    one."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        axis = {"axis": int(m.axis)} if hasattr(m, "axis") else {}
        net.add(layer, kind, axis, inputs=("x", "indices"))

    return say


def _scattered(kind: str) -> Say:
    def say(net: Network, layer: Layer, m: Any) -> None:
        axis = {"axis": int(m.axis)} if hasattr(m, "axis") else {}
        mode = word(m, "mode").removeprefix("SCATTER_").lower()
        net.add(layer, kind, {**axis, "mode": mode}, inputs=("data", "indices", "updates"))

    return say


def _reverse(net: Network, layer: Layer, m: Any) -> None:
    net.add(layer, "reverse", {"axes": [n for n, turned in enumerate(m.reverseDim) if turned]})


def _integers(net: Network, layer: Layer, which: int) -> str:
    """Convert an input of floats to integers. `which` is the input's position. Return the new value's
    name."""
    name = f"{layer.output[0]} integers {which}"
    return net.node("mil.cast", {"x": [layer.input[which]]}, [name], {"dtype": "int32"})


def _sizes(net: Network, layer: Layer, which: int) -> str:
    """Add a node that gives the shape of an input as a vector. Return the vector's name."""
    return net.node("mil.shape", {"x": [layer.input[which]]}, [f"{layer.output[0]} sizes"])


def _filled(net: Network, layer: Layer, value: float, shape: Any) -> None:
    """Add an array in which all elements are `value`. `shape` is a list of sizes, or the name of a value that
    holds them."""
    if isinstance(shape, str):
        net.node("mil.fill", {"shape": [shape]}, layer.output, {"value": np.float32(value)})
    else:
        net.node("mil.fill", {}, layer.output, {"value": np.float32(value), "shape": list(shape)})


def _broadcast(net: Network, layer: Layer, shape: Any) -> None:
    """Broadcast the input to a shape, by multiplying it by ones."""
    ones = Layer((), (f"{layer.output[0]} ones",))
    _filled(net, ones, 1.0, shape)
    net.node("mil.mul", {"x": [layer.input[0]], "y": list(ones.output)}, layer.output)


def _reshaped(net: Network, layer: Layer, shape: str) -> None:
    net.node("mil.reshape", {"x": [layer.input[0]], "shape": [shape]}, layer.output)


def _range(net: Network, layer: Layer, m: Any) -> None:
    count = (m.endValue - m.startValue) / m.stepSizeValue if m.stepSizeValue else np.inf
    if not count <= LONGEST:
        raise CompileError(f"{net.source}: the range has {count} numbers, at most {LONGEST} are made")
    steps = np.arange(max(int(np.ceil(count)), 0), dtype=np.float32)
    net.constants[layer.output[0]] = steps * np.float32(m.stepSizeValue) + np.float32(m.startValue)


def _band(lower: str, upper: str) -> Say:
    """Return a function that keeps a band around the diagonal, and sets all other elements to 0. `lower` and
    `upper` are the layer's fields with the band's widths below and above the diagonal. A width of -1 keeps
    all elements on its side."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        bounds = [int(getattr(m, n)) if n else -1 for n in (lower, upper)]
        net.add(layer, "band_part", {"lower": bounds[0], "upper": bounds[1]})

    return say


def _triangle(below: bool) -> Say:
    """Return a function that keeps the elements below the k-th diagonal or above it, with the diagonal. All
    other elements become 0."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        most = int(m.k) if below else -int(m.k)
        if most < 0:
            raise CompileError(f"{net.source}: a triangle without the main diagonal is not supported")
        net.add(layer, "band_part", {"lower": -1, "upper": most} if below else {"lower": most, "upper": -1})

    return say


def _one_hot(net: Network, layer: Layer, m: Any) -> None:
    args = {
        "one_hot_vector_size": int(m.oneHotVectorSize), "axis": int(m.axis),
        "on_value": np.float32(m.onValue), "off_value": np.float32(m.offValue),
    }  # fmt: skip
    net.add(layer, "one_hot", args, inputs=("indices",))


def _ordered(net: Network, layer: Layer, m: Any) -> None:
    args = {"axis": int(m.axis), "ascending": not m.descending}
    places = net.add(layer, "argsort", args, end=f"{layer.output[0]} integers")
    net.add(layer, "cast", {"dtype": "fp32"}, start=places)


def _floats(kind: str) -> Say:
    """Return a function that converts a layer to MIL's operation `kind`, and its integer results to
    floats."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        integers = net.add(layer, kind, end=f"{layer.output[0]} integers")
        net.add(layer, "cast", {"dtype": "fp32"}, start=integers)

    return say


def _listed(kind: str, key: str, field: str, unless: str = "") -> Say:
    """Return a function that converts a layer to MIL's operation `kind` of one input and a list of integers.

    `key` is MIL's name of the list, and `field` is the layer's. There is no list if the layer's flag `unless`
    is set."""
    return lambda net, layer, m: net.add(
        layer, kind, {key: None if unless and getattr(m, unless) else list(getattr(m, field))}
    )


LAYERS: Mapping[str, Say] = {
    "argMax": _arg("argmax"), "argMin": _arg("argmin"), "argSort": _ordered,
    "broadcastToDynamic": lambda net, layer, m: _broadcast(net, layer, _integers(net, layer, 1)),
    "broadcastToLike": lambda net, layer, m: _broadcast(net, layer, _sizes(net, layer, 1)),
    "broadcastToStatic": lambda net, layer, m: _broadcast(net, layer, m.targetShape),
    "concat": lambda net, layer, m: net.several(layer, "concat", {"axis": -5 if m.sequenceConcat else -3}),
    "concatND": _axis("concat", "axis", "interleave"), "crop": _crop,
    "cumSum": lambda net, layer, m: net.add(layer, "cumsum", {
        "axis": int(m.axis), "exclusive": bool(m.excludeFinalSum), "reverse": bool(m.reverse)}),
    "expandDims": _listed("expand_dims", "axes", "axes"),
    "fillDynamic": lambda net, layer, m: _filled(net, layer, m.value, _integers(net, layer, 0)),
    "fillLike": lambda net, layer, m: _filled(net, layer, m.value, _sizes(net, layer, 0)),
    "fillStatic": lambda net, layer, m: _filled(net, layer, m.value, m.targetShape),
    "flatten": _flatten,
    "flattenTo2D": lambda net, layer, m: net.add(layer, "flatten2d", {"axis": int(m.axis)}),
    "gather": _by_places("gather"), "gatherAlongAxis": _by_places("gather_along_axis"),
    "gatherND": _by_places("gather_nd"), "getShape": _floats("shape"), "loadConstant": _constant,
    "loadConstantND": _constant, "lowerTriangular": _triangle(True),
    "matrixBandPart": _band("numLower", "numUpper"), "oneHot": _one_hot, "permute": _permute,
    "rangeStatic": _range, "rankPreservingReshape": _listed("reshape", "shape", "targetShape"),
    "reorganizeData": _reorganized, "reshape": _reshape,
    "reshapeDynamic": lambda net, layer, m: _reshaped(net, layer, _integers(net, layer, 1)),
    "reshapeLike": lambda net, layer, m: _reshaped(net, layer, _sizes(net, layer, 1)),
    "reshapeStatic": _listed("reshape", "shape", "targetShape"), "reverse": _reverse,
    "scatterAlongAxis": _scattered("scatter_along_axis"), "scatterND": _scattered("scatter_nd"),
    "slidingWindows": lambda net, layer, m: net.add(layer, "sliding_windows", {
        "axis": int(m.axis), "size": int(m.windowSize), "stride": int(m.step) or 1}),
    "slice": _slice, "sliceStatic": _slice_static, "split": same("split", axis=-3),
    "splitND": lambda net, layer, m: net.add(
        layer, "split", {"axis": int(m.axis), "split_sizes": list(m.splitSizes) or None}),
    "squeeze": _listed("squeeze", "axes", "axes", "squeezeAll"), "stack": _axis("stack", "axis"),
    "tile": _listed("tile", "reps", "reps"), "topK": _top,
    "transpose": _listed("transpose", "perm", "axes"), "upperTriangular": _triangle(False),
    "whereNonZero": _floats("non_zero"),
}  # fmt: skip
