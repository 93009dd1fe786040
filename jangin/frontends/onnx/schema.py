"""Check nodes by the ONNX standard: their attributes, their numbers of inputs and outputs, and types.

The importer checks every node first, so that lowerings are only given arguments that their operator defines.
Operators outside of the standard aren't checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jangin.frontends.onnx import standard
from jangin.frontends.onnx.library import messages
from jangin.frontends.onnx.types import type_name
from jangin.ir.graph import CompileError
from jangin.ir.types import Type

_KINDS = messages.AttributeProto.AttributeType


@cache
def schema(domain: str, name: str, opset: int) -> standard.Schema | None:
    """Return the standard's description of an operator at an opset, or None if there is none."""
    known = standard.find(domain, name, opset)
    return None if known is None or known.deprecated else known


def has_body(domain: str, name: str, opset: int) -> bool:
    """Tell if the standard defines an operator by a function of other operators."""
    known = schema(domain, name, opset)
    return known is not None and known.has_body


def check_node(proto: messages.NodeProto, domain: str, opset: int, what: str) -> None:
    """Raise CompileError if a node isn't as the standard defines its operator.

    Its attributes must exist and be of the right kind, required ones must be given, and the numbers of inputs
    and outputs must be allowed."""
    known = schema(domain, proto.op_type, opset)
    if known is None:
        return
    for a in proto.attribute:
        expected = known.attributes.get(a.name)
        if expected is None:
            have = ", ".join(sorted(known.attributes)) or "none"
            raise CompileError(f"{what} has no attribute '{a.name}'; its attributes are: {have}")
        if expected != a.type:
            raise CompileError(
                f"attribute '{a.name}' of {what} must be of kind {_KINDS.Name(expected)}, "
                f"not {_KINDS.Name(a.type) if a.type in _KINDS.values() else a.type}"
            )
    for name in known.required:
        if all(name != a.name for a in proto.attribute):
            raise CompileError(f"{what} lacks its attribute '{name}'")
    _check_count(len(proto.input), *known.inputs, "input", what)
    _check_count(len(proto.output), *known.outputs, "output", what)


def _check_count(count: int, low: int, high: int, kind: str, what: str) -> None:
    if not low <= count <= high:
        wanted = str(low) if low == high else f"{low} or more" if high > 1 << 20 else f"{low} to {high}"
        raise CompileError(f"{what} has {count} {kind}s; it takes {wanted}")


def check_types(domain: str, name: str, opset: int, given: Sequence[Type | None]) -> None:
    """Raise CompileError if a required input is missing, or if the operator isn't defined for an input's
    type.

    It is also raised if two inputs have different types though the operator demands equal ones."""
    known = schema(domain, name, opset)
    if known is None:
        return
    same: dict[str, tuple[str, str]] = {}
    for i, type in enumerate(given):
        formal = known.formals[min(i, len(known.formals) - 1)]
        if type is None:
            if formal.option == standard.SINGLE:
                raise CompileError(f"its input '{formal.name}' is missing")
            continue
        types = known.types.get(formal.type, frozenset({formal.type}))
        called = type_name(type)
        if "?" in called:
            continue
        if called not in types:
            raise CompileError(
                f"its input '{formal.name}' is {called}, which the standard doesn't allow here"
            )
        if formal.type in known.types and formal.homogeneous:
            other, first = same.setdefault(formal.type, (formal.name, called))
            if first != called:
                raise CompileError(
                    f"its inputs '{other}' and '{formal.name}' must be of one type, "
                    f"but are {first} and {called}: insert a Cast"
                )
