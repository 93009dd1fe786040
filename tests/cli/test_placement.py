"""`jangin inspect --placement` shows where every node of the model runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Cli
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node


def info(name: str, shape: list[Any] | None, code: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, shape)


def body(*nodes: onnx.NodeProto, inputs: Sequence[Any] = (), outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs, list(map(helper.make_empty_tensor_value_info, outputs)))


def varied() -> onnx.ModelProto:
    """Compiled and fused nodes, a shape, a view, a loop, a branch, a size that depends on data, and text."""
    grow = body(
        node("Mul", ["acc", "two"], ["s"], name="grow"),
        node("Add", ["s", "x"], ["next"], name="plus"),
        node("Identity", ["go"], ["still"], name="same"),
        inputs=[info("i", [], 7), info("go", [], 9), info("acc", [3])],
        outputs=["still", "next"],
    )
    nodes = [
        node("Shape", ["x"], ["sizes"], name="shape"),
        node("ConstantOfShape", ["sizes"], ["zeros"], name="fill"),
        node("Loop", ["trips", "", "zeros"], ["z"], body=grow, name="loop"),
        node(
            "If", ["flag"], ["o"], name="choose",
            then_branch=body(node("Relu", ["z"], ["r"], name="positive"), outputs=["r"]),
            else_branch=body(node("Neg", ["z"], ["q"], name="negative"), outputs=["q"]),
        ),
        node("NonZero", ["o"], ["where"], name="nonzero"),
        node("StringConcat", ["text", "text"], ["twice"], name="glue"),
        node("GroupNormalization", ["v", "scale", "scale"], ["normal"], num_groups=2, name="group"),
        node("Reshape", ["o", "row"], ["rows"], name="view"),
    ]  # fmt: skip
    constants = {"two": np.float32([2]), "row": np.array([1, 3]), "scale": np.ones(4, np.float32)}
    graph = helper.make_graph(
        nodes,
        "varied",
        [
            info("x", [3]),
            info("trips", [], 7),
            info("flag", [], 9),
            info("text", [2], 8),
            info("v", [1, 4, 5]),
        ],
        list(map(helper.make_empty_tensor_value_info, ["where", "twice", "rows", "normal"])),
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture
def report(cli: Cli, tmp_path: Path) -> dict[str, Any]:
    onnx.save(varied(), tmp_path / "varied.onnx")
    done = cli("inspect", tmp_path / "varied.onnx", "--placement", "--json", tmp_path / "out.json")
    assert done.status == 0, done.err
    assert "placement of 13 nodes" in done.out and "text is no tensor of numbers" in done.out
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return found


def test_every_node_has_its_place(report: dict[str, Any]) -> None:
    rows = {row["node"].split("'")[1]: row for row in report["nodes"]}
    assert {name: row["runs"] for name, row in rows.items()} == {
        "shape": "no code", "fill": "no code", "loop": "step", "grow": "compiled", "plus": "compiled",
        "same": "no code", "choose": "step", "positive": "compiled", "negative": "compiled",
        "nonzero": "compiled", "glue": "hosted", "group": "compiled", "view": "no code",
    }  # fmt: skip
    assert report["counts"] == {"compiled": 6, "no code": 4, "step": 2, "hosted": 1}
    assert rows["grow"]["kernels"] == rows["plus"]["kernels"] and rows["grow"]["shared"]
    assert rows["grow"]["depth"] == 1 and rows["loop"]["depth"] == 0
    assert rows["glue"]["where"].startswith("StringConcat: ")
    assert "makes nonzero_n0 known" in rows["nonzero"]["where"]


def test_a_network_is_compiled(cli: Cli, model: Path) -> None:
    done = cli("inspect", model, "--placement")
    assert "4 compiled, 0 no code, 0 step, 0 hosted" in done.out
    assert "(fused)" in done.out


def test_a_compiled_file_has_steps(cli: Cli, tmp_path: Path) -> None:
    onnx.save(varied(), tmp_path / "varied.onnx")
    assert cli("compile", tmp_path / "varied.onnx", "-o", tmp_path / "varied.jgn").status == 0
    out = cli("inspect", tmp_path / "varied.jgn").out
    assert "1 of them in Python" in out
