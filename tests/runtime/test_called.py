"""Executables as Python calls them: inputs by keyword, `repr`, copies, and the members of `jangin`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jangin
import jangin.onnxruntime
from jangin.frontends.table import formats
from jangin.runtime.compiled import targets
from jangin.runtime.stateful import StatefulExecutable

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2, np.float32)


def difference(
    rows: str | int, others: str | int | None = None, nodes: list[onnx.NodeProto] | None = None
) -> onnx.ModelProto:
    """Return a model of a difference of two inputs, because it shows their order."""
    sizes = {"first.in": rows, "y": others or rows, "z": None if others else rows}
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d, 3]) for n, d in sizes.items()]
    made = nodes or [helper.make_node("Sub", ["first.in", "y"], ["z"])]
    graph = helper.make_graph(made, "difference", ends[:2], ends[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def program() -> onnx.ModelProto:
    """Return a model like `difference`, with a branch that depends on data."""
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["first.in", "y"], [out])], name, [], [
            helper.make_tensor_value_info(out, TensorProto.FLOAT, [2, 3])
        ])
        for name, op, out in (("then", "Sub", "t"), ("else", "Add", "e"))
    }  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "s2"], ["c"]),
        helper.make_node("If", ["c"], ["z"], **branches),
    ]
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    nodes.insert(0, helper.make_node("Constant", [], ["s2"], value=zero))
    return difference(2, nodes=nodes)


def single() -> Any:
    return jangin.compile(difference(2), threads=1)


def open_sizes() -> Any:
    return jangin.compile(difference("rows"), threads=2)


def several() -> Any:
    return jangin.compile(difference("rows"), "cpu+x86-64-v2", 2)


def variants() -> Any:
    return jangin.compile(difference("rows", "others"), threads=1)


def branching() -> Any:
    return jangin.compile(program(), threads=1)


def stateful() -> Any:
    return StatefulExecutable(single(), {})


KINDS = [single, open_sizes, several, variants, branching, stateful]


@pytest.mark.parametrize("made", KINDS)
def test_inputs_go_by_place_by_name_or_both(made: Callable[[], Any]) -> None:
    exe = made()
    for given in (exe(X, Y), exe(X, y=Y), exe(y=Y, **{"first.in": X})):
        np.testing.assert_array_equal(given, X - Y)
    for place, name, said in (
        ((X,), {"z": Y}, r"missing input 'y', no input is named 'z'"),
        ((X, Y), {"y": Y}, "input 'y' is given by position and by name"),
        ((X,), {"first.in": X}, "input 'first.in' is given by position and by name"),
        ((X, Y, X), {"y": Y}, "expected 2 inputs, got 4"),
        ((), {"y": Y, "first_in": X}, "no input is named 'first_in' .did you mean 'first.in'"),
    ):
        with pytest.raises(ValueError, match=f"{said}.*; the inputs are: first.in float32"):
            exe(*place, **name)


@pytest.mark.parametrize("made", KINDS)
def test_copies_and_pickles_compute_the_same(made: Callable[[], Any]) -> None:
    exe = made()
    for other in (copy.copy(exe), copy.deepcopy(exe), pickle.loads(pickle.dumps(exe))):
        assert type(other) is type(exe) and repr(other) == repr(exe)
        np.testing.assert_array_equal(other(X, Y), X - Y)


@pytest.mark.parametrize("made", KINDS)
def test_a_repr_says_what_a_model_takes_gives_and_needs(made: Callable[[], Any]) -> None:
    exe = made()
    said = repr(exe)
    assert said.startswith(f"<{type(exe).__name__} 'difference': first.in float32[")
    assert " -> z float32[" in said
    assert f"; {', '.join(targets(exe.artifact))}; {exe.threads} thread" in said
    assert " of weights" in said


@pytest.mark.parametrize("made", KINDS)
def test_a_repr_of_what_build_returns_has_no_code_and_no_weights(made: Callable[[], Any]) -> None:
    artifact = made().artifact
    said = repr(artifact)
    assert said.startswith(f"<{type(artifact).__name__} ")
    assert "'difference': first.in, y -> z; " in said and len(said) < 600


def test_a_repr_says_the_memory_of_a_run() -> None:
    assert "; 1 thread; 0 bytes of weights, 0 bytes for a run>" in repr(single())
    assert "; 2 threads; 0 bytes of weights, a run's memory as its sizes need>" in repr(open_sizes())


def test_a_missing_file_is_file_not_found(tmp_path: Path) -> None:
    missing = tmp_path / "no.onnx"
    calls: list[Callable[[], object]] = [
        lambda: jangin.compile(missing),
        lambda: jangin.compile(str(missing), isolated=True),
        lambda: jangin.build(missing),
        lambda: jangin.load(missing),
        lambda: jangin.quantize(missing, [X]),
        lambda: jangin.compare(missing, missing, [X]),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError, match="No such file") as caught:
            call()
        assert caught.value.filename == str(missing)
    with pytest.raises(jangin.CompileError):
        jangin.compile(missing)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.filename) == (type(caught.value), str(caught.value), str(missing))
    with pytest.raises(OSError, match="Not a directory"):
        jangin.compile(Path(__file__) / "model.onnx")


def test_the_module_lists_its_public_names() -> None:
    assert set(jangin.__all__) <= set(dir(jangin))
    for name in jangin.__all__:
        assert getattr(jangin, name) is not None
    assert {type(f).__name__ for f in formats()} <= set(jangin.__all__)
    assert not [n for n in dir(jangin) if n.startswith("_") and not n.startswith("__")]


@pytest.mark.parametrize("module, name", [(jangin, "complie"), (jangin.onnxruntime, "InferenceSesion")])
def test_python_names_the_nearest_of_our_names(module: ModuleType, name: str) -> None:
    """Python looks for it in the object that the error gives."""
    with pytest.raises(AttributeError) as refused:
        getattr(module, name)
    assert (refused.value.name, refused.value.obj) == (name, module)
