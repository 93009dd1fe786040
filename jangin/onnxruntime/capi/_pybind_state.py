"""The names of ONNX Runtime's compiled module, as its own package imports them."""

from jangin.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
from jangin.onnxruntime.capi.onnxruntime_pybind11_state import __all__  # noqa: F401
