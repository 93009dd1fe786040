"""Element types of PyTorch, the elements of tensors as arrays, and numbers as tensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from jangin.frontends.torch.sizes import FAR
from jangin.ir.dtype import DTYPES, DType
from jangin.ir.graph import Array, CompileError

SHARED_NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.bool: "bool",
    torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e5m2: "f8e5m2", torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
}  # fmt: skip


NUMPYS = frozenset(t for t, name in SHARED_NAMES.items() if DTYPES[name].numpy.type.__module__ == np.__name__)
"""PyTorch's types that NumPy has without ml_dtypes."""


def element_type(dtype: torch.dtype) -> DType:
    """Return Jangin's type for a type of PyTorch. Raises CompileError if there is none."""
    if dtype not in SHARED_NAMES:
        raise CompileError(f"{dtype} is not supported: the model must use real numbers, integers or booleans")
    return DTYPES[SHARED_NAMES[dtype]]


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor's elements as an array, without a copy if the tensor is contiguous and on the CPU."""
    tensor = tensor.detach()
    if tensor.is_neg() or not (tensor.is_cpu and tensor.is_contiguous()):
        tensor = tensor.cpu().resolve_neg().contiguous()
    if tensor.dtype in NUMPYS:
        plain: Array = tensor.numpy()
        return plain
    kind = element_type(tensor.dtype)
    raw: Array = tensor.view(torch.uint8 if kind.bits == 8 else torch.int16).numpy()
    return raw.view(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch.")))


def number_tensor(number: float) -> torch.Tensor:
    """Return a number as a tensor for an input. An integer becomes the size of a tensor without elements,
    because sizes can be computed from it."""
    if isinstance(number, float):
        return torch.tensor(number, dtype=torch.float64)
    return torch.empty((number + FAR, 0), dtype=torch.bool)
