"""`jangin inspect --minimize`: the smallest part of a model that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Cli
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.commands.minimize import difference, evaluated, failure, smallest
from jangin.frontends.onnx.operators import OPERATORS
from jangin.frontends.onnx.registry import Operator

node = helper.make_node


def chain(planted: onnx.NodeProto) -> onnx.ModelProto:
    """Two branches of ten nodes. `planted` takes "a5" of one and "b5" of the other."""
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("ConstantOfShape", ["sizes"], ["b0"], value=numpy_helper.from_array(np.float32([2]))),
        node("Relu", ["x"], ["a0"]),
    ]
    for i in range(6):
        nodes.append(node("Add", [f"a{i}", "c"], [f"a{i + 1}"]))
        nodes.append(node("Sigmoid", [f"b{i}"], [f"b{i + 1}"]))
    nodes += [planted, node("Neg", ["bad"], ["n"]), node("Sub", ["n", "a6"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(np.float32([1, 2, 3]), "c")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@jangin.operator("Broken", domain="mine")
def broken(b: Any, x: Any, y: Any) -> Any:
    raise ZeroDivisionError("planted")


@jangin.operator("Wrong", domain="mine")
def wrong(b: Any, x: Any, y: Any) -> Any:
    return b.map(lambda v, w: v + w * 2, x, y)


def test_an_operator_that_raises() -> None:
    model = chain(node("Broken", ["a5", "b5"], ["bad"], domain="mine"))
    told: list[str] = []
    test = failure(lambda part: jangin.compile(part, cache=False, operators=[broken]))
    assert "planted" in test(model)
    part = smallest(model, test, tell=lambda done, total, what: told.append(what))
    assert [n.op_type for n in part.graph.node] == ["Broken"]
    assert [i.name for i in part.graph.input] == ["a5"] and told, "b5 is known while compiling"
    with pytest.raises(jangin.CompileError, match="planted"):
        jangin.compile(part, cache=False, operators=[broken])


def test_the_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expand fails for one computed shape, which stays a constant of the part."""

    def lower(b: Any, x: Any, shape: Any) -> Any:
        assert [str(d) for d in b.require_sizes(shape, "shape")] != ["2", "3"]
        return x

    monkeypatch.setitem(OPERATORS._found, ("", "Expand"), (Operator("", "Expand", 8, lower),))
    onnx.save(chain(node("Expand", ["c", "sizes"], ["bad"], name="planted")), tmp_path / "m.onnx")
    done = cli("inspect", tmp_path / "m.onnx", "--minimize", tmp_path / "out.onnx")
    assert done.status == 0, done.err
    assert "1 of 18 nodes fail so" in done.out and "Expand 'planted'" in done.out
    part = onnx.load(tmp_path / "out.onnx")
    assert [n.name for n in part.graph.node] == ["planted"]
    assert {t.name for t in part.graph.initializer} == {"c", "sizes"}


def test_a_wrong_result() -> None:
    """Two nodes together give a result other than the recorded one."""
    model = chain(node("Max", ["a5", "b5"], ["bad"]))
    values = evaluated(model, {})
    model.graph.node[15].CopyFrom(node("Wrong", ["a5", "b5"], ["bad"], domain="mine"))
    test = difference(lambda part: jangin.compile(part, cache=False, operators=[wrong]), values)
    assert "off by" in test(model)
    assert [n.op_type for n in smallest(model, test, values).graph.node] == ["Wrong"]


def test_nothing_to_minimize(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("inspect", model, "--minimize", tmp_path / "out.onnx")
    assert "nothing to minimize" in done.out and not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("opset", [13, 17, 19])
def test_quantized_models_of_any_opset(cli: Cli, tmp_path: Path, opset: int) -> None:
    """ONNX's evaluator lacks QuantizeLinear before opset 19."""
    make, rng = onnx.helper.make_node, np.random.default_rng(0)
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["d"]),
        make("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=0),
        make("Conv", ["d", "w"], ["y"]),
    ]
    constants = {
        "s": np.float32(0.02), "z": np.uint8(128), "ws": np.linspace(0.01, 0.02, 4, dtype=np.float32),
        "wz": np.zeros(4, np.int8), "wq": rng.integers(-100, 100, (4, 3, 3, 3)).astype(np.int8),
    }  # fmt: skip
    ends = [onnx.helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])]
    outs = [onnx.helper.make_empty_tensor_value_info("y")]
    kept = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", ends, outs, kept)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    onnx.save(proto, tmp_path / "m.onnx")
    done = cli("inspect", tmp_path / "m.onnx", "--minimize", tmp_path / "bad.onnx")
    assert done.status == 0 and "nothing to minimize" in done.out, done.err
