"""Nets of small integers, and their compiling, for tests of the products of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Conv, Kernel, MatMul
from jangin.ir.dtype import I16, U8, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.quantized import integer_conv, integer_matmul
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.runtime.executable import Executable

Net = Callable[[Builder, np.random.Generator], Tensor]


def weights(random: np.random.Generator, *shape: int, most: int = 128) -> Array:
    return random.integers(-most, min(most, 127), shape, np.int8, endpoint=True)


def image(b: Builder, channels: int, height: int, width: int, dtype: DType = U8) -> Tensor:
    return b.input("x", dtype, tuple(const(d) for d in (2, channels, height, width)))


def conv(channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, size: int = 11) -> Net:
    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = image(b, channels, size, size + 3)
        w = b.const(weights(random, outputs, channels // groups, kernel, kernel))
        pads = (kernel // 2,) * 4
        return integer_conv(b, x, w, b.scalar(101, U8), strides=(stride,) * 2, pads=pads, groups=groups)

    return net


def product(left: DType, right: DType, depth: int) -> Net:
    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = b.input("x", left, (const(13), const(depth)))
        y = b.input("y", right, (const(depth), const(37)))
        zero = b.scalar(7, right) if right is not I16 else None
        return integer_matmul(b, x, y, None, zero)

    return net


def layer(depth: int, batch: tuple[int, ...] = (), given: bool = False, most: int = 128) -> Net:
    """Make a product with weights. A row's numbers are padded to whole words. `given`: the zero point is an
    input."""

    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = b.input("x", U8, tuple(const(n) for n in (*batch, 13, depth)))
        zero = b.input("zero", U8, ()) if given else b.scalar(101, U8)
        return integer_matmul(b, x, b.const(weights(random, *batch, depth, 37, most=most)), zero)

    return net


def built(net: Net, seed: int) -> tuple[Graph, dict[str, Array]]:
    random = np.random.default_rng(seed)
    b = Builder("net", {})
    out = net(b, random)
    graph = b.graph([out], ["out"])
    arrays = {}
    for name in graph.inputs:
        info = np.iinfo(graph.dtype(name).numpy)
        shape = [int(str(d)) for d in graph.shape(name)]
        arrays[name] = np.asarray(random.integers(info.min, info.max, shape, info.dtype, endpoint=True))
    return graph, arrays


def compiled(graph: Graph, options: Options) -> Executable:
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    return Executable(build(plan, options.target), 1)


def code(graph: Graph, options: Options, arrays: dict[str, Array]) -> Array:
    return compiled(graph, options).run(arrays)["out"]


def products(graph: Graph) -> list[Conv | MatMul]:
    bodies = [n.of(Kernel).body for n in graph.nodes if isinstance(n.attrs, Kernel)]
    return [n.attrs for body in bodies for n in body.nodes if isinstance(n.attrs, (Conv, MatMul))]
