"""Products of small floats take widened operands, and the operators between them don't round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jangin.ir.core import Conv, Map, MatMul, Pool, Transpose
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.expr import cast, const, eq, maximum
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.passes.precision.widen import widen
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import NAMED


class Halves:
    """Builds a graph of a small type, or, if `wide`, of the same numbers in f32."""

    def __init__(self, dtype: DType, wide: bool = False) -> None:
        self.b, self.dtype, self.held = Builder("halves", {}), dtype, F32 if wide else dtype
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> Tensor:
        numbers = self.random.standard_normal(shape).astype(self.dtype.numpy)
        return self.b.const(numbers.astype(self.held.numpy))

    def input(self, *shape: int, name: str = "x") -> Tensor:
        return self.b.input(name, self.held, tuple(const(d) for d in shape))

    def conv(self, x: Tensor, outputs: int) -> Tensor:
        w, one = self.weight(outputs, int(str(x.shape[1])), 3, 3), (1, 1)
        return self.b.conv(x, w, strides=one, dilations=one, pads=(1,) * 4)


def convolutions(dtype: DType, channels: int = 8, wide: bool = False) -> Graph:
    """Make two convolutions with a rectifier between. The result of the first is added to that of the
    second."""
    t = Halves(dtype, wide)
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


def layers(dtype: DType, wide: bool = False) -> Graph:
    """Make a network of products with moves, pools, softmax, sums, gathers and a concatenation between
    them."""
    t = Halves(dtype, wide)
    b, x = t.b, t.conv(t.input(1, 8, 8, 8), 8)
    window = (2, 2), (2, 2), (1, 1), (0,) * 4
    pooled = b.node(Pool("max", *window, (const(4), const(4)), ""), [x])
    rows = b.reshape(b.transpose(pooled, (0, 2, 3, 1)), (const(16), const(8)))
    scaled = b.map(lambda v, w: cast(t.held, cast(F32, v) * 0.5) + w, rows, t.weight(8))
    joined = b.concat([b.softmax(scaled, 1), rows], 1)
    some = b.gather(joined, b.const(np.array([3, 0, 7])), 0)
    return b.graph([b.matmul(some, t.weight(16, 5))], ["y"])


GRAPHS: dict[str, Callable[[DType], Graph]] = {
    "product": lambda t: product(t, 5), "row": lambda t: product(t, 1), "turned": of_turned,
}  # fmt: skip


def run(graph: Graph, dtype: DType) -> Array:
    """Run a graph on random numbers of a small type, and return its result. The graph's inputs may be of
    f32."""
    random = np.random.default_rng(1)
    sizes = {n: [int(str(d)) for d in graph.shape(n)] for n in graph.inputs}
    arrays = {n: random.standard_normal(size).astype(dtype.numpy) for n, size in sizes.items()}
    given = {n: a.astype(graph.dtype(n).numpy) for n, a in arrays.items()}
    return run_graph(graph, given)["y"]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_one_product_keeps_its_bits(name: str, dtype: DType) -> None:
    graph = GRAPHS[name](dtype)
    want, got = (run(g, dtype) for g in (graph, widen(graph)))
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("make", [convolutions, layers])
def test_nothing_is_rounded_between_products(make: Callable[..., Graph], dtype: DType) -> None:
    """The bits are those of the same numbers in f32, rounded at the end."""
    got, want = run(widen(make(dtype)), dtype), run(make(dtype, wide=True), dtype)
    np.testing.assert_array_equal(got.view(np.uint16), want.astype(dtype.numpy).view(np.uint16))


def test_operators_without_twins_read_rounded_values() -> None:
    """A comparison for equality reads the model's rounded numbers, and so does a concatenation with a small
    value."""
    t = Halves(F16)
    y = t.b.matmul(t.input(5, 12), t.weight(12, 20))
    past = t.b.input("past", F16, (const(3), const(20)))
    other = t.b.input("other", F16, (const(5), const(20)))
    outputs = [t.b.map(eq, y, other), t.b.concat([past, y], 0)]
    graph = widen(t.b.graph(outputs, ["same", "cache"]))
    readers = [n for n in graph.nodes if {"past", "other"} & set(n.inputs)]
    assert [{graph.dtype(n) for n in node.inputs} for node in readers] == [{F16}] * 2


def test_what_no_product_comes_before_stays_small() -> None:
    t = Halves(F16)
    before = t.b.map(lambda v: maximum(v, 0), t.input(5, 12))
    graph = widen(t.b.graph([t.b.matmul(before, t.weight(12, 20))], ["y"]))
    first = next(n for n in graph.nodes if n.inputs == ("x",))
    assert graph.dtype(first.outputs[0]) is F16


def test_only_what_is_given_is_widened_and_that_once() -> None:
    graph = widen(convolutions(F16))
    assert types_read(graph) == {F32}
    assert [n.inputs[0] for n in graph.nodes if str(n.source).startswith("f32 of")] == ["x"]


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
    assert [a.dtype for a in weights] == [np.float16] * 2, "transformed, and rounded as the model's own"
    assert not any(isinstance(n.attrs, Map) for n in graph.nodes), "every map is part of a kernel"
