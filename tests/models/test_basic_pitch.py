"""Basic Pitch (notes in a recording; R. Bittner et al., ICASSP 2022) gives ONNX Runtime's outputs.

Convolutions inside the model make a spectrum. Its logarithm is scaled by its smallest and largest value. A
chord leaves little between the two, so that rounding shows. With and without its optimizations, ONNX Runtime
differs by 3e-4 for the chord, and by 2e-6 for noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import compiled, onnxruntime

import jangin

pytestmark = pytest.mark.slow

SAMPLES, RATE = 43844, 22050
TOLERANCE = (5e-4, 1e-4)
"""The largest differences, for the chord and for noise."""
CHORD = (60, 64, 67)
"""C major, as MIDI numbers. The model's 88 notes start with 21."""


@pytest.fixture(scope="module")
def path() -> Path:
    from packages import package

    return package("basic-pitch==0.4.0") / "basic_pitch" / "saved_models" / "icassp_2022" / "nmp.onnx"


def recordings() -> np.ndarray[Any, Any]:
    """Return a chord and noise, [2, samples, 1]."""
    noise = np.random.default_rng(0).standard_normal((2, SAMPLES)) * [[0.05], [0.1]]
    seconds = np.arange(SAMPLES) / RATE
    for note in CHORD:
        for harmonic in (1, 2, 3, 4):
            pitch = 440 * 2 ** ((note - 69) / 12) * harmonic
            noise[0] += 0.2 / harmonic * np.sin(2 * np.pi * pitch * seconds)
    return noise.astype(np.float32)[..., None]


def test_notes(path: Path) -> None:
    exe = compiled(path)
    feeds = {exe.inputs[0].name: recordings()}
    ours, expected = exe.run(feeds), onnxruntime(path.read_bytes(), feeds)
    assert ours.keys() == expected.keys()
    for name, reference in expected.items():
        for result, wanted, tolerance in zip(ours[name], reference, TOLERANCE, strict=True):
            np.testing.assert_allclose(result, wanted, atol=tolerance)
    notes = ours["StatefulPartitionedCall:1"][0].mean(0)
    assert sorted(int(n) + 21 for n in np.argsort(-notes)[:3]) == list(CHORD)
    for row in range(2):  # one recording at a time; the batch is symbolic
        alone = exe.run({exe.inputs[0].name: recordings()[row : row + 1]})
        for name in ours:
            np.testing.assert_allclose(alone[name][0], ours[name][row], atol=TOLERANCE[row])


def test_core_ml_gives_the_same(path: Path) -> None:
    """The package's Core ML program gives the same, for one recording at a time."""
    pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")
    exe = jangin.compile(path.with_suffix(".mlpackage"), cache=False)
    x = recordings()[:1]
    onnx = compiled(path)
    wanted = onnx.run({onnx.inputs[0].name: x})
    for name, result in exe.run({"input_2": x}).items():
        same = [w for w in wanted.values() if w.shape == result.shape]
        assert min(float(np.abs(result - w).max()) for w in same) < 5e-4, name
