"""`onnxruntime.quantization` made by `jangin.quantize`, in calls that are written for the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from jangin.ir.graph import CompileError
from jangin.onnxruntime import quantization as ours

rng = np.random.default_rng(0)
RUNS = [rng.standard_normal((4, 16)).astype(np.float32) for _ in range(8)]


class Reader(ours.CalibrationDataReader):
    def __init__(self) -> None:
        self.left = [{"x": x} for x in RUNS]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop(0) if self.left else None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, d]) for n, d in (("x", 16), ("y", 8)))
    w = onnx.numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    path = tmp_path_factory.mktemp("quantization") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def outputs(path: Path) -> np.ndarray[Any, Any]:
    return np.stack([onnxruntime.InferenceSession(path).run(None, {"x": x})[0] for x in RUNS])


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_static(model: Path, method: str, tmp_path: Path) -> None:
    """The real onnxruntime runs the written files. Steps of 8 bits are about 1/256 of the range."""
    ours.quant_pre_process(model, tmp_path / "pre.onnx")
    chosen = ours.CalibrationMethod[method]
    ours.quantize_static(
        tmp_path / "pre.onnx", tmp_path / "int8.onnx", Reader(), quant_format=ours.QuantFormat.QDQ,
        per_channel=True, weight_type=ours.QuantType.QInt8, calibrate_method=chosen,
    )  # fmt: skip
    kinds = {n.op_type for n in onnx.load(tmp_path / "int8.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    wanted, got = outputs(model), outputs(tmp_path / "int8.onnx")
    assert np.abs(got - wanted).max() < 0.15 * np.abs(wanted).max()
    assert np.abs(got - wanted).max() > 0


def test_by_a_configuration(model: Path, tmp_path: Path) -> None:
    ours.quantize(model, tmp_path / "a.onnx", ours.StaticQuantConfig(Reader(), reduce_range=True))
    weights = [
        onnx.numpy_helper.to_array(t)
        for t in onnx.load(tmp_path / "a.onnx").graph.initializer
        if t.data_type == TensorProto.INT8 and len(t.dims) == 2
    ]
    (found,) = weights
    pairs = found.astype(int).reshape(8, 2, 8)
    sums = [np.maximum(sign * pairs, 0).sum(1).max() for sign in (1, -1)]
    assert max(sums) <= 128, "two of one sign that are added up are of 7 bits"
    with pytest.raises(TypeError, match="no configuration"):
        ours.quantize(model, tmp_path / "b.onnx", 3)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"quant_format": ours.QuantFormat.QOperator}, "quant_format"),
        ({"activation_type": ours.QuantType.QInt16}, "activations are of 8 bits"),
        ({"weight_type": ours.QuantType.QUInt8}, "weights are QuantType.QInt8"),
        ({"nodes_to_exclude": ["n"]}, "nodes_to_exclude"),
        ({"calibration_data_reader": None}, "there must be runs"),
    ],
)
def test_what_is_refused(model: Path, given: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=why):
        ours.quantize_static(model, tmp_path / "a.onnx", **{"calibration_data_reader": Reader(), **given})
    with pytest.raises(CompileError, match="use quantize_static with data"):
        ours.quantize_dynamic(model, tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()
