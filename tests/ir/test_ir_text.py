"""Text forms: every printed form reads back equal, quickly and without the compiler. Errors name the
place."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import COMMON, NAMES, exprs, funcs

from jangin.ir import te
from jangin.ir.core import LoopNest, MatMul
from jangin.ir.dtype import F16, F32, I64, DType
from jangin.ir.expr import Buffer, Var, const, maximum, select
from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.graph_text import graph_arrays, parse_graph, print_graph
from jangin.ir.loop import Func
from jangin.ir.parse import parse_expr, parse_func, parse_plan
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ir.sources import NO_SOURCE, Source, Sources
from jangin.ir.text import print_func, print_plan
from jangin.ir.verify import verify_func

FEW = settings(max_examples=60)


@pytest.mark.sampled(3)
@given(st.data(), st.sampled_from(COMMON), NAMES)
@FEW
def test_expr_round_trip(data: st.DataObject, dtype: DType, name: str) -> None:
    variables = [Var(f"{name}.{t}" if n else name, t) for n, t in enumerate(COMMON)]
    buffers = [Buffer(name, dtype, (const(3), const(2))), Buffer(name + "'", F32, ())]
    e = data.draw(exprs(dtype, variables, buffers))
    assert parse_expr(str(e), variables, buffers) == e


@given(funcs())
@FEW
def test_func_round_trip(func: Func) -> None:
    verify_func(func)
    assert parse_func(print_func(func)) == func


def test_func_by_hand() -> None:
    text = """
    func conv1(x: f32[1, H, W, 3], y: out f32[1, H, W, 8]) symbols (H in 1..4096, W in 1..) {
      parallel i0 in H {   # a comment
        serial i1 in W {
          alloc register acc: f32[1]
          acc[0] = 0.5
          let t = x[0, i0, i1, 2] * 2.0 + acc[0]
          if i0 < 3 & i1 + 1 < W { y[0, i0, i1, 2] = max(acc[0], -t) }
        }
      }
    }"""
    func = parse_func(text)
    verify_func(func)
    printed = print_func(func)
    assert "let t = (x[0, i0, i1, 2] * f32(2.0)) + acc[0]" in printed
    assert "if (i0 < 3) & ((i1 + 1) < W) {" in printed
    assert parse_func(printed) == func


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func f(x: f32[3]) {\n  x[0] = 1 +\n}", "line 3, column 1: expected a name, found }"),
        ("func f(x: q32[3]) {}", "line 1, column 11: expected a dtype, found q32"),
        ("func f(x: f32[3]) { y[0] = 1 }", "column 21: no buffer y"),
        ("func f(x: f32[3]) { x[0, 1] = 1 }", "column 22: x has rank 1, not 2"),
        ("func f(x: f32[3]) { x[0] = x[0] + 1 }", "column 33: add of f32 and i64"),
        ("func f(x: f32[3]) { x[0] = frob(1) }", "column 28: unknown function frob"),
        ("func f(x: f32[3]) { x[0] = exp(1, 2) }", "exp takes 1 argument"),
        ("func f(x: out f32[3], y: f32[3]) {}", "outputs must be the last"),
        ("func f() {} }", "column 13: expected the end, found }"),
        ('func "f() {}', "column 6: expected a name"),
        ("func f() {", "expected }, found the end"),
        ("func f(x: i64[]) { x[] = " + "(" * 5000, "nested too deeply"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(CompileError) as error:
        parse_func(text)
    assert message in str(error.value)


@given(st.text(max_size=30))
@FEW
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_expr, parse_func, parse_graph, parse_plan):
        try:
            parse(text)
        except CompileError:
            continue


CONV = Sources.of("Conv", "x", "ai.onnx", 13)


def sample_graph() -> Graph:
    n = Var("batch size")
    x, y = Buffer("x", F32, (n, const(3))), Buffer("y", F32, (n,))
    stage = te.reduction(
        y, (3,), "sum", lambda i, k: x[i[0], k[0]], lambda acc, i: maximum(acc, const(0, F32))
    )
    inner = Graph(
        "inner",
        ("a",),
        ("b",),
        (Node("r", ("a", "x:0"), ("b", ""), ImportedAttributes("onnx.Relu")),),
        {},
        {"a": Value("a", None, None), "b": Value("b", F32, None), "x:0": Value("x:0", F32, (n, const(3)))},
    )
    attrs = {
        "stages": (stage,), "float": 1.5, "inf": -np.inf, "int": -3, "true": True, "none": None,
        "dtype": F16, "string": 'a"\n,b', "tuple": (1,), "list": [1, (2, "x")], "empty": (),
        "body": maximum(Var("x0", F32), 0.0), "large": np.arange(100, dtype=np.float32), "graph": inner,
        "small": np.array([1.5, np.nan, -0.0], np.float16), "scalar": np.array(3, np.uint8),
    }  # fmt: skip
    nodes = (
        Node("n/1", ("x:0", "", "w"), ("mid",), ImportedAttributes("onnx.Conv", attrs), CONV),
        Node("", ("mid",), ("z",), LoopNest(te.nest(stage), F32, (n * 2,), (n >= 2,))),
    )
    values = {
        "x:0": Value("x:0", F32, (n, const(3))),
        "w": Value("w", I64, (const(1), const(2))),
        "big": Value("big", F32, (const(100),)),
        "mid": Value("mid", F32, (n,)),
        "z": Value("z", F32, (n,)),
    }
    constants = {"w": np.array([[1, 2]], np.int64), "big": np.arange(100, dtype=np.float32)}
    return Graph(
        "a graph",
        ("x:0",),
        ("z",),
        nodes,
        constants,
        values,
        {n: (const(1), None)},
        {n >= 2: CONV, n <= 9: NO_SOURCE},
        {"batch": 4},
    )


def test_graph_round_trip() -> None:
    graph = sample_graph()
    text = print_graph(graph)
    arrays = graph_arrays(graph)
    assert len(arrays) == 1, "equal arrays are kept once"
    again = parse_graph(text, arrays)
    assert print_graph(again) == text
    assert again.values == graph.values
    assert again.symbols == graph.symbols
    assert again.constraints == graph.constraints and again.bound == graph.bound
    assert all(np.array_equal(again.constants[k], v) for k, v in graph.constants.items())
    for new, old in zip(again.nodes, graph.nodes, strict=True):
        assert (new.op, new.name, new.inputs, new.outputs, new.source) == (
            old.op, old.name, old.inputs, old.outputs, old.source
        )  # fmt: skip
        found = new.attrs.named()
        for key, value in old.attrs.named().items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(found[key], value, strict=True)
            elif not isinstance(value, Graph):
                assert found[key] == value
                assert type(found[key]) is type(value)
    with pytest.raises(CompileError, match="isn't given"):
        parse_graph(text)


def sample_plan(buffers: int, launches: int) -> Plan:
    n = Var("N")
    shape = (n, const(64), const(56), const(56))
    held = [PlanBuffer("in", F32, (n, const(3)), "input")]
    held += [
        PlanBuffer(f"/layer{i}/Conv_out", F32, shape, "arena", (i, i + 2), i * 64) for i in range(buffers)
    ]
    held += [PlanBuffer("view", F32, (n,), "alias", (0, 0), None, held[1].name)]
    held += [PlanBuffer("w", F32, (const(2),), "constant")]
    steps = [
        Launch(
            f"k{i}",
            tuple(b.name for b in held[i : i + 4]),
            (n,),
            n * 7,
            select(n < 3, 0, 5),
            const(64),
            Sources([*CONV, Source(f"Conv {i}")][i % 3 :]),
            "contraction rows=6",
            n * 9,
            n + i,
            function=f"k_{i}" if i % 2 else "",
            local=(8, 4) if i % 3 else (),
        )
        for i in range(launches)
    ]
    return Plan(
        "net", "x86_64/skylake", ("in",), ("view", held[2].name), ((n, (const(1), const(8))),),
        {(n % 2) <= 1: Sources.of("Add", "a")}, tuple(held), tuple(steps),
    )  # fmt: skip


def test_plan_round_trip_and_speed() -> None:
    plan = sample_plan(500, 200)
    text = print_plan(plan)
    start = time.process_time()
    again = parse_plan(text)
    assert time.process_time() - start < 0.25, "some 16 ms on an idle core"
    assert again == plan
    data = {"w": np.ones(2, np.float32)}
    assert parse_plan(text, data).constants == data


def test_plans_are_read_without_the_compiler() -> None:
    program = (
        "import sys, jangin.ir.parse as p\n"
        "heavy = {'jangin.ir.te', 'jangin.ops', 'llvmlite', 'onnx', 'jangin.compiler'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "transpose t(a) {perms = (1, 0)}",
            "column 5: transpose has no attribute perms; it has perm",
        ),
        ("transpose t(a)", "transpose needs the attribute perm"),
        ("transpose t(a) {perm = (0, 0)}", r"transpose: \(0, 0\) is no permutation"),
        ("transpose t(a) {perm = 1}", r"transpose: perm should be tuple\[int, ...\], not 1"),
        ("transpos t(a) {perm = (1, 0)}", "there is no core operator transpos"),
        ("conv c(a, a) {dilations = (1,), kernel = (3,), pads = (0,), strides = (1,)}", "pads two"),
    ],
)
def test_wrong_attributes_are_one_clear_error(line: str, message: str) -> None:
    text = "graph g(a: f32[2, 3]) -> (b) {{\nb = {}\n}}"
    assert parse_graph(text.format("matmul m(a, a)")).nodes[0].attrs == MatMul()
    with pytest.raises(CompileError, match=message):
        parse_graph(text.format(line))
