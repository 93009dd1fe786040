"""Dead code, common sub-expressions and constant folding."""

from __future__ import annotations

import numpy as np
from nets import N, Net, attention, convolutional, feeds

from jangin.ir.core import Expand, Map
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Var, cast, const
from jangin.ir.graph import Graph, Node, Value
from jangin.ir.te import compute
from jangin.ir.verify import verify_graph
from jangin.ops.interpret import run_graph
from jangin.passes.algebra.cse import cse, frozen
from jangin.passes.algebra.dce import dce
from jangin.passes.algebra.fold import GROWTH_LIMIT, fold


def same(graph: Graph, new: Graph) -> None:
    verify_graph(new)
    x = feeds(graph)
    after = run_graph(new, x)
    for name, want in run_graph(graph, x).items():
        np.testing.assert_array_equal(after[name], want)


def unfolded(net: Net) -> Graph:
    """Return a graph with a map of a constant, as a pass may leave one behind. (The builder would fold
    it.)"""
    x = net.input("x", N, 3)
    c = net.weight(3)
    body = Var("x0", F32) + Var("x0", F32)
    graph = net.done(net.add(x, x))
    node = Node("double", (c.name,), ("double",), Map(body))
    values = {**graph.values, "double": Value("double", F32, c.shape), c.name: net.b.values[c.name]}
    consts = {c.name: net.b.constants[c.name]}
    nodes = [node, *(replace_input(n, "double") for n in graph.nodes)]
    return graph.with_nodes(nodes, values=values, constants=consts)


def replace_input(node: Node, name: str) -> Node:
    if node.op != "map":
        return node
    body = Var("x0", F32) + Var("x1", F32)
    return Node(node.name, (node.inputs[0], name), node.outputs, Map(body))


def test_dead_nodes_go() -> None:
    t = Net()
    x = t.input("x", N, 3)
    t.relu(t.add(x, t.weight(3)))
    graph = t.done(t.relu(x))
    new = dce(graph)
    same(graph, new)
    assert len(new.nodes) == len(graph.nodes) - 2 and not new.constants


def test_equal_nodes_merge() -> None:
    t = Net()
    x = t.input("x", N, 3)
    graph = t.done(t.mul(t.relu(x), t.silu(t.relu(x))))
    new = cse(graph)
    same(graph, new)
    assert len(new.nodes) == len(graph.nodes) - 1


def test_equal_constants_merge() -> None:
    t = Net()
    x = t.input("x", N, 100)
    values = np.arange(100, dtype=np.float32)
    other = values.copy()
    other[-1] = 0
    graph = t.done(t.add(t.add(t.add(x, t.b.const(values)), t.b.const(values.copy())), t.b.const(other)))
    new = cse(graph)
    same(graph, new)
    assert len(new.constants) == 2


def test_results_of_the_model_keep_their_names() -> None:
    t = Net()
    x = t.input("x", N, 3)
    graph = t.done(t.relu(x), t.relu(x))
    new = cse(graph)
    same(graph, new)
    assert new.outputs == graph.outputs


def test_keys_tell_values_apart() -> None:
    different = [1, 1.0, True, 0.0, -0.0, (1,), (1.0,), "1", np.float32(1), np.zeros(2), np.zeros(2, np.int8)]
    assert len({frozen(v) for v in different}) == len(different)
    assert frozen({"a": [1, 2]}) == frozen({"a": (1, 2)})


def test_constants_fold() -> None:
    graph = unfolded(Net())
    new = fold(graph)
    same(graph, new)
    assert len(new.nodes) == len(graph.nodes) - 1 and "double" in new.constants


def test_what_depends_on_a_symbol_stays() -> None:
    t = Net()
    sizes = t.b.stages([compute(Buffer("out", I64, (const(2),)), lambda i: i + N)], [])
    x = t.input("x", N, 2)
    graph = t.done(t.add(x, t.b.map(lambda v: cast(F32, v), sizes)))
    same(graph, fold(graph))
    assert len(fold(graph).nodes) == len(graph.nodes)


def test_constants_that_would_grow_stay() -> None:
    t = Net()
    x = t.input("x", GROWTH_LIMIT, 2)
    c = t.weight(1, 2)
    name = "wide"
    graph = t.done(t.add(x, c))
    values = {**graph.values, name: graph.values["x"], c.name: t.b.values[c.name]}
    node = Node(name, (c.name,), (name,), Expand(graph.shape("x")))
    nodes = [node, *(replace_input(n, name) for n in graph.nodes)]
    graph = graph.with_nodes(nodes, values=values, constants=t.b.constants)
    assert any(n.op == "expand" for n in fold(graph).nodes)


def test_whole_nets() -> None:
    for graph in (convolutional(), attention()):
        same(graph, dce(cse(fold(graph))))


def test_results_of_no_elements_are_constants() -> None:
    t = Net()
    x = t.input("x", N, 3)
    none = t.b.slice(x, [0, 0], [N, 0], [1, 1])
    graph = t.done(t.relu(x), t.b.reduce("sum", t.relu(none), [0]))
    new = fold(graph)
    same(graph, new)
    assert new.constants["y1"].shape == (0,)
