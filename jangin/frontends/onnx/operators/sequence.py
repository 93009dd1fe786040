"""Lower sequences and optionals.

A sequence whose elements are known at compile time needs no operators at run time. Any other sequence is a
list at run time, and an optional may be None."""

from __future__ import annotations

import numpy as np

from jangin.frontends.onnx.operators.shape import split_13
from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.types import ANY, Type, sequence_of, tensor_type
from jangin.ops.axes import axis_of, integers
from jangin.ops.builder import Builder
from jangin.ops.nontensor import (
    Item,
    NonTensor,
    common,
    element,
    host,
    known_optional,
    known_sequence,
    type_of,
)
from jangin.ops.values import Tensor

UNROLLED = 64
"""A tensor is split into at most this many parts at compile time, because each part becomes nodes of the
model."""


def _position(b: Builder, position: Tensor | None, count: int | None, default: int) -> int | None:
    """Return a position in a sequence of `count` elements, counted from the front. Return None if the
    position or the count isn't known. Raises CompileError if the position is outside."""
    if count is None:
        return None
    known = np.array(default) if position is None else b.constant_value(position)
    if known is None:
        return None
    at = int(known.reshape(()))
    limit = count + (default == count)
    if not -count <= at < limit:
        raise CompileError(f"position {at} is outside a sequence of {count}")
    return at if at >= 0 else at + count


@op("SequenceEmpty", since=11)
def sequence_empty(b: Builder, *, dtype: int | DType = F32) -> NonTensor:
    """Return an empty sequence. If `dtype` is 0, as in the standard's function bodies, the inserted elements
    determine its type."""
    return known_sequence((), tensor_type(element_type(dtype), None) if dtype else None)


@op("SequenceConstruct", since=11)
def sequence_construct(b: Builder, *items: Item) -> NonTensor:
    return known_sequence(items)


@op("SequenceAt", since=11)
def sequence_at(b: Builder, sequence: NonTensor, position: Tensor) -> Item:
    if sequence.items is not None:
        at = _position(b, position, len(sequence.items), -1)
        if at is not None:
            item: Item = sequence.items[at]
            return item
    (item,) = host(b, "SequenceAt", [sequence, position], [element(b, sequence.type.of)])
    return item


@op("SequenceInsert", since=11)
def sequence_insert(b: Builder, sequence: NonTensor, item: Item, position: Tensor | None = None) -> NonTensor:
    items = sequence.items
    known = None if items is None else sequence.type.of if items else None
    if items is not None:
        at = _position(b, position, len(items), len(items))
        if at is not None:
            return known_sequence((*items[:at], item, *items[at:]), known)
    joined = common(sequence.type.of, _loose(type_of(item)))
    (extended,) = host(b, "SequenceInsert", [sequence, item, position], [sequence_of(joined)])
    return extended  # type: ignore[no-any-return]


def _loose(type: Type) -> Type:
    """Return an element's type, without its sizes if one of them isn't fixed. Other elements of a sequence
    may have other sizes."""
    if type.shape is None:
        return type
    known = static_shape(type.shape)
    return type if known is not None else tensor_type(type.dtype, tuple(ANY for _ in type.shape))


@op("SequenceErase", since=11)
def sequence_erase(b: Builder, sequence: NonTensor, position: Tensor | None = None) -> NonTensor:
    items = sequence.items
    if items is not None:
        at = _position(b, position, len(items), -1)
        if at is not None:
            return known_sequence((*items[:at], *items[at + 1 :]), sequence.type.of)
    (rest,) = host(b, "SequenceErase", [sequence, position], [sequence.type])
    return rest  # type: ignore[no-any-return]


@op("SequenceLength", since=11)
def sequence_length(b: Builder, sequence: NonTensor) -> Tensor:
    if sequence.items is not None:
        return b.reshape(b.sizes([len(sequence.items)]), ())
    (n,) = b.bind(host(b, "SequenceLength", [sequence], [tensor_type(I64, ())])[0])
    return b.reshape(b.sizes([n]), ())


@op("ConcatFromSequence", since=11)
def concat_from_sequence(b: Builder, sequence: NonTensor, *, axis: int, new_axis: int = 0) -> Item:
    if sequence.items and all(isinstance(t, Tensor) for t in sequence.items):
        parts: list[Tensor] = list(sequence.items)
        if not new_axis:
            return b.concat(parts, axis_of(axis, parts[0].rank))
        at = axis_of(axis, parts[0].rank + 1)
        return b.concat([b.reshape(p, (*p.shape[:at], const(1), *p.shape[at:])) for p in parts], at)
    joined = sequence.type.of or tensor_type(None, None)
    shape = joined.shape
    if shape is not None and new_axis:
        at = axis_of(axis, len(shape) + 1)
        shape = (*shape[:at], ANY, *shape[at:])
    elif shape is not None:
        at = axis_of(axis, len(shape))
        shape = (*shape[:at], ANY, *shape[at + 1 :])
    result = element(b, tensor_type(joined.dtype, shape))
    (whole,) = host(b, "ConcatFromSequence", [sequence], [result], {"axis": axis, "new_axis": new_axis})
    return whole  # type: ignore[no-any-return]


@op("SplitToSequence", since=11)
def split_to_sequence(
    b: Builder, x: Item, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> NonTensor:
    if isinstance(x, Tensor) and (parts := _parts(b, x, split, axis, bool(keepdims))) is not None:
        return known_sequence(parts)
    kind = type_of(x)
    shape = kind.shape
    if shape is not None:
        at = axis_of(axis, len(shape))
        dims: list[Expr] = [ANY if i == at else d for i, d in enumerate(shape)]
        if split is None:
            dims[at : at + 1] = [const(1)] if keepdims else []
        shape = tuple(dims)
    attrs = {"axis": axis, "keepdims": keepdims}
    (sequence,) = host(b, "SplitToSequence", [x, split], [sequence_of(tensor_type(kind.dtype, shape))], attrs)
    return sequence  # type: ignore[no-any-return]


def _parts(b: Builder, x: Tensor, sizes: Tensor | None, axis: int, keepdims: bool) -> list[Tensor] | None:
    """Return the parts of a tensor, or None if their sizes aren't known or there are too many of them."""
    at = axis_of(axis, x.rank)
    total = static_shape((x.shape[at],))
    if sizes is not None and sizes.rank:
        count = static_shape(sizes.shape)
        return None if count is None or b.constant_value(sizes) is None else list(_cut(b, x, sizes, at))
    if total is None or (sizes is not None and b.constant_value(sizes) is None):
        return None
    each = 1 if sizes is None else integers(b, sizes, "the split")[0]
    ends = [min(each, total[0] - start) for start in range(0, total[0], each)]
    if len(ends) > UNROLLED or not ends:
        return None
    parts = _cut(b, x, b.const(np.array(ends)), at)
    if sizes is not None or keepdims:
        return list(parts)
    return [b.reshape(p, (*p.shape[:at], *p.shape[at + 1 :])) for p in parts]


def _cut(b: Builder, x: Tensor, sizes: Tensor, axis: int) -> tuple[Tensor, ...]:
    return split_13(b, x, sizes, axis=axis)


@op("Optional", since=15)
def optional(b: Builder, value: Item | None = None, *, type: Type | None = None) -> NonTensor:
    return known_optional(value, type)


@op("OptionalHasElement", since=15)
def optional_has_element(b: Builder, value: Item | None = None) -> Tensor:
    if value is None:
        return b.const(np.array(False))
    if isinstance(value, Tensor) or value.type.kind != "optional":
        return b.const(np.array(True))
    if value.items is not None:
        return b.const(np.array(bool(value.items)))
    (flag,) = host(b, "OptionalHasElement", [value], [tensor_type(BOOL, ())])
    return flag  # type: ignore[no-any-return]


@op("OptionalGetElement", since=15)
def optional_get_element(b: Builder, value: Item) -> Item:
    if isinstance(value, Tensor) or value.type.kind != "optional":
        return value
    if value.items is not None:
        if not value.items:
            raise CompileError("the optional is known to be empty")
        item: Item = value.items[0]
        return item
    (content,) = host(b, "OptionalGetElement", [value], [element(b, value.type.of)])
    return content  # type: ignore[no-any-return]
