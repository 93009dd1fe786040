"""The documents are true, as far as a test can tell, and their sentences are short."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import words
from onnx import TensorProto, helper

import jangin
from jangin.ir import program_text, text
from jangin.ir.expr import call
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import Target
from jangin.targets.gpu import GpuTarget
from jangin.templates.choose import TEMPLATES, Match
from jangin.templates.gpu.table import TEMPLATES as GPU_TEMPLATES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
NAMED = ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY")
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*(ROOT / f"{n}.md" for n in NAMED), *PAGES]
DESCRIPTIONS = [d for d in DOCUMENTS if d.stem not in ("README", "CHANGELOG", "SECURITY")]
"""Documents whose code spans name parts of this repository. The others name a user's files, or the past."""
PAGE_WORDS = 1200
"""Words of a page of docs/ at most, code blocks apart: what a reader takes in at one sitting."""


def _example(says: str) -> str:
    """README's one example that says this."""
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", README, re.S) if says in c]
    return str(code)


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = _example("exe.run(")
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
    code = _example("@jangin.operator")
    assert len([line for line in code.splitlines() if line]) <= 9
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
    names: dict[str, object] = {"jangin": jangin, "np": np, "call": call}
    exec(code, names)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    got = names["exe"](x)  # type: ignore[operator]
    np.testing.assert_allclose(got, np.median(x / (1 + np.exp(-x)), -1), rtol=1e-5)


def test_pytorch_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed (the extra `torch`)")
    monkeypatch.chdir(tmp_path)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    x = torch.randn(5, 4)
    names = {"jangin": jangin, "torch": torch, "module": module, "model": module, "x": x}
    exec(_example("torch.compile"), names)
    with torch.no_grad():
        for got in (names["y"], names["model"](x), jangin.load("model.jgn")(x.numpy())):
            np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-5, atol=1e-6)


def test_the_two_commands_come_first() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.M)
    assert len(commands) == 2
    assert "examples/classify.py" in commands[0]
    assert "pytest" in commands[1]


def _prose(document: Path) -> str:
    """A document without its code blocks."""
    return re.sub(words.CODE, "", document.read_text(encoding="utf-8"))


def _spans(document: Path) -> list[str]:
    """A document's pieces of code inside its sentences."""
    return re.findall(r"`([^`\n]+)`", _prose(document))


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_faults_are_found_where_sentences_are() -> None:
    """Code blocks, headings and addresses are no sentences. Each paragraph, item and cell is a text."""
    long = "word " * words.LONGEST
    short = "Of [one](a.md#of-one).\n"
    text = (
        f"# Of {long}too\n\nA [word](https://x.org/{'y' * 99}) and `{long}` here.\nOne {long}more.\n\n"
        f"```sh\n{long * 2}\n```\n- item {long}\n- {short}  1. {short}| cell | **To** be |\n|---|---|\n"
    )
    found = [(line, words.fault(part)[:8]) for line, part in words.prose(text)]
    lines = {3: "27 words", 9: "26 words", 10: "begins w", 11: "begins w"}
    assert found == [*lines.items(), (12, ""), (12, "begins w")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_sentences_are_short_and_stand_alone(document: Path) -> None:
    assert [*words.faults(document)] == []


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_a_page_is_read_at_one_sitting(page: Path) -> None:
    assert len(_prose(page).split()) < PAGE_WORDS


def test_every_page_is_found_from_the_first_one() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert {_named(p) for p in PAGES} == set(re.findall(r"\((docs/\w[\w-]*\.md)\)", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if target.startswith("https:"):
            continue
        name, _, anchor = target.partition("#")
        page = document.parent / name if name else document
        assert page.exists(), target
        assert not anchor or anchor in _anchors(page), target


def _anchors(page: Path) -> list[str]:
    """The names by which links reach a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings]


@pytest.mark.parametrize("document", DESCRIPTIONS, ids=_named)
def test_every_path_exists(document: Path) -> None:
    """A path begins at the repository's root or in the package."""
    for span in _spans(document):
        if re.fullmatch(r"[\w.-]+/([\w.*-]+/?)*|[\w-]+\.(py|toml|md)", span):
            assert any(any(folder.glob(span.rstrip("/"))) for folder in (ROOT, ROOT / "jangin")), span


@pytest.mark.parametrize("document", DESCRIPTIONS, ids=_named)
def test_every_name_exists(document: Path) -> None:
    """A dotted name that begins with a module of the package leads to something. Every other name stands in
    the code."""
    for span in _spans(document):
        name = span.removesuffix("()")
        first = name.split(".")[0]
        if "." in name and any((ROOT / "jangin" / f).exists() for f in (first, f"{first}.py")):
            if re.fullmatch(r"\w+(\.\w+)+", name) and not name.endswith(".py"):
                assert _leads_somewhere(f"jangin.{name}"), span
        elif re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name):
            assert set(name.split(".")) <= _names_in_code(), span


def _leads_somewhere(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    module, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return hasattr(importlib.import_module(module), last)
    return True


@cache
def _names_in_code() -> frozenset[str]:
    """All words of the package, its tests and its settings."""
    code = [f for folder in ("jangin", "tests", "benchmarks") for f in _python(ROOT / folder)]
    texts = (file.read_text(encoding="utf-8") for file in (ROOT / "pyproject.toml", *code))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def _python(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.py")


def test_the_examples_of_adding_things_are_the_codes() -> None:
    code = {line.strip() for file in _python(ROOT / "jangin") for line in file.read_text().splitlines()}
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", (ROOT / "docs" / "adding.md").read_text(), re.S | re.M)
    assert len(blocks) >= 2
    for line in (line.strip() for block in blocks for line in block.splitlines()):
        assert line in code or f"{line}," in code, line


@pytest.mark.parametrize("name", ["import", "lower", *(p.name for p in GRAPH_PASSES), "plan"])
def test_every_pass_has_its_line(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "passes.md").read_text()


@pytest.mark.parametrize("templates", [TEMPLATES, GPU_TEMPLATES], ids=["processors", "work-groups"])
def test_every_template_has_its_line(templates: Mapping[str, Match]) -> None:
    tables = re.split(r"\n\n(?=[^|])", (ROOT / "docs" / "kernels.md").read_text())
    assert any(all(f"| `{name}` |" in table for name in templates) for table in tables)


def test_the_grammars_are_the_codes() -> None:
    documented = f"{inspect.getdoc(text)}{inspect.getdoc(program_text)}"
    blocks = re.findall(r"```text\n(\w.*?)```", (ROOT / "docs" / "grammar.md").read_text(), re.S)
    assert len(blocks) == 5
    for line in (line for block in blocks for line in block.splitlines()):
        assert line.strip() in documented, line


@pytest.mark.parametrize("kind", [Target, GpuTarget])
def test_each_field_of_a_target_says_what_it_is(kind: type) -> None:
    (made,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(made, ast.ClassDef)
    names = {f.name for f in fields(kind)} - {f.name for base in kind.__bases__ for f in _fields(base)}
    said = {
        ast.unparse(entry.target): ast.literal_eval(text.value)
        for entry, text in zip(made.body, made.body[1:], strict=False)
        if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert {name for name, text in said.items() if text.rstrip().endswith(".")} == names


def _fields(kind: type) -> tuple[Field[Any], ...]:
    return fields(kind) if is_dataclass(kind) else ()
