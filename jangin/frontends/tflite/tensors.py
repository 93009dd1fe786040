"""Tensors of a TFLite file: their types, sizes, contents and quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tflite

from jangin.frontends.tflite.sparse import dense
from jangin.frontends.tflite.text import texts
from jangin.ir.dtype import BOOL, F16, F32, F64, I4, I8, I16, I32, I64, U8, U16, U32, U64, DType
from jangin.ir.graph import Array, CompileError

TYPES: Mapping[int, DType] = {
    tflite.TensorType.FLOAT32: F32, tflite.TensorType.FLOAT16: F16, tflite.TensorType.FLOAT64: F64,
    tflite.TensorType.INT8: I8, tflite.TensorType.INT16: I16, tflite.TensorType.INT32: I32,
    tflite.TensorType.INT64: I64, tflite.TensorType.UINT8: U8, tflite.TensorType.UINT16: U16,
    tflite.TensorType.UINT32: U32, tflite.TensorType.UINT64: U64, tflite.TensorType.BOOL: BOOL,
    tflite.TensorType.INT4: I4,
}  # fmt: skip


KINDS = {number: name for name, number in vars(tflite.TensorType).items() if not name.startswith("_")}
"""The names of element types, also of those that aren't read, by their numbers in the schema."""


def is_text(tensor: Any) -> bool:
    return bool(tensor.Type() == tflite.TensorType.STRING)


def contents(what: str, tensor: Any, raw: Array) -> Array:
    shape = ints(tensor.ShapeAsNumpy())
    if is_text(tensor):
        return texts(what, raw, shape)
    dtype = TYPES[tensor.Type()]
    if tensor.Sparsity() is not None:
        stored = raw[: raw.nbytes // dtype.bytes * dtype.bytes].view(dtype.numpy)
        return dense(what, stored, shape, tensor.Sparsity())
    if dtype is I4:
        low, high = (raw << 4).astype(np.int8) >> 4, raw.astype(np.int8) >> 4
        raw = np.stack([low, high], -1).reshape(-1)[: int(np.prod(shape))]
        return raw.astype(dtype.numpy).reshape(shape)
    wanted = int(np.prod(shape)) * dtype.bytes
    if raw.nbytes != wanted:
        raise CompileError(
            f"{what} has {raw.nbytes} bytes, but its shape {shape} needs {wanted}: the file is damaged"
        )
    return raw.view(dtype.numpy).reshape(shape)


def ints(array: Any) -> list[int]:
    return [int(i) for i in array] if isinstance(array, np.ndarray) else []


def numbers(array: Any) -> list[int] | list[float]:
    return array.tolist() if isinstance(array, np.ndarray) and array.dtype.kind == "f" else ints(array)


def wrongly_quantized(scales: Array, zeros: Array, axis: int, shape: Sequence[int], dtype: DType) -> str:
    """Return a description of what is wrong with a tensor's quantization, or ""."""
    bad = ~np.isfinite(scales) | (scales <= 0)
    if bad.any():
        return f"a scale of {scales[bad][0]:g}; scales are positive numbers"
    if zeros.size != scales.size:
        return f"{scales.size} scales and {zeros.size} zero points"
    low, high = dtype.limits if dtype.is_int else (zeros.min(), zeros.max())
    outside = (zeros < low) | (zeros > high)
    if outside.any():
        return f"a zero point of {zeros[outside][0]}; those of {dtype} are {low} to {high}"
    if scales.size > 1 and not 0 <= axis < len(shape):
        return f"{scales.size} scales along axis {axis}, and it has {len(shape)}"
    if scales.size > 1 and shape[axis] != scales.size:
        return f"{scales.size} scales along axis {axis} of {shape[axis]}"
    return ""


def declared_shape(tensor: Any) -> list[int | str]:
    """Return a tensor's sizes, with "" for any size. Such a size is -1 in the tensor's shape signature."""
    sizes = ints(tensor.ShapeAsNumpy())
    signature = ints(tensor.ShapeSignatureAsNumpy())
    if len(signature) == len(sizes):
        return ["" if s < 0 else d for s, d in zip(signature, sizes, strict=True)]
    return list(sizes)
