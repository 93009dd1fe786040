"""The verifiers accept what is right, and name each thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_ir_interpret import plan_of

from jangin.ir.core import Kernel, Map
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Binary, Buffer, Load, Var, binary, const
from jangin.ir.graph import Graph, Node, Value
from jangin.ir.graph_text import parse_graph
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.parse import parse_func
from jangin.ir.plan import Plan, PlanBuffer
from jangin.ir.verify import VerifyError, verify_func, verify_graph
from jangin.ir.verify_plan import verify_plan
from jangin.ops.core import CORE

N, I0 = Var("N"), Var("i")
X, Y = Buffer("x", F32, (N,)), Buffer("y", F32, (N,))
FUNC = parse_func("func f(x: f32[N], y: out f32[N]) symbols (N in 1..) { serial i in N { y[i] = x[i] } }")
COPY = Store(Y, (I0,), X[I0])
LOCAL = Buffer("t", F32, (const(2),), "register")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (COPY, "variable i is not defined"),
        (For(I0, Var("M"), COPY), "variable M is not defined"),
        (For(I0, N, For(I0, N, COPY)), "variable i is defined twice"),
        (For(N, const(3), block()), "variable N is defined twice"),
        (For(I0, N, COPY, "vector"), "vector loop i needs a constant extent"),
        (For(I0, N, COPY, "unroll"), "unroll loop i needs a constant extent"),
        (For(I0, N, COPY, "blue"), "unknown kind blue"),
        (
            For(Var("j"), N, For(Var("k"), N, For(I0, N, COPY, "parallel"))),
            "parallel loop i must be outermost",
        ),
        (For(I0, const(2), For(Var("j"), const(2), COPY, "vector"), "vector"), "inside another vector"),
        (For(I0, N, Store(Buffer("z", F32, (N,)), (I0,), X[I0])), "buffer z is not declared"),
        (For(I0, N, Store(X, (I0,), Y[I0])), "input x is stored to"),
        (For(I0, N, Store(Y, (I0, I0), X[I0])), "rank 1, accessed with 2"),
        (For(I0, N, Store(Y, (I0,), I0)), "stored to y must be f32, not i64"),
        (For(I0, N, Store(Y, (X[I0],), X[I0])), "an index of y must be i64"),
        (For(I0, N, Store(Y, (I0,), Binary("add", X[I0], I0))), "add of f32 and i64"),
        (For(I0, N, Store(Y, (I0,), Binary("xor", X[I0], X[I0]))), "xor of f32"),
        (For(I0, N, Store(Y, (I0,), Binary("frob", X[I0], X[I0]))), "unknown operation frob"),
        (For(I0, N, Store(replace(Y, dtype=I64), (I0,), I0)), "y is global f32, used as global i64"),
        (If(I0, block()), "variable i is not defined"),
        (If(N, block()), "condition must be bool"),
        (Let(Var("t", F32), N, block()), "value of t must be f32"),
        (Alloc(replace(LOCAL, shape=(N,)), block()), "register buffer t needs a constant shape"),
        (Alloc(replace(LOCAL, memory="global"), block()), "can't be allocated in global"),
        (Alloc(replace(LOCAL, name="x"), block()), "buffer x is declared twice"),
        (block(Alloc(LOCAL, block()), Store(Y, (const(0),), Load(LOCAL, (const(0),)))), "t is not declared"),
    ],
)
def test_bad_nests(body: Stmt, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_func(FUNC.with_body(body))


def test_bad_heads() -> None:
    verify_func(FUNC)
    with pytest.raises(VerifyError, match="variable N is not defined"):
        verify_func(replace(FUNC, symbols=()))
    with pytest.raises(VerifyError, match="3 outputs among 2"):
        verify_func(replace(FUNC, outputs=3))
    with pytest.raises(VerifyError, match="x is declared twice"):
        verify_func(replace(FUNC, params=(X, X, Y)))
    with pytest.raises(VerifyError, match="in scratch memory"):
        verify_func(replace(FUNC, params=(replace(X, memory="scratch"), Y)))


GRAPH = """graph g(a: f32[N, 2]) -> (c) symbols (N in 1..) {
  const w: f32[2] = {1.0, 2.0}
  b: f32[N, 2] = map first(a, w) {body = fn(x0: f32, x1: f32) x0 * x1}
  c: f32[2, N] = transpose second(b) {perm = (1, 0)}
}"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("first(a, w)", "first(a, q)", "node map 'first' uses value 'q' but it is not defined"),
        ("first(a, w)", "first(c, w)", "uses value 'c' before it is made"),
        ("c: f32[2, N] =", "b: f32[2, N] =", "'b' is defined twice"),
        ("  b: f32[N, 2]", "  a: f32[N, 2]", "'a' is defined twice"),
        ("-> (c)", "-> (z)", "output 'z' is not defined"),
        ("c: f32[2, N]", "c: f32[2, M]", "shape of 'c' mentions unknown symbol M"),
        ("c: f32[2, N]", "c: f32[-2, N]", "dimension -2"),
        ("c: f32[2, N]", "c: f32[3, N]", "should be"),
        ("c: f32[2, N]", "c: f64[2, N]", "should be"),
        ("c: f32[2, N]", "c", "'c' has no entry"),
        ("c: f32[2, N]", "c: f32[?]", "should be"),
        ("= map first", "= onnx.Mul first", "onnx.Mul is not a core operator"),
    ],
)
def test_bad_graphs(old: str, new: str, message: str) -> None:
    verify_graph(parse_graph(GRAPH), CORE)
    assert old in GRAPH
    with pytest.raises(VerifyError, match=message):
        verify_graph(parse_graph(GRAPH.replace(old, new)), CORE)


def test_bad_constants_and_kernels() -> None:
    graph = parse_graph(GRAPH)
    with pytest.raises(VerifyError, match="constant 'w' is"):
        verify_graph(replace(graph, constants={"w": np.ones(3, np.float32)}))
    body = Graph("k", ("a",), ("b",), (), {}, {"a": Value("a", F32, (N,)), "b": Value("b", F32, (N,))})
    kernel = Node("k", ("a",), ("b",), Kernel(body))
    with pytest.raises(VerifyError, match="output 'b' is not defined"):
        verify_graph(replace(graph, nodes=(kernel, graph.nodes[1])))
    leak = Node("m", ("w",), ("b",), Map(Var("x0", F32)))
    with pytest.raises(VerifyError, match="uses value 'w'"):
        verify_graph(
            replace(
                graph, nodes=(replace(kernel, attrs=Kernel(replace(body, nodes=(leak,)))), graph.nodes[1])
            )
        )


def change(changed: str, **fields: object) -> Callable[[Plan], Plan]:
    """Return a function that changes one buffer of a plan."""

    def edit(plan: Plan) -> Plan:
        buffers = tuple(replace(b, **fields) if b.name == changed else b for b in plan.buffers)  # type: ignore[arg-type]
        return replace(plan, buffers=buffers)

    return edit


def launch(n: int, **fields: object) -> Callable[[Plan], Plan]:
    """Return a function that changes one launch of a plan."""

    def edit(plan: Plan) -> Plan:
        steps = [replace(x, **fields) if i == n else x for i, x in enumerate(plan.launches)]  # type: ignore[arg-type]
        return replace(plan, launches=tuple(steps))

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change("b", offset=0), "live arena buffers 'a' and 'b' overlap at offset 0"),
        (change("b", offset=4), "can't be at offset 4"),
        (change("b", offset=None), "'b' of a static plan has no offset"),
        (change("b", live=(0, 0)), "outside its live range"),
        (change("out", base="q"), "of 'q', which is no buffer"),
        (change("out", shape=(const(9), const(2))), "has 72 bytes, its base 'b' only 16"),
        (change("a", kind="odd"), "unknown kind odd"),
        (change("a", shape=(N,)), "variable N is not defined"),
        (change("a", shape=(const(5),)), "doesn't have the type of parameter"),
        (change("in", kind="constant"), "constant 'in' has no data"),
        (change("in", kind="output"), "the inputs in are not the buffers of that kind"),
        (change("a", name="b"), "'b' is defined twice"),
        (launch(0, args=("in", "zz")), "'zz' is no buffer"),
        (launch(0, args=("a", "a")), "'a' is read before it is written"),
        (launch(0, args=("in", "in")), "'in' is written, but it is an input"),
        (launch(0, args=("in",)), "1 buffers and 0 symbols"),
        (launch(0, kernel="other"), "no such kernel"),
        (launch(0, tasks=N), "variable N is not defined"),
        (launch(0, grain=const(-1)), "grain -1 can't be"),
        (launch(0, grain=const(1 << 50)), "grain 1125899906842624 can't be"),
        (launch(0, scratch=const(-64)), "-64 rounds, tasks or bytes of scratch can't be"),
        (launch(0, rounds=const(1 << 62)), "rounds, tasks or bytes of scratch can't be"),
        (change("a", shape=(const(-4),)), "buffer 'a' has a dimension of -4"),
        (change("a", shape=(const(1 << 60), const(0))), "buffer 'a' has a dimension of"),
        (change("b", offset=1 << 40), "beyond all that they need together"),
        (change("b", live=(0, 10**9)), "'b' lives from launch 0 to 1000000000 of 2"),
        (lambda p: replace(p, inputs=("in", "in")), "the inputs in, in are not the buffers"),
        (lambda p: replace(p, outputs=("none",)), "'none' is an input or output, but no buffer"),
        (lambda p: replace(p, launches=p.launches[:1]), "output 'out' is never written"),
        (lambda p: replace(p, constraints={binary("lt", N, 3): ""}), "variable N is not defined"),
    ],
)
def test_bad_plans(edit: Callable[[Plan], Plan], message: str) -> None:
    good = plan_of(64)
    verify_plan(good)
    with pytest.raises(VerifyError, match=message):
        verify_plan(edit(good))


def test_arena_neighbours_in_time_may_share() -> None:
    plan = plan_of(64)
    later = PlanBuffer("c", F32, (const(4),), "arena", (2, 2), 0)
    verify_plan(replace(plan, buffers=(*plan.buffers, later)))
