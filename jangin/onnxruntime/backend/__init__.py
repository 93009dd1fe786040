"""ONNX's backend interface, by the name that ONNX Runtime gives it."""

from __future__ import annotations

from typing import Any

from jangin.onnx_backend import JanginBackend, JanginRep

is_compatible = JanginBackend.is_compatible
supports_device = JanginBackend.supports_device


def prepare(model: Any, device: str | None = None, **kwargs: Any) -> JanginRep:
    """Compile a model (a path, bytes or ONNX's message), and return it ready to run."""
    import onnx

    if isinstance(model, bytes):
        model = onnx.ModelProto.FromString(model)
    elif not isinstance(model, onnx.ModelProto):
        model = onnx.load(model)
    return JanginBackend.prepare(model, device or "CPU", **kwargs)


def run(model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
    """Compile and run a model. Return its outputs for inputs in order or by name."""
    return prepare(model, device, **kwargs).run(inputs)


run_model = run
