"""Products of small floats are made of widened operands, and keep their bits."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.ir.core import Conv, Map, MatMul, Transpose
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.expr import const, maximum
from jangin.ir.graph import Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.passes.table import GRAPH_PASSES
from jangin.passes.widen import widen
from jangin.targets import NAMED


class Halves:
    def __init__(self, dtype: DType) -> None:
        self.b, self.dtype = Builder("halves", {}), dtype
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> Tensor:
        return self.b.const(self.random.standard_normal(shape).astype(self.dtype.numpy))

    def input(self, *shape: int, name: str = "x") -> Tensor:
        return self.b.input(name, self.dtype, tuple(const(d) for d in shape))

    def conv(self, x: Tensor, outputs: int) -> Tensor:
        w, one = self.weight(outputs, int(str(x.shape[1])), 3, 3), (1, 1)
        return self.b.conv(x, w, strides=one, dilations=one, pads=(1,) * 4)


def convolutions(dtype: DType, channels: int = 8) -> Graph:
    """Two with a rectifier between, and the first's result added to the second's."""
    t = Halves(dtype)
    first = t.b.map(lambda v: maximum(v, 0), t.conv(t.input(1, channels, 14, 14), channels))
    return t.b.graph([t.b.map(lambda v, w: v + w, t.conv(first, channels), first)], ["y"])


def product(dtype: DType, rows: int) -> Graph:
    t = Halves(dtype)
    return t.b.graph([t.b.matmul(t.input(rows, 12), t.weight(12, 20))], ["y"])


def of_turned(dtype: DType) -> Graph:
    t = Halves(dtype)
    turned = t.b.transpose(t.input(2, 12, 5, name="z"), (0, 2, 1))
    return t.b.graph([t.b.matmul(t.input(2, 7, 5), turned)], ["y"])


def types_read(graph: Graph) -> set[DType]:
    nodes = (n for n in graph.nodes if isinstance(n.attrs, (Conv, MatMul)))
    return {graph.dtype(name) for node in nodes for name in node.inputs}


GRAPHS = {
    "convolutions": convolutions, "product": lambda t: product(t, 5), "row": lambda t: product(t, 1),
    "turned": of_turned,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_bits_are_kept(name: str, dtype: DType) -> None:
    graph = GRAPHS[name](dtype)
    random = np.random.default_rng(1)
    sizes = {n: [int(str(d)) for d in graph.shape(n)] for n in graph.inputs}
    arrays = {n: random.standard_normal(size).astype(dtype.numpy) for n, size in sizes.items()}
    want, got = (run_graph(g, arrays)["y"] for g in (graph, widen(graph)))
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_each_value_is_widened_once() -> None:
    graph = widen(convolutions(F16))
    assert types_read(graph) == {F32}
    widened = [n.inputs[0] for n in graph.nodes if n.source.startswith("f32 of")]
    assert len(widened) == len(set(widened)) == 2


def test_weights_of_a_single_row_stay_small() -> None:
    assert types_read(widen(product(F16, 5))) == {F32}
    assert types_read(widen(product(F16, 1))) == {F32, F16}


def test_what_is_only_moved_is_widened_before() -> None:
    graph = widen(of_turned(BF16))
    (turn,) = (n for n in graph.nodes if isinstance(n.attrs, Transpose))
    (multiply,) = (n for n in graph.nodes if isinstance(n.attrs, MatMul))
    assert turn.outputs[0] == multiply.inputs[1]


def test_others_stay_as_they_are() -> None:
    graph = convolutions(F32)
    assert widen(graph) is graph


def test_convolutions_of_halves_may_be_winograds() -> None:
    graph = convolutions(F16, 64)
    for step in GRAPH_PASSES:
        graph = step.run(graph, NAMED["x86-64-v3"])
    weights = [a for n, a in graph.constants.items() if a.shape[-2:] == (64, 64)]
    assert [a.dtype for a in weights] == [np.float32] * 2
    assert not any(isinstance(n.attrs, Map) for n in graph.nodes), "every map is part of a kernel"
