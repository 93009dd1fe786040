"""Lower conversions between element types: Cast, CastLike, BitCast."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.frontends.onnx.operators.strings import string_cast
from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import TEXT, element_type
from jangin.ir.dtype import DType
from jangin.ops.builder import Builder
from jangin.ops.elementwise import bitcast, converted
from jangin.ops.nontensor import Item, NonTensor
from jangin.ops.values import Tensor


@op("Cast")
def cast_(b: Builder, x: Item, to: int | str | DType, saturate: int = 1, round_mode: str = "up") -> Item:
    code = _TYPE_NAMES[to] if isinstance(to, str) else to
    if isinstance(x, NonTensor) or code == TEXT:
        return string_cast(b, x, code)
    return converted(b, x, element_type(code), bool(saturate), round_mode)


_TYPE_NAMES: Mapping[str, int] = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13,
}  # fmt: skip
"""The numbers of element types, by the names that the attribute `to` of Cast has in opset 1."""


@op("CastLike")
def cast_like(b: Builder, x: Tensor, target: Tensor, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return converted(b, x, target.dtype, bool(saturate), round_mode)


@op("BitCast")
def bit_cast(b: Builder, x: Tensor, to: int) -> Tensor:
    return bitcast(b, x, element_type(to))
