"""A model's names may hold any text. They control no terminal or browser, and aren't taken for markup."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.commands.common import bar_with
from jangin.visible import visible

ESCAPES = "\x1b]0;pwned\x07\x1b[31m\x9b2J\u202e[/][red]"
PAGE = "</script><img src=x onerror=alert(1)>'\"&$title"
TEXT = ESCAPES + PAGE
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def named(text: str) -> onnx.ModelProto:
    """Return a model with the text in each of its names."""
    w = numpy_helper.from_array(np.ones((4, 4), np.float32), f"w{text}")
    nodes = [
        helper.make_node("MatMul", [f"x{text}", f"w{text}"], [f"m{text}"], name=f"product{text}"),
        helper.make_node("Softmax", [f"m{text}"], [f"y{text}"], name=f"softmax{text}"),
    ]
    ends = [helper.make_tensor_value_info(f"{n}{text}", TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, f"graph{text}", ends[:1], ends[1:], [w], doc_string=text)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], producer_name=text)
    helper.set_model_props(made, {f"key{text}": text})
    return made


COMMANDS = [
    "inspect M", "inspect M --placement", "inspect M --memory", "inspect M --shapes",
    "inspect M --after import", "inspect M --after fuse", "inspect M --after plan",
    "inspect M --kernel nothing", "inspect M --kernel K --show llvm", "run M --shape N --profile",
    "run M --input nothing", "compile M -o OUT.jgn", "bench M --layers --shape N", "emit", "inspect OUT.jgn",
    "inspect OUT.jgn --memory",
    "inspect OUT.jgn --after plan", "inspect OUT.jgn --shapes", "run OUT.jgn --input nothing",
    "convert M OUT.onnx",
]  # fmt: skip


@pytest.mark.sampled(3)
def test_what_is_printed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(named(TEXT), path)
    words = {
        "M": path, "OUT.jgn": tmp_path / "out.jgn", "N": "n=3", "K": f"product{TEXT}",
        "OUT.onnx": tmp_path / "out.onnx",
    }  # fmt: skip
    for command in COMMANDS:
        if command == "emit":
            done = cli("compile", path, "--emit", "c", "-o", tmp_path / "emitted", "--target", "x86-64-v2")
        else:
            done = cli(*(words.get(w, w) for w in command.split()))
        said = done.out + done.err
        assert not RAW.search(said), f"{command}: {said!r}"
        assert "a defect of Jangin" not in said, f"{command}: {said}"
        assert done.status == ("nothing" in command), f"{command}: {said}"
    assert visible(f"product{TEXT}") in cli("inspect", path, "--after", "import").out.replace('\\"', '"')


def test_pages(cli: Cli, tmp_path: Path) -> None:
    path, page = tmp_path / "m.onnx", tmp_path / "page.html"
    onnx.save(named(TEXT), path)
    for more in ([], ["--after", "fuse"]):
        assert cli("inspect", path, "--html", page, *more).status == 0
        html = page.read_text("utf-8")
        assert not RAW.search(html)
        assert html.count("</script>") == 2 and "<img" not in html


def test_errors_of_the_library() -> None:
    model = named(TEXT)
    exe = jangin.compile(model, cache=False, isolated=False)
    broken = named(TEXT)
    broken.graph.node[0].op_type = f"Nothing{TEXT}"
    for act in (
        lambda: exe(np.zeros((2, 5), np.float32)),
        lambda: exe(np.zeros((2, 4), np.int8)),
        lambda: exe.run({TEXT: 0}),
        lambda: jangin.compile(broken, cache=False, isolated=False),
    ):
        with pytest.raises((ValueError, TypeError, jangin.CompileError)) as error:
            act()
        assert not RAW.search(str(error.value))
    assert not RAW.search(exe.explain_shapes())


def test_progress() -> None:
    bar = bar_with("{task.description}")
    bar.add_task(ESCAPES)
    with bar.console.capture() as said:
        bar.console.print(bar.get_renderable())
    assert not RAW.search(said.get()) and said.get().startswith(visible("\x1b]0;pwned"))
