"""Shaders of a package that differ only in integers are one shader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_web import text_model

import jangin
from jangin.ahead import web_package
from jangin.ahead.web_shaders import Common, united

HEAD = "struct Numbers {{ tasks: i32 }}\nvar<workgroup> a: array<f32, {0}>;\nfn main(id: u32) {{\n"
LAYERS = """g (float[1,8,16,16] x) => (float[1,24,8,8] y) {
  a = Conv<kernel_shape=[1,1]>(x, w0)
  b = Relu(a)
  c = Conv<kernel_shape=[1,1]>(b, w1)
  d = Relu(c)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)
  e = Conv<kernel_shape=[1,1]>(p, w2)
  f = Relu(e)
  h = Conv<kernel_shape=[1,1]>(f, w3)
  y = Relu(h)
}"""
"""Four layers of one form, whose sizes differ."""
WEIGHTS = {"w0": (16, 8), "w1": (24, 16), "w2": (40, 24), "w3": (24, 40)}


def body(size: int, *lines: str) -> str:
    return HEAD.format(size) + "\n".join(lines) + "\n}\n"


def restored(text: str, common: Common) -> str:
    """Return a common shader with one kernel's integers in their places."""
    for n, value in reversed([*enumerate(common.added)]):
        text = text.replace(f", k{n}: i32", "").replace(f"u.k{n}", str(value))
    return text


def test_integers_that_differ_are_read() -> None:
    one = body(4, "let v1 = n * 12 + 7;", "let v2 = min(v1, 12);", "a[3] = 1.5f * f32(8u);")
    two = body(4, "let v1 = n * 20 + 7;", "let v2 = min(v1, 20);", "a[3] = 1.5f * f32(8u);")
    texts, places = united({"one": one, "two": two})
    assert list(texts) == ["one"]
    assert places == {"one": Common("one", (12,)), "two": Common("one", (20,))}
    assert texts["one"] == body(
        4, "let v1 = n * u.k0 + 7;", "let v2 = min(v1, u.k0);", "a[3] = 1.5f * f32(8u);"
    ).replace("tasks: i32", "tasks: i32, k0: i32")


def test_numbers_that_must_be_constants_are_kept() -> None:
    """Other sizes of shared memory, elements of local arrays, unsigned integers, floating-point numbers and
    names make other shaders."""
    same = body(4, "a[3] = 1.5f * f32(8u) + v7;")
    for other in (
        body(8, "a[3] = 1.5f * f32(8u) + v7;"), body(4, "a[2] = 1.5f * f32(8u) + v7;"),
        body(4, "a[3] = 1.25f * f32(8u) + v7;"), body(4, "a[3] = 1.5f * f32(9u) + v7;"),
        body(4, "a[3] = 1.5f * f32(8u) + v8;"),
    ):  # fmt: skip
        texts, places = united({"same": same, "other": other})
        assert texts == {"same": same, "other": other}
        assert places == {"same": Common("same"), "other": Common("other")}


def layers() -> onnx.ModelProto:
    model = text_model(LAYERS)
    random = np.random.default_rng(0)
    for name, (many, few) in WEIGHTS.items():
        array = random.standard_normal((many, few, 1, 1), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_layers_share_a_shader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of four sizes share shaders. With a launch's integers in their places, the common shader is the
    text that the kernel would have alone."""
    alone: dict[str, str] = {}
    found: dict[str, tuple[str, Common]] = {}

    def noted(shaders: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Common]]:
        texts, places = united(shaders)
        alone.update(shaders)
        found.update({name: (texts[place.name], place) for name, place in places.items()})
        return texts, places

    monkeypatch.setattr(web_package, "united", noted)
    jangin.emit(layers(), "web", "webgpu", name="model").save(tmp_path / "out")
    assert {name: restored(*common) for name, common in found.items()} == alone
    products = [name for name, text in alone.items() if "fma" in text]
    assert len(products) >= 3
    assert len({found[name][1].name for name in products}) < len(products)
    written = (tmp_path / "out" / "model.wgsl").read_text()
    module = (tmp_path / "out" / "model.mjs").read_text()
    data = json.loads(re.search(r"^const MODEL = (.*);$", module, re.MULTILINE)[1])
    sections = re.split(r"^//# (.*)$", written, flags=re.MULTILINE)[1:]
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    assert {launch["shader"] for launch in data["launches"]} == texts.keys()
    for launch in data["launches"]:
        declared = re.search(r"struct Numbers \{(.*) \}", texts[launch["shader"]])[1]
        assert len(launch["numbers"]) == declared.count(":")
