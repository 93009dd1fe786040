"""ONNX Runtime and Jangin's package of the same interface, for tests that hold for both."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import onnxruntime
import pytest

import jangin.onnxruntime

X = np.arange(6, dtype=np.float32).reshape(3, 2)
W = np.array([2, 3], np.float32)
both = pytest.mark.parametrize("ort", [onnxruntime, jangin.onnxruntime], ids=["onnxruntime", "jangin"])


def errors(ort: ModuleType) -> ModuleType:
    return importlib.import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state")
