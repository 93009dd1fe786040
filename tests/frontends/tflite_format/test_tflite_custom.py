"""Custom operators. SSD's detections are compared with LiteRT. MediaPipe's operators, which LiteRT lacks, are
compared with their definitions."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")

from files import Operator, Tensor, written
from flatbuffers import flexbuffers

RANDOM = np.random.default_rng(0)
SAME, VALID = 1, 2


def compiled(model: bytes, *feeds: Any) -> list[Any]:
    exe = jangin.compile(model, threads=1, cache=False)
    return list(exe.run({s.name: v for s, v in zip(exe.inputs, feeds, strict=True)}).values())


SSD = {
    "max_detections": 7, "max_classes_per_detection": 1, "detections_per_class": 4, "num_classes": 5,
    "nms_score_threshold": 0.3, "nms_iou_threshold": 0.4, "use_regular_nms": False,
    "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"max_classes_per_detection": 3}, {"use_regular_nms": True}, {"nms_score_threshold": 0.9999},
        {"max_detections": 60, "use_regular_nms": True, "detections_per_class": 100},
    ],
)  # fmt: skip
def test_detections(changed: Any) -> None:
    """Detections from 40 boxes that overlap much. The scores have a class for the background, or they
    don't."""
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert isn't installed")
    centres = RANDOM.uniform(0, 1, (40, 2))
    anchors = np.concatenate([centres, RANDOM.uniform(0.1, 0.4, (40, 2))], 1)
    for classes in (5, 6):
        tensors = [Tensor([1, 40, 4]), Tensor([1, 40, classes]), Tensor([40, 4], data=anchors)]
        options = flexbuffers.Dumps({**SSD, **changed})
        operator = Operator(
            "TFLite_Detection_PostProcess", [0, 1, 2], [3, 4, 5, 6], version=1, custom=bytes(options)
        )
        model = written([*tensors, *[Tensor([])] * 4], [operator], [0, 1], [3, 4, 5, 6])
        runner = litert.Interpreter(model_content=model)
        runner.allocate_tensors()
        for _ in range(4):
            feeds = RANDOM.standard_normal((1, 40, 4)), RANDOM.uniform(0, 1, (1, 40, classes))
            feeds = [f.astype(np.float32) for f in feeds]
            for detail, value in zip(runner.get_input_details(), feeds, strict=True):
                runner.set_tensor(detail["index"], value)
            runner.invoke()
            wanted = [runner.get_tensor(d["index"]) for d in runner.get_output_details()]
            found = compiled(model, *feeds)
            count = int(wanted[3][0]) * (1 if changed.get("use_regular_nms") else wanted[2].shape[1] // 7)
            np.testing.assert_array_equal(found[3], wanted[3])
            for got, exact in zip(found[:3], wanted[:3], strict=True):
                assert got.shape == exact.shape
                np.testing.assert_allclose(got[:, :count], exact[:, :count], rtol=1e-5, atol=1e-6)
                assert not got[:, count:].any()


def structure(*fields: int) -> bytes:
    return struct.pack(f"<{len(fields)}i", *fields)


@pytest.mark.parametrize("padding", [SAME, VALID])
def test_pooling_with_places_and_back(padding: int) -> None:
    options = structure(padding, 2, 2, 2, 2, 0, 0, 0, 0, 0)
    shape = [1, 5, 7, 3] if padding == SAME else [1, 6, 8, 3]
    half = [1, 3, 4, 3]
    whole = [1, 6, 8, 3]
    operators = [
        Operator("MaxPoolingWithArgmax2D", [0], [1, 2], version=1, custom=options),
        Operator("MaxUnpooling2D", [1, 2], [3], version=1, custom=options),
    ]
    model = written([Tensor(shape), Tensor(half), Tensor(half), Tensor(whole)], operators, [0], [1, 2, 3])
    x = RANDOM.standard_normal(shape).astype(np.float32)
    best, places, back = compiled(model, x)
    padded = np.full(whole, -np.inf, np.float32)
    padded[:, : shape[1], : shape[2]] = x
    windows = padded.reshape(1, 3, 2, 4, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(1, 3, 4, 3, 4)
    np.testing.assert_array_equal(best, windows.max(-1))
    np.testing.assert_array_equal(places, windows.argmax(-1).astype(np.float32) + np.float32(0.1))
    kept = np.where(np.arange(4) == windows.argmax(-1)[..., None], windows, 0)
    wanted = kept.reshape(1, 3, 4, 3, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(whole)
    np.testing.assert_array_equal(back, wanted)


@pytest.mark.parametrize("padding", [SAME, VALID])
def test_transposed_convolution(padding: int) -> None:
    """The reference adds every product at its place, and cuts the result to the padding."""
    x, w = RANDOM.standard_normal((1, 4, 5, 3)), RANDOM.standard_normal((2, 3, 3, 3))
    bias = RANDOM.standard_normal(2)
    full = np.zeros((9, 11, 2))
    for y in range(4):
        for z in range(5):
            full[2 * y : 2 * y + 3, 2 * z : 2 * z + 3] += np.einsum("ohwi,i->hwo", w, x[0, y, z])
    cut = [max(0, 3 - (n - 1) % 2 - 1) if padding == SAME else 0 for n in (4, 5)]
    wanted = full[tuple(slice(c // 2, c // 2 + n - c) for c, n in zip(cut, (9, 11), strict=True))] + bias
    tensors = [Tensor(x.shape), Tensor(w.shape, data=w), Tensor([2], data=bias), Tensor([1, *wanted.shape])]
    operator = Operator(
        "Convolution2DTransposeBias", [0, 1, 2], [3], version=1, custom=structure(padding, 2, 2)
    )
    (found,) = compiled(written(tensors, [operator], [0], [3]), x.astype(np.float32))
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-5)


def test_transforming_an_image() -> None:
    """The image is turned, stretched and moved. Pixels from outside are 0."""
    x = RANDOM.standard_normal((1, 7, 9, 2)).astype(np.float32)
    operator = Operator("TransformTensorBilinear", [0, 1], [2], version=2, custom=b"")
    model = written([Tensor(x.shape), Tensor([1, 4, 4]), Tensor([1, 5, 6, 2])], [operator], [0, 1], [2])
    for angle in (0.0, 0.4, 2.0):
        matrix = np.eye(4, dtype=np.float32)
        matrix[:2] = [[np.cos(angle), -np.sin(angle), 0, 1.3], [np.sin(angle), np.cos(angle), 0, 0.7]]
        (found,) = compiled(model, x, matrix[None])
        for i in range(5):
            for j in range(6):
                at = matrix[:2].astype(np.float64) @ [j + 0.5, i + 0.5, 0, 1] - 0.5
                wanted = np.zeros(2)
                if 0 <= at[0] <= 8 and 0 <= at[1] <= 6:
                    (c, r), (u, v) = np.floor(at).astype(int), at - np.floor(at)
                    for dr, dc, weight in ((0, 0, (1 - v) * (1 - u)), (0, 1, (1 - v) * u),
                                           (1, 0, v * (1 - u)), (1, 1, v * u)):  # fmt: skip
                        if r + dr < 7 and c + dc < 9:
                            wanted += weight * x[0, r + dr, c + dc]
                np.testing.assert_allclose(found[0, i, j], wanted, atol=1e-5)


def test_options_that_are_wrong() -> None:
    x = Tensor([1, 4, 4, 1])
    for name, data, message in (
        ("MaxUnpooling2D", structure(3, 2, 2, 2, 2, 0), "impossible options"),
        ("MaxPoolingWithArgmax2D", structure(1, 0, 2, 2, 2, 0), "impossible options"),
        ("MaxUnpooling2D", b"abc", "damaged"),
        ("TFLite_Detection_PostProcess", bytes(flexbuffers.Dumps({**SSD, "num_classes": -1})), "num_classes"),
        ("SomethingElse", b"\x01\x02", "SomethingElse is not supported"),
    ):
        model = written([x, x, x], [Operator(name, [0, 1], [2], custom=data)], [0, 1], [2])
        with pytest.raises(jangin.CompileError, match=message):
            jangin.compile(model, cache=False)
