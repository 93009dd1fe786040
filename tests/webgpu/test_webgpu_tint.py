"""Every shader of ONNX's node tests passes the check of Tint, the compiler of Chromium's WebGPU.

It is stricter than wgpu's: barriers must be reached by all work-items for certain, and expressions of
constants must have a value."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx.backend.test.loader import load_model_tests

import jangin
from jangin.ir.graph import CompileError
from jangin.runtime.artifact import Artifact
from jangin.runtime.devices.wgsl import Shader

sys.path.insert(0, str(Path(__file__).parent.parent / "ahead"))
from test_web import in_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="Debian's chromium isn't here"),
]
PARTS = 8
"""Each test has one case in so many. All at once would take longer than a test may."""
LEAST = 100
"""Shaders of a part that there are at least."""
CHECK = """
  const { shaders } = await (await fetch("shaders.json")).json();
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice({ requiredFeatures: ["subgroups"] });
  const wrong = [];
  for (const [name, code] of shaders) {
    device.pushErrorScope("validation");
    const info = await device.createShaderModule({ code }).getCompilationInfo();
    await device.popErrorScope();
    for (const m of info.messages) if (m.type === "error") wrong.push([name, m.lineNum, m.message, code]);
  }
  await say({ wrong, count: shaders.length });
"""


def shaders(part: int) -> dict[str, str]:
    """The texts of a part of the node tests' shaders, with the test that has each first. Models that can't be
    compiled without the tests' inputs, or at all, have none."""
    found: dict[str, str] = {}
    for case in load_model_tests(kind="node")[part::PARTS]:
        try:
            made = jangin.build(case.model, "webgpu")
        except (CompileError, ValueError):
            continue
        for code in codes(made):
            shader = Shader.of(code)
            found.setdefault(shader.text(), case.name)
            second = shader.text(features=["subgroups"])
            found.setdefault(f"enable subgroups;\n{second}", case.name)
    return found


def codes(made: Any) -> Iterator[bytes]:
    """The code of all kernels of a compiled model, whose parts may have parts."""
    if isinstance(made, Artifact):
        yield from made.objects
    else:
        for part in made.parts:
            yield from codes(part)


@pytest.mark.parametrize("part", range(PARTS))
def test_tint(part: int, tmp_path: Path) -> None:
    texts = shaders(part)
    assert len(texts) >= LEAST
    (tmp_path / "out").mkdir()
    listed = [(name, text) for text, name in texts.items()]
    (tmp_path / "out" / "shaders.json").write_text(json.dumps({"shaders": listed}))
    said = in_browser(tmp_path / "out", CHECK, tmp_path / "profile")
    assert said.get("count") == len(listed), said
    assert not said["wrong"], f"{len(said['wrong'])} of {len(listed)}; the first: {said['wrong'][0]}"
