"""Write convolutions, matrix products and pools, with their bias and activation. They have floats, or int8
with one scale of the weights for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.frontends.tails import Tail, clamped
from jangin.frontends.tflite.file import Scales, Tensor
from jangin.frontends.tflite.forms import Forms, turned
from jangin.frontends.writer import Name
from jangin.ir import core
from jangin.ir.dtype import F32, I8
from jangin.ir.graph import Array, CompileError, Node
from jangin.ir.records import dataclass

SAME, VALID = 0, 1
"""The paddings by their numbers in TFLite's schema."""
LEAST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Weights:
    """The weights and the bias of a product.

    Weights are f32, f16, or int8 with `scales`, one for each channel of the result. The bias is f32, or int32
    with the scales `units`."""

    data: Array
    bias: Array
    scales: tuple[float, ...] | None = None
    units: tuple[float, ...] | None = None


def scales(values: Sequence[float] | None, axis: int) -> Scales | None:
    return None if values is None else Scales(tuple(values), (0,) * len(values), axis)


class Products(Forms):
    def weights(self, node: Node, tail: Tail, channels: int) -> Weights:
        """Return the weights of a product, and its bias for each of the `channels`. The bias is 0 if there is
        none."""
        bias = tail.bias_name(node.outputs[0])
        held = np.zeros(1, np.float32) if bias is None else self.graph.constants[bias].reshape(-1)
        return Weights(self.graph.constants[node.inputs[1]], np.broadcast_to(held, channels))

    def is_whole(self, node: Node) -> bool:
        """Tell if a product is computed in int8 and has an int8 result."""
        return False

    def _operands(self, w: Weights, arranged: Array, axis: int, name: str) -> list[Name]:
        """Write weights and bias as constant tensors, and return their names.

        `arranged` holds the weights in TFLite's axis order, and `axis` is its output-channel axis. Float16
        weights are followed by a DEQUANTIZE.
        """
        data = self.array(arranged, name, scales(w.scales, axis))
        if w.data.dtype == np.float16:
            wide = self.tensor(Tensor(arranged.shape, F32), f"{name}.float32")
            data = self.emit("DEQUANTIZE", data, result=wide)
        return [data, self.array(np.ascontiguousarray(w.bias), f"{name}.bias", scales(w.units, 0))]

    # -- convolutions ---------------------------------------------------------------------------

    def write_conv(self, node: Node, attrs: core.Conv) -> None:
        x, w = node.inputs
        if w not in self.graph.constants or self.graph.dtype(node.outputs[0]) is not F32:
            raise CompileError(
                "TFLite files have no convolution of integers without scales, or by weights that are computed"
            )
        if attrs.layout != "first" or len(attrs.kernel) > 2:
            raise CompileError(
                f"a convolution of {len(attrs.kernel)} spatial axes can't be expressed in TFLite"
            )
        channels, (outputs, inputs, *_) = self.sizes(x)[1], self.sizes(w)
        whole = self.is_whole(node)
        tail = self.tail(node.outputs[0], 1, whole)
        held = self.weights(node, tail, outputs)
        filters = held.data[:, :, None] if len(attrs.kernel) == 1 else held.data
        single = inputs == 1 and attrs.groups == channels > 1
        order = (1, 2, 3, 0) if single else (0, 2, 3, 1)
        operands = self._operands(held, filters.transpose(order), 3 if single else 0, w)
        window = _square(attrs, self.sizes(x), self.sizes(node.outputs[0]))
        image, padding = self._image(x, whole), SAME if window.same else VALID
        if not window.same and window.off:
            image = self._padded(image, window)
        options: dict[str, Any] = {"DepthMultiplier": outputs // channels} if single else {}
        options |= {"Padding": padding, **window.steps}
        options |= {"DilationHFactor": window.dilations[0], "DilationWFactor": window.dilations[1]}
        y = self.give(tail.result, True, whole)
        operation = "DEPTHWISE_CONV_2D" if single else "CONV_2D"
        self._back(operation, [image, *operands], y, **options, **self.fused(tail))

    def _image(self, x: str, whole: bool) -> Name:
        """Return a value's tensor as an image with two spatial axes. If it has only one, it becomes an image
        of height 1. `whole` tells if it is int8."""
        name = self.read(x, True, whole)
        held = self.file.tensors[name]
        if len(held.shape) == 4:
            return name
        image = self.tensor(_higher(held), f"{name}.image")
        self.reshaped(name, image)
        return image

    def _back(self, operation: str, inputs: Sequence[Name], y: Name, **given: Any) -> None:
        """Add an operator on images, whose result is `y`. If `y` has only one spatial axis, it is reshaped
        from an image of height 1."""
        held = self.file.tensors[y]
        if len(held.shape) == 4:
            self.emit(operation, *inputs, result=y, **given)
            return
        image = self.tensor(_higher(held), f"{y}.image")
        self.emit(operation, *inputs, result=image, **given)
        self.reshaped(image, y)

    def _padded(self, x: Name, window: Window, fill: float | None = None) -> Name:
        """Return an image with the padding of windows added, which has zeros or `fill`. For an int8 image,
        `fill` stands for the lowest integer."""
        held = self.file.tensors[x]
        sides = list(zip(window.begins, window.ends, strict=True))
        n, *spatial, c = held.shape
        shape = (n, *(d + b + e for d, (b, e) in zip(spatial, sides, strict=True)), c)
        padded = self.tensor(Tensor(shape, held.dtype, held.scales), f"{x}.pad")
        pads = self.array(np.array([(0, 0), *sides, (0, 0)], np.int32), "pads")
        if fill is None:
            return self.emit("PAD", x, pads, result=padded)
        filled = np.array(fill, np.float32) if held.scales is None else np.array(I8.limits[0], np.int8)
        return self.emit("PADV2", x, pads, self.array(filled, "fill", held.scales), result=padded)

    # -- pools ----------------------------------------------------------------------------------

    def write_pool(self, node: Node, attrs: core.Pool) -> None:
        x, y = node.inputs[0], node.outputs[0]
        averages, sizes = attrs.combiner == "sum", self.sizes(x)
        if attrs.layout != "first" or len(attrs.kernel) > 2 or self.graph.dtype(x) is not F32:
            raise CompileError("a pool of integers or of 3 spatial axes can't be expressed in TFLite")
        if (averages and not attrs.average) or any(d > 1 for d in attrs.dilations):
            raise CompileError("TFLite's pools take averages or maxima, of windows without dilations")
        if averages and not any(attrs.pads) and attrs.kernel == sizes[2:]:
            self.reduced("MEAN", x, y, range(2, len(sizes)), True)
            return
        window = _square(attrs, sizes, self.sizes(y))
        counts = averages and attrs.average == "all"
        if averages and window.off and ((not counts and not window.same) or (counts and window.beyond)):
            raise CompileError(
                "an average over windows that reach so far beyond the image can't be expressed in TFLite"
            )
        whole = x in self.scales
        image, padding = self._image(x, whole), SAME if window.same and not counts else VALID
        if window.off and padding == VALID:
            image = self._padded(image, window, None if averages or self.is_positive(x) else LEAST)
        options = {"Padding": padding, **window.steps}
        options |= {"FilterHeight": window.kernel[0], "FilterWidth": window.kernel[1]}
        operation = "AVERAGE_POOL_2D" if averages else "MAX_POOL_2D"
        self._back(operation, [image], self.give(y, True, whole), **options)

    def is_positive(self, value: str) -> bool:
        """Tell if all elements of a value are known to be at least 0."""
        if value in self.scales:
            return self.scales[value].zero[0] == I8.limits[0]
        maker = self.makers.get(value)
        bounds = (
            clamped(maker.attrs.body) if maker is not None and isinstance(maker.attrs, core.Map) else None
        )
        return bounds is not None and bounds[0] >= 0

    def reduced(self, operation: str, x: str, y: str, axes: Sequence[int], keeps: bool) -> None:
        """Write a reduction over some axes of a value. `keeps` tells if these axes are kept, with size 1."""
        whole, last, rank = x in self.scales and y in self.scales, self.is_last(x), len(self.sizes(x))
        order = turned(rank) if last else list(range(rank))
        kept = [a for a in order if a not in axes]
        if not keeps and kept != sorted(kept):
            last, order = False, list(range(rank))
        places = self.integers(sorted(order.index(a) for a in axes))
        result = self.give(y, last and keeps, whole)
        self.emit(operation, self.read(x, last, whole), places, result=result, KeepDims=keeps)

    # -- matrix products ------------------------------------------------------------------------

    def write_matmul(self, node: Node, attrs: core.MatMul) -> None:
        x, w = node.inputs
        if any(self.graph.dtype(n) is not F32 for n in (x, w, *node.outputs)):
            raise CompileError("TFLite files have no product of integers without scales")
        held = self.graph.constants.get(w)
        if held is None or held.ndim != 2 or attrs.transpose_a or x in self.graph.constants:
            y = self.give(node.outputs[0])
            self.emit(
                "BATCH_MATMUL", self.read(x), self.read(w), result=y, AdjX=attrs.transpose_a,
                AdjY=attrs.transpose_b,
            )  # fmt: skip
            return
        whole = self.is_whole(node)
        tail = self.tail(node.outputs[0], -1, whole)
        weights = self.weights(node, tail, self.sizes(node.outputs[0])[-1])
        arranged = weights.data if attrs.transpose_b else weights.data.T
        operands = self._operands(weights, arranged, 0, w)
        y = self.give(tail.result, False, whole)
        self.emit(
            "FULLY_CONNECTED", self.read(x, False, whole), *operands, result=y, KeepNumDims=True,
            **self.fused(tail),
        )  # fmt: skip


@dataclass(frozen=True)
class Window:
    """The windows over an image, and the padding around it.

    `same` tells if the padding is the operators' padding SAME. `off` tells if there is any padding. `beyond`
    tells if the windows need more padding than the model declares."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    same: bool
    beyond: bool

    @property
    def off(self) -> bool:
        return any((*self.begins, *self.ends))

    @property
    def steps(self) -> dict[str, int]:
        return {"StrideH": self.strides[0], "StrideW": self.strides[1]}


def _square(attrs: core.Conv | core.Pool, given: Sequence[int], wanted: Sequence[int]) -> Window:
    """Return the windows of a convolution or pool over an image. An image with one spatial axis has a height
    of 1. Raises CompileError for negative padding."""
    half, one = len(attrs.kernel), (1,) * (2 - len(attrs.kernel))
    kernel, strides, dilations = ((*one, *v) for v in (attrs.kernel, attrs.strides, attrs.dilations))
    begins, declared = ((*(0 for _ in one), *v) for v in (attrs.pads[:half], attrs.pads[half:]))
    if min(attrs.pads) < 0:
        raise CompileError("TFLite files have no negative padding")
    ends, same = [], True
    for i, (size, count) in enumerate(zip((*one, *given[2:]), (*one, *wanted[2:]), strict=True)):
        span = (kernel[i] - 1) * dilations[i] + 1
        ends.append(max((count - 1) * strides[i] + span - size - begins[i], 0))
        most = -(-size // strides[i])
        same &= count == most and begins[i] == max((most - 1) * strides[i] + span - size, 0) // 2
    beyond = any(e > d for e, d in zip(ends, declared, strict=True))
    return Window(kernel, strides, dilations, begins, tuple(ends), same, beyond)


def _higher(t: Tensor) -> Tensor:
    n, *rest = t.shape
    return replace(t, shape=(n, 1, *rest))
