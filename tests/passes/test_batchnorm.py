"""Scales and shifts after a contraction are folded into its weights."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from nets import N, Net, convolutional, feeds

from jangin.ir.dtype import F32
from jangin.ir.expr import Var, call, cast, maximum
from jangin.ir.graph import Graph
from jangin.ir.verify import verify_graph
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.passes.algebra.batchnorm import affine, batchnorm
from jangin.passes.algebra.simplify import simplify


def check(graph: Graph, **expected: int) -> Graph:
    graph = simplify(graph)
    new = batchnorm(graph)
    verify_graph(new)
    x = feeds(graph)
    for name, want in run_graph(graph, x).items():
        np.testing.assert_allclose(run_graph(new, x)[name], want, rtol=2e-4, atol=1e-4)
    assert Counter(n.op for n in new.nodes) == Counter(expected)
    return new


def normal(t: Net, x: Tensor) -> Tensor:
    """Add batch normalization as its lowering writes it."""
    shape = (int(str(x.shape[1])), *(1,) * (x.rank - 2))
    return t.b.map(lambda v, s, h: v * s + h, x, t.weight(*shape), t.weight(*shape))


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_after_a_convolution(groups: int) -> None:
    t = Net()
    conv = t.conv(t.input("x", N, 6, 5, 5), 6, 3, groups=groups)
    new = check(t.done(t.relu(normal(t, t.bias(conv)))), conv=1, map=2)
    assert all("scaled" in n.inputs[1] for n in new.nodes if n.op == "conv")


def test_a_scale_alone_leaves_no_addition() -> None:
    t = Net()
    conv = t.conv(t.input("x", N, 3, 5, 5), 6, 1)
    check(t.done(t.mul(conv, t.weight(6, 1, 1))), conv=1)


def test_a_bias_alone_stays() -> None:
    t = Net()
    graph = simplify(t.done(t.bias(t.conv(t.input("x", N, 3, 5, 5), 6, 1))))
    assert batchnorm(graph).nodes == graph.nodes


def test_what_rounds_a_product_stays() -> None:
    """1.5 * 2**23, added and subtracted, rounds to whole numbers. A single shift by 0 wouldn't."""
    t = Net()
    y = t.b.matmul(t.input("x", N, 4), t.weight(4, 6))
    y = t.mul(y, t.b.const(np.full(6, 20, np.float32)))
    y = t.add(y, t.b.const(np.full(6, 1.5 * 2**23, np.float32)))
    graph = simplify(t.done(t.add(y, t.b.const(np.full(6, -1.5 * 2**23, np.float32)))))
    (found,) = run_graph(batchnorm(graph), feeds(graph)).values()
    assert found.any() and np.array_equal(found, np.rint(found))


@pytest.mark.parametrize("transposed", [False, True])
def test_after_a_product(transposed: bool) -> None:
    t = Net()
    w = t.weight(6, 4) if transposed else t.weight(4, 6)
    y = t.b.matmul(t.input("x", N, 3, 4), w, transpose_b=transposed)
    check(t.done(t.b.map(lambda v, s, h: (v - h) / s, y, t.weight(6), t.weight(6))), matmul=1, map=1)


def test_a_value_read_twice_keeps_its_map() -> None:
    t = Net()
    conv = t.conv(t.input("x", N, 3, 5, 5), 6, 1)
    check(t.done(normal(t, conv), t.relu(conv)), conv=1, map=2)


def test_a_scale_along_another_axis_stays() -> None:
    t = Net()
    conv = t.conv(t.input("x", N, 3, 5, 5), 6, 1)
    check(t.done(t.mul(conv, t.weight(5))), conv=1, map=1)


def test_a_whole_net() -> None:
    graph = convolutional()
    new = batchnorm(simplify(graph))
    x = feeds(graph)
    for name, want in run_graph(graph, x).items():
        np.testing.assert_allclose(run_graph(new, x)[name], want, rtol=2e-4, atol=1e-4)


def test_what_is_affine() -> None:
    x, c = Var("x0", F32), Var("x1", F32)
    known = {"x1": np.array([2.0, 4.0])}
    scale, shift = affine((1.0 - x * c) / c + call("sqrt", c * c), "x0", known) or (None, None)
    np.testing.assert_allclose(scale, [-1, -1])
    np.testing.assert_allclose(shift, [2.5, 4.25])
    for body in (x * x, maximum(x, 0.0), call("exp", x), c / x, cast(F32, cast(F32, x)) * x):
        assert affine(body, "x0", known) is None
