"""Gradients of parts of a graph, against finite differences of the graph's results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.gradients.scalars import FUNCTIONS, adjoints
from jangin.ir.dtype import F64
from jangin.ir.expr import Buffer, Expr, Var, binary, call, const
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.interpret import evaluate_stage
from jangin.ir.te import compute
from jangin.ir.traversal import substitute
from jangin.ops.interpret import run_graph

STEP = 1e-6


def graph(nodes: list[str], shapes: dict[str, tuple[int, ...]], xs: list[str], y: str) -> Graph:
    """Make a graph of `nodes` ("result = Op(inputs)"). Its outputs are y and y's gradients."""
    protos = []
    for text in nodes:
        result, op, *inputs = (
            text.replace("=", " ").replace("(", " ").replace(")", " ").replace(",", " ").split()
        )
        protos.append(
            helper.make_node(op, inputs, [result], **({"axis": 1} if op in ("Softmax", "Concat") else {}))
        )
    names = [f"d{x}" for x in xs]
    protos.append(helper.make_node("Gradient", xs, names, domain="ai.onnx.preview.training", xs=xs, y=y))
    infos = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in shapes.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in (y, *names)]
    made = helper.make_graph(protos, "g", infos, outs)
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("ai.onnx.preview.training", 1)]
    return lower(load(helper.make_model(made, opset_imports=imports)))


CASES = {
    "broadcast": (["t=Mul(a,b)", "u=Add(t,a)", "y=Div(u,c)"], {"a": (2, 3), "b": (3,), "c": (2, 1)}),
    "product": (["t=MatMul(a,b)", "y=Tanh(t)"], {"a": (2, 4), "b": (4, 3)}),
    "batched": (["t=Transpose(b)", "u=MatMul(a,t)", "y=Softmax(u)"], {"a": (2, 5, 4), "b": (3, 4)}),
    "reduced": (["t=Exp(a)", "u=ReduceSum(t)", "v=Log(u)", "y=Sub(v,b)"], {"a": (2, 3), "b": (2, 2)}),
    "joined": (["t=Concat(a,b)", "u=Sigmoid(t)", "v=Flatten(u)", "y=Mul(v,v)"], {"a": (2, 3), "b": (2, 2)}),
    "twice": (["t=Max(a,b)", "u=Gelu(t)", "y=Pow(u,c)"], {"a": (3,), "b": (3,), "c": ()}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_slopes(case: str) -> None:
    nodes, shapes = CASES[case]
    rng = np.random.default_rng(3)
    feeds: dict[str, Array] = {n: np.asarray(rng.random(s) + 0.5) for n, s in shapes.items()}
    made = graph(nodes, shapes, list(shapes), "y")
    got = run_graph(made, feeds)
    for name, x in feeds.items():
        want = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                moved[at] += sign * STEP
                ends.append(run_graph(made, {**feeds, name: moved})["y"].sum())
            want[at] = (ends[0] - ends[1]) / (2 * STEP)
        np.testing.assert_allclose(got[f"d{name}"], want, 1e-5, 1e-7)


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_derivatives_of_functions(fn: str) -> None:

    x, spot = Var("x", F64), 1.3 if fn == "acosh" else 0.4

    def value(e: Expr, at: float) -> float:
        out = Buffer("out", F64, ())
        stage = compute(out, lambda: substitute(e, {x: const(at, F64)}))
        return float(evaluate_stage(stage, {}, {}))

    whole = binary("mul", call(fn, x), x)
    slope = (value(whole, spot + STEP) - value(whole, spot - STEP)) / (2 * STEP)
    assert value(adjoints(whole, const(1, F64), [x])[x], spot) == pytest.approx(slope, 1e-6)


def test_what_has_no_gradient_is_said() -> None:
    with pytest.raises(CompileError, match="must be floats"):
        graph(["t=Shape(a)", "y=Neg(t)"], {"a": (2, 3)}, ["a"], "y")


def test_independent_values_have_zero_gradients() -> None:
    made = graph(["t=Neg(b)", "y=Floor(a)"], {"a": (2,), "b": (2,)}, ["a", "b"], "y")
    out = run_graph(made, {"a": np.ones(2), "b": np.ones(2)})
    assert not out["da"].any() and not out["db"].any()
