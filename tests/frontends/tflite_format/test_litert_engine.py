"""LiteRT as an engine of `jangin bench`: its inputs and outputs are floats, as those of the same model in
ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the engine, isn't installed")

from files import Operator, written
from test_tflite import CONV, image, reference, weights

from jangin.bench.engine import Job
from jangin.bench.engines import make


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_pictures_turned_and_quantized(kind: str, tmp_path: Path) -> None:
    w, bias = weights([5, 3, 3, 4], kind, 0)
    tensors = [image([1, 9, 7, 4], kind=kind), w, bias, image([1, 5, 7, 5], 0.07, -9, kind)]
    model = written(tensors, [Operator("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", CONV)], [0], [3])
    (tmp_path / "m.tflite").write_bytes(model)
    x = np.random.default_rng(0).uniform(-9, 9, (1, 4, 9, 7)).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", x=x)
    job = Job("litert", 1, str(tmp_path / "m.tflite"), str(tmp_path / "inputs.npz"), ("y",))
    given = np.moveaxis(x, 1, -1)
    if kind == "int8":
        given = np.clip(np.rint(given / 0.05) + 3, -128, 127).astype(np.int8)
        (wanted,) = reference(model, [given])
        wanted = (wanted.astype(np.float32) + 9) * 0.07
        step = 0.07  # XNNPACK may round to the next level
    else:
        (wanted,), step = reference(model, [given]), 1e-4
    found = make(job).call()["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=step * 1.01)


def test_onnx_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"LiteRT takes a \.tflite file"):
        make(Job("litert", 1, str(tmp_path / "m.onnx")))
