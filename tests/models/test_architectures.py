"""Twelve tiny transformer architectures, exported by PyTorch with symbolic batch and sequence. One plan gives
PyTorch's outputs at several sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compared import compiled, error

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "models" / "architectures"
NAMES = (
    "bert", "roberta", "distilbert", "albert", "gpt2", "llama", "mistral", "qwen2", "t5_encoder", "vit",
    "clip_text", "whisper_encoder",
)  # fmt: skip
SIZES = 3


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_pytorchs(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.is_file():
        pytest.skip("not exported: run benchmarks/architectures.py with PyTorch and transformers")
    exe = compiled(path)
    with np.load(path.with_suffix(".npz")) as stored:
        for i in range(SIZES):
            feeds = {s.name: stored[f"{i}.{s.name}"] for s in exe.inputs}
            assert error(exe.run(feeds)["output"], stored[f"{i}.output"]) < 1e-4
