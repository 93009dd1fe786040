"""Fusion: the kernels that form, and that they compute what the nodes did."""

from __future__ import annotations

import numpy as np
import pytest
from nets import TARGET, N, Net, attention, convolutional, feeds

from jangin.ir.core import Kernel
from jangin.ir.dtype import F32, I32
from jangin.ir.expr import Buffer, Load, Var, call, const
from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node
from jangin.ir.interpret import bind_symbols, evaluate_stage, run_func
from jangin.ir.loop import For, Store
from jangin.ir.sources import Sources
from jangin.ir.te import lower
from jangin.ir.text import print_func
from jangin.ir.traversal import loads
from jangin.ops.interpret import run_graph
from jangin.passes.fusion.fuse import fuse
from jangin.passes.fusion.stages import canonical, is_opaque, opaque_func, stages
from jangin.passes.layouts.layout import channels_last


def kernels(graph: Graph) -> list[list[str]]:
    """Return the operators of each kernel, in order."""
    return [[n.op for n in k.of(Kernel).body.nodes] for k in graph.nodes if k.op == "kernel"]


def check(graph: Graph, n: int = 2) -> list[list[str]]:
    """Compare the fused graph and its tensor expressions with the graph, and return the kernels'
    operators."""
    fused = fuse(graph, TARGET)
    x = feeds(graph, n)
    symbols = bind_symbols([(i, graph.shape(i), x[i].shape) for i in graph.inputs], graph.symbols)
    want, got = run_graph(graph, x), run_graph(fused, x)
    values = {**fused.constants, **x}
    for node in fused.nodes:
        name = node.outputs[0]
        if node.op == "kernel":
            body, inputs, (out,) = stages(node)
            assert tuple(b.name for b in inputs) == node.inputs and out.name == name
            assert body[-1].out == out
            local = {i: values[i] for i in node.inputs}
            for stage in body:
                local[stage.out.name] = evaluate_stage(stage, local, symbols)
            values[name] = local[name]
        else:
            run = Graph("alias", node.inputs, node.outputs, (node,), {}, fused.values)
            values |= run_graph(run, values, symbols)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values[name], want[name], rtol=1e-5, atol=1e-6)
    return kernels(fused)


@pytest.mark.parametrize("n", [1, 3])
def test_convolutional_net(n: int) -> None:
    ops = check(channels_last(convolutional(), TARGET), n)
    # the input is read with its channels first
    assert ops[:2] == [["pad"], ["transpose", "conv", "map", "map"]]
    assert ["conv", "map", "map"] in ops
    assert ["conv", "map", "map", "map"] in ops  # bias, residual, relu
    assert sum(len(k) for k in ops) == len(
        [n for n in channels_last(convolutional(), TARGET).nodes if n.op != "reshape"]
    )
    assert ops.count(["map"]) == 1  # the gated half of the concatenation


def test_attention() -> None:
    assert check(attention()) == [
        ["normalize", "map", "map"],
        *[["matmul", "map"]] * 3,
        ["transpose", "transpose", "transpose", "matmul", "map"],  # q, k, and k transposed once more
        ["softmax"],
        ["transpose", "matmul"],
        ["transpose"],
        *[["matmul", "map", "map"]] * 3,
    ]


def test_a_value_with_two_readers_in_the_epilogue() -> None:
    t = Net()
    x = t.input("x", N, 4, 3, 3)
    assert check(t.done(t.silu(t.conv(x, 5, 1)))) == [["conv", "map", "map"]]


def test_the_later_of_two_convolutions_takes_the_sum() -> None:
    t = Net()
    x = t.input("x", N, 4, 3, 3)
    y = t.relu(t.add(t.bias(t.conv(x, 5, 1)), t.conv(x, 5, 3)))
    assert check(t.done(y)) == [["conv", "map"], ["conv", "map", "map"]]


def test_graph_outputs_and_other_readers_end_an_epilogue() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 4, 3, 3), 5, 1)
    b = t.relu(a)
    c = t.conv(b, 5, 1)
    assert check(t.done(b, t.add(t.bias(c), b), t.silu(b))) == [
        ["conv", "map"],
        ["conv", "map", "map"],
        ["map", "map"],
    ]


def test_a_broadcast_result_is_not_an_epilogue() -> None:
    t = Net()
    x = t.input("x", N, 4)
    total = t.b.reduce("sum", x, (1,), True)
    assert check(t.done(t.add(x, total))) == [["reduce"], ["map"]]


def test_only_views_are_inlined_on_the_left_of_a_product() -> None:
    t = Net()
    x, y = t.input("x", N, 6, 4), t.input("y", N, 6, 3)
    dear = t.b.map(lambda v: call("exp", v), x)
    product = t.b.matmul(t.b.transpose(dear, (0, 2, 1)), y)
    assert check(t.done(product)) == [["map"], ["transpose", "matmul"]]


def test_only_views_are_inlined_on_the_right_of_a_product() -> None:
    t = Net()
    x, y = t.input("x", N, 4, 6), t.input("y", N, 3, 6)
    right = t.b.transpose(t.relu(y), (0, 2, 1))
    assert check(t.done(t.b.matmul(x, right))) == [["map"], ["transpose", "matmul"]]


def test_nothing_is_inlined_into_a_convolution() -> None:
    t = Net()
    x = t.b.pad(t.relu(t.input("x", N, 4, 5, 5)), [0, 0, 1, 1, 0, 0, 1, 1])
    assert check(t.done(t.conv(x, 3, 3, pad=0))) == [["map", "pad"], ["conv"]]


@pytest.mark.parametrize(("fn", "count"), [("exp", 2), ("abs", 1)])
def test_dear_maps_stay_out_of_windows(fn: str, count: int) -> None:
    t = Net()
    x = t.input("x", N, 4, 5, 5)
    y = t.pool(t.b.map(lambda v: call(fn, v), x), 3, 1)
    assert len(check(t.done(y))) == count


def test_concat_takes_consumers_not_producers() -> None:
    t = Net()
    x = t.input("x", N, 4, 5, 5)
    y = t.silu(t.bias(t.b.concat([t.relu(x), x], 1)))
    assert check(t.done(y)) == [["map"], ["concat", "map", "map", "map"]]


def test_an_elementwise_diamond_is_one_kernel() -> None:
    t = Net()
    x = t.input("x", N, 4)
    a = t.relu(x)
    b = t.b.map(lambda u, v: u * v, t.b.map(lambda v: v + 1.0, a), t.b.map(lambda v: call("tanh", v), a))
    assert check(t.done(b)) == [["map"] * 4]


def test_an_expression_does_not_grow_without_end() -> None:
    t = Net()
    x = t.input("x", N, 4)
    for _ in range(12):
        x = t.b.map(lambda v: v * v * v + v, x)
    assert 2 <= len(check(t.done(x))) <= 8
    y = t.linear(t.input("z", N, 4), 4)
    for _ in range(12):
        y = t.b.map(lambda v: v * v * v + v, y)
    assert 2 <= len(check(t.done(x, y))) <= 12


def test_producers_of_rows_are_kept_and_scalars_are_code() -> None:
    t = Net()
    x = t.input("x", N, 6)
    graph = fuse(t.done(t.b.softmax(t.mul(t.b.map(lambda v: call("exp", v), x), t.weight(1)), 1)), TARGET)
    kernel, _ = graph.nodes
    body, inputs, _ = stages(kernel)
    assert kernel.inputs == ("x",) == tuple(b.name for b in inputs)
    assert len(body) == 5 and [e.buffer.name for e in loads(body[0].body)] == ["x"]
    check(t.done(t.b.softmax(t.relu(x), 1)))


def test_an_epilogue_of_a_reduction_and_of_rows() -> None:
    t = Net()
    x = t.input("x", N, 6)
    total = t.mul(t.b.reduce("sum", t.b.map(lambda v: v * v, x), (1,), True), t.input("s", N, 1))
    rows = t.mul(t.b.softmax(x, 1, log=True), t.weight(6))
    assert check(t.done(total, rows)) == [["map", "reduce", "map"], ["softmax", "map"]]


def test_gather_joins_its_consumer() -> None:
    t = Net()
    ids = t.b.map(lambda v: call("abs", v), t.input("x", N, 3))
    table = t.weight(7, 4)
    rows = t.b.gather(table, t.b.cast(ids, t.b.sizes([1]).dtype), 0)
    assert check(t.done(t.b.normalize(t.add(rows, t.weight(3, 4)), [2], 1e-5))) == [
        ["map", "map", "gather", "map", "normalize"]
    ]


def test_readers_of_a_local_copy_in_the_epilogue() -> None:
    t = Net()
    x = t.b.map(lambda v: call("exp", v), t.input("x", N, 6))
    check(t.done(t.mul(t.b.softmax(x, 1), x)))
    check(t.done(t.mul(t.b.softmax(t.relu(x), 1), t.relu(x))))


def test_equal_kernels_have_equal_keys() -> None:
    t = Net()
    x = t.input("x", N, 4, 5, 5)
    y = t.relu(t.bias(t.conv(t.relu(t.bias(t.conv(x, 4, 3))), 4, 3)))
    z = t.conv(y, 4, 3)
    graph = fuse(t.done(z), TARGET)
    found = [canonical(*stages(k), graph.symbols) for k in graph.nodes if k.op == "kernel"]
    first, second, third = found
    assert first[3] == second[3] != third[3]
    assert first[:3] == second[:3]
    assert [b.name for b in first[1]] == ["b0", "b1", "b2"] and [b.name for b in first[2]] == ["out"]


def test_the_naive_nest_of_a_kernel_is_right() -> None:
    t = Net()
    x = t.input("x", 2, 3, 4, 4)
    graph = t.done(t.b.softmax(t.silu(t.bias(t.conv(x, 3, 3))), 1))
    fed = feeds(graph)
    values = {**graph.constants, **fed}
    fused = fuse(graph, TARGET)
    for node in fused.nodes:
        if node.op == "reshape":
            values[node.outputs[0]] = values[node.inputs[0]]
            continue
        body, inputs, (out,), _ = canonical(*stages(node), graph.symbols)
        func = lower("k", body, inputs, graph.symbols)
        result = np.zeros([int(str(d)) for d in out.shape], np.float32)
        arrays = {b.name: values[n] for b, n in zip(inputs, node.inputs, strict=True)}
        run_func(func, {**arrays, "out": result}, {"N": 1})
        values[node.outputs[0]] = result
    np.testing.assert_allclose(values["y0"], run_graph(graph, fed, {"N": 1})["y0"], rtol=1e-5, atol=1e-6)


def opaque(t: Net) -> Graph:
    x = t.relu(t.input("x", N, 3))
    shape = (N, const(3))
    x0, out, i, j = Buffer("x0", F32, shape), Buffer("out", F32, shape), Var("i"), Var("j")
    swap = Store(out, (i, j), Load(x0, (i, const(2) - j)))
    body = For(i, N, For(j, const(3), swap))
    return t.done(t.relu(t.b.loop_nest([x], body, F32, shape)))


def test_loop_nests_stand_alone() -> None:
    graph = opaque(Net())
    fused = fuse(graph, TARGET)
    assert kernels(fused) == [["map"], ["loop_nest"], ["map"]]
    assert [is_opaque(k) for k in fused.nodes if k.op == "kernel"] == [False, True, False]
    node = fused.nodes[1]
    func = opaque_func(node)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = np.zeros_like(x)
    run_func(func, {"b0": x, "out": out}, {"N": 2})
    np.testing.assert_array_equal(out, x[:, ::-1])
    want = run_graph(graph, {"x": x})["y0"]
    np.testing.assert_array_equal(run_graph(fused, {"x": x})["y0"], want)


def test_an_operator_that_was_not_lowered_is_named() -> None:
    t = Net()
    graph = t.done(t.relu(t.input("x", N, 3)))
    odd = Node("foo", ("x",), ("f",), ImportedAttributes("onnx.Foo"), Sources.of("Foo", "foo"))
    with pytest.raises(CompileError, match="Foo 'foo'"):
        fuse(graph.with_nodes([odd, *graph.nodes]), TARGET)


def written(graph: Graph) -> list[str]:
    """Return the naive nests of a graph's kernels."""
    kernels = [n for n in fuse(graph, TARGET).nodes if isinstance(n.attrs, Kernel)]
    found = ((n.name, *stages(n)) for n in kernels)
    return [print_func(lower(name, parts, given, graph.symbols)) for name, parts, given, _ in found]


def test_elements_round_after_every_operation() -> None:
    """Elements are rounded after every operation, whatever operators lie between products and sums."""
    t = Net()
    x, y, z = (t.input(n, N, 4) for n in "xyz")
    apart = t.add(t.mul(x, y), z)
    one = t.b.map(lambda a, b, c: a * b + c, x, y, z)
    assert [text.count("rounded(") for text in written(t.done(apart, one))] == [1, 1]
    t = Net()
    x, y, z = (t.input(n, N, 4) for n in "xyz")
    padded = t.b.pad(t.b.slice(t.mul(x, y), (0, 1), (N, 3), (1, 1)), (0, 0, 0, 1))
    (text,) = written(t.done(t.add(padded, z)))
    assert text.count("rounded(") == 1, "it may be chosen where the border is known"


def test_terms_that_are_others_products_round() -> None:
    t = Net()
    x, y = (t.input(n, N, 4) for n in "xy")
    (text,) = written(t.done(t.b.reduce("sum", t.mul(x, y), (1,))))
    assert "+ rounded((x[" in text


@pytest.mark.parametrize("whole", [False, True])
def test_epilogues_of_float_products_are_multiply_adds(whole: bool) -> None:
    """The epilogue of a float product uses multiply-adds for operations on the sum, and not for others. Sums
    of integers are exact, and are rounded afterwards."""
    t = Net()
    x, w, r, u, v = (t.input(n, *s) for n, s in zip("xwruv", ((N, 5), (5, 4), *[(N, 4)] * 3), strict=True))
    if whole:
        x, w = (t.b.cast(n, I32) for n in (x, w))
    product = t.b.matmul(x, w)
    y = t.add(t.mul(t.b.cast(product, F32), r), t.add(t.mul(u, v), r))
    (text,) = [n for n in written(t.done(y)) if ".acc" in n]
    assert text.count("rounded(") == (2 if whole else 1)
