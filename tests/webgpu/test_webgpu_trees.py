"""A group's work-items combine values by trees, or by subgroups on adapters that have them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from on_adapter import NONE, run, usable

import jangin
from jangin.backends.wgsl.module import shader
from jangin.ir.groups import threads
from jangin.ir.interpret import run_func
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.runtime.devices.webgpu import opened
from jangin.runtime.devices.wgsl import Shader
from jangin.runtime.devices.wgsl_trees import Tree
from jangin.targets.webgpu import WEBGPU

sys.path.insert(0, str(Path(__file__).parent.parent / "ahead"))
from test_web import in_browser, needs_browser

ADAPTERS = usable()
needed = pytest.mark.skipif(not ADAPTERS, reason=NONE)
FORMS = [
    False,
    pytest.param(
        True,
        marks=pytest.mark.skipif(
            not (ADAPTERS and "subgroup" in ADAPTERS[0].features), reason="the adapter has no subgroups"
        ),
    ),
]
KINDS = {"f32": np.float32, "i32": np.int32, "u32": np.uint32}


def reduction(op: str, kind: str, count: int) -> Func:
    """Return a kernel whose groups each combine `count` numbers by a tree."""
    combined = {"add": "{} + {}", "mul": "{} * {}"}.get(op, op + "({}, {})")
    steps, half = [], count // 2
    while half:
        step = combined.format("part[n]", f"part[(n + {half})]")
        more = "y[t] = part[0]" if half == 1 else ""
        steps.append(f"thread n in {count} {{ if n < {half} {{ part[n] = {step} {more} }} }}")
        half //= 2
    tree = " ".join(steps)
    return parse_func(
        f"func k(x: {kind}[3, {count}], y: out {kind}[3]) {{ block t in 3 {{"
        f" alloc shared part: {kind}[{count}] thread m in {count} {{ part[m] = x[t, m] }} {tree} }} }}"
    )


@needed
@pytest.mark.parametrize("subgroups", FORMS)
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 32, 256])
def test_reductions(op: str, kind: str, count: int, subgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    func, rng = reduction(op, kind, count), np.random.default_rng()
    if kind == "f32":
        x = rng.uniform(0.9, 1.1, (3, count)).astype(np.float32) * rng.choice([-1, 1], (3, count))
    else:
        x = rng.integers(-9 if kind == "i32" else 0, 9, (3, count))
    given = {"x": x.astype(KINDS[kind]), "y": np.zeros(3, KINDS[kind])}
    want = {k: v.copy() for k, v in given.items()}
    run_func(func, want, {})
    made = shader(func, WEBGPU)
    assert [t.count for t in made.trees] == [count] and threads(func) == count
    monkeypatch.setattr(opened(ADAPTERS[0]), "features", {"subgroups"} if subgroups else set())
    got = run(func, given, {}, ADAPTERS[0], made=made)
    np.testing.assert_allclose(got["y"], want["y"], rtol=2e-5, atol=2e-6 * count if op == "add" else 0)


@needed
@pytest.mark.parametrize("subgroups", FORMS)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("at", [0, 5, 63])
def test_nan_is_passed_on(op: str, at: int, subgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    func = reduction(op, "f32", 64)
    x = np.random.default_rng().standard_normal((3, 64)).astype(np.float32)
    x[1, at], x[2, at] = np.nan, np.inf if op == "max" else -np.inf
    monkeypatch.setattr(opened(ADAPTERS[0]), "features", {"subgroups"} if subgroups else set())
    got = run(func, {"x": x, "y": np.zeros(3, np.float32)}, {}, ADAPTERS[0])["y"]
    np.testing.assert_array_equal(got, getattr(np, op)(x, axis=1))


def test_other_steps_stay() -> None:
    """Steps that are no whole tree, and types and operations without subgroups, are written as they stand."""
    whole = reduction("add", "f32", 8)
    assert len(shader(whole, WEBGPU).trees) == 1
    text = reduction("add", "i64", 8)
    assert not shader(text, WEBGPU).trees
    cut = whole.body.body.body
    for broken in ([*cut.body[:2], *cut.body[3:]], cut.body[:-1]):
        inner = replace(whole.body.body, body=replace(cut, body=tuple(broken)))
        assert not shader(whole.with_body(replace(whole.body, body=inner)), WEBGPU).trees


def test_texts() -> None:
    """A shader's two forms differ in its trees and in what it reads of its subgroup."""
    made = shader(reduction("max", "f32", 64), WEBGPU)
    assert made.trees == [Tree("shared0", 64, "greatest", "f32", False)]
    assert Shader.of(made.packed).trees == made.trees
    plain, second = made.text(), made.text(features=["subgroups"])
    assert "subgroup" not in plain and plain.count("workgroupBarrier") == 7
    assert second.count("workgroupBarrier") == 3 and "subgroupMax(own)" in second
    assert "is_nan(own)" in second


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[3,37] x) => (float[3,37] y, float[3] m)'
        " { y = Softmax(x) a = Constant<value = int64[1] {1}>() m = ReduceMax<keepdims = 0>(x, a) }"
    )


def test_packages_have_both_forms(tmp_path: Path) -> None:
    jangin.emit(model(), "web", "webgpu", name="model").save(tmp_path)
    texts = re.split(r"^//# (.*)\n", (tmp_path / "model.wgsl").read_text(), flags=re.MULTILINE)
    shaders = dict(zip(texts[1::2], texts[2::2], strict=True))
    second = [n for n in shaders if n.endswith("+subgroups")]
    assert second
    for name in second:
        assert shaders[name].startswith("enable subgroups;") and "subgroup" not in shaders[name[:-10]]


IN_BROWSER = """
  const { load } = await import("./model.mjs");
  const adapter = () => navigator.gpu.requestAdapter();
  const x = Float32Array.from({ length: 111 }, (_, n) => Math.sin(n * n));
  const told = { has: (await adapter()).features.has("subgroups"), outputs: [] };
  for (const requiredFeatures of [[], told.has ? ["subgroups"] : []]) {
    const model = await load({ device: await (await adapter()).requestDevice({ requiredFeatures }) });
    told.outputs.push((await model.run([x])).map((y) => [...y]));
  }
  await say(told);
"""


@needs_browser
def test_both_forms_in_a_browser(tmp_path: Path) -> None:
    jangin.emit(model(), "web", "webgpu", name="model").save(tmp_path / "out")
    said = in_browser(tmp_path / "out", IN_BROWSER, tmp_path / "profile")
    assert said.get("has"), said
    x = np.sin(np.arange(111, dtype=np.float64) ** 2).astype(np.float32).reshape(3, 37)
    want = [v.ravel() for v in jangin.compile(model())(x)]
    for outputs in said["outputs"]:
        for got, value in zip(outputs, want, strict=True):
            np.testing.assert_allclose(np.float32(got), value, rtol=2e-5)
