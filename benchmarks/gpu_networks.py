"""Networks with weights from a seed, made here as ONNX models. So a machine with a GPU needs no export
before."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = MappingProxyType({
    "float32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
    "float64": (TensorProto.DOUBLE, np.dtype(np.float64)),
})  # fmt: skip
SEED = 0
BYTES = "int8"
"""The kind of networks in float32 whose convolutions and dense layers multiply bytes (QDQ)."""
REACH = 4.0
"""The largest number that a byte stands for. Values are near 1, as weights are made so."""


class Net:
    """The nodes and constants of one graph, in one element type. Methods return the name of their result."""

    def __init__(self, kind: str) -> None:
        self.kind, (self._type, self._numpy) = kind, TYPES["float32" if kind == BYTES else kind]
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], f"{op}_{name}", **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = np.asarray(value)
        return name

    def weight(self, *shape: int, terms: int = 1) -> str:
        """Add numbers whose sums of `terms` products stay near 1."""
        numbers = self._random.standard_normal(shape, np.float32) / np.float32(np.sqrt(terms))
        return self.constant(numbers.astype(self._numpy))

    def rounded(self, x: str) -> str:
        """Round numbers to bytes and back."""
        step = self.constant(np.float32(REACH / 127)), self.constant(np.int8(0))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *step), *step)

    def bytes(self, shape: Sequence[int], terms: int, axis: int) -> tuple[str, np.ndarray]:
        """Add weights of bytes with a scale for each entry of an axis. Return them, and the scales."""
        steps = np.full(shape[axis], np.sqrt(3 / terms) / 127, np.float32)
        numbers = self._random.integers(-127, 128, shape).astype(np.int8)
        constants = (self.constant(v) for v in (numbers, steps, np.zeros(len(steps), np.int8)))
        return self.node("DequantizeLinear", *constants, axis=axis), steps

    def input(self, name: str, *shape: int, whole: bool = False) -> str:
        kind = TensorProto.INT64 if whole else self._type
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, self._type, None))

    def model(self) -> onnx.ModelProto:
        constants = [numpy_helper.from_array(v, n) for n, v in self._constants.items()]
        graph = helper.make_graph(self._nodes, "network", self._inputs, self._outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

    # --- layers

    def conv(
        self, x: str, inputs: int, outputs: int, window: int = 1, stride: int = 1, groups: int = 1
    ) -> str:
        shape = outputs, inputs // groups, window, window
        terms = math.prod(shape[1:])
        sizes = {"strides": [stride] * 2, "pads": [window // 2] * 4, "group": groups}
        if self.kind != BYTES:
            return self.node("Conv", x, self.weight(*shape, terms=terms), self.weight(outputs), **sizes)
        weights, steps = self.bytes(shape, terms, 0)
        units = steps * np.float32(REACH / 127)
        numbers = (self._random.standard_normal(outputs) / units).astype(np.int32)
        constants = (self.constant(v) for v in (numbers, units, np.zeros(outputs, np.int32)))
        bias = self.node("DequantizeLinear", *constants, axis=0)
        return self.rounded(self.node("Conv", self.rounded(x), weights, bias, **sizes))

    def relu(self, x: str) -> str:
        return self.node("Relu", x)

    def relu6(self, x: str) -> str:
        low, high = (self.constant(np.asarray(v, self._numpy)) for v in (0, 6))
        return self.node("Clip", x, low, high)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        if self.kind == BYTES:
            x, weights = self.rounded(x), self.bytes((inputs, outputs), inputs, 1)[0]
        else:
            weights = self.weight(inputs, outputs, terms=inputs)
        product = self.node("MatMul", x, weights)
        return self.node("Add", product, self.weight(outputs))

    def normalized(self, x: str, width: int) -> str:
        return self.node("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def pooled(self, x: str, channels: int, classes: int) -> str:
        mean = self.node("Flatten", self.node("GlobalAveragePool", x))
        return self.dense(mean, channels, classes)


def resnet50(kind: str, batch: int = 1, size: int = 224) -> onnx.ModelProto:
    net = Net(kind)
    x = net.relu(net.conv(net.input("x", batch, 3, size, size), 3, 64, 7, 2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for n in range(blocks):
            step = stride if n == 0 else 1
            y = net.relu(net.conv(x, channels, width))
            y = net.relu(net.conv(y, width, width, 3, step))
            y = net.conv(y, width, 4 * width)
            x = net.conv(x, channels, 4 * width, 1, step) if n == 0 else x
            x, channels = net.relu(net.node("Add", x, y)), 4 * width
    net.output(net.pooled(x, channels, 1000))
    return net.model()


def mobilenetv2(kind: str, batch: int = 1, size: int = 224) -> onnx.ModelProto:
    net = Net(kind)
    x, channels = net.relu6(net.conv(net.input("x", batch, 3, size, size), 3, 32, 3, 2)), 32
    for widen, width, blocks, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for n in range(blocks):
            inner, step = widen * channels, stride if n == 0 else 1
            y = net.relu6(net.conv(x, channels, inner)) if widen > 1 else x
            y = net.relu6(net.conv(y, inner, inner, 3, step, inner))
            y = net.conv(y, inner, width)
            x = net.node("Add", x, y) if step == 1 and channels == width else y
            channels = width
    net.output(net.pooled(net.relu6(net.conv(x, channels, 1280)), 1280, 1000))
    return net.model()


def squeezenet(kind: str, batch: int = 1, size: int = 224) -> onnx.ModelProto:
    net = Net(kind)
    x, channels = net.relu(net.conv(net.input("x", batch, 3, size, size), 3, 64, 3, 2)), 64
    for n, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        if n in (0, 2, 4):
            x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
        small = net.relu(net.conv(x, channels, squeeze))
        wide = [net.relu(net.conv(small, squeeze, 4 * squeeze, window)) for window in (1, 3)]
        x, channels = net.node("Concat", *wide, axis=1), 8 * squeeze
    x = net.node("GlobalAveragePool", net.relu(net.conv(x, channels, 1000)))
    net.output(net.node("Flatten", x))
    return net.model()


def _attention(net: Net, q: str, k: str, v: str, head: int, mask: str = "") -> str:
    """Add attention of [batch, heads, rows, head]."""
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.node("Mul", scores, net.constant(np.asarray(head**-0.5, net._numpy)))
    scores = net.node("Add", scores, mask) if mask else scores
    return net.node("MatMul", net.node("Softmax", scores, axis=-1), v)


def _heads(net: Net, x: str, batch: int, rows: int, heads: int, head: int) -> str:
    return net.node("Transpose", net.shaped(x, batch, rows, heads, head), perm=[0, 2, 1, 3])


def bert(kind: str, batch: int = 1, rows: int = 128, layers: int = 12, width: int = 768) -> onnx.ModelProto:
    """Return BERT-base's encoder, on embeddings."""
    net, head = Net(kind), 64
    heads = width // head
    x = net.input("x", batch, rows, width)
    for _ in range(layers):
        q, k, v = (_heads(net, net.dense(x, width, width), batch, rows, heads, head) for _ in range(3))
        mixed = net.node("Transpose", _attention(net, q, k, v, head), perm=[0, 2, 1, 3])
        mixed = net.dense(net.shaped(mixed, batch, rows, width), width, width)
        x = net.normalized(net.node("Add", x, mixed), width)
        inner = net.node("Gelu", net.dense(x, width, 4 * width))
        x = net.normalized(net.node("Add", x, net.dense(inner, 4 * width, width)), width)
    net.output(x)
    return net.model()


def gpt2(
    kind: str, batch: int = 1, past: int = 512, layers: int = 12, width: int = 768, words: int = 50257
) -> onnx.ModelProto:
    """Return a step of GPT-2 from an embedding to the logits of `words` words, with a cache of `past`
    positions."""
    net, head = Net(kind), 64
    heads = width // head
    x = net.input("x", batch, 1, width)
    for n in range(layers):
        y = net.normalized(x, width)
        q, k, v = (_heads(net, net.dense(y, width, width), batch, 1, heads, head) for _ in range(3))
        caches = [net.input(f"{name}{n}", batch, heads, past, head) for name in ("keys", "values")]
        k, v = (net.node("Concat", cache, new, axis=2) for cache, new in zip(caches, (k, v), strict=True))
        mixed = net.node("Transpose", _attention(net, q, k, v, head), perm=[0, 2, 1, 3])
        x = net.node("Add", x, net.dense(net.shaped(mixed, batch, 1, width), width, width))
        inner = net.node("Gelu", net.dense(net.normalized(x, width), width, 4 * width), approximate="tanh")
        x = net.node("Add", x, net.dense(inner, 4 * width, width))
    net.output(net.dense(net.normalized(x, width), width, words))
    return net.model()


def _mixed(net: Net, x: str, of: str, rows: int, batch: int, width: int, inner: int, heads: int) -> str:
    """Add attention from the rows of x to `rows` rows of `of`, whose width is `inner`, with its products."""
    y, head = net.normalized(x, width), width // heads
    other = of or y
    q = _heads(net, net.dense(y, width, width), batch, -1, heads, head)
    k, v = (_heads(net, net.dense(other, inner, width), batch, rows, heads, head) for _ in range(2))
    mixed = net.node("Transpose", _attention(net, q, k, v, head), perm=[0, 2, 1, 3])
    return net.node("Add", x, net.dense(net.shaped(mixed, batch, -1, width), width, width))


def _grouped(net: Net, x: str, width: int) -> str:
    return net.node("GroupNormalization", x, net.weight(width), net.weight(width), num_groups=GROUPS)


def _silu(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Sigmoid", x))


def _residual(net: Net, x: str, time: str, inputs: int, width: int, wide: int) -> str:
    """Add a residual block of two convolutions. A vector of `wide` numbers says the moment."""
    y = net.conv(_silu(net, _grouped(net, x, inputs)), inputs, width, 3)
    shift = net.shaped(net.dense(_silu(net, time), wide, width), -1, width, 1, 1)
    y = net.conv(_silu(net, _grouped(net, net.node("Add", y, shift), width)), width, width, 3)
    return net.node("Add", net.conv(x, inputs, width) if inputs != width else x, y)


def _transformer(net: Net, x: str, text: str, batch: int, side: int, width: int, wide: int) -> str:
    """Add a transformer block over an image's pixels, which look at each other and at a text."""
    pixels, image = side * side, x
    y = net.conv(_grouped(net, x, width), width, width)
    y = net.node("Transpose", net.shaped(y, batch, width, pixels), perm=[0, 2, 1])
    y = _mixed(net, y, "", pixels, batch, width, width, HEADS)
    y = _mixed(net, y, text, WORDS, batch, width, wide, HEADS)
    z = net.normalized(y, width)
    gate = net.node("Gelu", net.dense(z, width, 4 * width))
    y = net.node("Add", y, net.dense(net.node("Mul", net.dense(z, width, 4 * width), gate), 4 * width, width))
    y = net.shaped(net.node("Transpose", y, perm=[0, 2, 1]), batch, width, side, side)
    return net.node("Add", image, net.conv(y, width, width))


def unet(kind: str, batch: int = 1, side: int = 64, width: int = 320, wide: int = 768) -> onnx.ModelProto:
    """Return three blocks of Stable Diffusion's U-Net (1.5), in its sizes. The third joins the first and the
    second. Each has a residual block, and the first two have a transformer block."""
    net = Net(kind)
    x, time = net.input("x", batch, width, side, side), net.input("time", batch, 4 * width)
    text = net.input("text", batch, WORDS, wide)
    first = _residual(net, x, time, width, width, 4 * width)
    first = _transformer(net, first, text, batch, side, width, wide)
    x = _residual(net, net.conv(first, width, width, 3, 2), time, width, 2 * width, 4 * width)
    x = _transformer(net, x, text, batch, side // 2, 2 * width, wide)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    x = net.node("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                 nearest_mode="floor")  # fmt: skip
    x = net.node("Concat", net.conv(x, 2 * width, 2 * width, 3), first, axis=1)
    net.output(_residual(net, x, time, 3 * width, width, 4 * width))
    return net.model()


GROUPS, HEADS, WORDS = 32, 8, 77
"""Groups of a normalization, heads of attention, and words of a text, in Stable Diffusion."""


def product(kind: str, rows: int, terms: int, columns: int) -> onnx.ModelProto:
    """Return a matrix product of two inputs."""
    net = Net(kind)
    net.output(net.node("MatMul", net.input("x", rows, terms), net.input("y", terms, columns)))
    return net.model()


def attention(kind: str, heads: int, rows: int, head: int) -> onnx.ModelProto:
    """Return attention of three inputs of [1, heads, rows, head]."""
    net = Net(kind)
    net.output(_attention(net, *(net.input(name, 1, heads, rows, head) for name in "qkv"), head))
    return net.model()


def product_of_bytes(rows: int, terms: int, columns: int) -> onnx.ModelProto:
    """Return a product of unsigned bytes and constant weights, whose sums are int32."""
    weights = np.random.default_rng(SEED).integers(-128, 128, (terms, columns)).astype(np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, terms])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [rows, columns])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def windows(kind: str, size: int = 28) -> onnx.ModelProto:
    """Return convolutions whose channels, borders, strides and pixels fill no whole tiles, and some that
    do."""
    net = Net(kind)
    x = net.relu(net.conv(net.input("x", 2, 3, size, size + 3), 3, 24, 7, 2))
    y = net.relu(net.conv(x, 24, 72, 3))
    x = net.node("Add", net.conv(x, 24, 64, 1), net.conv(y, 72, 64, 3))
    net.output(net.conv(net.relu(x), 64, 64, 3, 2))
    return net.model()


NETWORKS: Mapping[str, Callable[..., onnx.ModelProto]] = MappingProxyType({
    "squeezenet": squeezenet, "mobilenetv2": mobilenetv2, "resnet50": resnet50, "bert": bert, "gpt2": gpt2,
    "unet": unet,
})  # fmt: skip


def feeds(exe: Any, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return inputs for a compiled network of known sizes, from a seed."""
    random = np.random.default_rng(SEED)
    shapes = {spec.name: tuple(map(int, spec.shape)) for spec in exe.inputs}
    types = {spec.name: np.dtype(spec.dtype) for spec in exe.inputs}
    return {
        name: (scale * random.standard_normal(shape, np.float32)).astype(types[name])
        for name, shape in shapes.items()
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a command's parser, which takes names of networks and `--save`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=[*NETWORKS])
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    return parser
