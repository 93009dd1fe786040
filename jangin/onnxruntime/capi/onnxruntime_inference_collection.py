"""The classes of ONNX Runtime that are written in Python."""

from jangin.onnxruntime.adapters import AdapterFormat
from jangin.onnxruntime.binding import IOBinding
from jangin.onnxruntime.compiler import ModelCompiler
from jangin.onnxruntime.devices import OrtDevice
from jangin.onnxruntime.enums import OrtDeviceVendorId
from jangin.onnxruntime.providers import check_and_normalize_provider_args
from jangin.onnxruntime.session import InferenceSession, Session
from jangin.onnxruntime.sparse import SparseTensor
from jangin.onnxruntime.values import OrtValue, copy_tensors

__all__ = [
    "AdapterFormat", "IOBinding", "InferenceSession", "ModelCompiler", "OrtDevice", "OrtDeviceVendorId",
    "OrtValue", "Session", "SparseTensor", "check_and_normalize_provider_args", "copy_tensors",
]  # fmt: skip
