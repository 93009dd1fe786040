"""Check nodes by the ONNX standard: their attributes, their numbers of inputs and outputs, and types.

The importer checks every node first, so that lowerings are only given arguments that their operator defines.
Operators outside of the standard aren't checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from jangin.frontends.onnx.library import messages, schemas
from jangin.frontends.onnx.types import type_name
from jangin.ir.graph import CompileError
from jangin.ir.types import Type

_KINDS = messages.AttributeProto.AttributeType


@cache
def schema(domain: str, name: str, opset: int) -> Any:
    """Return the standard's description of an operator at an opset, or None if there is none."""
    try:
        description = schemas.get_schema(name, opset, domain)
    except (schemas.SchemaError, OverflowError, TypeError):
        return None
    return None if description.deprecated else description


def has_body(domain: str, name: str, opset: int) -> bool:
    """Tell if the standard defines an operator by a function of other operators."""
    known = schema(domain, name, opset)
    return known is not None and (known.has_function or known.has_context_dependent_function)


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
        if int(expected.type.value) != a.type:
            raise CompileError(
                f"attribute '{a.name}' of {what} must be of kind {expected.type.name}, "
                f"not {_KINDS.Name(a.type) if a.type in _KINDS.values() else a.type}"
            )
    for name, a in known.attributes.items():
        if a.required and all(name != attr.name for attr in proto.attribute):
            raise CompileError(f"{what} lacks its attribute '{name}'")
    _check_count(len(proto.input), known.min_input, known.max_input, "input", what)
    _check_count(len(proto.output), known.min_output, known.max_output, "output", what)


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
    allowed = _allowed(domain, name, opset)
    same: dict[str, tuple[str, str]] = {}
    for i, type in enumerate(given):
        formal = known.inputs[min(i, len(known.inputs) - 1)]
        if type is None:
            if formal.option == schemas.OpSchema.FormalParameterOption.Single:
                raise CompileError(f"its input '{formal.name}' is missing")
            continue
        types = allowed.get(formal.type_str, frozenset({formal.type_str}))
        called = type_name(type)
        if "?" in called:
            continue
        if called not in types:
            raise CompileError(
                f"its input '{formal.name}' is {called}, which the standard doesn't allow here"
            )
        if formal.type_str in allowed and formal.is_homogeneous:
            other, first = same.setdefault(formal.type_str, (formal.name, called))
            if first != called:
                raise CompileError(
                    f"its inputs '{other}' and '{formal.name}' must be of one type, "
                    f"but are {first} and {called}: insert a Cast"
                )


@cache
def _allowed(domain: str, name: str, opset: int) -> dict[str, frozenset[str]]:
    return {
        c.type_param_str: frozenset(c.allowed_type_strs) for c in schema(domain, name, opset).type_constraints
    }
