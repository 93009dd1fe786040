"""The interpreters agree with each other and with NumPy, and refuse what is out of bounds."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import COMMON, exprs

from jangin.ir import interpret, te
from jangin.ir.arithmetic import apply, convert
from jangin.ir.core import Kernel, Map, Reshape
from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.expr import Buffer, Expr, ExprLike, Load, Var, binary, call, cast, const, land, maximum, select
from jangin.ir.graph import Array, CompileError, Graph, Node, Value
from jangin.ir.interpret import bind_symbols, evaluate_stage, run_func, run_plan
from jangin.ir.loop import Alloc, Store
from jangin.ir.parse import parse_func
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ops.interpret import run_graph

N = Var("N")


def both(stages: list[te.Stage], arrays: dict[str, Array], symbols: dict[str, int]) -> Array:
    """Return the result of stages by `evaluate_stage`, after comparing it with the result of their lowered
    nest."""
    local = dict(arrays)
    for stage in stages:
        local[stage.out.name] = evaluate_stage(stage, local, symbols)
    out = stages[-1].out.name
    reads = {n.buffer.name: n.buffer for s in stages for e in (s.body, s.result) for n in _loads(e)}
    inputs = [b for name, b in reads.items() if name in arrays]
    func = te.lower("f", stages, inputs, {Var(k): (None, None) for k in symbols})
    got = np.zeros_like(local[out])
    run_func(func, {**arrays, out: got}, symbols)
    float_result = got.dtype.kind not in "iub"
    tolerance = 2e-2 if got.dtype.itemsize == 2 and float_result else 1e-5 if float_result else 0
    np.testing.assert_allclose(got.astype(float), local[out].astype(float), rtol=tolerance, atol=tolerance)
    return local[out]


def _loads(e: Expr) -> list[Load]:
    from jangin.ir.traversal import loads

    return loads(e)


@given(st.data(), st.sampled_from(COMMON))
@settings(max_examples=100)
def test_grid_and_nest_agree_on_any_expression(data: st.DataObject, dtype: DType) -> None:
    shape = (const(3), N)
    buffers = [Buffer(f"b.{t}", t, shape) for t in COMMON]
    out = Buffer("out", dtype, (const(3), N))
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.integers(0, 9, (3, 2)).astype(b.dtype.numpy) for b in buffers}
    variables = [Var("i0"), Var("i1"), N]
    body = data.draw(exprs(dtype, variables, buffers, 3, exact=True))
    both([te.compute(out, lambda *_: body)], arrays, {"N": 2})


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64, I32, I64, U8])
def test_convolution_with_padding(dtype: DType) -> None:
    h, w = Var("H"), Var("W")
    x, k = Buffer("x", dtype, (h, w, const(3))), Buffer("k", dtype, (const(3), const(3), const(3), const(4)))
    y = Buffer("y", dtype, (h, w, const(4)))

    def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        row, col = i[0] + r[0] - 1, i[1] + r[1] - 1
        ok = land(land(row >= 0, row < h), land(col >= 0, col < w))
        return select(ok, x[row, col, r[2]], const(0, dtype)) * k[r[0], r[1], r[2], i[2]]

    stage = te.reduction(y, (3, 3, 3), "sum", term, lambda acc, _: maximum(acc, 5))
    rng = np.random.default_rng(0)
    image, kernel = rng.integers(0, 3, (4, 5, 3)), rng.integers(0, 3, (3, 3, 3, 4))
    arrays = {"x": image.astype(dtype.numpy), "k": kernel.astype(dtype.numpy)}
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))
    expected = np.maximum(np.einsum("hwcrs,rsco->hwo", windows, kernel), 5)
    got = both([stage], arrays, {"H": 4, "W": 5}).astype(np.int64)
    np.testing.assert_array_equal(got, expected if dtype not in (U8,) else expected % 256)


@pytest.mark.parametrize(("combiner", "reference"), [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_reductions(combiner: str, reference: object) -> None:
    x, y = Buffer("x", F32, (const(4), N)), Buffer("y", F32, (const(4),))
    stage = te.reduction(y, (N,), combiner, lambda i, k: x[i[0], k[0]])
    data = np.random.default_rng(1).normal(size=(4, 7)).astype(np.float32)
    np.testing.assert_allclose(both([stage], {"x": data}, {"N": 7}), reference(data, axis=1), rtol=1e-6)  # type: ignore[operator]
    empty = evaluate_stage(stage, {"x": data[:, :0]}, {"N": 0})
    assert np.all(empty == te.identity(combiner, F32).value)


def test_softmax_in_stages() -> None:
    x, top, total, y = (
        Buffer(n, F32, s) for n, s in zip("xmty", ((N, const(6)), (N,), (N,), (N, const(6))), strict=True)
    )
    stages = [
        te.reduction(top, (6,), "max", lambda i, k: x[i[0], k[0]]),
        te.reduction(total, (6,), "sum", lambda i, k: call("exp", x[i[0], k[0]] - top[i[0]])),
        te.compute(y, lambda i, j: call("exp", x[i, j] - top[i]) / total[i]),
    ]
    data = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    e = np.exp(data)
    np.testing.assert_allclose(
        both(stages, {"x": data}, {"N": 3}), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), (0, 1, 2)])
def test_axes_in_another_order(order: tuple[int, int, int]) -> None:
    """The axes of a whole result and of a part of it are exchanged."""
    data = np.random.default_rng(0).integers(0, 9, (3, 4, 5)).astype(np.int32)
    x = Buffer("x", I32, tuple(map(const, data.shape)))
    whole = data.transpose(np.argsort(order))
    for sizes in (whole.shape, tuple(n - 1 for n in whole.shape)):
        y = Buffer("y", I32, tuple(map(const, sizes)))
        got = both([te.compute(y, lambda *i: x[tuple(i[d] for d in order)])], {"x": data}, {})
        np.testing.assert_array_equal(got, whole[tuple(slice(n) for n in sizes)])


def test_large_grids_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = Buffer("x", F32, (const(1), const(20), const(30))), Buffer("y", F32, (const(1), const(20)))
    stage = te.reduction(y, (30,), "sum", lambda i, k: x[i[0], i[1], k[0]] * cast(F32, i[1]))
    data = {"x": np.random.default_rng(0).normal(size=(1, 20, 30)).astype(np.float32)}
    whole = evaluate_stage(stage, data, {})
    monkeypatch.setattr(interpret, "GRID_LIMIT", 64)
    np.testing.assert_array_equal(evaluate_stage(stage, data, {}), whole)


def test_a_million_points_are_quick() -> None:
    x, w = (
        Buffer("x", F32, (const(56), const(56), const(16))),
        Buffer("w", F32, (const(3), const(3), const(16))),
    )
    y = Buffer("y", F32, (const(54), const(54)))
    stage = te.reduction(
        y, (3, 3, 16), "sum", lambda i, k: x[i[0] + k[0], i[1] + k[1], k[2]] * w[k[0], k[1], k[2]]
    )
    start = time.process_time()
    evaluate_stage(stage, {"x": np.ones((56, 56, 16), np.float32), "w": np.ones((3, 3, 16), np.float32)}, {})
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("fn", "args", "dtype", "result"),
    [
        ("div", (-7, 2), I32, -3), ("floordiv", (-7, 2), I32, -4), ("mod", (-7, 2), I32, 1),
        ("rem", (-7, 2), I32, -1), ("rem", (-7.5, 2), F32, -1.5), ("mod", (-7.5, 2), F32, 0.5),
        ("add", (127, 1), I8, -128), ("mul", (200, 2), U8, 144), ("pow", (3, 4), I32, 81),
        ("pow", (2, -1), I32, 0), ("pow", (2.0, -1.0), F32, 0.5), ("div", (1.0, 0.0), F32, np.inf),
        ("min", (np.nan, 1.0), F32, np.nan), ("max", (1.0, np.nan), F32, np.nan),
        ("round", (2.5,), F32, 2.0), ("round", (-0.5,), F32, -0.0), ("sigmoid", (-1000.0,), F32, 0.0),
        ("sign", (-3.0,), F32, -1.0), ("not", (5,), I32, -6), ("not", (True,), BOOL, False),
        ("shl", (3, 4), I32, 48), ("shr", (-16, 2), I32, -4), ("fma", (2.0, 3.0, 1.0), F32, 7.0),
        ("erf", (0.5,), F32, 0.5204999), ("isnan", (np.nan,), BOOL, True), ("rsqrt", (4.0,), F16, 0.5),
        ("exp", (np.inf,), BF16, np.inf), ("xor", (6, 3), I64, 5),
    ],
)  # fmt: skip
def test_arithmetic(fn: str, args: tuple[float, ...], dtype: DType, result: float) -> None:
    source = F32 if fn == "isnan" else dtype
    with np.errstate(all="ignore"):
        got = apply(fn, tuple(convert(a, source) for a in args), dtype)
    assert got.dtype == dtype.numpy
    np.testing.assert_allclose(got.astype(np.float64), result, rtol=1e-6)


def test_bit_casts() -> None:
    bits = apply("bitcast_i32", (np.float32(1.0),), I32)
    assert int(bits) == 0x3F800000
    assert float(apply("bitcast_f32", (bits,), F32)) == 1.0


def test_access_out_of_bounds_is_named() -> None:
    func = parse_func(
        "func f(x: f32[N], y: out f32[N]) symbols (N in 1..) { serial i in N { y[i] = x[i + 1] } }"
    )
    x = np.zeros(3, np.float32)
    with pytest.raises(IndexError, match=r"x\[3\] is outside its shape \(3,\)"):
        run_func(func, {"x": x, "y": x.copy()}, {"N": 3})
    with pytest.raises(CompileError, match=r"x must be f32\[4\]"):
        run_func(func, {"x": x, "y": x.copy()}, {"N": 4})


def test_select_and_if_are_lazy() -> None:
    func = parse_func(
        "func f(x: f32[3], y: out f32[4]) { serial i in 4 {"
        " y[i] = select(i < 3, x[i], 7.0)"
        " if i < 2 { y[i] = x[i + 1] } else { let t = y[i] y[i] = t * 2.0 } } }"
    )
    y = np.zeros(4, np.float32)
    run_func(func, {"x": np.arange(3, dtype=np.float32), "y": y}, {})
    assert y.tolist() == [1, 2, 4, 14]


def test_undefined_memory_shows() -> None:
    local = Buffer("t", F32, (const(1),), "register")
    out = Buffer("y", F32, (const(1),))
    func = parse_func("func f(y: out f32[1]) {}").with_body(
        Alloc(local, Store(out, (const(0),), Load(local, (const(0),))))
    )
    y = np.zeros(1, np.float32)
    run_func(func, {"y": y}, {})
    assert np.isnan(y[0])


def test_symbols_are_bound_and_checked() -> None:
    shapes = [("x", (N, const(3)), (4, 3)), ("y", (N * 2,), (8,))]
    assert bind_symbols(shapes, {N: (const(1), const(4))}) == {"N": 4}
    with pytest.raises(CompileError, match=r"N = 4 is outside its range 1\.\.3"):
        bind_symbols(shapes, {N: (const(1), const(3))})
    with pytest.raises(CompileError, match=r"y: expected shape \[\(N \* 2\)\], got \(9,\)"):
        bind_symbols([shapes[0], ("y", (N * 2,), (9,))], {})
    with pytest.raises(CompileError, match="expected rank 2"):
        bind_symbols([("x", (N, const(3)), (4,))], {})


def plan_of(offset: int) -> Plan:
    """Make a static plan of out = (x + 1) * 2, whose two arena buffers are `offset` bytes apart."""
    add = parse_func("func add(x: f32[4], y: out f32[4]) { serial i in 4 { y[i] = x[i] + 1.0 } }")
    mul = parse_func("func mul(x: f32[4], y: out f32[4]) { serial i in 4 { y[i] = x[i] * 2.0 } }")
    shape = (const(4),)
    buffers = (
        PlanBuffer("in", F32, shape, "input"),
        PlanBuffer("a", F32, shape, "arena", (0, 1), 0),
        PlanBuffer("b", F32, shape, "arena", (1, 1), offset),
        PlanBuffer("out", F32, (const(2), const(2)), "alias", base="b"),
    )
    launches = tuple(
        Launch(f.name, args, (), const(1), const(0), const(0))
        for f, args in ((add, ("in", "a")), (mul, ("a", "b")))
    )
    return Plan("p", "", ("in",), ("out",), (), {}, buffers, launches, {}, {"add": add, "mul": mul})


def test_run_plan() -> None:
    x = np.arange(4, dtype=np.float32)
    out = run_plan(plan_of(64), {"in": x})["out"]
    np.testing.assert_array_equal(out, ((x + 1) * 2).reshape(2, 2))
    shared = run_plan(plan_of(4), {"in": x})["out"]
    assert not np.array_equal(shared, out), "overlapping buffers show"


def test_run_graph_with_kernels_and_constants() -> None:
    inner = Graph(
        "k",
        ("x",),
        ("r",),
        (Node("m", ("x",), ("r",), Map(Var("x0", F32) * 2.0)),),
        {},
        {"x": Value("x", F32, (N, const(2))), "r": Value("r", F32, (N, const(2)))},
    )
    nodes = (
        Node("k", ("a",), ("b",), Kernel(inner)),
        Node("r", ("b",), ("c",), Reshape((N * 2,))),
        Node("sum", ("c", "one"), ("d",), Map(Var("x0", F32) + Var("x1", F32))),
    )
    shapes: dict[str, tuple[ExprLike, ...]] = {
        "a": (N, 2),
        "b": (N, 2),
        "c": (N * 2,),
        "d": (N * 2,),
        "one": (1,),
    }
    values = {
        k: Value(k, F32, tuple(d if isinstance(d, Expr) else const(int(d)) for d in s))  # type: ignore[arg-type]
        for k, s in shapes.items()
    }
    graph = Graph("g", ("a",), ("d",), nodes, {"one": np.ones(1, np.float32)}, values, {N: (const(1), None)})
    a = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(run_graph(graph, {"a": a})["d"], a.ravel() * 2 + 1)


def test_i64_arithmetic_wraps_alike() -> None:
    x, y = Buffer("x", I64, (const(3),)), Buffer("y", I64, (const(3),))
    extreme = np.array([-(1 << 63), (1 << 63) - 1, 3])
    for op in ("add", "sub", "mul", "floordiv", "mod", "min"):
        stage = te.compute(y, lambda i, op=op: binary(op, x[i], x[i] - 2))
        assert both([stage], {"x": extreme}, {}).dtype == np.int64
