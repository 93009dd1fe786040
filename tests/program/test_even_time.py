"""`deterministic_time=True`: the same work for all data, and a warning that names what still depends on
them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from build import body, info, model
from onnx import TensorProto, helper

import jangin
from jangin.runtime.executable import Executable
from jangin.runtime.load import Runnable

Array = np.ndarray[Any, Any]


def branches(then: str = "Sqrt", orelse: str = "Exp", shape: int | str = 6) -> onnx.ModelProto:
    """Return a model of a branch, whose condition is computed, between two other nodes."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["z"], name="choice",
            then_branch=body("then", [helper.make_node(then, ["x"], ["t"])], [], ["t"]),
            else_branch=body("orelse", [helper.make_node(orelse, ["x"], ["e"])], [], ["e"]),
        ),
        helper.make_node("Neg", ["z"], ["y"]),
    ]  # fmt: skip
    return model(nodes, [info("x", [shape])], ["y"], {"zero": np.float32(0)})


def warned(m: onnx.ModelProto, **given: Any) -> tuple[Runnable, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exe = jangin.compile(m, deterministic_time=True, **given)
    return exe, [str(w.message) for w in caught if "time of a run" in str(w.message)]


def check(m: onnx.ModelProto, exe: Runnable, *arrays: Array) -> None:
    m.ir_version = 10
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in arrays:
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), want, rtol=1e-6)


def test_both_branches_are_computed() -> None:
    """One plan computes both. The other branch's NaN (a root of a negative number) isn't in the result."""
    m = branches()
    exe, texts = warned(m, cache=False)
    assert isinstance(exe, Executable) and not texts
    assert not isinstance(jangin.compile(m, cache=False), Executable)
    x = np.random.default_rng().uniform(1, 2, 6).astype(np.float32)
    check(m, exe, x, -x)


def test_a_model_in_the_cache_warns_again(tmp_path: Path) -> None:
    m = model([helper.make_node("NonZero", ["x"], ["y"], name="places")], [info("x", [9])], ["y"])
    for _ in range(2):
        exe, texts = warned(m, cache=tmp_path)
        assert len(texts) == 1 and "places" in texts[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jangin.compile(m, cache=tmp_path)  # without the option, no warning
    check(m, exe, np.float32([0, 1, 0, 2, 0, 0, 0, 0, 3]))


def divided(by: str = "most") -> onnx.ModelProto:
    """Return a branch that divides by its condition's number, which may be 0 in the other case, or by 0."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["positive"], to=TensorProto.BOOL),
        helper.make_node(
            "If", ["positive"], ["y"], name="guard",
            then_branch=body("then", [helper.make_node("Div", ["x", by], ["t"])], [], ["t"]),
            else_branch=body("orelse", [helper.make_node("Neg", ["x"], ["e"])], [], ["e"]),
        ),
    ]  # fmt: skip
    return model(nodes, [info("x", [5], TensorProto.INT32)], ["y"], {"zero": np.int32(0)})


def taken() -> onnx.ModelProto:
    """Return a branch that takes a place that may not be there in the other case."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "size"], ["inside"]),
        helper.make_node(
            "If", ["inside"], ["y"], name="guard",
            then_branch=body("then", [helper.make_node("Gather", ["x", "most"], ["t"])], [], ["t"]),
            else_branch=body("orelse", [helper.make_node("ReduceMin", ["x"], ["e"], keepdims=0)], [], ["e"]),
        ),
    ]  # fmt: skip
    return model(nodes, [info("x", [5], TensorProto.INT64)], ["y"], {"size": np.int64(5)})


def largest_first() -> onnx.ModelProto:
    """Return a branch that sorts."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Less", ["sum", "zero"], ["negative"]),
        helper.make_node(
            "If", ["negative"], ["y"], name="guard",
            then_branch=body("then", [helper.make_node("TopK", ["x", "count"], ["t", "places"])], [], ["t"]),
            else_branch=body("orelse", [helper.make_node("Neg", ["x"], ["e"])], [], ["e"]),
        ),
    ]  # fmt: skip
    known = {"zero": np.int64(0), "count": np.int64([5])}
    return model(nodes, [info("x", [5], TensorProto.INT64)], ["y"], known)


@pytest.mark.parametrize(
    ("make", "reason"), [(divided, "divides"), (taken, "indices"), (largest_first, "sorts")]
)
def test_a_branch_that_may_fail_runs_alone(make: Any, reason: str) -> None:
    m = make()
    exe, texts = warned(m, cache=False)
    assert "guard" in texts[0] and reason in texts[0]
    dtype = np.int32 if make is divided else np.int64
    check(m, exe, np.array([0, 0, 0, 0, 0], dtype), np.array([1, 4, 2, 3, 0], dtype))
    check(m, exe, np.array([9, 4, 2, 3, 7], dtype))


def loop(condition: bool) -> onnx.ModelProto:
    nodes = [helper.make_node("Mul", ["c", "c"], ["next"])]
    if condition:
        nodes += [
            helper.make_node("ReduceMax", ["next"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "limit"], ["on"]),
        ]
    else:
        nodes += [helper.make_node("Identity", ["going"], ["on"])]
    inside = body(
        "inside",
        nodes,
        [info("i", [], TensorProto.INT64), info("going", [], TensorProto.BOOL), info("c", [4])],
        ["on", "next"],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], name="repeated", body=inside)
    known = {"trips": np.int64(200), "limit": np.float32(9)}
    return model([node], [info("x", [4])], ["y"], known)


def test_a_branch_that_divides_by_a_constant_zero_runs_alone() -> None:
    m = divided("zero")
    exe, texts = warned(m, cache=False)
    assert "guard" in texts[0] and "divides" in texts[0]
    x = np.array([0, -4, -2, 0, 0], np.int32)
    np.testing.assert_array_equal(np.asarray(exe(x)), -x)


def test_loops_are_named_if_data_end_them() -> None:
    assert not warned(loop(False), cache=False)[1]
    exe, texts = warned(loop(True), cache=False)
    assert "repeated" in texts[0] and "its condition fails" in texts[0]
    check(loop(True), exe, np.float32([1, 2, 1, 1]))


def test_emitted_code_says_so_too() -> None:
    """The search for the largest elements has branches that depend on them."""
    m = model(
        [helper.make_node("TopK", ["x", "k"], ["v", "y"], name="best")],
        [info("x", [64])],
        ["y"],
        {"k": np.int64([3])},
    )
    with pytest.warns(RuntimeWarning, match="best"):
        jangin.emit(m, "c", deterministic_time=True)
