"""Real models quantized: EfficientNet-Lite0 on the photographs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import jangin


@pytest.mark.slow
def test_photographs_in_int8(efficientnet: bytes) -> None:
    """18 of 20 photographs stay recognised in int8. ONNX Runtime gives the same classes for the file, if its
    products don't saturate."""
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


@pytest.mark.slow
def test_photographs_in_litert(efficientnet: bytes) -> None:
    """18 of 20 photographs stay recognised by the TensorFlow Lite file. All of its operators are of int8."""
    pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed"
    )
    from efficientnet import pictures

    found = pictures()
    data, labels = [x[None] for _, x, _ in found], np.array([label for _, _, label in found])
    made = jangin.quantize(efficientnet, data, drop=0.0, labels=labels, shapes={"batch": 1}).tflite()
    exe = jangin.compile(made, cache=False)
    for kernels in ("BUILTIN", "BUILTIN_REF"):
        runner = litert.Interpreter(
            model_content=made, experimental_op_resolver_type=getattr(litert.OpResolverType, kernels)
        )
        runner.allocate_tensors()
        (given,), (result,) = runner.get_input_details(), runner.get_output_details()
        scores = []
        for x in data:
            runner.set_tensor(given["index"], x)
            runner.invoke()
            scores.append(runner.get_tensor(result["index"]))
        assert (np.concatenate(scores).argmax(1) == labels).sum() >= 18
    np.testing.assert_array_equal(exe(data[0]), scores[0])
    kinds = [t["dtype"] for t in runner.get_tensor_details() if t["name"]]
    assert kinds.count(np.float32) == 2
