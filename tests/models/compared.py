"""Compiles models, and compares their results with references."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from jangin import Executable
from jangin import compile as compile_model
from jangin.runtime.program import ProgramExecutable


def onnxruntime(model: bytes, feeds: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return ONNX Runtime's outputs by name."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def compiled(model: Any, **options: Any) -> Executable | ProgramExecutable:
    """Compile a model without the compile cache. Fails if a part of it would run in Python."""
    exe = compile_model(model, cache=False, **options)
    if isinstance(exe, ProgramExecutable):
        assert not exe.artifact.host_functions()
    return exe


def error(ours: Any, reference: Any) -> float:
    """Return the largest difference, as a share of the reference's largest value."""
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    assert ours.shape == reference.shape
    return float(np.abs(ours - reference).max() / (np.abs(reference).max() or 1.0))
