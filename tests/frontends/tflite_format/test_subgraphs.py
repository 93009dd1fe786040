"""TFLite's sub-graphs and variables, against LiteRT over many steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin
from jangin import CompileError
from jangin.commands.common import Settings
from jangin.commands.convert import convert
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.stateful import StatefulExecutable, checked_state

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
litert = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed"
)

from files import Operator, Signature, SubGraph, Tensor, written  # noqa: E402

RANDOM = np.random.default_rng(0)
W, B = RANDOM.standard_normal((4, 4)).astype(np.float32) / 2, RANDOM.standard_normal(4).astype(np.float32)
ROW = Tensor([1, 4])


def steps(
    model: bytes, feeds: Sequence[Sequence[Any]], tolerance: float = 1e-6
) -> tuple[Any, list[list[Any]]]:
    """Return the executable, after runs whose results are compared with LiteRT's."""
    runner = litert.Interpreter(
        model_content=model, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    runner.allocate_tensors()
    exe = jangin.compile(model, threads=1, cache=False)
    found = []
    for given in feeds:
        for detail, value in zip(runner.get_input_details(), given, strict=True):
            runner.set_tensor(detail["index"], value)
        runner.invoke()
        wanted = [runner.get_tensor(d["index"]) for d in runner.get_output_details()]
        got = exe.run({spec.name: v for spec, v in zip(exe.inputs, given, strict=True)})
        for x, y in zip(got.values(), wanted, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
        found.append(list(got.values()))
    return exe, found


def control(*given: Any) -> Operator:
    return Operator(*given, version=1)


def row() -> Any:
    return RANDOM.standard_normal((1, 4)).astype(np.float32)


def dense(x: int, w: int, b: int, y: int) -> Operator:
    return Operator("FULLY_CONNECTED", [x, w, b], [y], "FullyConnectedOptions", {})


def branch(condition: Tensor) -> bytes:
    """Make a model that applies a dense layer if the condition holds, and else doubles the row."""
    choice = control("IF", [0, 1], [2], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2})
    then = SubGraph([ROW, Tensor([4, 4], data=W), Tensor([4], data=B), ROW], [dense(0, 1, 2, 3)], [0], [3])
    twice = Operator("ADD", [0, 0], [1], "AddOptions", {})
    return written(
        [condition, ROW, ROW], [choice], [0, 1], [2], then, SubGraph([ROW, ROW], [twice], [0], [1])
    )


def test_if() -> None:
    for shape in ([], [1]):
        model = branch(Tensor(shape, "bool"))
        steps(model, [[np.full(shape, i % 2 == 0), row()] for i in range(4)])


def loop() -> bytes:
    """Make a model that applies a dense layer as often as the second input says."""
    number, one = Tensor([], "int32"), Tensor([], "int32", data=1)
    whole = control(
        "WHILE", [0, 1, 2], [3, 4, 5], "WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    )
    less = Operator("LESS", [1, 2], [3])
    condition = SubGraph([ROW, number, number, Tensor([], "bool")], [less], [0, 1, 2], [3])
    tensors = [ROW, number, number, one, number, Tensor([4, 4], data=W), Tensor([4], data=B), ROW]
    count = Operator("ADD", [1, 3], [4], "AddOptions", {})
    body = SubGraph(tensors, [count, dense(0, 5, 6, 7)], [0, 1, 2], [7, 4, 2])
    return written([ROW, number, number, ROW, number, number], [whole], [0, 1, 2], [3, 4], condition, body)


def test_while() -> None:
    """Loops of no iteration up to many iterations."""
    steps(loop(), [[row(), np.int32(i), np.int32(n)] for i, n in ((0, 3), (2, 2), (0, 9), (-90, 0))])


def counter(start: Any) -> bytes:
    """Make a model of a moving mean: y = v / 2 + x, and then v = y. The variable v begins with `start`."""
    handle = Tensor([], "resource")
    opened = control("VAR_HANDLE", [], [1], "VarHandleOptions", {"SharedName": "mean"})
    operators = [
        opened, control("READ_VARIABLE", [1], [2], "ReadVariableOptions", {}),
        Operator("MUL", [2, 3], [4], "MulOptions", {}), Operator("ADD", [4, 0], [5], "AddOptions", {}),
        control("ASSIGN_VARIABLE", [1, 5], [], "AssignVariableOptions", {}),
    ]  # fmt: skip
    first = SubGraph(
        [Tensor([4]), handle, Tensor([1, 4], data=start)],
        [opened, control("ASSIGN_VARIABLE", [1, 2], [], "AssignVariableOptions", {})], [], [],
    )  # fmt: skip
    once = control("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1})
    tensors = [ROW, handle, ROW, Tensor([1, 4], data=np.full((1, 4), 0.5)), ROW, ROW]
    return written(tensors, [once, *operators], [0], [5], first)


def test_variables(tmp_path: Path) -> None:
    """Ten steps with a variable. Each executable has its own state, and a `.jgn` file doesn't keep it."""
    start = np.float32([[1, -2, 3, 40]])
    feeds = [[row()] for _ in range(10)]
    exe, found = steps(counter(start), feeds)
    assert [s.name for s in exe.inputs] == ["t0"] and len(exe.outputs) == 1
    exe.reset()
    for given, (wanted,) in zip(feeds, found, strict=True):
        np.testing.assert_array_equal(exe(*given), wanted)
    with pytest.raises((ValueError, TypeError)):
        exe(np.zeros((2, 4), np.float32))
    np.testing.assert_array_equal(exe.state["state.mean"], found[-1][0])
    exe.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn", threads=1)
    assert isinstance(again, StatefulExecutable)
    with pytest.raises(ArtifactError, match="state"):
        checked_state(again.model, {"t0": "nothing"})
    convert(_saved(tmp_path / "m.tflite", counter(start)), Settings(cache=False), tmp_path / "m.onnx", [])
    np.testing.assert_array_equal(again(*feeds[0]), found[0][0])


def learner() -> bytes:
    """Make a model of two signatures with one variable w, which begins with ones. "infer" gives w x, and
    "train" moves w so that w x comes nearer to a target."""
    handle, opened = (
        Tensor([], "resource"),
        control("VAR_HANDLE", [], [2], "VarHandleOptions", {"SharedName": "w"}),
    )
    once = control("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 2})
    read = control("READ_VARIABLE", [2], [3], "ReadVariableOptions", {})
    product = Operator("MUL", [3, 0], [4], "MulOptions", {})
    operators = [
        once, opened, read, product, Operator("SUB", [4, 1], [5], "SubOptions", {}),
        Operator("MUL", [5, 0], [6], "MulOptions", {}), Operator("MUL", [6, 7], [8], "MulOptions", {}),
        Operator("SUB", [3, 8], [9], "SubOptions", {}),
        control("ASSIGN_VARIABLE", [2, 9], [], "AssignVariableOptions", {}),
    ]  # fmt: skip
    tensors = [ROW, ROW, handle, ROW, ROW, ROW, ROW, Tensor([], data=0.1), ROW, ROW]
    ones = control("ASSIGN_VARIABLE", [2, 1], [], "AssignVariableOptions", {})
    first = SubGraph([ROW, Tensor([1, 4], data=np.ones((1, 4))), handle], [opened, ones], [], [])
    infer = SubGraph([ROW, ROW, handle, ROW, ROW], [once, opened, read, product], [0], [4])
    signatures = (
        Signature("train", 0, {"x": 0, "target": 1}, {"error": 5}), Signature("infer", 1, {"x": 0}, {"y": 4}),
    )  # fmt: skip
    return written(tensors, operators, [0, 1], [5], infer, first, signatures=signatures)


def test_signatures_share_their_variables() -> None:
    """Training and inference in turns give LiteRT's numbers. The state can be kept and set again."""
    model = learner()
    runner = litert.Interpreter(
        model_content=model, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    train, infer = (
        jangin.compile(model, threads=1, cache=False, formats=[jangin.TfliteFormat(signature=key)])
        for key in ("train", "infer")
    )
    assert [s.name for s in (*train.inputs, *train.outputs)] == ["x", "target", "error"]
    infer.share(train)
    wanted_of = {key: runner.get_signature_runner(key) for key in ("train", "infer")}
    x, target = row(), row()
    before = infer.state
    for _ in range(3):
        for exe, key, feeds in ((train, "train", {"x": x, "target": target}), (infer, "infer", {"x": x})):
            (got,), (wanted,) = exe.run(feeds).values(), wanted_of[key](**feeds).values()
            np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)
    assert np.abs(infer(x) - target).sum() < np.abs(x - target).sum(), "nothing was learnt"
    kept = infer.state
    train(x, target)
    infer.state = kept
    np.testing.assert_array_equal(infer(x), got)
    infer.state = before
    np.testing.assert_array_equal(infer(x), x)  # the first values again
    with pytest.raises(ValueError, match="the state consists of"):
        infer.state = {}
    with pytest.raises(CompileError, match="no signature 'save'; there is 'train', 'infer'"):
        jangin.compile(model, formats=[jangin.TfliteFormat(signature="save")])


def accumulating(name: str) -> bytes:
    """Make a model whose body reads and assigns a sum in a variable.

    The body runs if the first input holds (IF), or as often as the first input says (WHILE). The main graph
    makes the handle and gives it to the bodies. A loop's body gives it back."""
    handle, half = Tensor([], "resource"), Tensor([1, 4], data=np.full((1, 4), 0.5))
    opened = control("VAR_HANDLE", [], [1], "VarHandleOptions", {"SharedName": "sum"})
    reading = control("READ_VARIABLE", [0], [2], "ReadVariableOptions", {})
    assign = control("ASSIGN_VARIABLE", [0, 3], [], "AssignVariableOptions", {})
    first = SubGraph(
        [ROW, handle, half],
        [opened, control("ASSIGN_VARIABLE", [1, 2], [], "AssignVariableOptions", {})], [], [],
    )  # fmt: skip
    once = control("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1})
    add, last = Operator("ADD", [2, 1], [3], "AddOptions", {}), [5]
    if name == "IF":
        given = Tensor([], "bool")
        add_up = SubGraph([handle, ROW, ROW, ROW], [reading, add, assign], [0, 1], [3])
        keep = SubGraph([handle, ROW, ROW], [reading], [0, 1], [2])
        bodies = [add_up, keep]
        which = control("IF", [2, 1, 0], [3], "IfOptions", {"ThenSubgraphIndex": 2, "ElseSubgraphIndex": 3})
        after = [control("READ_VARIABLE", [1], [4], "ReadVariableOptions", {})]
        tensors = [ROW, handle, given, ROW, ROW, ROW]
        after.append(Operator("ADD", [3, 4], [5], "AddOptions", {}))
    else:
        given, one, flag = Tensor([], "int32"), Tensor([], "int32", data=1), Tensor([], "bool")
        zero = Tensor([], "int32", data=0)
        positive = SubGraph(
            [handle, ROW, given, zero, flag], [Operator("GREATER", [2, 3], [4])], [0, 1, 2], [4]
        )
        count = Operator("SUB", [4, 5], [6], "SubOptions", {})
        step = SubGraph(
            [handle, ROW, ROW, ROW, given, one, given], [reading, add, assign, count], [0, 1, 4], [0, 1, 6]
        )
        bodies = [positive, step]
        options = {"CondSubgraphIndex": 2, "BodySubgraphIndex": 3}
        which = control("WHILE", [1, 0, 2], [3, 4, 5], "WhileOptions", options)
        after = [control("READ_VARIABLE", [3], [6], "ReadVariableOptions", {})]
        tensors, last = [ROW, handle, given, handle, ROW, given, ROW], [6]
    return written(tensors, [once, opened, which, *after], [0, 2], last, first, *bodies)


def test_variables_in_branches() -> None:
    steps(accumulating("IF"), [[row(), np.array(flag)] for flag in (True, False, True, True, False)])


def test_variables_in_loops() -> None:
    steps(accumulating("WHILE"), [[row(), np.int32(n)] for n in (2, 0, 5, 1)])


def _saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_bodies_that_are_wrong() -> None:
    """A body that calls itself, one that is missing and one with another number of values are errors."""
    same = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 1}
    choice = control("IF", [0, 1], [2], "IfOptions", same)
    flag = Tensor([], "bool")
    endless = SubGraph([flag, ROW, ROW], [choice], [0, 1], [2])
    absent = control("IF", [0, 1], [2], "IfOptions", {"ThenSubgraphIndex": 7, "ElseSubgraphIndex": 7})
    other = SubGraph([ROW], [], [0], [0])
    for operator, body, message in (
        (choice, endless, "calls itself"), (absent, other, "is damaged: it refers to sub-graph 7"),
        (control("IF", [0], [2], "IfOptions", same), other, "takes 1 values"),
    ):  # fmt: skip
        model = written([flag, ROW, ROW], [operator], [0, 1], [2], body)
        with pytest.raises(CompileError, match=message):
            jangin.compile(model, threads=1, cache=False)
