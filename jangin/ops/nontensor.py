"""Values that aren't numeric tensors while a program is built, and the steps that make them.

A sequence or optional whose contents are known at compile time is resolved there (`NonTensor.items`). Only
unknown ones become steps, which run in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jangin.ir.core import HostStep
from jangin.ir.dtype import STRING, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, CompileError, Shape, Value
from jangin.ir.records import dataclass
from jangin.ir.types import ANY, Type, optional_of, sequence_of, tensor_type
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class NonTensor:
    """A value that isn't a `Tensor`. `items` are the known elements of a sequence, or the one or no element
    of a known optional. A value with known items has no step until something needs the whole value."""

    name: str
    type: Type
    items: tuple[Any, ...] | None = None

    def __str__(self) -> str:
        return str(self.type)


Item = Tensor | NonTensor


def type_of(value: Item) -> Type:
    return value.type if isinstance(value, NonTensor) else tensor_type(value.dtype, value.shape)


def known_sequence(items: Sequence[Item], element: Type | None = None) -> NonTensor:
    """Return a sequence of known elements."""
    for item in items:
        element = type_of(item) if element is None else common(element, type_of(item))
    return NonTensor("", sequence_of(element), tuple(items))


def known_optional(item: Item | None, element: Type | None = None) -> NonTensor:
    """Return an optional that is known to hold `item`, or nothing."""
    return NonTensor(
        "", optional_of(element if item is None else type_of(item)), () if item is None else (item,)
    )


def common(a: Type | None, b: Type | None) -> Type | None:
    """Return the smallest type that includes both types. Raises CompileError if there is none."""
    if a is None or b is None or a == b:
        return a or b
    if "optional" in (a.kind, b.kind) and a.kind != b.kind:
        return optional_of(common(*(t.of if t.kind == "optional" else t for t in (a, b))))
    if a.kind != b.kind or a.dtype != b.dtype:
        raise CompileError(f"the types {a} and {b} differ, and must be one: insert a Cast")
    if a.kind != "tensor":
        return Type(a.kind, a.dtype, None, common(a.of, b.of))
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return tensor_type(a.dtype, None)
    return tensor_type(a.dtype, tuple(x if x == y else ANY for x, y in zip(a.shape, b.shape, strict=True)))


def element(b: Builder, type: Type | None) -> Type:
    """Return the type of one element. Sizes that differ between elements become fresh symbols. Without a
    type, return that of an unknown tensor."""
    if type is None:
        return tensor_type(None, None)
    if type.shape is None:
        return type
    return replace(type, shape=tuple(b.symbol() if d == ANY else d for d in type.shape))


def declare(b: Builder, type: Type, hint: str = "") -> Item:
    """Declare a value of a type, which a step or a caller provides. Return it."""
    name = b.fresh(hint)
    if type.is_numeric:
        assert type.dtype is not None and type.shape is not None
        b.values[name] = Value(name, type.dtype, type.shape)
        return Tensor(name, type.dtype, type.shape)
    b.values[name] = Value(name, None, None, type)
    return NonTensor(name, type)


def constant(b: Builder, array: Array, name: str = "") -> Item:
    """Return a constant of numbers or of text."""
    if array.dtype.kind not in "OUS":
        return b.const(array, name)
    type = tensor_type(STRING, tuple(const(d) for d in array.shape))
    name = b.fresh(name or "c")
    b.constants[name] = array.astype(object)
    b.values[name] = Value(name, None, None, type)
    return NonTensor(name, type)


def real(b: Builder, value: Item) -> str:
    """Return the name of a value in the graph. If only its contents are known, a step that makes the value is
    added."""
    if isinstance(value, Tensor):
        return b.materialize(value).name
    if value.items is None:
        return value.name
    if value.type.kind == "optional":
        return str(host(b, "Optional", value.items, [value.type])[0].name)
    return str(host(b, "SequenceConstruct", value.items, [value.type])[0].name)


def called(
    b: Builder, function: str, inputs: Sequence[Tensor | None], dtype: DType, shape: Shape, **attrs: Any
) -> Tensor:
    """Add a call of a function to a graph that is written, not run (`Builder.whole`), and return the call's
    result."""
    outputs: tuple[Tensor] = host(b, function, inputs, [tensor_type(dtype, shape)], attrs)
    return outputs[0]


def host(
    b: Builder,
    function: str,
    inputs: Sequence[Item | None],
    results: Sequence[Type],
    attrs: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Add a call of a function of `jangin.host`, and return its results, of these types. Fresh symbols in the
    types become known once it has run."""
    names = tuple("" if v is None else real(b, v) for v in inputs)
    outputs = tuple(declare(b, t) for t in results)
    settings = HostStep(function=function, attrs=tuple(sorted((attrs or {}).items())))
    b.step(settings, names, [v.name for v in outputs])
    return outputs
