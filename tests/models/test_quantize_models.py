"""Real models quantized: EfficientNet-Lite0 on the photographs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import jangin


@pytest.mark.slow
def test_photographs_in_int8(efficientnet: bytes) -> None:
    """18 of 20 stay recognised, and what ONNX Runtime makes of the file, its products not saturated, has the
    same classes."""
    from efficientnet import pictures

    found = pictures()
    data, labels = [x for _, x, _ in found], [label for _, _, label in found]
    made = jangin.quantize(efficientnet, data, drop=0.0, labels=labels)
    assert len(made.chosen) == 50
    assert made.drop <= 0
    classes = [int(made.executable(x[None]).argmax()) for x in data]
    assert (np.array(classes) == labels).sum() >= 18
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.model, options, providers=["CPUExecutionProvider"])
    theirs = [int(session.run(None, {"images": x[None]})[0].argmax()) for x in data]
    assert (np.array(theirs) == classes).sum() >= 19
