"""Kernels of several results: the extrema of a value's rows, and single elements."""

from __future__ import annotations

import numpy as np
import pytest
from nets import TARGET

from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.ir.core import Kernel
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, Var, call, const
from jangin.ir.graph import MAX_SIZE, Array, Graph
from jangin.ir.interpret import evaluate_stage, run_func
from jangin.ir.verify import verify_graph
from jangin.ops.builder import Builder
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import dynamic_quantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.fusion.extrema import extrema
from jangin.passes.fusion.fuse import fuse
from jangin.passes.fusion.reductions import reductions
from jangin.passes.fusion.scalars import scalars
from jangin.passes.fusion.stages import stages

N = Var("n")
WIDE = 200
"""Elements of a row that has enough vectors for the target."""
PARAMETERS = ["reduce", "reduce", "map", "map"]


def builder() -> Builder:
    return Builder("net", {N: (const(1), const(MAX_SIZE))})


def given(b: Builder, *shape: Expr | int) -> Tensor:
    return b.input("x", F32, tuple(const(d) if isinstance(d, int) else d for d in shape))


def named(b: Builder, *made: Tensor) -> Graph:
    return b.graph(made, [f"y{i}" for i in range(len(made))])


def kernels(graph: Graph) -> list[tuple[list[str], int]]:
    """Return the operators of each kernel, and its number of results."""
    found = [n for n in graph.nodes if isinstance(n.attrs, Kernel)]
    return [([k.op for k in n.of(Kernel).body.nodes], len(n.outputs)) for n in found]


def numbers(graph: Graph, n: int) -> dict[str, Array]:
    sizes = [n if d is N else int(str(d)) for d in graph.shape("x")]
    return {"x": np.random.default_rng(n).standard_normal(sizes).astype(np.float32)}


def check(graph: Graph, n: int = 5, x: dict[str, Array] | None = None) -> list[tuple[list[str], int]]:
    """Return the kernels after both passes. Their results have the same bits, and so have their tensor
    expressions."""
    fused = fuse(reductions(graph), TARGET)
    joined = scalars(extrema(fused, TARGET), TARGET)
    verify_graph(joined, CORE)
    x = x or numbers(graph, n)
    symbols = {"n": n}
    want, got = run_graph(fused, x, symbols), run_graph(joined, x, symbols)
    for name in graph.outputs:
        np.testing.assert_array_equal(got[name], want[name])
    values = {**joined.constants, **x}
    for node in joined.nodes:
        if not isinstance(node.attrs, Kernel):
            alias = Graph("alias", node.inputs, node.outputs, (node,), {}, joined.values, joined.symbols)
            values |= run_graph(alias, values, symbols)
            continue
        parts, inputs, results = stages(node)
        assert tuple(b.name for b in inputs) == node.inputs
        assert tuple(b.name for b in results) == node.outputs
        assert tuple(s.out for s in parts[-len(results) :]) == results
        local = {i: values[i] for i in node.inputs}
        for stage in parts:
            local[stage.out.name] = evaluate_stage(stage, local, symbols)
        values |= {name: local[name] for name in node.outputs}
    for name in graph.outputs:
        np.testing.assert_allclose(values[name], want[name], rtol=1e-5, atol=1e-6)
    return kernels(joined)


@pytest.mark.parametrize("rows", [7, N, 2000], ids=str)
def test_a_normalization_that_is_quantized(rows: int | Expr) -> None:
    b = builder()
    y = b.normalize(given(b, 2, rows, WIDE), (2,), 1e-5)
    found = check(named(b, *dynamic_quantize(b, y)))
    assert found == [(["normalize", "reduce", "reduce"], 3), (PARAMETERS, 2), (["map"], 1)]


def test_heads_side_by_side_that_are_quantized() -> None:
    b = builder()
    y = b.transpose(given(b, 1, 12, N, 32), (0, 2, 1, 3))
    found = check(named(b, *dynamic_quantize(b, b.reshape(y, (1, N, 384)))))
    assert found == [(["transpose", "reduce", "reduce"], 3), (PARAMETERS, 2), (["map"], 1)]


def test_what_is_read_elsewhere_too() -> None:
    b = builder()
    y = b.map(lambda v: call("exp", v), given(b, N, WIDE))
    low = b.reduce("min", y, (0, 1))
    other = b.map(lambda v, m: v + m, y, low)
    assert check(named(b, y, other)) == [
        (["map", "reduce"], 2),
        (["reduce"], 1),
        (["map"], 1),
    ]


def test_the_range_of_each_row() -> None:
    """The kernel's only results are the extrema of the rows."""
    b = builder()
    y = b.map(lambda v: call("tanh", v), given(b, N, WIDE))
    low, high = (b.reduce(c, y, (1,), True) for c in ("min", "max"))
    size = b.map(lambda a, c: c - a, low, high)
    assert check(named(b, y, size)) == [(["map", "reduce", "reduce"], 3), (["reduce", "map"], 1)]


@pytest.mark.parametrize("rows", [16, N], ids=str)
def test_a_product_that_is_quantized(rows: int | Expr) -> None:
    """The product's tiles aren't whole rows, so one kernel finds both extrema of each row."""
    b = builder()
    w = b.const(np.random.default_rng(0).standard_normal((8, 4096)).astype(np.float32))
    found = check(named(b, *dynamic_quantize(b, b.matmul(given(b, rows, 8), w))))
    assert found == [(["matmul"], 1), (["reduce", "reduce"], 2), (PARAMETERS, 2), (["map"], 1)]


def test_an_input_that_is_quantized() -> None:
    b = builder()
    found = check(named(b, *dynamic_quantize(b, given(b, N, 1000))))
    assert found == [(["reduce", "reduce"], 2), (PARAMETERS, 2), (["map"], 1)]


@pytest.mark.parametrize(
    ("shape", "why"),
    [((400, 64), "short rows"), ((2, 50_000), "few rows"), ((WIDE, N), "rows of any length")],
)
def test_what_stays_apart(shape: tuple[int | Expr, ...], why: str) -> None:
    b = builder()
    y = b.map(lambda v: v * 2.0, given(b, *shape))
    assert (["map"], 1) in check(named(b, *dynamic_quantize(b, y)))[:1], why


def test_extrema_of_extrema() -> None:
    """The kernel that finds the largest of each row computes the values whose least another kernel finds."""
    b = builder()
    y = b.map(lambda v: v * v, given(b, 40, WIDE, WIDE))
    top = b.reduce("max", y, (2,))
    check(named(b, b.reduce("min", top, (0, 1)), y))


def test_no_number_is_kept() -> None:
    b = builder()
    y = b.map(lambda v: v + 1.0, given(b, N, WIDE))
    net = named(b, *(b.reduce(c, y, (0, 1)) for c in ("min", "max")))
    x = numbers(net, 3)
    x["x"][1, 7] = np.nan
    check(net, 3, x)
    assert np.isnan(run_graph(net, x)["y0"])


def test_of_no_elements() -> None:
    b = Builder("net", {N: (const(0), const(MAX_SIZE))})
    y = b.map(lambda v: v + 1.0, given(b, N, WIDE))
    check(named(b, *(b.reduce(c, y, (0, 1)) for c in ("min", "max"))), 0)


def test_single_elements_of_one_another() -> None:
    b = builder()
    total = b.reduce("sum", given(b, 9, 33), (0, 1))
    root = b.map(lambda v: call("sqrt", v * v + 1.0), total)
    both = b.map(lambda v, r: v / r, total, root)
    net = named(b, root, both)
    assert check(net) == [(["reduce", "map", "map"], 2)]


def test_single_elements_with_another_reader_between_stay_in_order() -> None:
    """A kernel that reads one element, and makes what a later element's kernel reads, must run between the
    two."""
    b = builder()
    x = given(b, 9, 33)
    low = b.reduce("min", x, (0, 1))
    less = b.map(lambda v, m: v - m, x, low)
    top = b.reduce("max", less, (0, 1))
    assert len(check(named(b, low, b.map(lambda v, m: v + m, top, low), less))) >= 3


def test_single_elements_of_axes() -> None:
    b = builder()
    low = b.map(lambda v: v + 1.0, b.input("x", F32, (const(1), const(1))))
    made = named(b, low, b.map(lambda v: v * v, low))
    assert check(made) == [(["map", "map"], 2)]
    options = Options(TARGET, verify=True)
    fused = optimize(made, options)
    (func,) = (s.func for s, _ in schedule_kernels(fused, options).values())
    given = {"b0": np.full((1, 1), 2.0, np.float32), "out": np.zeros((1, 1), np.float32)}
    given["out1"] = np.zeros((1, 1), np.float32)
    run_func(func, given, {})
    assert given["out1"] == 9.0


def test_of_other_shapes_each_is_kept() -> None:
    b = builder()
    x = given(b, 9, 33)
    low, high = b.reduce("min", x, (0, 1)), b.reduce("max", x, (0, 1), True)
    span = b.map(lambda a, c: c - a, low, high)
    check(named(b, low, span, b.map(lambda a, s: a * s, low, span)))
