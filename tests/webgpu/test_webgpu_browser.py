"""Whole models in Chromium, whose WebGPU runs on SwiftShader here, against native code."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from test_webgpu_models import MODELS, TESTS

import jangin

sys.path.insert(0, str(TESTS / "ahead"))
from test_web import RUN, compared, in_browser

ARRAYS = {"float32": "Float32Array", "int64": "BigInt64Array", "int32": "Int32Array"}
SOME = {"squeezenet": {}, "efficientnet": {}, "minilm": {"batch": 1, "seq": 7}, "basic_pitch": {}}
"""Models with sizes to fix, beside those of `MODELS`."""
CLOSE = 1e-4
"""Share of the largest value that results may differ by."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="Debian's chromium isn't here"),
]


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the modules of `tests/models`, and of the examples, which download packages."""
    for folder in (TESTS / "models", TESTS.parent / "examples"):
        monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("name", SOME)
def test_a_model(name: str, tmp_path: Path) -> None:
    model, shapes, runs = MODELS[name]()
    native = jangin.compile(model)
    first = native.inputs[0]
    feeds = runs[0] if "" not in runs[0] else {first.name: runs[0][""]}
    given = zip(first.shape, feeds[first.name].shape, strict=True)
    known = {str(d): n for d, n in given if not isinstance(d, int)}
    folder = tmp_path / "out"
    jangin.emit(model, "web", "webgpu", {**known, **shapes, **SOME[name]} or None, name="model").save(folder)
    listed = []
    for n, spec in enumerate(native.inputs):
        array = np.ascontiguousarray(feeds[spec.name])
        array.tofile(folder / f"input{n}")
        listed.append((f"input{n}", ARRAYS[str(array.dtype)]))
    (folder / "inputs.json").write_text(json.dumps({"inputs": listed}))
    said = in_browser(folder, RUN, tmp_path / "profile")
    compared(said, list(native.run(feeds).values()), CLOSE)
