"""Resizes of several axes are kernels of one axis or one expression, with the results of exact positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from guarded import Memory, watched
from onnx import helper, numpy_helper

import jangin
from jangin.ir.core import Compute, Conv
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, const
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.resize import Style, resize, sized_lines
from jangin.ops.resize_positions import Line, Position, align_corners, asymmetric, half_pixel
from jangin.passes.layouts.layout import layout
from jangin.passes.windows.chains import chains
from jangin.targets import NAMED
from jangin.targets.gpu import Gpu

V3 = NAMED["x86-64-v3"]
Coordinates = Callable[[Line, Expr], Position]
PLACES: dict[Coordinates, Callable[[int, int, int], Fraction]] = {
    half_pixel: lambda i, size, out: Fraction((2 * i + 1) * size, 2 * out) - Fraction(1, 2),
    asymmetric: lambda i, size, out: Fraction(i * size, out),
    align_corners: lambda i, size, out: Fraction(i * (size - 1), max(out - 1, 1)),
}
"""The place of a result's index in the operand, by coordinates."""
SIZES = [
    ((5, 7), (13, 33)),
    ((13, 9), (7, 31)),
    ((40, 40), (9, 11)),
    ((65, 17), (129, 35)),
    ((4, 9), (63, 13)),
    ((6, 12), (7, 5)),
]
"""Sizes before and after: growing, mixed and shrinking, most without a short period. Rows of the last two are
shorter than a vector."""


def resized(size: Sequence[int], out: Sequence[int], style: Style, channels: int = 2) -> Graph:
    b = Builder("resize", {})
    x = b.input("x", F32, (const(1), const(channels), *map(const, size)))
    axes = range(2, 2 + len(size))
    return b.graph([resize(b, x, sized_lines(b, x, axes, [*map(const, out)]), style)], ["y"])


def matrix(size: int, out: int, style: Style) -> Array:
    """Return the weights [out, size] of one axis, from exact positions, in float64."""
    weights = np.zeros((out, size))
    scale = max(Fraction(1), Fraction(size, out)) if style.antialias else Fraction(1)
    for i in range(out):
        place = PLACES[style.coordinates](i, size, out)
        for k in range(int(place - scale) - 2, int(place + scale) + 3):
            weights[i, min(max(k, 0), size - 1)] += max(0.0, float(1 - abs((k - place) / scale)))
    return weights / weights.sum(1, keepdims=True)


def exact(x: Array, size: Sequence[int], out: Sequence[int], style: Style) -> Array:
    rows, columns = (matrix(n, m, style) for n, m in zip(size, out, strict=True))
    return np.einsum("yh,nchw,xw->ncyx", rows, x.astype(np.float64), columns)


def image(size: Sequence[int], channels: int = 2) -> Array:
    return np.random.default_rng(0).standard_normal((1, channels, *size)).astype(np.float32)


def stages(graph: Graph) -> list[int]:
    return [len(n.attrs.stages) for n in graph.nodes if isinstance(n.attrs, Compute)]


@pytest.mark.parametrize("coordinates", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("size", "out"), SIZES, ids=str)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_stages_apart_give_the_same_bits(
    mode: str, size: Sequence[int], out: Sequence[int], coordinates: Coordinates
) -> None:
    style = Style(mode, coordinates)
    graph, x = resized(size, out, style), image(size)
    made = {p: chains(graph, p) for p in (V3, replace(V3, machine=Gpu()))}
    want = run_graph(graph, {"x": x})["y"]
    for target, apart in made.items():
        assert set(stages(apart)) == {1} and (len(stages(apart)) == 1 or not target.groups)
        np.testing.assert_array_equal(run_graph(apart, {"x": x})["y"], want)
    if mode == "linear":
        # Each place is exact. Weights and four products are rounded.
        np.testing.assert_allclose(want, exact(x, size, out, style), rtol=0, atol=2e-6)


def test_what_is_read_one_by_one() -> None:
    """Growing columns are a kernel of their own, with places and weights from tables. Shrinking ones are not,
    because most of what a kernel of rows would make isn't read."""

    def read(size: Sequence[int], out: Sequence[int], mode: str) -> list[int]:
        nodes = chains(resized(size, out, Style(mode)), V3).nodes
        return [len(n.inputs) for n in nodes if isinstance(n.attrs, Compute)]

    assert read((5, 7), (13, 33), "linear") == [5, 1], "two places and two weights, then rows"
    assert read((40, 40), (9, 9), "linear") == [5]
    assert read((5, 8), (10, 16), "nearest") == [1], "pairs of neighbours fill vectors without tables"


def test_channels_last_is_one_expression() -> None:
    b = Builder("net", {})
    x = b.input("x", F32, (const(1), const(32), const(9), const(9)))
    w = b.const(np.ones((32, 32, 3, 3), np.float32))
    conv = Conv((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1, "first")
    y = b.node(conv, [x, w])
    z = resize(b, y, sized_lines(b, y, (2, 3), [const(17), const(19)]), Style("linear"))
    graph = b.graph([b.node(conv, [z, w])], ["y"])
    made = chains(layout(graph, V3), V3)
    assert stages(made) == [1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("size", "out"), SIZES, ids=str)
@pytest.mark.parametrize("antialias", [False, True])
def test_native_code(antialias: bool, size: Sequence[int], out: Sequence[int], threads: int) -> None:
    style, x, memory = Style("linear", half_pixel, antialias=antialias), image(size, 3), Memory(pages=True)
    node = helper.make_node("Resize", ["x", "", "", "z"], ["y"], mode="linear", antialias=int(antialias))
    values = [helper.make_tensor_value_info(n, 1, (1, 3, *s)) for n, s in (("x", size), ("y", out))]
    sizes = numpy_helper.from_array(np.array((1, 3, *out)), "z")
    graph = helper.make_graph([node], "g", values[:1], values[1:], [sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with watched(memory):
        exe = jangin.compile(model.SerializeToString(), threads=threads, cache=False, isolated=False)
        got = exe(memory.copy(x))
    assert not memory.faults()
    np.testing.assert_allclose(got, exact(x, size, out, style), rtol=0, atol=3e-6)
