"""ONNX's backend interface, by the names that ONNX Runtime gives it."""

from jangin.onnxruntime.backend.backend import is_compatible, prepare, run, supports_device

__all__ = ["is_compatible", "prepare", "run", "supports_device"]
