"""The layout pass: same results, few transposes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from nets import TARGET, N, Net, attention, convolutional, feeds

from jangin.ir.core import Conv, Kernel, Pool
from jangin.ir.expr import call
from jangin.ir.graph import Graph
from jangin.ops.interpret import run_graph
from jangin.passes.algebra.simplify import simplify
from jangin.passes.fusion.fuse import fuse
from jangin.passes.layouts.channels_last import inverse, moves_nothing, to_last
from jangin.passes.layouts.layout import channels_last, layout


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


def check(graph: Graph, transposes: int) -> Graph:
    """Return the new graph, after a comparison of its results, signature and number of transposes."""
    new = channels_last(graph, TARGET)
    x = feeds(graph)
    before, after = run_graph(graph, x), run_graph(new, x)
    assert new.inputs == graph.inputs and list(after) == list(before)
    for name, want in before.items():
        assert new.shape(name) == graph.shape(name)
        np.testing.assert_allclose(after[name], want, rtol=2e-4, atol=2e-5)
    assert all(n.attrs.layout == "last" for n in new.nodes if isinstance(n.attrs, (Conv, Pool)))
    for node in new.nodes:
        assert all(i in new.values for i in node.inputs)
    assert ops(new)["transpose"] == transposes
    return new


def test_without_convolutions_nothing_changes() -> None:
    graph = attention()
    assert layout(graph, TARGET) is graph


def test_convolutional_net() -> None:
    new = check(convolutional(), transposes=2)  # one transpose for the input, and one before the flatten
    pads = [any(n.attrs.pads) for n in new.nodes if isinstance(n.attrs, Conv) and n.attrs.kernel == (3, 3)]
    assert pads == [False, False, True]  # the last one is depthwise
    assert ops(new)["pad"] == 2


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_any_spatial_rank(rank: int) -> None:
    t = Net()
    x = t.input("x", N, 8, *(5, 6, 4)[:rank])
    y = t.relu(t.bias(t.conv(x, 6, 3, stride=2)))
    check(t.done(t.pool(y, 2, 1)), transposes=2)


def test_outputs_keep_their_layout_and_intermediate_ones_too() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 5, 5), 6, 3)
    check(t.done(a, t.relu(a), t.input("z", N, 2)), transposes=3)


def test_reductions_and_normalization_follow() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 5, 6), 6, 1)
    n = t.b.normalize(a, [2, 3], 1e-5)
    softmax = t.b.softmax(n, 1)
    pooled = t.b.reduce("sum", softmax, (2, 3))
    rows = t.b.reduce("max", n, (3,))
    channels = t.b.reduce("max", n, (1,))
    check(t.done(pooled, rows, channels), transposes=2)


def test_flatten_after_global_pooling_is_free() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 4), 6, 3)
    y = t.b.reshape(t.b.reduce("sum", a, (2, 3), True), [N, 6])
    check(t.done(t.linear(y, 3)), transposes=1)


def test_patches_to_tokens_need_no_transpose() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 6, 2, stride=2, pad=0)
    tokens = t.b.transpose(t.b.reshape(a, [N, 6, 6]), (0, 2, 1))
    check(t.done(t.linear(tokens, 3)), transposes=1)


def test_transposes_to_and_from_channels_last_are_free() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 8, 3)
    y = t.linear(t.b.normalize(t.b.transpose(a, (0, 2, 3, 1)), [3], 1e-5), 8)
    z = t.b.transpose(y, (0, 3, 1, 2))
    check(t.done(t.conv(t.add(z, a), 4, 1)), transposes=2)


def test_channel_shuffle_and_group_normalization_stay_channels_last() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 8, 3)
    shuffled = t.b.transpose(t.b.reshape(a, [N, 2, 4, 4, 6]), (0, 2, 1, 3, 4))
    grouped = t.b.normalize(t.b.reshape(shuffled, [N, 4, 2, 4, 6]), [2, 3, 4], 1e-5)
    y = t.conv(t.b.reshape(grouped, [N, 8, 4, 6]), 4, 1)
    check(t.done(y), transposes=3)  # transposes of the input, the shuffle and the output


@pytest.mark.parametrize("perm", [(0, 3, 4, 1, 5, 2), (0, 1, 4, 2, 5, 3)])
def test_depth_to_space_stays_channels_last(perm: tuple[int, ...]) -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 12, 3)
    parts = [N, 2, 2, 3, 4, 6] if perm[1] == 3 else [N, 3, 2, 2, 4, 6]
    wide = t.b.reshape(t.b.transpose(t.b.reshape(a, parts), perm), [N, 3, 8, 12])
    graph = t.done(t.conv(t.relu(t.bias(wide)), 4, 1))
    check(graph, transposes=3)  # transposes of the input, the move of elements and the output
    kernels = [
        n.of(Kernel).body.nodes
        for n in fuse(simplify(channels_last(simplify(graph), TARGET)), TARGET).nodes
        if n.op == "kernel"
    ]
    (moving,) = ([n.op for n in k] for k in kernels if any(n.op == "map" for n in k))
    assert moving[0] == "transpose" and set(moving[1:]) == {"map"}  # the maps join the move


def test_other_transposes_start_from_the_channels_last_copy() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 8, 3)
    check(t.done(t.b.transpose(a, (3, 2, 0, 1))), transposes=2)


def test_data_movement_follows() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 6, 3)
    padded = t.b.pad(a, [0, 1, 0, 2, 0, 0, 1, 0], value=2.0)
    part = t.b.slice(padded, [0, 1, 1, 0], [N, 5, 3, 4], [1, 1, 1, 2])
    taken = t.b.gather(part, t.b.const(np.array([0, 2, 2], np.int64)), 2)
    wide = t.b.expand(t.b.reduce("sum", taken, (2,), True), [N, 5, 7, 4])
    check(t.done(t.conv(wide, 3, 1)), transposes=2)


def test_a_compute_node_follows() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 6, 3)
    doubled = t.b.compute(a.dtype, [N, 6, 8, 12], [a], lambda x, n, c, i, j: x[0][n, c, i // 2, j // 2])
    check(t.done(t.conv(doubled, 3, 1)), transposes=2)


def test_operands_of_lower_rank_broadcast_as_before() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 4, 6), 6, 3)
    b = t.mul(a, t.input("plane", 4, 6))
    c = t.mul(b, t.input("channel", 6, 1, 1))
    d = t.mul(c, t.input("full", N, 1, 4, 6))
    e = t.add(d, t.weight(4, 6))
    f = t.add(e, t.weight(6, 4, 6))
    check(t.done(t.b.map(lambda v: call("exp", v), t.mul(f, t.weight(1)))), transposes=2)


def test_a_big_operand_does_not_follow_a_small_one() -> None:
    t = Net()
    gate = t.conv(t.input("x", N, 8, 1, 1), 6, 1)
    check(t.done(t.mul(t.input("big", N, 6, 9, 9), gate)), transposes=0)


def test_permutations() -> None:
    assert to_last(4) == (0, 2, 3, 1) and to_last(5, 2) == (0, 3, 4, 1, 2)
    assert inverse(to_last(4)) == (0, 3, 1, 2)
    graph = convolutional()
    assert not moves_nothing(graph.shape("x"), (0, 2, 3, 1))
