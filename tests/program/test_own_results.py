"""A run's results belong to the caller. They share no memory with inputs, constants, state or each other, so
that writing to them changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from build import body, info, model
from onnx import TensorProto, helper

import jangin
from jangin.ir.graph import Array
from jangin.runtime.stateful import StatefulExecutable

X, I64 = ["n"], TensorProto.INT64
CONSTANT = np.arange(4, dtype=np.float32)
node = helper.make_node


def through_if() -> onnx.NodeProto:
    """Make an If that gives the input or a constant, by a condition that a run gives."""
    branches = {
        f"{which}_branch": body(which, [node("Identity", [of], [f"{which}_out"])], [], [f"{which}_out"])
        for which, of in (("then", "x"), ("else", "c"))
    }
    return node("If", ["flag"], ["y"], **branches)


def through_loop() -> onnx.NodeProto:
    """Make a Loop without iterations, which gives its initial values."""
    nodes = [node("Identity", [n], [f"{n}_out"]) for n in ("going", "held")]
    ends = info("i", [], I64), info("going", [], TensorProto.BOOL), info("held", X)
    inner = body("b", nodes, ends, ["going_out", "held_out"])
    return node("Loop", ["trips", "", "x"], ["y"], body=inner)


CASES: dict[str, list[onnx.NodeProto]] = {
    "input": [node("Identity", ["x"], ["y"])],
    "constant": [node("Identity", ["c"], ["y"])],
    "view": [node("Reshape", ["x", "shape"], ["y"])],
    "view of a constant": [node("Reshape", ["c", "shape"], ["y"])],
    "branch": [through_if()],
    "loop": [through_loop()],
    "sequence": [node("SequenceConstruct", ["x", "c", "x"], ["s"]), node("SequenceAt", ["s", "at"], ["y"])],
    "whole sequence": [node("SequenceConstruct", ["x", "c", "x"], ["y"])],
    "optional": [node("Optional", ["x"], ["o"]), node("OptionalGetElement", ["o"], ["y"])],
    "hosted": [node("Same", ["x"], ["y"], domain="mine")],
    "view by a host": [node("Turned", ["x"], ["y"], domain="mine")],
}


@jangin.hosted("Same", domain="mine", infer=lambda x: [(x.dtype, x.shape)])
def same(x: Array) -> Array:
    return x


@jangin.hosted("Turned", domain="mine", infer=lambda x: [(x.dtype, x.shape)])
def turned(x: Array) -> Array:
    return x[::-1]


def compiled(nodes: Sequence[onnx.NodeProto], *, steps: bool) -> Any:
    """Compile a model with y twice among its outputs. `steps` adds a step of unknown size."""
    extra = [node("NonZero", ["x"], ["z"])] if steps else []
    inputs = [info("x", X), info("flag", [], TensorProto.BOOL), info("trips", [], I64), info("at", [], I64)]
    constants = {"c": CONSTANT, "shape": np.array([1, -1])}
    again = node("Identity", ["y"], ["y2"])
    outputs = ["y", "y2", "x_out", "c_out", *(["z"] if steps else [])]
    own = [node("Identity", ["x"], ["x_out"]), node("Identity", ["c"], ["c_out"])]
    made = model([*nodes, again, *own, *extra], inputs, outputs, constants, ["mine"])
    return jangin.compile(made, cache=False, isolated=False, threads=1, operators=[same, turned])


def test_state_is_copied() -> None:
    """A state is copied when it is returned, and a result never becomes a part of the state."""
    nodes = [node("Add", ["x", "old"], ["new"]), node("Identity", ["new"], ["y"])]
    made = model(nodes, [info("x", [4]), info("old", [4])], ["new", "y"])
    exe = StatefulExecutable(jangin.compile(made, cache=False, isolated=False, threads=1), {"old": "new"})
    x = np.ones(4, np.float32)
    for n in (1, 2, 3):
        y = exe.run({"x": x})["y"]
        np.testing.assert_array_equal(y, np.full(4, n))
        y[...] = exe.state["old"][...] = 99


def arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        yield from arrays(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from arrays(v)


def held_apart(run: Callable[[], Any], given: Any) -> None:
    """Check that two runs give the same, although the results of the first are overwritten."""
    first, before = run(), [a.copy() for a in arrays(given)]
    found = [*arrays(first)]
    want = [a.copy() for a in found]
    for n, a in enumerate(found):
        assert not any(np.shares_memory(a, b) for b in (*found[:n], *arrays(given))), n
        a[...] = 99
    for a, b in zip(arrays(given), before, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(arrays(run()), want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_callers_own(case: str, steps: bool) -> None:
    exe = compiled(CASES[case], steps=steps)
    x = np.array([1, 0, 2, 3], np.float32)
    for flag in (True, False):
        feeds = {"x": x, "flag": np.array(flag), "trips": np.array(0), "at": np.array(1 - flag)}
        held_apart(lambda feeds=feeds: exe.run(feeds), feeds)
        held_apart(lambda feeds=feeds: exe(*feeds.values()), feeds)
