"""`OnnxRuntimeBackend`: ONNX's backend interface by sessions."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import onnx
from onnx.backend.base import Backend

from jangin.onnxruntime.backend.backend_rep import OnnxRuntimeBackendRep
from jangin.onnxruntime.options import SessionOptions
from jangin.onnxruntime.process import get_device
from jangin.onnxruntime.session import InferenceSession

_REFUSED = ("enable_profiling", "optimized_model_filepath", "profile_file_prefix")
"""Options by which a model's user could write files. ONNX Runtime refuses them here too."""


class OnnxRuntimeBackend(Backend):  # type: ignore[misc]
    """`onnx.backend.base.Backend` by sessions of this package."""

    allowReleasedOpsetsOnly = False
    """New opsets are taken too, because Jangin names an operator that it doesn't know."""

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Return whether the device is supported. The model isn't looked at."""
        return cls.supports_device(get_device() if device is None else device)

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Return True and an empty text."""
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == get_device()

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Return a model that is ready to run: a path, bytes, ONNX's message, a session, or one that is
        prepared. Fields of `SessionOptions` are taken by name, and other names are ignored.

        Raises RuntimeError for a device other than the CPU, and for options that write files."""
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        options = SessionOptions()
        for name in {*kwargs} & {f.name for f in fields(options)}:
            if name in _REFUSED:
                raise RuntimeError(f"SessionOptions attribute '{name}' is not permitted via the backend API.")
            setattr(options, name, kwargs[name])
        if isinstance(model, onnx.ModelProto):
            onnx.checker.check_model(model)
            model = model.SerializeToString()
        elif isinstance(model, os.PathLike):
            model = os.fspath(model)
        return OnnxRuntimeBackendRep(InferenceSession(model, options))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> list[Any]:
        """Return the outputs of a model for its inputs, as `prepare` and `run` take them."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
