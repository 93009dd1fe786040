"""Every code block of the guides runs, and each page's numbers and names are those of the code.

A page's blocks run in order in one folder. Python blocks share one namespace, shell blocks are bash's, and a
block with a title is a file. A block that isn't run says why in its first line: `# not run: REASON`."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import jangin
from jangin.runtime.artifact import OLDEST, VERSION

ROOT = Path(__file__).resolve().parent.parent
GUIDES = {page.stem: page for page in sorted((ROOT / "docs" / "guides").glob("*.md"))}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NOT_RUN = re.compile(r"# not run: (\w+ .*)")
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
net (float[batch,3,224,224] input) => (float[batch,10] scores) <float[4,3,9,9] w, float[4,10] v> {
    c = Conv <strides = [9,9]> (input, w) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
    m = MatMul(f, v) scores = Softmax(m)
}"""
"""The guides' `model.onnx`. It takes pictures, and is small."""


@dataclass(frozen=True)
class Block:
    """A code block of a page: its language, its file's name or "", its text and its line."""

    language: str
    title: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(*m.groups(""), text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]  # type: ignore[arg-type]


def with_constants(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model of ONNX's text form with random constants of these shapes."""
    made, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) / 4).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return made


def model() -> onnx.ModelProto:
    return with_constants(MODEL, w=(4, 3, 9, 9), v=(4, 10))


def general(folder: Path) -> None:
    """Write the files that several guides use: a model, and a folder of inputs."""
    onnx.save(model(), folder / "model.onnx")
    (folder / "calib").mkdir()
    rng = np.random.default_rng(1)
    for n in range(4):
        np.save(folder / "calib" / f"{n}.npy", rng.random((1, 3, 224, 224), np.float32))


def tflite_model(folder: Path) -> None:
    general(folder)
    from typer.testing import CliRunner

    from jangin.cli import app

    done = CliRunner().invoke(app, ["convert", "model.onnx", "model.tflite", "--shape", "batch=1"])
    assert done.exit_code == 0, done.output


def mine(folder: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
    g (float[n,5] x) => (float[n] y) { s = mine.Swish(x) y = mine.Median(s) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "mine.onnx")


FILES: dict[str, Callable[[Path], None]] = {
    "tflite": tflite_model,
    "extend": mine,
    "first": lambda folder: None,
}
"""Makers of the files that a page needs, if they aren't those of `general`."""
NEEDS = {
    "batch": (
        "java",
        "module distributed",
        "module pandas",
        "module pyarrow",
        "module pyspark",
        "module ray",
    ),
    "browser": ("node", "module ziglang"),
    "cpp": ("c++",),
    "farm": ("openssl", "module cryptography", "module distributed"),
    "first": ("module onnxruntime",),
    "language-models": ("module gguf",),
    "onnxruntime": ("module onnxruntime",),
    "pytorch": ("module torch",),
    "tflite": ("module tflite", "module flatbuffers"),
    "train": ("module torch",),
    "wrong": ("module onnxruntime",),
}
"""Programs and modules without which a page's blocks can't run."""
QUICK = ("extend", "language-models")
"""Pages that run in the quick suite."""
PIP = f"""#!{sys.executable}
import re, sys
named = re.findall(r"jangin\\[([\\w,]+)\\]", " ".join(sys.argv))
unknown = set(",".join(named).split(",")) - {{"", *{[*EXTRAS]!r}}}
sys.exit(f"no such extra: {{unknown}}" if unknown else 0)
"""
"""A `pip` that installs nothing, because the tests' packages are there. It knows Jangin's extras."""


def lacking(name: str) -> str:
    """Return what a page needs and this machine hasn't got, or ""."""
    for need in NEEDS.get(name, ()):
        module = need.removeprefix("module ")
        if (find_spec(module) if module != need else shutil.which(need)) is None:
            return f"{need} isn't installed"
    return ""


def programs(folder: Path) -> dict[str, str]:
    """Make programs `jangin`, `python` and `pip`, and return an environment that finds them."""
    folder.mkdir()
    texts = {
        "jangin": f'#!/bin/sh\nexec "{sys.executable}" -m jangin "$@"\n',
        "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
        "pip": PIP,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def run(block: Block, page: Path, names: dict[str, Any], around: dict[str, str]) -> None:
    """Run a block in the current folder. Raises AssertionError with the output of a command that fails."""
    if block.language == "python":
        code = compile(block.code, f"{page}, the block at line {block.line}", "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
    elif block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"line {block.line}: {done.stdout}{done.stderr}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "work"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow, id=n) for n in GUIDES]
)
def test_every_block_of_a_guide_runs(name: str, folder: Path) -> None:
    if missing := lacking(name):
        pytest.skip(missing)
    FILES.get(name, general)(folder)
    around, names = programs(folder.parent / "programs"), {"__name__": "__guide__"}
    for block in blocks(GUIDES[name]):
        if NOT_RUN.match(block.code):
            continue
        if "." in block.title:
            Path(block.title).write_text(block.code)
        else:
            run(block, GUIDES[name], names, around)


def test_pages_for_users_have_code_in_guides_only() -> None:
    others = [ROOT / "docs" / "index.md", *(ROOT / "docs" / "reference").glob("*.md")]
    assert len(others) > 5 and not [page for page in others if "```" in page.read_text(encoding="utf-8")]


def test_few_blocks_are_left_out() -> None:
    """A block isn't run only with a reason, or if its language has none of its own program."""
    found = [block for page in GUIDES.values() for block in blocks(page)]
    text = "".join(page.read_text(encoding="utf-8") for page in GUIDES.values())
    assert text.count("\n```") == 2 * len(found), "every fence has a language"
    assert {b.language for b in found if not b.title} <= {"python", "sh", "c", "js"}
    assert len([b for b in found if b.language in ("c", "js") and not b.title]) == 5
    assert len([b for b in found if NOT_RUN.match(b.code)]) == 3


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / "guides" / "browser.md", ROOT / "docs" / "guides" / "microcontroller.md"]
)
def test_what_other_languages_call_exists(page: Path) -> None:
    """Functions in blocks that aren't run occur in what Jangin writes."""
    written = "".join(p.read_text() for p in (ROOT / "jangin" / "ahead").glob("*") if p.is_file())
    for block in blocks(page):
        if block.language in ("c", "js") and not block.title:
            for name in re.findall(r"(?:model\.|net_)(\w+)\(|\b(load)\(", block.code):
                assert re.search(rf"\b{''.join(name)}\b", written), name


def test_the_same_model_gives_the_same_bits(folder: Path) -> None:
    """The page on numerics promises equal bytes of a file, and equal bits for any number of threads."""
    made = [jangin.build(model(), cache=False, isolated=False) for _ in range(2)]
    first, second = (io.BytesIO() for _ in range(2))
    made[0].write(first), made[1].write(second)  # type: ignore[union-attr]
    assert first.getvalue() == second.getvalue()
    x = np.random.default_rng(2).random((5, 3, 224, 224), np.float32)
    results = [jangin.compile(model(), threads=n, cache=False, isolated=False)(x) for n in (1, 2, 3)]
    assert all((found == results[0]).all() for found in results)


def test_the_page_on_versions_is_the_codes() -> None:
    text = (ROOT / "docs" / "reference" / "versions.md").read_text(encoding="utf-8")
    assert f"This version writes number {VERSION}, and reads {OLDEST} to {VERSION}." in text
    assert f"Version {jangin.__version__} isn't released yet." in text
