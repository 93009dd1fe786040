"""Small core graphs that the tests of several passes share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.core import Pool
from jangin.ir.dtype import F32
from jangin.ir.expr import ExprLike, Var, call, const, maximum, wrap
from jangin.ir.graph import Array, Graph, Shape
from jangin.ops.builder import Builder
from jangin.ops.core_window import window_extent
from jangin.ops.values import Tensor
from jangin.targets import NAMED

TARGET = NAMED["x86-64-v3"]
N = Var("N")
RANGES = {N: (const(1), const(8))}


class Net:
    """A builder with layers, and its own random weights."""

    def __init__(self, seed: int = 0) -> None:
        self.b = Builder("net", RANGES)
        self.random = np.random.default_rng(seed)

    def input(self, name: str, *shape: ExprLike) -> Tensor:
        return self.b.input(name, F32, tuple(wrap(d) for d in shape))

    def weight(self, *shape: int) -> Tensor:
        return self.b.const(self.random.standard_normal(shape).astype(np.float32) * 0.3)

    def conv(
        self, x: Tensor, out: int, kernel: int, stride: int = 1, pad: int | None = None, groups: int = 1,
        dilations: Sequence[int] = (),
    ) -> Tensor:  # fmt: skip
        spatial = x.rank - 2
        pads = (kernel // 2 if pad is None else pad,) * (2 * spatial)
        w = self.weight(out, int(str(x.shape[1])) // groups, *(kernel,) * spatial)
        dilations = dilations or (1,) * spatial
        return self.b.conv(x, w, strides=(stride,) * spatial, dilations=dilations, pads=pads, groups=groups)

    def pool(self, x: Tensor, kernel: int, stride: int, combiner: str = "max", average: str = "") -> Tensor:
        spatial = x.rank - 2
        extents = tuple(window_extent(d, kernel, stride, 1, 0) for d in x.shape[2:])
        window = (kernel,) * spatial, (stride,) * spatial, (1,) * spatial, (0,) * (2 * spatial)
        return self.b.node(Pool(combiner, *window, extents, average), [x])

    def bias(self, x: Tensor) -> Tensor:
        return self.b.map(lambda v, c: v + c, x, self.weight(int(str(x.shape[1])), *(1,) * (x.rank - 2)))

    def relu(self, x: Tensor) -> Tensor:
        return self.b.map(lambda v: maximum(v, 0.0), x)

    def silu(self, x: Tensor) -> Tensor:
        gate = self.b.map(lambda v: call("sigmoid", v), x)
        return self.mul(x, gate)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self.b.map(lambda a, c: a + c, x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        return self.b.map(lambda a, c: a * c, x, y)

    def linear(self, x: Tensor, out: int) -> Tensor:
        y = self.b.matmul(x, self.weight(int(str(x.shape[-1])), out))
        return self.b.map(lambda v, c: v + c, y, self.weight(out))

    def done(self, *outputs: Tensor) -> Graph:
        return self.b.graph(outputs, [f"y{i}" for i in range(len(outputs))])


def convolutional() -> Graph:
    """Return a graph of conv, bias, relu, residual, pool, concat, squeeze-and-excite, flatten and product."""
    t = Net()
    x = t.input("x", N, 3, 8, 8)
    a = t.relu(t.bias(t.conv(x, 8, 3)))
    b = t.relu(t.add(t.bias(t.conv(a, 8, 3)), a))
    c = t.silu(t.bias(t.conv(t.pool(b, 2, 2), 6, 1)))
    gate = t.b.map(lambda v: call("sigmoid", v), t.conv(t.b.reduce("sum", c, (2, 3), True), 6, 1))
    d = t.b.concat([t.mul(c, gate), t.pool(t.conv(b, 6, 1), 2, 2, "sum", "valid")], 1)
    e = t.relu(t.bias(t.conv(d, 12, 3, groups=12)))
    return t.done(t.linear(t.b.reshape(e, [N, 192]), 5))


def attention() -> Graph:
    """Return a graph of one self-attention block of 2 heads over [N, 6, 8], and a feed-forward layer."""
    t = Net()
    x = t.input("x", N, 6, 8)
    normal = t.add(t.mul(t.b.normalize(x, [2], 1e-5), t.weight(8)), t.weight(8))
    heads = [t.b.transpose(t.b.reshape(t.linear(normal, 8), [N, 6, 2, 4]), (0, 2, 1, 3)) for _ in range(3)]
    q, k, v = heads
    scores = t.b.map(lambda s: s * 0.5, t.b.matmul(q, t.b.transpose(k, (0, 1, 3, 2))))
    mixed = t.b.matmul(t.b.softmax(scores, 3), v)
    joined = t.b.reshape(t.b.transpose(mixed, (0, 2, 1, 3)), [N, 6, 8])
    y = t.add(t.linear(joined, 8), x)
    return t.done(t.add(t.linear(t.b.map(lambda s: call("tanh", s), t.linear(y, 16)), 8), y))


def feeds(graph: Graph, n: int = 2) -> dict[str, Array]:
    """Return random inputs, with every symbol equal to `n`."""
    random = np.random.default_rng(7)

    def sizes(shape: Shape) -> Sequence[int]:
        return [n if isinstance(d, Var) else int(str(d)) for d in shape]

    return {i: random.standard_normal(sizes(graph.shape(i))).astype(np.float32) for i in graph.inputs}
