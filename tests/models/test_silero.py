"""Silero VAD (is this speech?) in its five forms gives ONNX Runtime's probabilities, streamed in chunks of 32
ms.

The models have a convolution, an LSTM, up to 25 nested Ifs, and a state that each chunk hands to the next.
"""

from __future__ import annotations

import statistics
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from compared import compiled

pytestmark = pytest.mark.slow

CHUNK, CONTEXT, COUNT, RATE = 512, 64, 100, 16000
FORMS = {
    "silero_vad": 1e-4,
    "silero_vad_16k_op15": 1e-4,
    "silero_vad_op18_ifless": 1e-4,
    "silero_vad_half": 1e-2,
    "silero_vad_16k_sequence": 1e-4,
}
"""The largest difference of a probability, for each form."""
Array = np.ndarray[Any, Any]
Run = Callable[[dict[str, Any]], list[Array]]


@pytest.fixture(scope="module")
def folder() -> Path:
    from packages import package

    return package("silero-vad==6.2.3") / "silero_vad" / "data"


@pytest.fixture(scope="module")
def speech() -> Array:
    """Return 100 chunks of a reader's voice, each with the end of the chunk before."""
    from packages import debian

    try:
        data = debian("pocketsphinx-testdata") / "usr/share/pocketsphinx/test/data/librivox"
    except OSError as reason:
        pytest.skip(f"no speech to listen to: {reason}")
    (file,) = data.glob("*-0870.wav")
    with wave.open(str(file)) as recording:
        assert recording.getframerate() == RATE
        samples = np.frombuffer(recording.readframes(-1), np.int16)
    return chunks(samples.astype(np.float32) / 32768)


def noise() -> Array:
    samples = np.random.default_rng(0).standard_normal(COUNT * CHUNK).astype(np.float32)
    return chunks(samples * 0.01)


def chunks(samples: Array) -> Array:
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    return np.stack([padded[i * CHUNK : (i + 1) * CHUNK + CONTEXT] for i in range(COUNT)])


def streamed(run: Run, inputs: list[str], audio: Array) -> tuple[Array, float]:
    """Return each chunk's probability and the median milliseconds of a chunk. The state is carried over."""
    rate = {"sr": np.array(RATE)} if "sr" in inputs else {}
    shapes = {"state": (2, 1, 128), "h": (1, 1, 128), "c": (1, 1, 128)}
    state = {name: np.zeros(shapes[name], np.float32) for name in inputs if name in shapes}
    found, times = [], []
    for chunk in audio:
        start = time.perf_counter()
        probability, *after = run({"input": chunk[None], **state, **rate})
        times.append((time.perf_counter() - start) * 1e3)
        found.append(probability.item())
        state = dict(zip(state, after, strict=True))
    return np.array(found), statistics.median(times)


@pytest.mark.parametrize("form", FORMS)
def test_probabilities(folder: Path, speech: Array, form: str) -> None:
    path = folder / f"{form}.onnx"
    exe = compiled(path, threads=1)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [i.name for i in session.get_inputs()]

    def ours(feeds: dict[str, Any]) -> list[Array]:
        return list(exe.run(feeds).values())

    means = []
    for audio in (speech, noise()):
        probabilities, milliseconds = streamed(ours, inputs, audio)
        expected, theirs = streamed(lambda feeds: session.run(None, feeds), inputs, audio)
        difference = np.abs(probabilities - expected).max()
        means.append(probabilities.mean())
        print(
            f"\n{form}: mean {means[-1]:.3f}, largest difference {difference:.1e}; a chunk takes "
            f"{milliseconds:.3f} ms, ONNX Runtime {theirs:.3f}"
        )
        assert difference < FORMS[form]
    assert means[0] > 0.85
    assert means[1] < 0.02


def test_a_whole_recording_at_once(folder: Path, speech: Array) -> None:
    exe = compiled(folder / "silero_vad_16k_sequence.onnx")
    state = {name: np.zeros((1, 1, 128), np.float32) for name in "hc"}
    whole = exe.run({"input": speech, **state})["speech_probs"]
    one_by_one, _ = streamed(lambda feeds: list(exe.run(feeds).values()), ["input", "h", "c"], speech)
    np.testing.assert_allclose(whole, one_by_one, atol=1e-5)
