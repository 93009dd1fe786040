"""Jangin: a deep-learning compiler that keeps the fastest implementation of every piece of a model.

    exe = jangin.compile("model.onnx")
    y = exe(x)

What is imported here is imported when it is first used, so that `jangin.load` needs neither the
compiler nor onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jangin.version import __version__

if TYPE_CHECKING:
    from jangin.ahead.emit import emit
    from jangin.compiler.driver import build, compile
    from jangin.custom import hosted, operator
    from jangin.ir.checks import IndexOutOfRange
    from jangin.ir.graph import CompileError
    from jangin.ir.limits import Limits
    from jangin.onnxruntime import InferenceSession, SessionOptions
    from jangin.quantization.compare import compare
    from jangin.quantization.quantize import quantize
    from jangin.runtime.executable import Executable
    from jangin.runtime.load import load
    from jangin.runtime.program import ProgramExecutable
    from jangin.runtime.several import SeveralExecutable
    from jangin.runtime.variants import VariantsExecutable

_HOMES = {
    "CompileError": "jangin.ir.graph",
    "Executable": "jangin.runtime.executable",
    "IndexOutOfRange": "jangin.ir.checks",
    "Limits": "jangin.ir.limits",
    "InferenceSession": "jangin.onnxruntime",
    "SessionOptions": "jangin.onnxruntime",
    "build": "jangin.compiler.driver",
    "compare": "jangin.quantization.compare",
    "compile": "jangin.compiler.driver",
    "emit": "jangin.ahead.emit",
    "hosted": "jangin.custom",
    "ProgramExecutable": "jangin.runtime.program",
    "SeveralExecutable": "jangin.runtime.several",
    "VariantsExecutable": "jangin.runtime.variants",
    "load": "jangin.runtime.load",
    "operator": "jangin.custom",
    "quantize": "jangin.quantization.quantize",
}

__all__ = [
    "CompileError",
    "Executable",
    "IndexOutOfRange",
    "InferenceSession",
    "Limits",
    "ProgramExecutable",
    "SessionOptions",
    "SeveralExecutable",
    "VariantsExecutable",
    "__version__",
    "build",
    "compare",
    "compile",
    "emit",
    "hosted",
    "load",
    "operator",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name == "onnxruntime":
        return importlib.import_module("jangin.onnxruntime")
    if name not in _HOMES:
        raise AttributeError(f"module 'jangin' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
