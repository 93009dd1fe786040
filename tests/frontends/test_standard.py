"""The table of the ONNX standard's operators says what ONNX's library says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import onnx.defs
import pytest

from jangin.frontends.onnx import library, standard
from jangin.frontends.onnx.operators import OPERATORS, families

TABLE = Path(standard.__file__).parent / "standard.txt"
LAST = library.schemas().schema_version_map()


def test_the_table_is_the_librarys(request: pytest.FixtureRequest) -> None:
    """The text is the same if the installed ONNX has the same opsets. Else the next test compares the
    versions."""
    written = standard.written()
    if request.config.getoption("--update-golden"):
        TABLE.write_text(written)
    text = TABLE.read_text()
    other_opsets = text.split("\n")[1] != written.split("\n")[1]
    assert other_opsets or written == text, "--update-golden writes it anew"


def test_each_opset_has_the_same_version() -> None:
    """Any ONNX describes the table's versions as the table does. Newer versions are asked of ONNX itself."""
    names = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    wrong = []
    for domain, name in sorted(names):
        for opset in range(LAST[domain][1] + 1):
            try:
                theirs = standard.described(onnx.defs.get_schema(name, opset, domain))
            except onnx.defs.SchemaError:
                theirs = None
            wrong += [(domain, name, opset)] if standard.find(domain, name, opset) != theirs else []
    assert len(names) > 200 and not wrong


@pytest.mark.parametrize("name", ["", "Con", "Conv\t1", "Conv\n", "conv", "\t", "Schrödinger"])
@pytest.mark.parametrize("opset", [-1, 0, 13, 1 << 70])
def test_others_have_no_description(name: str, opset: int) -> None:
    assert standard.find("", name, opset) is None
    assert standard.find("com.microsoft", "Conv", opset) is None


def test_newer_opsets_are_asked_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(standard, "_from_library", lambda *what: asked.append(what))
    standard.find("", "Relu", 1000)
    standard.find("", "Relu", 14)
    assert asked == [("", "Relu", 1000)]


def test_reading_a_model_loads_no_schemas(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    program = f"""
import sys, numpy, jangin
print(jangin.compile({str(tmp_path / "m.onnx")!r}, wait=False, cache=False)(numpy.zeros(3, numpy.float32)))
print("onnx.onnx_cpp2py_export" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_rare_modules_list_their_operators() -> None:
    for name, listed in OPERATORS.rare.items():
        module = importlib.import_module(f"jangin.frontends.onnx.operators.{name}")
        declared = {
            (entry.domain, entry.name)
            for value in vars(module).values()
            if getattr(value, "__module__", "") in (module.__name__, families.__name__)
            for entry in getattr(value, "operators", ())
        }
        assert declared == listed, name
