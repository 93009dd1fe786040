"""Simplification keeps results, and removes what it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from nets import N, Net, attention, convolutional, feeds

from jangin.ir.core import Conv, Map, MatMul, Slice, Transpose
from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, U16, DType
from jangin.ir.expr import Binary, Expr, Var, binary, cast, const, maximum
from jangin.ir.graph import Graph
from jangin.ir.sources import Sources
from jangin.ir.traversal import substitute
from jangin.ir.verify import verify_graph
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.passes.algebra.simplify import simplify
from jangin.passes.algebra.simplify_map import evaluate, is_exact, simplify_body

A, B, C = Var("a", F32), Var("b", F32), Var("c", I32)


def check(graph: Graph, **expected: int) -> Graph:
    """Return the simplified graph, after a comparison of its results and a count of its operators."""
    new = simplify(graph)
    verify_graph(new)
    x = feeds(graph)
    before, after = run_graph(graph, x), run_graph(new, x)
    assert new.inputs == graph.inputs and list(after) == list(before)
    for name, want in before.items():
        assert after[name].dtype == want.dtype and new.shape(name) == graph.shape(name)
        np.testing.assert_allclose(after[name], want, rtol=1e-5, atol=1e-5)
    assert Counter(n.op for n in new.nodes) == Counter(expected)
    return new


def keep(t: Net, x: Tensor) -> Tensor:
    """Add an operator that no rule removes."""
    return t.b.map(lambda v: maximum(v, 0.5), x)


def test_whole_nets_keep_their_results() -> None:
    for graph in (convolutional(), attention()):
        new = simplify(graph)
        x = feeds(graph)
        for name, want in run_graph(graph, x).items():
            np.testing.assert_allclose(run_graph(new, x)[name], want, rtol=1e-4, atol=1e-5)


def test_transposes_that_cancel_vanish() -> None:
    t = Net()
    x = keep(t, t.input("x", N, 3, 4))
    check(t.done(keep(t, t.b.transpose(t.b.transpose(x, (2, 0, 1)), (1, 2, 0)))), map=2)


def test_transposes_compose() -> None:
    t = Net()
    y = t.b.transpose(t.b.transpose(t.input("x", N, 3, 4), (2, 0, 1)), (2, 0, 1))
    new = check(t.done(keep(t, y)), transpose=1, map=1)
    assert next(n for n in new.nodes if n.op == "transpose").of(Transpose).perm == (1, 2, 0)


def test_a_transpose_of_unit_axes_is_a_reshape() -> None:
    t = Net()
    check(t.done(t.b.transpose(t.input("x", N, 1, 4), (1, 0, 2))), reshape=1)


def test_reshapes_merge_and_vanish() -> None:
    t = Net()
    x = t.input("x", N, 3, 4)
    same = t.b.reshape(t.b.reshape(x, [N, 12]), [N, 3, 4])
    check(t.done(keep(t, same), t.b.reshape(t.b.reshape(x, [N, 12]), [N * 12])), map=1, reshape=1)


def test_an_output_that_is_an_input_stays() -> None:
    t = Net()
    x = t.input("x", N, 3)
    check(t.done(t.b.reshape(t.b.reshape(x, [N * 3]), [N, 3])), reshape=1)


def test_slices_compose() -> None:
    t = Net()
    y = t.b.slice(t.input("x", N, 12), [0, 1], [N, 5], [1, 2])
    new = check(t.done(t.b.slice(y, [0, 1], [N, 2], [1, 2])), slice=1)
    assert new.nodes[0].of(Slice).starts[1] == const(3) and new.nodes[0].of(Slice).steps == (1, 4)


def test_concatenations_flatten() -> None:
    t = Net()
    x, y, z = (t.input(n, N, 3) for n in "xyz")
    check(t.done(t.b.concat([t.b.concat([x, y], 1), z], 1)), concat=1)


def test_broadcasting_replaces_expansion() -> None:
    t = Net()
    x, y = t.input("x", N, 3, 4), t.input("y", 3, 1)
    check(t.done(t.add(x, t.b.expand(y, [N, 3, 4]))), map=1)


def test_an_expansion_that_spans_the_result_comes_after_the_map() -> None:
    t = Net()
    new = check(t.done(keep(t, t.b.expand(t.input("y", N, 1), [N, 4]))), map=1, expand=1)
    assert new.nodes[-1].op == "expand"


@pytest.mark.parametrize("index", [2, -1, [3], [0, 2], [3, 2, 1]])
def test_gathers_of_even_positions_are_slices(index: object) -> None:
    t = Net()
    y = t.b.gather(t.input("x", N, 4, 3), t.b.const(np.array(index, np.int64)), 1)
    shaped = {"reshape": 1} if isinstance(index, int) else {}
    check(t.done(y), slice=1, **shaped)


def test_a_gather_that_may_be_out_of_range_stays() -> None:
    t = Net()
    y = t.b.gather(t.input("x", 3, N), t.b.const(np.array(1, np.int64)), 1)
    assert [n.op for n in simplify(t.done(y)).nodes] == ["gather"]


@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_of_one_element(keepdims: bool) -> None:
    t = Net()
    x = t.input("x", N, 1, 4)
    check(t.done(t.b.reduce("sum", x, [1], keepdims)), reshape=1)
    t = Net()
    x = t.input("x", N, 1, 4)
    reshape = {} if keepdims else {"reshape": 1}
    check(t.done(t.b.reduce("max", x, [1, 2], keepdims)), reduce=1, **reshape)


@pytest.mark.parametrize("kernel", [1, 3])
def test_padding_joins_a_convolution(kernel: int) -> None:
    t = Net()
    x = t.b.pad(t.input("x", N, 3, 6, 6), [0, 0, 1, 2, 0, 0, 0, 1])
    new = check(t.done(t.conv(x, 4, kernel, pad=1)), conv=1)
    assert new.nodes[0].of(Conv).pads == (2, 3, 1, 2)


@pytest.mark.parametrize("how", [{"value": 1.0}, {"mode": "edge"}])
def test_other_padding_stays(how: dict[str, object]) -> None:
    t = Net()
    x = t.b.pad(t.input("x", N, 3, 6, 6), [0, 0, 1, 1, 0, 0, 1, 1], **how)  # type: ignore[arg-type]
    check(t.done(t.conv(x, 4, 3)), conv=1, pad=1)


def test_channel_padding_stays() -> None:
    t = Net()
    x = t.b.pad(t.input("x", N, 3, 6, 6), [0, 1, 0, 0, 0, 0, 0, 0])
    check(t.done(t.conv(x, 4, 3)), conv=1, pad=1)


def test_products_read_transposed_operands() -> None:
    t = Net()
    x, y = t.input("x", N, 3, 4), t.input("y", N, 5, 4)
    new = check(t.done(t.b.matmul(x, t.b.transpose(y, (0, 2, 1)))), matmul=1)
    assert new.nodes[0].of(MatMul).transpose_b


def test_products_leave_contiguous_transposes() -> None:
    t = Net()
    x, y = t.input("x", N, 2, 3, 4), t.input("y", N, 5, 2, 4)
    new = check(t.done(t.b.matmul(x, t.b.transpose(y, (0, 2, 3, 1)))), transpose=1, matmul=1)
    assert new.nodes[0].of(Transpose).perm == (0, 2, 1, 3)


def test_scalar_constants_become_immediate() -> None:
    t = Net()
    x, c = t.input("x", N, 3), t.b.const(np.full((1, 1), 2.5, np.float32))
    new = check(t.done(t.mul(x, c)), map=1)
    assert new.nodes[0].of(Map).body == Var("x0", F32) * 2.5 and not new.constants


def test_an_operand_given_twice_is_read_once() -> None:
    t = Net()
    x = t.input("x", N, 3)
    assert simplify(t.done(t.mul(x, x))).nodes[0].inputs == ("x",)


@pytest.mark.parametrize(("dtype", "left"), [(I32, 1), (F32, 3)])
def test_constant_factors_of_integers_gather(dtype: DType, left: int) -> None:
    """Constant factors of integers are multiplied together. Floats are rounded after each factor, so theirs
    aren't."""
    t = Net()
    y: Tensor = t.b.cast(t.input("x", N, 3), dtype)
    for _ in range(3):
        y = t.mul(y, t.b.const(np.arange(2, 5).astype(dtype.numpy)))
    new = simplify(t.done(y))
    products = [n for n in new.nodes if n.of(Map).body.dtype is dtype and isinstance(n.of(Map).body, Binary)]
    assert len(products) == len(new.constants) == left


def test_casts_that_lose_nothing_vanish() -> None:
    t = Net()
    check(t.done(keep(t, t.b.cast(t.b.cast(t.input("x", N, 3), F64), F32))), map=1)


def test_substitution_is_done_once() -> None:
    """1 * b becomes b's replacement, which must not be replaced again."""
    assert substitute(A * B, {A: const(1, F32), B: A}) == A


BODIES: list[tuple[Expr, Expr]] = [
    (A * 1.0, A),
    (A + 0.0, A + 0.0),
    (A + -0.0, A),
    (A - 0.0, A),
    (A - -0.0, A - -0.0),
    (cast(I32, A + 0.0), cast(I32, A)),
    (const(2.0, F32) * (A * 3.0), (A * 3.0) * 2.0),
    ((A + 1.0) + 2.0, (A + 1.0) + 2.0),
    ((C + 1) + 2, C + 3),
    (const(2, I32) * (C * 3), C * 6),
    (binary("floordiv", A, 1.0), binary("floordiv", A, 1.0)),
    (A / 4.0, A * 0.25),
    (A / 3.0, A / 3.0),
    (binary("pow", A, 2.0), A * A),
    (binary("pow", A, 1.0), A),
    (cast(F32, cast(F64, A)), A),
    (cast(F64, cast(F16, A)), cast(F64, cast(F16, A))),
    (const(1.0, F32) + 2.0, const(3.0, F32)),
    ((A * 1e30) * 1e30, (A * 1e30) * 1e30),
]


@pytest.mark.parametrize(("body", "want"), BODIES, ids=[str(b) for b, _ in BODIES])
def test_bodies(body: Expr, want: Expr) -> None:
    assert simplify_body(body) == want


def test_bodies_keep_their_values() -> None:
    random = np.random.default_rng(0)
    values = {n: random.standard_normal(50).astype(np.float32) for n in "ab"}
    make: list[Callable[[Expr, Expr], Expr]] = [
        lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p / 2.0,
        lambda p, q: p * 0.5, lambda p, q: p + 1.5, lambda p, q: cast(F32, cast(F64, p)),
        lambda p, q: binary("pow", p, 2.0),
    ]  # fmt: skip
    for _ in range(200):
        pool: list[Expr] = [A, B, const(0.75, F32)]
        for _ in range(6):
            p, q = (pool[random.integers(len(pool))] for _ in range(2))
            pool.append(make[random.integers(len(make))](p, q))
        got = evaluate(simplify_body(pool[-1]), values)
        np.testing.assert_array_equal(got, evaluate(pool[-1], values))


@pytest.mark.parametrize(
    ("source", "target", "exact"),
    [
        (F32, F64, True), (F64, F32, False), (BF16, F32, True), (BF16, F16, False), (F16, BF16, False),
        (I8, F16, True), (I32, F32, False), (I32, F64, True), (U8, I8, False), (U8, U16, True),
        (U8, I32, True), (I8, U16, False), (BOOL, F16, True), (F32, BOOL, False), (I64, F64, False),
        (U16, F32, True),
    ],
)  # fmt: skip
def test_exact_casts(source: DType, target: DType, exact: bool) -> None:
    assert is_exact(source, target) == exact


def test_nodes_keep_the_source() -> None:
    t = Net()
    t.b.source = Sources.of("Transpose", "t", "ai.onnx", 13)
    graph = simplify(t.done(t.b.transpose(t.input("x", N, 1, 4), (1, 0, 2))))
    assert [n.source for n in graph.nodes] == [Sources.of("Transpose", "t", "ai.onnx", 13)]


@pytest.mark.parametrize(
    ("start", "count", "shape", "slices"),
    [(8, 8, [N, 6, 2, 4], 1), (8, 8, [N * 6, 8], 1), (4, 8, [N, 6, 1, 8], 1), (4, 8, [N, 3, 16], 0)],
)
def test_a_reshape_of_a_slice_is_a_slice_of_a_reshape(
    start: int, count: int, shape: list[object], slices: int
) -> None:
    t = Net()
    x = t.relu(t.input("x", N, 6, 24))
    part = t.b.slice(x, [0, 0, start], [N, 6, count], [1, 1, 1])
    after = check(t.done(keep(t, t.b.reshape(part, shape))), map=2, slice=1, reshape=1)  # type: ignore[arg-type]
    order = [n.op for n in after.nodes]
    assert (order.index("slice") > order.index("reshape")) == bool(slices)
