"""The picture of a graph: its layout, the page, and the page in a headless browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from jangin.cli import app
from jangin.commands.picture.layout import GAP, apart, layout

CHROMIUM = shutil.which("chromium")
SCRIPT = "</script><b>"


def model(path: Path) -> Path:
    """Write a model with two branches of very different lengths, and with names that HTML must escape."""
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name=SCRIPT),
        *(node("Exp", ["a" if i == 0 else f"e{i - 1}"], [f"e{i}"], name=f"exp{i}") for i in range(4)),
        node("Softmax", ["e3"], ["s"], name="soft", axis=1),
        node("Add", ["s", "a"], ["y"], name="sum"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, [2, 5])], [value("y", TensorProto.FLOAT, [2, 5])]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return path


def written(tmp_path: Path, *options: str) -> str:
    out = tmp_path / "out.html"
    given = ["--no-cache", "inspect", str(model(tmp_path / "m.onnx")), "--html", str(out), *options]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out.read_text("utf-8")


def shown(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="graph">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    nodes: list[dict[str, Any]] = json.loads(found.group(1))
    return nodes


def test_layout() -> None:
    """No boxes overlap, no line crosses a box, every edge goes down."""
    random = np.random.default_rng()
    widths = random.uniform(50, 200, 40).tolist()
    edges = [(int(random.integers(0, i)), i) for i in range(1, 40) for _ in range(2)]
    found = layout(widths, edges)
    rows: dict[float, list[tuple[float, float]]] = {}
    for (x, y), width in zip(found.boxes, widths, strict=True):
        rows.setdefault(y, []).append((x - width / 2, x + width / 2))
    for row in map(sorted, rows.values()):
        assert all(b[0] - a[1] > GAP - 1e-6 for a, b in pairwise(row))
    for (start, end), line in zip(edges, found.lines, strict=True):
        assert line[0] == found.boxes[start] and line[-1] == found.boxes[end]
        assert all(a[1] < b[1] for a, b in pairwise(line))
        for x, y in line[1:-1]:
            assert not any(left < x < right for left, right in rows[y])


def test_apart() -> None:
    """The results are compared with all orders of colliding blocks: they are the nearest positions without
    overlap."""
    assert apart([0, 100, 300], [20, 20, 20]) == [0, 100, 300]
    assert apart([0, 0], [20, 40]) == [-(30 + GAP) / 2, (30 + GAP) / 2]
    found = apart([0, 0, 0, 500], [10] * 4)
    assert found == [-(10 + GAP), 0, 10 + GAP, 500]


def test_page(tmp_path: Path) -> None:
    """The page shows each node's types, attributes and kernel, loads nothing else, and escapes names."""
    page = written(tmp_path)
    nodes = shown(page)
    assert [n["title"].split()[0] for n in nodes] == [
        "input",
        "Relu",
        *["Exp"] * 4,
        "Softmax",
        "Add",
        "output",
    ]
    soft = dict(nodes[6]["rows"])
    assert soft["axis"] == "1" and soft["output"] == "s: f32[2, 5]"
    assert "soft" in soft["kernel"] and "by " in soft["kernel"] and "time" not in soft
    assert not re.search(r"""(src|href)=|https?://|@import|url\(""", page)
    assert SCRIPT not in page.replace("</script>\n", "") and SCRIPT in nodes[1]["title"]
    assert page.count('class="edge"') == 9 and page.count('class="node') == 9


def test_page_after_a_pass_with_times(tmp_path: Path) -> None:
    page = written(tmp_path, "--after", "fuse", "--times")
    kernels = [n for n in shown(page) if n["title"].startswith("kernel: ")]
    assert kernels and all("µs" in dict(n["rows"])["time"] for n in kernels)
    assert "hot" in page and "after fuse" in page


def test_what_has_no_picture(tmp_path: Path) -> None:
    source, out = model(tmp_path / "m.onnx"), tmp_path / "out.html"
    with pytest.raises(ValueError, match="a plan is no graph"):
        given = ["--no-cache", "inspect", str(source), "--html", str(out), "--after", "plan"]
        CliRunner().invoke(app, given, catch_exceptions=False)
    assert not out.exists()


TRIED = """<pre id="tried"></pre><script>
  const said = [], box = document.getElementById("search"), before = svg.getAttribute("viewBox");
  const text = () => document.getElementById("details").innerText;
  box.value = "exp";
  box.dispatchEvent(new Event("input"));
  said.push(document.getElementById("count").textContent, document.querySelectorAll(".found").length);
  box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  said.push(text().split("\\n")[0], document.querySelector(".chosen text").textContent);
  const middle = svg.getAttribute("viewBox");
  svg.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, clientX: 200, clientY: 200 }));
  said.push(middle !== before, +svg.getAttribute("viewBox").split(" ")[2] < +middle.split(" ")[2]);
  const held = svg.getAttribute("viewBox");
  svg.dispatchEvent(new PointerEvent("pointermove", { buttons: 1, movementX: 9, movementY: 5 }));
  said.push(svg.getAttribute("viewBox") !== held);
  boxes[6].dispatchEvent(new MouseEvent("click"));
  said.push(text().includes("soft") && text().includes("kernel"), document.querySelectorAll(".read").length);
  document.querySelector("td button").click();
  said.push(text().split("\\n")[0]);
  document.getElementById("tried").textContent = JSON.stringify(said);
</script>"""
"""A script that uses the page like a reader, and stores the results in the page."""


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium isn't installed here")
def test_in_a_browser(tmp_path: Path) -> None:
    """Search, zoom, pan and a click happen while the page loads, so its DOM shows the results."""
    page = tmp_path / "page.html"
    page.write_text(written(tmp_path) + TRIED, "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *options, "--window-size=1200,800", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    found = re.search(r'<pre id="tried">(.+?)</pre>', dom)
    assert found is not None, dom[-2000:]
    assert json.loads(unescape(found.group(1))) == [
        "4 found",
        4,
        "Exp exp0",
        "Exp",
        True,
        True,
        True,
        True,
        2,
        "Exp exp3",
    ]
