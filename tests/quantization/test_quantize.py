"""`jangin.quantize` on small networks: its files against ONNX Runtime, and its errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_nets import convolutions, made, of_pairs, pictures, products, rows

import jangin
from jangin.compiler.pipeline import import_model
from jangin.ir.core import Conv, MatMul
from jangin.ir.graph import CompileError
from jangin.ir.products import DOT2, DOT4S
from jangin.options import Options
from jangin.quantization.job import Job, Quantized
from jangin.quantization.quantize import DropMissed
from jangin.targets import resolve
from jangin.targets.x86 import V3

pytestmark = pytest.mark.usefixtures("shared_kernels")


def on_ort(model: bytes, x: Any) -> Any:
    """Run a model in ONNX Runtime without optimizations. They use products that saturate on processors
    without VNNI."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def relative(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_int8() -> None:
    """All convolutions are quantized. ONNX Runtime and Jangin give the same for the file, near the model's
    outputs on new inputs."""
    model, data = convolutions(), pictures()
    found = jangin.quantize(model, data, method="minmax", threads=1)
    assert Counter(c.kind for c in found.chosen.values()) == {"int8": 5}
    assert ": 5 parts (int8), drop " in repr(found) and len(repr(found)) < 100
    proto = onnx.load_from_string(found.model)
    onnx.checker.check_model(proto, full_check=True)
    kinds = Counter(n.op_type for n in proto.graph.node)
    assert not kinds["Relu"] and not kinds["Clip"] and not kinds["Max"]  # the integers' range replaces them
    float32 = jangin.compile(model, cache=False)
    for x in pictures(3, seed=2):
        ours, theirs = found.executable(x), on_ort(found.model, x)
        assert relative(ours, theirs) < 0.01  # a half may be rounded the other way
        assert 0 < relative(ours, float32(x)) < 0.05


def test_onnx_runtime_makes_its_own_quantized_pool() -> None:
    """ONNX Runtime's quantized average pool has no dilations. It refused models whose pool named them."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)), "v": rng.standard_normal((4, 8, 2, 2))}
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="first"), node("Relu", ["c"], ["r"]),
        node("AveragePool", ["r"], ["p"], kernel_shape=[7, 7], strides=[2, 2]),
        node("Conv", ["p", "v"], ["y"], name="last"),
    ]  # fmt: skip
    held = {name: array.astype(np.float32) for name, array in weights.items()}
    found = jangin.quantize(made(nodes, ["n", 3, 16, 16], ["n", 4, 3, 3], held), pictures(), threads=1)
    (x,) = pictures(1, seed=2)
    session = ort.InferenceSession(found.model, providers=["CPUExecutionProvider"])
    assert relative(found.executable(x), session.run(None, {"x": x})[0]) < 0.01  # a half may go the other way


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("int4", 0.15), ("float16", 1e-3)])
def test_products(kind: str, most: float) -> None:
    model, data = products(), rows()
    found = jangin.quantize(model, data, kind, method="minmax", threads=1)
    assert Counter(c.kind for c in found.chosen.values()) == {kind: 2}
    float32 = jangin.compile(model, cache=False)
    (x,) = rows(1, seed=5)
    assert 0 < relative(found.executable(x), float32(x)) < most
    assert relative(found.executable(x), on_ort(found.model, x)) < 2e-3


@pytest.mark.parametrize("net", ["convolutions", "products"])
def test_weights_of_7_bits(net: str) -> None:
    """Two 7-bit weights add up to at most 128, so that all products of bytes fit 16 bits and use such
    instructions.

    They are nearly as good as 8-bit weights. Their drop is measured and limited."""
    model, data = (convolutions(), pictures()) if net == "convolutions" else (products(), rows())
    found, wide = (
        jangin.quantize(model, data, method="minmax", weight_bits=bits, threads=1) for bits in (7, 8)
    )
    assert max(map(of_pairs, found.chosen.values())) <= 128 < max(map(of_pairs, wide.chosen.values()))
    assert max(int(np.abs(c.weights.astype(int)).max()) for c in found.chosen.values()) > 64
    graph = import_model(found.model, Options(V3), until="integers")
    dots = [n.attrs.dot for n in graph.nodes if isinstance(n.attrs, (Conv, MatMul))]
    assert dots.count(DOT4S) == sum(of_pairs(c) > 0 for c in found.chosen.values()) and DOT2 not in dots
    float32, x = jangin.compile(model, cache=False), data[0]
    assert 0 < relative(found.executable(x), float32(x)) < 0.06
    assert relative(found.executable(x), on_ort(found.model, x)) < 0.01
    wanted = [float32(x) for x in data]

    def score(outputs: Any) -> float:
        return -float(np.mean([relative(o[0], w) for o, w in zip(outputs, wanted, strict=True)]))

    with pytest.raises(DropMissed, match=r"a drop of 0.000% can't be met in int8") as info:
        jangin.quantize(model, data, method="minmax", weight_bits=7, drop=0.0, score=score, threads=1)
    assert 0 < info.value.best.drop < 0.06


@pytest.mark.sampled(2)
@pytest.mark.parametrize("few", [True, False])
def test_bits_by_default(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is 7 bits if the machine is quicker with them. It is 8 bits on other machines, and if 7
    bits can't meet the drop."""
    target = resolve().with_figures(products=(DOT4S,) * few)
    monkeypatch.setattr("jangin.targets.resolve", lambda asked=None: target)
    model, data = products(), rows()
    found = jangin.quantize(model, data, method="minmax", threads=1)
    assert (max(map(of_pairs, found.chosen.values())) <= 128) == few == (found.bits == 7)
    finer = jangin.quantize(model, data, method="minmax", weight_bits=8, threads=1)
    assert finer.drop < found.drop or not few
    held = jangin.quantize(model, data, method="minmax", drop=finer.drop, threads=1)
    assert (held.bits, held.drop) == (8, finer.drop)


def test_files(tmp_path: Path) -> None:
    """A saved model loads, and gives the measured results."""
    found = jangin.quantize(convolutions(), pictures(), threads=1)
    (x,) = pictures(1, seed=3)
    for name in ("q.onnx", "q.jgn"):
        found.save(tmp_path / name)
        path = tmp_path / name
        loaded = jangin.load(path) if name.endswith("jgn") else jangin.compile(path, cache=False)
        np.testing.assert_array_equal(loaded(x), found.executable(x))
    with pytest.raises(ValueError, match=r"written as NAME\.onnx, NAME\.tflite or NAME\.jgn"):
        found.save(tmp_path / "q.pb")


def test_drop() -> None:
    """The error tells the best way to choose ranges if none meets the drop."""
    model, data = convolutions(), pictures()
    exact = jangin.compile(model, cache=False)

    def score(outputs: Any) -> float:
        wanted = (exact(x) for x in data)
        return -float(np.mean([relative(o[0], w) for o, w in zip(outputs, wanted, strict=True)]))

    with pytest.raises(DropMissed, match=r"a drop of 0.000% can't be met in int8: the best found is") as info:
        jangin.quantize(model, data, drop=0.0, score=score, threads=1)
    best: Quantized = info.value.best
    assert 0 < best.drop < 0.05
    assert jangin.quantize(model, data, drop=best.drop, score=score, threads=1).drop <= best.drop


def test_labels() -> None:
    model, data = convolutions(), pictures()
    exact = jangin.compile(model, cache=False)
    right = [int(exact(x).argmax()) for x in data]
    found = jangin.quantize(model, data, labels=right, threads=1)
    same = np.mean([found.executable(x).argmax() == n for x, n in zip(data, right, strict=True)])
    assert found.quality.reference == "100.0%"
    assert found.drop == 1 - same


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "no data to calibrate with"),
        ([np.zeros((1, 3, 16, 15), np.float32)], r"\[1, 3, 16, 15\], which doesn't fit the input x"),
        ([np.zeros((0, 3, 16, 16), np.float32)], "doesn't fit the input x"),
        ([np.zeros((1, 3, 16, 16), complex)], "of complex128"),
        (
            [np.full((1, 3, 16, 16), np.nan, np.float32)],
            "run 0 of the data has infinities or NaN: leave it out",
        ),
        ([{"y": np.zeros((1, 3, 16, 16), np.float32)}], "the inputs are x"),
        ([(np.zeros(1), np.zeros(1))], "2 arrays, and the model takes 1"),
    ],
)
def test_wrong_data(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jangin.quantize(convolutions(), data, threads=1)


def test_wrong_options() -> None:
    model, data = convolutions(), pictures(2)
    for given, message in (
        ({"kind": "int3"}, "kind='int3' is unknown; known: int8"),
        ({"method": "best"}, "method='best' is unknown; known: minmax"),
        ({"drop": 1.5}, "drop=1.5 must be at least 0 and below 1"),
        ({"weight_bits": 6}, "weight_bits=6 must be 7 or 8"),
        ({"kind": "float16", "weight_bits": 7}, "weight_bits= is for the kind int8, and the kind is float16"),
        ({"labels": [1, 2, 3]}, "one whole number for each of the 2 runs"),
        ({"labels": [0.5, 1.5]}, "labels are float64"),
        ({"labels": [3, 11]}, "a label of 11, and the model's classes are 0 to 10"),
        ({"labels": [-1, 3]}, "a label of -1, and the model's classes"),
        ({"kind": "float16", "smooth": 0.5}, "smooth= is for the kind int8, and the kind is float16"),
        ({"kind": "int4", "block": 0}, "block=0 must be at least 1"),
        ({"limit": 0}, "limit=0 leaves no runs"),
    ):
        with pytest.raises(ValueError, match=message):
            jangin.quantize(model, data, threads=1, **given)
    with pytest.raises(
        CompileError, match=r"MatMul 'up'.*weights \[64, 128\] can't be cut in blocks of 7.* give blocks of 8"
    ):
        jangin.quantize(products(), rows(1), "int4", block=7, threads=1)


def test_parts_that_do_not_suit() -> None:
    """A part stays out of `--auto`'s choice if blocks don't divide its weights, or float16 doesn't hold them.
    Other parts are chosen."""
    (x,) = rows(1)
    job = Job(products(), Options(threads=1))
    seen = job.watched([{"x": x}])
    up, down = (p.name for p in job.parts)
    assert {*job.chosen("int4", {}, 128, seen, lenient=True)} == {down}
    held = job.graph.constants[job.parts[0].w].copy()
    held[0, 0] = 1e5
    job.graph.constants[job.parts[0].w] = held
    assert {*job.chosen("float16", {}, 32, seen, lenient=True)} == {down}
    with pytest.raises(CompileError, match=r"MatMul 'up'.*beyond float16's range: quantize to int8"):
        job.chosen("float16", {}, 32, seen)
    assert up != down
