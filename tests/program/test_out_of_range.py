"""Indices that only a run knows. The run fails if one is out of range, and the error names node, index and
range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from build import body, info, model
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin import IndexOutOfRange
from jangin.compiler.pipeline import plan_model
from jangin.ir.interpret import run_plan
from jangin.ir.parse import parse_plan
from jangin.ir.text import print_plan
from jangin.options import Options
from jangin.targets import resolve

Array = np.ndarray[Any, Any]
LAST, FIRST = (1 << 63) - 1, -(1 << 63)


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: Any, dtype: Any = np.int64) -> Array:
    return np.array(values, dtype)


def one(
    op: str, given: dict[str, Array], outputs: int = 1, domain: str = "", **attrs: Any
) -> onnx.ModelProto:
    """Make a model of one node called `picks`."""
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, [*given], results, name="picks", domain=domain, **attrs)
    inputs = [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in given.items()]
    return model([node], inputs, results, domains=[domain] if domain else [])


X = floats(4, 6)
CASES: dict[str, tuple[str, dict[str, Array], str, list[tuple[Array, int]], dict[str, Any]]] = {
    "gather": ("Gather", {"x": X, "i": ints(0, -4, 3)}, "i", [
        (ints(1, 4, 2), 4), (ints(-5, 0, 0), -5), (ints(0, 0, FIRST), FIRST), (ints(LAST, 0, 0), LAST - 1),
    ], {}),
    "gather of small indices": (
        "Gather", {"x": X, "i": ints(5, dtype=np.int32)}, "i", [(ints(6, dtype=np.int32), 6)], {"axis": 1},
    ),
    "gather of a scalar": ("Gather", {"x": X, "i": np.array(3)}, "i", [(np.array(4), 4)], {}),
    "gather elements": (
        "GatherElements", {"x": X, "i": ints([0] * 6, [-4] * 6)}, "i", [(ints([9] * 6, [0] * 6), 9)], {},
    ),
    "gather slices": ("GatherND", {"x": X, "i": ints([3, -6], [0, 5])}, "i", [
        (ints([4, 0], [0, 0]), 4), (ints([0, 0], [0, -7]), -7), (ints([0, 0], [5, 5]), 5),
    ], {}),
    "scatter elements": (
        "ScatterElements", {"x": X, "i": ints([0, -4]), "u": floats(1, 2)}, "i", [(ints([0, 4]), 4)], {},
    ),
    "scatter slices": (
        "ScatterND", {"x": X, "i": ints([1, -6]), "u": floats(1)}, "i", [(ints([1, 6]), 6)], {},
    ),
    "unpool": (
        "MaxUnpool", {"x": floats(1, 1, 2, 2), "i": ints([[[0, 7], [13, 15]]])}, "i",
        [(ints([[[0, 7], [13, 16]]]), 16), (ints([[[-1, 7], [13, 15]]]), -1)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "loss": (
        "NegativeLogLikelihoodLoss", {"x": X, "i": ints(5, 0, -100, 2)}, "i",
        [(ints(6, 0, 0, 0), 6), (ints(0, -1, 0, 0), -1)], {"ignore_index": -100},
    ),
    "cross entropy": (
        "SoftmaxCrossEntropyLoss", {"x": X, "i": ints(5, 0, 1, 2)}, "i", [(ints(0, 0, 0, 6), 6)], {},
    ),
    "reversed lengths": (
        "ReverseSequence", {"x": X, "i": ints(0, 4, 2, 1, 3, 1)}, "i", [(ints(0, 4, 2, 1, 3, 5), 5)], {},
    ),
    "images of regions": (
        "RoiAlign", {"x": floats(2, 1, 4, 4), "r": floats(1, 4), "i": ints(1)}, "i", [(ints(2), 2)], {},
    ),
    "images of regions to pool": (
        "MaxRoiPool", {"x": floats(2, 1, 4, 4), "r": np.array([[1, 0, 0, 2, 2]], np.float32)}, "r",
        [(np.array([[2, 0, 0, 2, 2]], np.float32), 2), (np.array([[-1, 0, 0, 2, 2]], np.float32), -1)],
        {"pooled_shape": [2, 2]},
    ),
    "starts of what goes into a cache": (
        "TensorScatter", {"x": floats(2, 5, 3), "u": floats(2, 2, 3), "i": ints(0, 3)}, "i",
        [(ints(0, 4), 4), (ints(-1, 3), -1)], {},
    ),
    "how many keys there are": (
        "GroupQueryAttention",
        {"q": floats(1, 1, 8), "k": floats(1, 1, 4), "v": floats(1, 1, 4), "pk": floats(1, 1, 3, 4),
         "pv": floats(1, 1, 3, 4), "i": ints(3, dtype=np.int32), "t": np.array(4, np.int32)},
        "i", [(ints(4, dtype=np.int32), 4), (ints(-1, dtype=np.int32), -1)],
        {"domain": "com.microsoft", "num_heads": 2, "kv_num_heads": 1},
    ),
    "positions": (
        "RotaryEmbedding",
        {"x": floats(1, 2, 3, 4), "i": ints([0, 6, 2]), "c": floats(7, 2), "s": floats(7, 2)}, "i",
        [(ints([0, 7, 2]), 7), (ints([0, -1, 2]), -1)], {"domain": "com.microsoft"},
    ),
    "features": (
        "ArrayFeatureExtractor", {"x": X, "i": ints(5, 0)}, "i", [(ints(6, 0), 6)], {"domain": "ai.onnx.ml"},
    ),
    "lengths of sequences": (
        "RNN", {"x": floats(3, 2, 4), "w": floats(1, 5, 4), "r": floats(1, 5, 5), "b": floats(1, 10),
                "i": ints(3, 1, dtype=np.int32)},
        "i", [(ints(4, 1, dtype=np.int32), 4), (ints(3, -1, dtype=np.int32), -1)], {"hidden_size": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_run_fails_and_names_node_index_and_range(case: str) -> None:
    op, given, name, wrong, attrs = CASES[case]
    m = one(op, given, **attrs)
    m.opset_import[0].version = 24 if op == "TensorScatter" else m.opset_import[0].version
    if op in ("RotaryEmbedding", "RNN"):  # the tables and weights of these operators must be constants
        m = with_constants(m, {n: a for n, a in given.items() if n in "csrwb"})
        given = {n: a for n, a in given.items() if n not in "csrwb"}
    exe = jangin.compile(m, cache=False)
    right = exe.run(given)
    for bad, index in wrong:
        with pytest.raises(
            IndexOutOfRange, match=rf"{op} 'picks' .*: index {index} is out of range, which is"
        ):
            exe.run({**given, name: bad})
    for value, again in zip(right.values(), exe.run(given).values(), strict=True):
        np.testing.assert_array_equal(value, again)
    unchecked = jangin.compile(m, cache=False, unchecked=True)
    for bad, _ in wrong:
        unchecked.run({**given, name: bad})
    for value, again in zip(right.values(), unchecked.run(given).values(), strict=True):
        np.testing.assert_array_equal(value, again)


def with_constants(m: onnx.ModelProto, constants: dict[str, Array]) -> onnx.ModelProto:
    kept = [i for i in m.graph.input if i.name not in constants]
    del m.graph.input[:]
    m.graph.input.extend(kept)
    m.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return m


def test_the_range_is_named() -> None:
    exe = jangin.compile(one("GatherND", {"x": X, "i": ints([0, 0])}), cache=False)
    with pytest.raises(
        IndexOutOfRange, match="index 9 is out of range, which is -4 to 3, or -6 to 5, by the axis"
    ):
        exe(X, ints([0, 9]))


def test_sizes_that_are_symbols() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="picks")
    inputs = [info("x", ["n", 3]), info("i", ["k"], TensorProto.INT64)]
    exe = jangin.compile(model([node], inputs, ["y"]), shapes={"n": (0, 300), "k": (0, 9)}, cache=False)
    for n in (1, 5, 300):
        x = floats(n, 3)
        np.testing.assert_array_equal(exe(x, ints(n - 1, -n)), x[[n - 1, -n]])
        assert exe(x, ints()).shape == (0, 3)
        with pytest.raises(IndexOutOfRange, match=f"index {n} is out of range, which is -{n} to {n - 1}"):
            exe(x, ints(0, n))
    with pytest.raises(IndexOutOfRange, match="which is empty"):
        exe(floats(0, 3), ints(0))


@pytest.mark.parametrize("count", [100_003, 63 * 1600])
def test_many_indices(count: int) -> None:
    """More indices than one vector, thread or task takes. (A prime number isn't cut into equal parts.)"""
    given = {"x": floats(50, 3), "i": np.zeros(count, np.int64)}
    made = jangin.build(one("Gather", given), "x86-64-v3", cache=False)
    assert len(made.plan.launches) == (2 if count == 100_003 else 3)
    exe = jangin.compile(one("Gather", given), cache=False)
    for at in (0, 1, 63, 64, 50_000, count - 1600, count - 1):
        bad = given["i"].copy()
        bad[at] = 50
        with pytest.raises(IndexOutOfRange, match="index 50 "):
            exe(given["x"], bad)
    exe(*given.values())


def test_of_several_nodes_the_first_is_named() -> None:
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["a"], name="first"),
        helper.make_node("Gather", ["a", "j"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    integers = [info(n, [2], TensorProto.INT64) for n in "ij"]
    exe = jangin.compile(model(nodes, [info("x", [4, 6]), *integers], ["y"]), cache=False)
    with pytest.raises(IndexOutOfRange, match="Gather 'first'"):
        exe(X, ints(7, 0), ints(7, 0))
    with pytest.raises(IndexOutOfRange, match=r"Gather 'second'.*-2 to 1"):
        exe(X, ints(3, 0), ints(2, 0))


def test_what_nothing_needs_is_not_checked() -> None:
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["unused"]),
        helper.make_node("Add", ["i", "i"], ["twice"]),
        helper.make_node("Gather", ["x", "twice"], ["unused.too"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    exe = jangin.compile(
        model(nodes, [info("x", [4, 6]), info("i", [1], TensorProto.INT64)], ["y"]), cache=False
    )
    np.testing.assert_array_equal(exe(X, ints(99)), np.maximum(X, 0))
    assert len(exe.plan.launches) == 1


def test_indices_that_a_model_computes() -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("Add", ["best", "shift"], ["i"]),
        helper.make_node("Gather", ["table", "i"], ["y"], name="picks"),
    ]
    inputs = [info("x", [4, 6]), info("shift", [], TensorProto.INT64)]
    exe = jangin.compile(model(nodes, inputs, ["y"], {"table": floats(8, 2)}), cache=False)
    np.testing.assert_array_equal(exe(X, np.array(2)), floats(8, 2)[X.argmax(1) + 2])
    with pytest.raises(IndexOutOfRange, match=f"index {X.argmax(1).min() + 20} "):
        exe(X, np.array(20))


def test_constants_are_checked_while_compiling() -> None:
    for op, wrong in (("Gather", ints(4)), ("GatherND", ints([0, 6])), ("GatherElements", ints([-5] * 6))):
        m = with_constants(one(op, {"x": X, "i": wrong}), {"i": wrong})
        with pytest.raises(jangin.CompileError, match=f"{op} 'picks'.*index -?[456] is out of range"):
            jangin.compile(m, cache=False)
    fine = with_constants(one("GatherND", {"x": X, "i": ints([3, 5])}), {"i": ints([3, 5])})
    assert not jangin.compile(fine, cache=False).plan.checks


def test_saved_models_check_too(tmp_path: Path) -> None:
    jangin.build(one("Gather", {"x": X, "i": ints(0, 1)}), cache=False).save(tmp_path / "m.jgn")
    exe = jangin.load(tmp_path / "m.jgn")
    with pytest.raises(IndexOutOfRange, match="index 4 "):
        exe(X, ints(0, 4))


def test_oracle_and_text_agree() -> None:
    (plan,) = plan_model(one("Gather", {"x": X, "i": ints(0, 1)}), Options(resolve())).plans
    assert len(plan.checks) == 1
    parsed = parse_plan(print_plan(plan), plan.constants)
    assert parsed.checks == plan.checks
    np.testing.assert_array_equal(run_plan(plan, {"x": X, "i": ints(0, 1)})["y0"], X[:2])
    with pytest.raises(IndexOutOfRange, match="index -5 is out of range, which is -4 to 3"):
        run_plan(plan, {"x": X, "i": ints(0, -5)})


def looped(trips: int | None) -> onnx.ModelProto:
    """Make a loop that sums rows of a table along a chain of indices. `trips` is the number of iterations, or
    None if it is an input."""
    inner = body(
        "chain",
        [
            helper.make_node("Gather", ["next", "at"], ["to"], name="follows"),
            helper.make_node("Gather", ["table", "to"], ["row"], name="reads"),
            helper.make_node("Add", ["sum", "row"], ["more"]),
            helper.make_node("Identity", ["going"], ["on"]),
        ],
        [info("n", [], TensorProto.INT64), info("going", [], TensorProto.BOOL),
         info("at", [1], TensorProto.INT64), info("sum", [1, 3])],
        ["on", "to", "more"],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "", "start", "zero"], ["end", "y"], body=inner)
    inputs = [info("start", [1], TensorProto.INT64), info("next", [5], TensorProto.INT64)]
    constants: dict[str, Any] = {"table": floats(4, 3), "zero": np.zeros((1, 3), np.float32)}
    if trips is None:
        inputs.append(info("trips", [], TensorProto.INT64))
    else:
        constants["trips"] = np.array(trips)
    return model([node], inputs, ["end", "y"], constants)


@pytest.mark.parametrize("trips", [3, 100, None])
def test_loops(trips: int | None) -> None:
    """The first iteration with a wrong index ends the run, in an unrolled loop and in native code."""
    exe = jangin.compile(looped(trips), cache=False)
    more = [np.array(100)] if trips is None else []
    table, chain = floats(4, 3), ints(1, 2, 3, 0, 1)
    at, total = 0, np.zeros((1, 3), np.float32)
    for _ in range(trips or 100):
        at = int(chain[at])
        total = total + table[[at]]
    for _ in range(2):
        np.testing.assert_allclose(exe(ints(0), chain, *more)[1], total, rtol=1e-5)
        with pytest.raises(IndexOutOfRange, match=r"Gather 'follows'.*index 5 .*-5 to 4"):
            exe(ints(5), chain, *more)
        with pytest.raises(IndexOutOfRange, match=r"Gather 'reads'.*index 4 .*-4 to 3"):
            exe(ints(0), ints(1, 2, 4, 4, 4), *more)


@pytest.mark.parametrize("ranks", ["alike", "differ"])
def test_branches(ranks: str) -> None:
    """Only the branch that is taken is checked, in native code, and in Python if sizes become known in the
    branch."""
    picks = helper.make_node("Gather", ["x", "i"], ["picked"], name="picks")
    finds = [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Shape", ["found"], ["size"]),
             helper.make_node("Gather", ["size", "i"], ["picked"], name="picks")]  # fmt: skip
    then = body("then", [picks] if ranks == "alike" else finds, [], ["picked"])
    orelse = body(
        "else", [helper.make_node("Identity", ["x" if ranks == "alike" else "i"], ["same"])], [], ["same"]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=orelse)
    inputs = [info("c", [], TensorProto.BOOL), info("x", [4, 6]), info("i", [4], TensorProto.INT64)]
    exe = jangin.compile(model([node], inputs, ["y"]), cache=False)
    right = ints(0, 1, 1, 0)
    for wrong in (4, -5):
        exe(np.array(False), X, ints(0, wrong, 0, 0))
        exe(np.array(True), X, right)
        with pytest.raises(IndexOutOfRange, match=f"Gather 'picks'.*index {wrong} "):
            exe(np.array(True), X, ints(0, wrong, 0, 0))
