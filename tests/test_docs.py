"""README's examples run, and the tables and grammars of docs/ have everything that the code has."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from jangin.ir import program_text, text
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import Target
from jangin.targets.gpu import Gpu
from jangin.targets.machine import Machine
from jangin.targets.processor import Processor
from jangin.templates.choose import TEMPLATES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
EXTEND = (ROOT / "docs" / "guides" / "extend.md").read_text()
LONGEST = 700
"""The most words of README, code included: two screens."""
PASSES, KERNELS, GRAMMAR = (
    (ROOT / "docs" / f"{page}.md").read_text() for page in ("passes", "kernels", "grammar")
)


def _example(page: str, says: str) -> str:
    """Return a page's only example with this text."""
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", page, re.S) if says in c]
    return str(code)


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = _example(README, "exe.run(")
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


def test_operators_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = _example(EXTEND, "@jangin.operator")
    assert len([line for line in code.splitlines() if line]) <= 12
    nodes = [
        helper.make_node("Swish", ["x"], ["s"], domain="mine"),
        helper.make_node("Median", ["s"], ["y"], domain="mine"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("mine", 1)], ir_version=8),
        tmp_path / "mine.onnx",
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    got = names["exe"](x)  # type: ignore[operator]
    np.testing.assert_allclose(got, np.median(x / (1 + np.exp(-x)), -1), rtol=1e-5)


def test_readme_has_two_screens() -> None:
    assert len(README.split()) < LONGEST and len(README.splitlines()) < 90


def test_readme_has_the_means_of_the_table() -> None:
    table = (ROOT / "docs" / "reference" / "measured.md").read_text()
    (means,) = re.findall(r"\| \*\*geometric mean, batch 1\*\* (.*)", table)
    one, _, best_of_one, two, _, best_of_two = re.findall(r"\*\*([\d.]+)×\*\*", means)
    assert f"{one} times as fast as ONNX Runtime on one thread, and {two} times on two" in README
    assert f"{best_of_one} and {best_of_two} times as fast as the best of five engines" in README


def test_the_two_commands_come_first() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.M)
    assert len(commands) == 2
    assert "examples/classify.py" in commands[0]
    assert "pytest" in commands[1]


@pytest.mark.parametrize("name", ["import", "lower", *(p.name for p in GRAPH_PASSES), "plan"])
def test_every_pass_has_its_line(name: str) -> None:
    assert f"| `{name}` |" in PASSES


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_has_its_line(name: str) -> None:
    assert f"| `{name}` |" in KERNELS.split("`templates/gpu/`")[0]


def test_every_template_for_work_groups_has_its_line() -> None:
    from jangin.templates.gpu import table

    assert all(f"| `{name}` |" in KERNELS.split("`templates/gpu/`")[1] for name in table.TEMPLATES)


def test_the_grammars_are_the_codes() -> None:
    documented = f"{inspect.getdoc(text)}{inspect.getdoc(program_text)}"
    blocks = re.findall(r"```text\n(\w.*?)```", GRAMMAR, re.S)
    assert len(blocks) == 5
    for line in (line for block in blocks for line in block.splitlines()):
        assert line.strip() in documented, line


@pytest.mark.parametrize("kind", [Target, Machine, Processor, Gpu])
def test_each_field_of_a_target_says_what_it_is(kind: type) -> None:
    (made,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(made, ast.ClassDef)
    said = {
        ast.unparse(entry.target): ast.literal_eval(text.value)
        for entry, text in zip(made.body, made.body[1:], strict=False)
        if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    documented = {name for name, text in said.items() if text.rstrip().endswith(".")}
    assert documented == {*inspect.get_annotations(kind)}
