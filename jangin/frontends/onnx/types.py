"""ONNX's numbers and names of types."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.ir.dtype import DTYPES, DType
from jangin.ir.graph import CompileError
from jangin.ir.types import Type

_CODES = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64",
    12: "u32", 13: "u64", 16: "bf16", 17: "f8e4m3fn", 18: "f8e4m3fnuz", 19: "f8e5m2", 20: "f8e5m2fnuz",
    21: "u4", 22: "i4", 23: "f4e2m1", 24: "f8e8m0", 25: "u2", 26: "i2",
}  # fmt: skip
TYPES: Mapping[int, DType] = {code: DTYPES[name] for code, name in _CODES.items()}
"""Element types by their numbers in `TensorProto.DataType`. Text isn't included, and its number is `TEXT`."""
TEXT = 8
"""The number of the element type string in onnx.proto's `TensorProto.DataType`."""
LEVEL_OF_INT8 = 4
"""The `accuracy_level` of ONNX Runtime's contrib operators at which activations may be rounded to int8."""
_NAMES = {
    "f64": "double", "f32": "float", "f16": "float16", "bf16": "bfloat16", "bool": "bool", "string": "string",
    "f8e4m3fn": "float8e4m3fn", "f8e4m3fnuz": "float8e4m3fnuz", "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz", "f8e8m0": "float8e8m0", "f4e2m1": "float4e2m1",
}  # fmt: skip


def element_type(code: int | DType) -> DType:
    """Return the element type for a number of `TensorProto.DataType`. Raises CompileError if it isn't
    supported."""
    if isinstance(code, DType):
        return code
    if code not in TYPES:
        raise CompileError(f"ONNX element type {code} is not supported; cast the model to another type")
    return TYPES[code]


def element_name(dtype: DType) -> str:
    """Return the standard's name of an element type, such as "float" in "tensor(float)"."""
    return _NAMES.get(dtype.name) or f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}"


def type_name(type: Type) -> str:
    """Return a type in the standard's notation, such as "seq(tensor(float))". An unknown part is written as
    "?"."""
    if type.kind == "tensor":
        return f"tensor({'?' if type.dtype is None else element_name(type.dtype)})"
    if type.kind == "map" and type.dtype is not None and type.of is not None and type.of.dtype is not None:
        return f"map({element_name(type.dtype)}, {element_name(type.of.dtype)})"
    return f"{type.kind}({'?' if type.of is None else type_name(type.of)})"
