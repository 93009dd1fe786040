"""EfficientNet-Lite0 quantized by ONNX Runtime (static int8, QDQ) gives ONNX Runtime's logits, and still
recognises the photographs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import compiled, onnxruntime

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photographs() -> tuple[Any, Any]:
    from efficientnet import pictures

    found = pictures()
    return np.stack([pixels for _, pixels, _ in found]), np.array([label for _, _, label in found])


@pytest.fixture(scope="module")
def model(
    efficientnet: bytes, photographs: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Quantize activations to 8 bits and weights to 7 bits by channel. With 8 bits, ONNX Runtime's sums of
    16-bit products saturate on processors without VNNI."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Photographs(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest: Iterator[Any] = iter(photographs[0][:10])

        def get_next(self) -> dict[str, Any] | None:
            image = next(self.rest, None)
            return None if image is None else {"images": image[None]}

    folder = tmp_path_factory.mktemp("quantized")
    (folder / "float.onnx").write_bytes(efficientnet)
    quant_pre_process(folder / "float.onnx", folder / "folded.onnx", skip_symbolic_shape=True)
    quantize_static(
        folder / "folded.onnx", folder / "int8.onnx", Photographs(), quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True,
    )  # fmt: skip
    return folder / "int8.onnx"


def test_logits_are_onnx_runtimes(model: Path, photographs: tuple[Any, Any]) -> None:
    images, labels = photographs
    expected = onnxruntime(model.read_bytes(), {"images": images})["logits"]
    ours = np.asarray(compiled(model)(images))
    step = np.diff(np.unique(expected)).min()  # of the logits' quantization
    assert np.abs(ours - expected).max() < 1.01 * step
    assert (ours == expected).mean() > 0.99
    assert (ours.argmax(1) == labels).sum() >= 17
