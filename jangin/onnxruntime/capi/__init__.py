"""ONNX Runtime's inner modules, by the names that programs import from them."""

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
