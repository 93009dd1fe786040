"""Whole models on a WebGPU adapter, against native code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_adapter import NONE, usable

import jangin

TESTS = Path(__file__).parent.parent
CLOSE = 1e-4
"""The largest difference, as a share of the largest value. The schedules add in different orders."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not usable(), reason=NONE)]
Case = tuple[Any, dict[str, Any], list[dict[str, Any]]]
"""A model, its sizes, and the inputs of some runs."""


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules of `tests/models` and of the examples importable. They download packages."""
    for folder in (TESTS / "models", TESTS.parent / "examples"):
        monkeypatch.syspath_prepend(str(folder))


def light(name: str) -> Callable[[], Case]:
    def case() -> Case:
        import test_light

        model, given = test_light.load(name)
        x = np.random.default_rng().random((1, 3, 224, 224), np.float32)
        return test_light.randomised(model), {}, [{given: x}]

    return case


def efficientnet() -> Case:
    from efficientnet import build_model

    model = build_model()
    x = np.random.default_rng().random((1, 3, 224, 224), np.float32)
    return model, {"batch": 1}, [{model.graph.input[0].name: x}]


def magika() -> Case:
    from packages import package

    path = package("magika==1.0.3") / "magika" / "models" / "standard_v3_3" / "model.onnx"
    tokens = np.random.default_rng().integers(0, 257, (3, 2048)).astype(np.int32)
    return path, {}, [{"bytes": tokens}]


def minilm() -> Case:
    from bert import INPUTS, build_minilm
    from packages import minilm as weights

    runs = []
    for length in (7, 33):
        ids = np.random.default_rng().integers(0, 30000, (1, length))
        runs.append(dict(zip(INPUTS, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True)))
    return build_minilm(weights()), {}, runs


def basic_pitch() -> Case:
    from packages import package

    path = package("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022" / "nmp.onnx"
    sound = np.random.default_rng().standard_normal((1, 43844, 1)).astype(np.float32) / 8
    return path, {}, [{"": sound}]


SMALL = ("squeezenet", "shufflenet")
LARGE = ("inception_v1", "densenet121", "inception_v2", "resnet50", "bvlc_alexnet", "zfnet512", "vgg19")
MODELS: dict[str, Callable[[], Case]] = {
    "basic_pitch": basic_pitch, "magika": magika, **{name: light(name) for name in SMALL},
    "efficientnet": efficientnet, "minilm": minilm, **{name: light(name) for name in LARGE},
}  # fmt: skip
"""The models, the smallest first."""


def named(exe: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    return {exe.inputs[0].name: feeds[""]} if "" in feeds else feeds


@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str, record_property: Callable[[str, object], None]) -> None:
    record_property("model", name)
    model, shapes, runs = MODELS[name]()
    differences = [0.0]
    exe, native = (jangin.compile(model, target, shapes=shapes or None) for target in ("webgpu", None))
    for feeds in runs:
        made, expected = exe.run(named(exe, feeds)), native.run(named(exe, feeds))
        for output, want in expected.items():
            scale = float(np.abs(want).max(initial=1e-30))
            worst = float(np.abs(made[output] - want).max()) / scale
            print(f"{name}: {output} differs by {worst:.1e} of the largest value", file=sys.stderr)
            differences.append(worst)
    largest = float(np.max(differences))
    record_property("difference", f"{largest:.0e}")
    assert largest <= CLOSE
