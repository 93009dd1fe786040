"""Jangin: a deep-learning compiler that keeps the fastest implementation of every piece of a model.

    exe = jangin.compile("model.onnx")
    y = exe(x)

The names here are imported when they are first used, so that `jangin.load` needs neither the compiler nor
onnx. The package `jangin-runtime` has this file and the modules that loading and running need, without the
compiler.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from jangin.version import __version__

if TYPE_CHECKING:
    from jangin.ahead.emit import emit
    from jangin.batches.api import batch
    from jangin.compiler.driver import build, compile
    from jangin.custom import hosted, operator
    from jangin.frontends.caffe.format import CaffeFormat
    from jangin.frontends.coreml.format import CoreMLFormat
    from jangin.frontends.darknet.format import DarknetFormat
    from jangin.frontends.gguf.format import GgufFormat
    from jangin.frontends.nnef.format import NnefFormat
    from jangin.frontends.onnx.format import OnnxFormat
    from jangin.frontends.tflite.format import TfliteFormat
    from jangin.frontends.torch.format import TorchFormat
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
    from jangin.runtime.stateful import StatefulExecutable
    from jangin.runtime.variants import VariantsExecutable
    from jangin.training.lora import lora
    from jangin.training.task import value_and_grad
    from jangin.training.trainer import train

_HOMES = {
    "CaffeFormat": "jangin.frontends.caffe.format",
    "CompileError": "jangin.ir.graph",
    "CoreMLFormat": "jangin.frontends.coreml.format",
    "DarknetFormat": "jangin.frontends.darknet.format",
    "Executable": "jangin.runtime.executable",
    "GgufFormat": "jangin.frontends.gguf.format",
    "IndexOutOfRange": "jangin.ir.checks",
    "Limits": "jangin.ir.limits",
    "NnefFormat": "jangin.frontends.nnef.format",
    "OnnxFormat": "jangin.frontends.onnx.format",
    "InferenceSession": "jangin.onnxruntime",
    "SessionOptions": "jangin.onnxruntime",
    "batch": "jangin.batches.api",
    "build": "jangin.compiler.driver",
    "compare": "jangin.quantization.compare",
    "compile": "jangin.compiler.driver",
    "emit": "jangin.ahead.emit",
    "hosted": "jangin.custom",
    "ProgramExecutable": "jangin.runtime.program",
    "SeveralExecutable": "jangin.runtime.several",
    "StatefulExecutable": "jangin.runtime.stateful",
    "TfliteFormat": "jangin.frontends.tflite.format",
    "TorchFormat": "jangin.frontends.torch.format",
    "VariantsExecutable": "jangin.runtime.variants",
    "load": "jangin.runtime.load",
    "lora": "jangin.training.lora",
    "operator": "jangin.custom",
    "quantize": "jangin.quantization.quantize",
    "train": "jangin.training.trainer",
    "value_and_grad": "jangin.training.task",
}

__all__ = [
    "CaffeFormat",
    "CompileError",
    "CoreMLFormat",
    "DarknetFormat",
    "Executable",
    "GgufFormat",
    "IndexOutOfRange",
    "InferenceSession",
    "Limits",
    "NnefFormat",
    "OnnxFormat",
    "ProgramExecutable",
    "SessionOptions",
    "SeveralExecutable",
    "StatefulExecutable",
    "TfliteFormat",
    "TorchFormat",
    "VariantsExecutable",
    "__version__",
    "batch",
    "build",
    "compare",
    "compile",
    "emit",
    "hosted",
    "load",
    "lora",
    "operator",
    "quantize",
    "train",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    if name in ("blas", "onnxruntime", "optim"):
        return importlib.import_module(f"jangin.{name}")
    if name not in _HOMES:
        whole = sys.modules[__name__]  # by which Python names the nearest attribute
        raise AttributeError(f"module 'jangin' has no attribute {name!r}", name=name, obj=whole)
    return getattr(importlib.import_module(_HOMES[name]), name)


class _Remedy:
    """A finder that finds nothing and is asked last. It names the remedy if jangin-runtime is installed alone
    and doesn't have a module."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError with a remedy for a module of the compiler that isn't installed."""
        if name.startswith("jangin.") and PathFinder.find_spec("jangin.compiler", __path__) is None:
            raise ModuleNotFoundError(
                f"{name} belongs to the compiler, and only jangin-runtime is installed here, which loads and "
                "runs compiled models: pip install jangin",
                name=name,
            )


sys.meta_path.append(_Remedy)


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})
