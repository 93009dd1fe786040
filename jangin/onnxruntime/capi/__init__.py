"""ONNX Runtime's inner modules, by the names under which programs import them."""

from jangin.onnxruntime.capi import (
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
    onnxruntime_validation,
)

__all__ = [
    "_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state",
    "onnxruntime_validation",
]  # fmt: skip
