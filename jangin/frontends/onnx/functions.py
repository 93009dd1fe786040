"""Read the function bodies by which the ONNX standard defines composite operators. They lower operators that
have no lowering of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from jangin.frontends.onnx.importer import NodeReader, Scope, split_op
from jangin.frontends.onnx.schema import schema
from jangin.frontends.onnx.types import TYPES
from jangin.ir.dtype import STRING
from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node, static_shape
from jangin.ir.types import Type

_CODES = {dtype: code for code, dtype in TYPES.items()}


def body(node: Node, types: Sequence[Type | None]) -> Graph | None:
    """Return the standard's body of an imported node for inputs of these types, or None if it has none.

    The inputs and outputs of the body are those of the operator, in order."""
    opset: int = node.of(ImportedAttributes)["opset"]
    domain, name = split_op(node.op)
    if schema(domain, name, opset) is None:
        return None
    known = defs.get_schema(name, opset, domain)
    raw = b""
    if known.has_function:
        version = _latest(known.function_opset_versions, opset)
        raw = known.get_function_with_opset_version(version) if version else b""
    elif known.has_context_dependent_function:
        version = _latest(known.context_dependent_function_opset_versions, opset)
        described = [_type(t).SerializeToString() for t in types]
        call = _proto(node).SerializeToString()
        if version:
            raw = known.get_context_dependent_function_with_opset_version(version, call, described)
    if not raw:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(raw)
    if all(i.domain for i in function.opset_import):  # a body that contains the caller's sub-graphs
        function.opset_import.add(domain="", version=defs.onnx_opset_version())
    defaults = {
        name: helper.get_attribute_value(a.default_value)
        for name, a in known.attributes.items()
        if a.default_value.name
    }
    attrs: dict[str, Any] = {k: _decoded(v) for k, v in defaults.items()} | node.attrs.named()
    return NodeReader().function(function, attrs, Scope({}, {}))


def _latest(versions: Sequence[int], opset: int) -> int | None:
    return max((v for v in versions if v <= opset), default=None)


def _type(type: Type | None) -> onnx.TypeProto:
    if type is None:
        return onnx.TypeProto()
    if type.kind == "seq":
        return helper.make_sequence_type_proto(_type(type.of))
    if type.kind == "optional":
        return helper.make_optional_type_proto(_type(type.of))
    if type.dtype is None or type.kind != "tensor":
        raise CompileError(f"its body depends on the type of a {type}")
    code = onnx.TensorProto.STRING if type.dtype == STRING else _CODES[type.dtype]
    if type.shape is None:
        return helper.make_tensor_type_proto(code, None)
    size = static_shape(type.shape)
    return helper.make_tensor_type_proto(code, size if size is not None else [None] * len(type.shape))


def _proto(node: Node) -> onnx.NodeProto:
    domain, name = split_op(node.op)
    attrs = {k: _message(v) for k, v in node.attrs.named().items() if k != "opset"}
    return helper.make_node(name, node.inputs, node.outputs, node.name, domain=domain, **attrs)


def _message(value: Any) -> Any:
    """Return an attribute's value in the form that ONNX's library takes."""
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    if isinstance(value, Graph):
        return _graph_proto(value)
    return value


def _graph_proto(graph: Graph) -> onnx.GraphProto:
    return helper.make_graph(
        [_proto(n) for n in graph.nodes],
        graph.name,
        [helper.make_empty_tensor_value_info(n) for n in graph.inputs],
        [helper.make_empty_tensor_value_info(n) for n in graph.outputs],
        [numpy_helper.from_array(a, n) for n, a in graph.constants.items()],
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return tuple(map(_decoded, value)) if isinstance(value, list) else value
