"""What README and ARCHITECTURE say is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from jangin.ir import text
from jangin.pipeline import GRAPH_PASSES
from jangin.templates.choose import TEMPLATES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 224, 224])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    (y,) = names["outs"].values()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(names["y"], y)
    np.testing.assert_array_equal(names["exe"](names["x"]), y)  # type: ignore[operator]


def test_the_two_commands_come_first() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.M)
    assert len(commands) == 2
    assert "examples/classify.py" in commands[0]
    assert "pytest" in commands[1]


@pytest.mark.parametrize("name", [*GRAPH_PASSES, *TEMPLATES])
def test_every_pass_and_template_has_its_line(name: str) -> None:
    assert f"| `{name}` |" in ARCHITECTURE


def test_the_grammars_are_the_codes() -> None:
    documented = inspect.getdoc(text) or ""
    for block in re.findall(r"```text\n(\w.*?)```", ARCHITECTURE, re.S):
        if "::=" in block or "=" not in block.splitlines()[0]:
            continue
        for line in block.splitlines():
            assert line.strip() in documented, line
