"""Changes of weights and biases before rounding keep the model's results, and lower the cost of rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from small_nets import convolutions, made, pictures, products, rows

import jangin
from jangin.ir.dtype import I4
from jangin.options import Options
from jangin.quantization import job as jobs
from jangin.quantization.balance import equalized, smoothed
from jangin.quantization.gptq import gptq
from jangin.quantization.job import Job
from jangin.quantization.scales import of_weights

pytestmark = pytest.mark.usefixtures("shared_kernels")


def relative(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_gptq() -> None:
    """GPTQ on correlated inputs has an error well below that of rounding to nearest.

    The integers and scales match the weights, and a term that is always 0 does no harm."""
    rng = np.random.default_rng()
    w = rng.standard_normal((64, 24)).astype(np.float32)
    x = rng.standard_normal((500, 12)) @ rng.standard_normal((12, 64)) + 0.1 * rng.standard_normal((500, 64))
    x[:, 5] = 0
    q, scheme = gptq(w, x.T @ x, I4, 16)
    scheme.checked(w.shape, "w")
    assert q.dtype == I4.numpy
    nearest = of_weights(w, I4, 0, 16).rounded(w)
    mine, theirs = (relative(x @ v, x @ w) for v in (scheme.dequantized(q), nearest))
    assert mine < 0.6 * theirs


@pytest.mark.sampled(2)
def test_smoothing() -> None:
    """Some columns have outliers. After smoothing, the graph computes the same, and int8 comes nearer to
    it."""
    data = rows(4)
    proto = onnx.load_from_string(products())
    (scale,) = (t for t in proto.graph.initializer if t.name == "scale")
    wide = numpy_helper.to_array(scale).copy()
    wide[[3, 40]] *= 100
    scale.CopyFrom(numpy_helper.from_array(wide, "scale"))
    (w,) = (t for t in proto.graph.initializer if t.name == "w0")
    small = numpy_helper.to_array(w).copy()
    small[[3, 40]] /= 100
    w.CopyFrom(numpy_helper.from_array(small, "w0"))
    model = proto.SerializeToString()
    job = Job(model, Options(threads=1))
    before = job.engine.run({"x": data[0]})["y"]
    seen = job.watched([{"x": x} for x in data], smooth=0.5)
    np.testing.assert_allclose(job.engine.run({"x": data[0]})["y"], before, rtol=1e-3, atol=1e-4)
    assert max(a.max() for a in seen.largest.values()) < 60
    errors = []
    for smooth in (None, 0.5):
        found = jangin.quantize(model, data, method="minmax", smooth=smooth, threads=1)
        errors.append(relative(found.executable(data[0]), before))
    assert errors[1] < 0.5 * errors[0]


def uneven() -> bytes:
    """Return two convolutions and a depthwise one with ReLU between them. Their channels' sizes differ
    much."""
    rng, node = np.random.default_rng(5), helper.make_node
    spread = np.exp(rng.standard_normal(8) * 2).astype(np.float32)
    constants: dict[str, Any] = {
        "w0": rng.standard_normal((8, 3, 3, 3)) * spread[:, None, None, None],
        "b0": rng.standard_normal(8) * spread,
        "w1": rng.standard_normal((8, 1, 3, 3)) / spread[:, None, None, None],
        "b1": rng.standard_normal(8),
        "w2": rng.standard_normal((4, 8, 1, 1)),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], name="first", pads=[1] * 4),
        node("Relu", ["c0"], ["r0"], name="relu"),
        node("Conv", ["r0", "w1", "b1"], ["c1"], name="depthwise", group=8),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2"], ["y"], name="last"),
    ]
    f32 = {n: a.astype(np.float32) for n, a in constants.items()}
    return made(nodes, [1, 3, 16, 16], [1, 4, 14, 14], f32)


def test_equalizing() -> None:
    data = pictures(4)
    plain, even = (Job(uneven(), Options(threads=1), equalize=e) for e in (False, True))
    wanted = plain.engine.run({"x": data[0]})["y"]
    np.testing.assert_allclose(even.engine.run({"x": data[0]})["y"], wanted, rtol=1e-3, atol=1e-3)
    spans = []
    for job in (plain, even):
        sizes = np.abs(job.parts[0].weights(job.graph)).max((1, 2, 3))
        spans.append(float(sizes.max() / sizes.min()))
    assert spans[1] < 0.5 * spans[0]
    errors = [
        relative(
            jangin.quantize(uneven(), data, method="minmax", equalize=e, threads=1).executable(data[0]),
            wanted,
        )
        for e in (False, True)
    ]
    assert errors[1] < errors[0]
    assert equalized(smoothed(plain.graph, {}, 0.5)).constants.keys() == plain.graph.constants.keys()


def test_bias_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of each output channel over the data comes nearer to the model's."""
    data = [np.abs(x) + 1 for x in pictures(4)]
    model = uneven()
    exact = jangin.compile(model, cache=False)
    wanted = np.mean([exact(x) for x in data], axis=(0, 1, 3, 4))
    apart = []
    for correct in (True, False):
        if not correct:
            monkeypatch.setattr(jobs, "corrected", lambda part, w, rounded, means, bias: bias)
        exe = jangin.quantize(model, data, method="minmax", threads=1).executable
        apart.append(np.abs(np.mean([exe(x) for x in data], axis=(0, 1, 3, 4)) - wanted).sum())
    assert apart[0] < apart[1]


def test_refused() -> None:
    with pytest.raises(ValueError, match="smooth=2 must be from 0 to 1"):
        jangin.quantize(convolutions(), pictures(1), smooth=2)
