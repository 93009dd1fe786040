"""ONNX Runtime's exceptions, raised where ONNX Runtime raises them. Each is also of the class that Jangin
itself raises.

A program that distinguishes errors by their class, or by the beginning of their text ("[ONNXRuntimeError] : 2
: INVALID_ARGUMENT : ..."), works unchanged. The rest of the text is Jangin's."""

from __future__ import annotations

from typing import Self

from jangin.ir.graph import CompileError


class Status:
    """Every exception here has the number (`code`) and the name (`status`) of ONNX Runtime's status."""

    code: int
    status: str

    @classmethod
    def said(cls, text: object) -> Self:
        return cls(f"[ONNXRuntimeError] : {cls.code} : {cls.status} : {text}")  # type: ignore[call-arg]


class Fail(Status, RuntimeError):
    code, status = 1, "FAIL"


class InvalidArgument(Status, ValueError, TypeError, IndexError):
    code, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(Status, FileNotFoundError):
    code, status = 3, "NO_SUCHFILE"


class NoModel(Status, RuntimeError):
    code, status = 4, "NO_MODEL"


class EngineError(Status, RuntimeError):
    code, status = 5, "ENGINE_ERROR"


class RuntimeException(Status, RuntimeError):
    code, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(Status, CompileError):
    code, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(Status, RuntimeError):
    code, status = 8, "MODEL_LOADED"


class NotImplemented(Status, CompileError):
    code, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(Status, CompileError):
    code, status = 10, "INVALID_GRAPH"


class EPFail(Status, RuntimeError):
    code, status = 11, "EP_FAIL"


class ModelLoadCanceled(Status, RuntimeError):
    code, status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(Status, RuntimeError):
    code, status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(Status, RuntimeError):
    code, status = 14, "NOT_FOUND"


class DeviceReset(Status, RuntimeError):
    code, status = 15, "DEVICE_RESET"
