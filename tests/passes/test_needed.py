"""Products are made for what is read of them, and results never change."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from nets import N, Net, feeds
from test_random_nets import C, H, W, step

from jangin.ir.core import MatMul
from jangin.ir.expr import ExprLike, const
from jangin.ir.graph import Graph, Shape
from jangin.ir.verify import verify_graph
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.passes.algebra.needed import needed
from jangin.passes.algebra.simplify import simplify

SEEDS = 40


def same(graph: Graph, new: Graph) -> None:
    """Compare results. Products of few rows may add up their terms in another order."""
    verify_graph(new)
    x = feeds(graph)
    before, after = run_graph(graph, x), run_graph(new, x)
    assert new.inputs == graph.inputs and list(after) == list(before)
    for name, want in before.items():
        assert new.shape(name) == graph.shape(name)
        np.testing.assert_allclose(after[name], want, rtol=1e-5, atol=1e-5)


def cut(t: Net, x: Tensor, axis: int, start: ExprLike, count: int = 1) -> Tensor:
    starts: list[ExprLike] = [start if d == axis else 0 for d in range(x.rank)]
    shape = [const(count) if d == axis else size for d, size in enumerate(x.shape)]
    return t.b.slice(x, starts, shape, [1] * x.rank)


def layer(t: Net, x: Tensor, length: ExprLike) -> Tensor:
    """Return a transformer's layer of two heads over [N, length, 8]."""
    b = t.b
    heads = [b.transpose(b.reshape(t.linear(x, 8), [N, length, 2, 4]), (0, 2, 1, 3)) for _ in range(3)]
    q, k, v = heads
    mixed = b.matmul(b.softmax(b.matmul(q, k, transpose_b=True), 3), v)
    y = b.normalize(
        t.add(t.linear(b.reshape(b.transpose(mixed, (0, 2, 1, 3)), [N, length, 8]), 8), x), [2], 1e-5
    )
    return b.normalize(t.add(t.linear(t.relu(t.linear(y, 16)), 8), y), [2], 1e-5)


def products(graph: Graph) -> Sequence[Shape]:
    return [graph.shape(n.outputs[0]) for n in graph.nodes if isinstance(n.attrs, MatMul)]


def test_a_classifier_makes_the_last_layer_for_its_token_alone() -> None:
    t = Net()
    y = layer(t, layer(t, t.input("x", N, 6, 8), 6), 6)
    graph = simplify(t.done(t.linear(t.b.reshape(cut(t, y, 1, 0), [N, 8]), 3)))
    new = simplify(needed(graph))
    same(graph, new)
    rows = [str(shape[-2]) for shape in products(new)]
    # queries, keys and values, then scores, mixed values, the head's product and the two wide layers
    assert rows == ["6"] * 8 + ["1", "6", "6", "1", "1", "1", "1", "1", "N"]


@pytest.mark.parametrize("start", [0, N - 1], ids=["first", "last"])
def test_one_token_of_a_sequence_of_any_length(start: ExprLike) -> None:
    t = Net()
    graph = t.done(cut(t, layer(t, t.input("x", N, N, 8), N), 1, start))
    new = simplify(needed(graph))
    same(graph, new)
    assert [str(shape[-2]) for shape in products(new)].count("N") == 2


def test_a_value_that_others_read_stays_whole() -> None:
    t = Net()
    y = layer(t, t.input("x", N, 6, 8), 6)
    graph = t.done(cut(t, y, 1, 2), y)
    assert needed(graph) is graph
    alone = t.done(cut(t, y, 1, 2))
    assert needed(alone, [y.name]) is alone and needed(alone) is not alone


def test_several_readers_get_their_parts() -> None:
    t = Net()
    y = layer(t, t.input("x", N, 6, 8), 6)
    graph = t.done(cut(t, y, 1, 1), cut(t, y, 1, 2, 2))
    new = simplify(needed(graph))
    same(graph, new)
    assert {str(shape[-2]) for shape in products(new)} == {"3", "6"}


def test_empty_parts_of_a_reshape() -> None:
    """Axes of 1 and axes of empty values begin at the same element as the next axis."""
    t = Net()
    y = t.linear(t.input("x", N, 6, 8), 8)
    whole = t.b.reshape(y, [N, 1, 6, 8])
    empty = t.b.reshape(t.linear(t.input("empty", 0, 6, 8), 8), [0, 8, 6])
    graph = t.done(cut(t, cut(t, whole, 1, 0, 0), 2, 2, 2), cut(t, empty, 1, 7))
    same(graph, needed(graph))


def test_slices_stay_without_a_product() -> None:
    t = Net()
    graph = t.done(cut(t, t.relu(t.conv(t.input("x", N, 3, 8, 8), 4, 3)), 2, 1))
    assert needed(graph) is graph


def test_random_nets() -> None:
    changed = 0
    for seed in range(SEEDS):
        t, r = Net(seed), random.Random(seed)
        pool = [t.input("x", N, C, H, W)]
        for _ in range(14):
            pool.append(step(t, r, pool))
        parts = [
            cut(t, pool[-1], *r.choice([(1, 2), (2, 1), (3, 0)])),
            cut(t, r.choice(pool), 1, r.randrange(C)),
        ]
        graph = t.done(*parts)
        new = needed(graph)
        changed += new is not graph
        try:
            same(graph, new)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert changed >= SEEDS // 10
