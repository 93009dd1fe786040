"""The example page, with Chromium's made camera: a green picture in which a ball and a clock move."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from test_web import both, in_browser, needs_browser, needs_linker

PAGE = Path(__file__).parents[2] / "examples" / "browser" / "index.html"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
CLASSES = 7
PICTURES = 4
"""The different pictures that the page must show."""
WATCH = """
  const element = (id) => document.getElementById(id);
  const until = async (found) => {
    while (!found()) await new Promise((done) => setTimeout(done, 20));
  };
  await until(() => element("gpu").textContent === "WebGPU is ready.");
  element("camera").click();
  const texts = [], pictures = new Set(), greens = [];
  await until(() => /^WebGPU: /.test(element("gpu").textContent));
  await until(() => {
    const { data } = element("picture").getContext("2d").getImageData(0, 0, 224, 224);
    if (!pictures.has(data.join())) {
      greens.push([0, 1, 2].map((n) => data[4 * (30 * 224 + 30) + n]));
      texts.push([element("time").textContent, element("gpu").textContent, element("best").textContent]);
    }
    pictures.add(data.join());
    return pictures.size >= %d;
  });
  const during = element("camera").textContent;
  element("camera").click();
  await new Promise((done) => setTimeout(done, 500));
  element("time").textContent = "untouched";
  await new Promise((done) => setTimeout(done, 500));
  const after = [element("camera").textContent, element("time").textContent];
  await say({ texts, greens, rows: element("best").rows.length, during, after });
"""
NONE = """
  const element = (id) => document.getElementById(id);
  while (element("time").textContent !== "Ready.") await new Promise((done) => setTimeout(done, 20));
  navigator.mediaDevices.getUserMedia = async () => { throw new Error("Permission denied"); };
  element("camera").click();
  await new Promise((done) => setTimeout(done, 200));
  await say({ time: element("time").textContent, button: element("camera").textContent });
"""


def green() -> onnx.ModelProto:
    """Return a network for pictures whose class 3 is the mean of green, and whose other classes are less."""
    weights = np.zeros((CLASSES, 3, 32, 32), np.float32)
    weights[3, 1], weights[:, 0] = 4 / 1024, -1 / 1024
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[32, 32]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])
    graph = helper.make_graph(nodes, "green", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def page(folder: Path) -> str:
    """Write what the page reads, and return its text."""
    both(green(), folder)
    (folder / "names.json").write_text(json.dumps([f"class {n}" for n in range(CLASSES)]))
    return PAGE.read_text()


@needs_linker
@needs_browser
def test_a_live_camera(tmp_path: Path) -> None:
    """Both ways run on picture after picture, and their times are shown, until the button is pressed
    again."""
    text = page(tmp_path / "out")
    said = in_browser(tmp_path / "out", WATCH % PICTURES, tmp_path / "profile", before=text, flags=CAMERA)
    assert "error" not in said, said
    assert len(said["texts"]) == PICTURES and said["rows"] == 5
    for wasm, gpu, best in said["texts"]:
        assert re.fullmatch(r"WebAssembly: \d+ ms", wasm) and re.fullmatch(r"WebGPU: \d+ ms", gpu), said
        assert best.startswith("class 3"), best
    for red, green_part, blue in said["greens"]:
        assert green_part > 2 * max(red, blue), said["greens"]
    assert said["during"] == "Stop the camera"
    assert said["after"] == ["Use the camera", "untouched"]


@needs_linker
@needs_browser
def test_a_camera_that_is_denied(tmp_path: Path) -> None:
    text = page(tmp_path / "out")
    said = in_browser(tmp_path / "out", NONE, tmp_path / "profile", before=text)
    assert said == {"time": "The camera can't be used: Permission denied", "button": "Use the camera"}
