"""Import ONNX models as graphs: each ONNX node becomes one node, without interpretation.

A node's `op` is "onnx.Conv", or "domain.Name" for other domains than the standard's. Its attributes are plain
values. The attribute "opset" is the version of its domain in the model. A call of a function of the model is
a node "function", whose attribute "body" is the function's graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jangin.frontends.assemble import ShapeBindings, Symbols, body_graph, model_graph
from jangin.frontends.onnx.file import Folder
from jangin.frontends.onnx.library import messages
from jangin.frontends.onnx.proto import (
    ModelFile,
    attribute,
    dense,
    dtype_of,
    tensor,
    text,
    type_of,
)
from jangin.frontends.onnx.schema import check_node
from jangin.ir import limits
from jangin.ir.dtype import STRING
from jangin.ir.graph import FUNCTION, Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources
from jangin.ir.types import tensor_type

MOST_CALLS = 32
"""Calls of functions may be nested up to this depth. A deeper nesting is taken for a function that calls
itself, because exporters nest a few levels only."""
SPARSE = "sparse_tensor_type"
"""The kind of a sparse tensor's type in ONNX's messages."""


def imported_graph(read: ModelFile, shapes: ShapeBindings) -> Graph:
    """Return the graph of a model that has been read. Raises CompileError if the model is malformed."""
    return _Importer(read, Symbols(shapes)).graph()


def metadata(proto: messages.ModelProto) -> dict[str, Any]:
    """Return the model's description of itself, under the names of `jangin.onnxruntime.ModelMetadata`."""
    return {
        "producer_name": proto.producer_name,
        "domain": proto.domain,
        "description": text(proto.doc_string),
        "graph_description": text(proto.graph.doc_string),
        "version": proto.model_version,
        "custom_metadata_map": {text(p.key): text(p.value) for p in proto.metadata_props},
    }


def sparse(proto: messages.ModelProto) -> list[str]:
    """Return the names of the inputs and outputs that the model declares as sparse. Their tensors are
    dense here."""
    both = (*proto.graph.input, *proto.graph.output)
    return [info.name for info in both if info.type.WhichOneof("value") == SPARSE]


def quantization(graph: Graph) -> dict[str, list[float]]:
    """Return the scale and the zero point of inputs that DequantizeLinear reads, and of outputs that
    QuantizeLinear makes. Both must be constants and single numbers."""
    parameters = {}
    for node in graph.nodes:
        name = node.inputs[0] if node.op == node_op("", "DequantizeLinear") else ""
        name = node.outputs[0] if node.op == node_op("", "QuantizeLinear") else name
        if name not in (*graph.inputs, *graph.outputs):
            continue
        arrays = [graph.constants.get(n) for n in node.inputs[1:] if n]
        if all(array is not None and array.size == 1 for array in arrays):
            scale, zero = ([float(a.reshape(-1)[0]) for a in arrays if a is not None] + [0.0])[:2]
            parameters[name] = [scale, int(zero)]  # a list, as in the JSON of a compiled model
    return parameters


def node_op(domain: str, name: str) -> str:
    return f"{domain or 'onnx'}.{name}"


def split_op(op: str) -> tuple[str, str]:
    """Return the domain and the name of an operator from a node's `op`. The standard's domain is ""."""
    domain, _, name = op.rpartition(".")
    return "" if domain == "onnx" else domain, name


def opsets(imports: Iterable[messages.OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of each domain, by domain. A model that lists none has version 1 of the
    standard's."""
    return {_domain(i.domain): i.version for i in imports} or {"": 1}


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


Functions = Mapping[tuple[str, str, str], messages.FunctionProto]


@dataclass
class Scope:
    """Everything that determines how nodes are read.

    `opsets` has the domains' versions, and `functions` the model's functions. `folder` holds external data.
    `references` has the values of attributes to which a function's body refers, and `depth` is the depth of
    function calls."""

    opsets: Mapping[str, int]
    functions: Functions = field(default_factory=dict)
    folder: Folder | None = None
    references: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0


class NodeReader:
    """The conversion of NodeProtos to nodes, with their sub-graphs and the functions that they call."""

    def __init__(self) -> None:
        self.count = 0

    def nodes(self, protos: Iterable[messages.NodeProto], scope: Scope) -> list[Node]:
        seen: dict[str, int] = {}
        return [self._node(p, scope, seen) for p in protos]

    def _node(self, proto: messages.NodeProto, scope: Scope, seen: dict[str, int]) -> Node:
        self.count += 1
        domain = _domain(proto.domain)
        name = proto.name or next((o for o in proto.output if o), "") or f"{proto.op_type}_{self.count}"
        number = seen[name] = seen.get(name, -1) + 1
        what = f"{proto.op_type} '{name}'"
        limits.at(what)
        limits.expand(self.count)
        unique = f"{name}#{number}" if number else name
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        function = scope.functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
        if function is not None:
            attrs = self._attributes(proto, what, scope)
            if not scope.depth:
                self.check_size(function, scope)
            body = self.function(function, attrs, scope)
            return Node(
                unique,
                inputs,
                outputs,
                ImportedAttributes(FUNCTION, {"body": body}),
                Sources.of(proto.op_type, name, domain),
            )
        if domain not in scope.opsets:
            known = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in scope.opsets.items())
            raise CompileError(
                f"{what} is of domain '{domain or 'ai.onnx'}', which the model does not import ({known})"
            )
        opset = scope.opsets[domain]
        check_node(proto, domain, opset, what)
        attrs = self._attributes(proto, what, scope)
        attrs["opset"] = opset
        source = Sources.of(proto.op_type, name, domain or "ai.onnx", opset)
        return Node(
            unique, inputs, outputs, ImportedAttributes(node_op(domain, proto.op_type), attrs), source
        )

    def check_size(self, proto: messages.FunctionProto, scope: Scope) -> None:
        """Raise CompileError if a function has too many nodes. The nodes of the functions that it calls are
        included for each call."""
        sizes: dict[int, int] = {}

        def size(function: messages.FunctionProto, depth: int) -> int:
            if depth > MOST_CALLS:
                raise CompileError(
                    f"function '{proto.name}' calls itself, or is nested more than {MOST_CALLS} deep"
                )
            if id(function) not in sizes:
                sizes[id(function)] = sum(cost(n, depth) for n in function.node)
            return sizes[id(function)]

        def cost(node: messages.NodeProto, depth: int) -> int:
            called = scope.functions.get((_domain(node.domain), node.op_type, getattr(node, "overload", "")))
            inner = sum(cost(n, depth) for a in node.attribute for g in (a.g, *a.graphs) for n in g.node)
            return 1 + inner + (0 if called is None else size(called, depth + 1))

        limits.expand(self.count + size(proto, 0))

    def _attributes(self, proto: messages.NodeProto, what: str, scope: Scope) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        for a in proto.attribute:
            if a.name in attrs:
                raise CompileError(f"{what} has attribute '{a.name}' twice")
            if a.ref_attr_name:
                if not scope.depth:
                    raise CompileError(
                        f"{what} takes its attribute '{a.name}' from '{a.ref_attr_name}' of a function, but "
                        "is in none"
                    )
                if a.ref_attr_name in scope.references:
                    attrs[a.name] = scope.references[a.ref_attr_name]
            elif a.type == messages.AttributeProto.GRAPH:
                attrs[a.name] = self.subgraph(a.g, scope)
            else:
                attrs[a.name] = attribute(a, what, scope.folder)
        return attrs

    def subgraph(self, proto: messages.GraphProto, scope: Scope) -> Graph:
        """Return a sub-graph as a graph. Names that it doesn't define are values of the graph around it."""
        constants = {t.name: tensor(t, f"constant '{t.name}'", scope.folder) for t in proto.initializer}
        inputs, outputs = [i.name for i in proto.input], [o.name for o in proto.output]
        return body_graph(proto.name, inputs, outputs, self.nodes(proto.node, scope), constants)

    def function(self, proto: messages.FunctionProto, attrs: Mapping[str, Any], scope: Scope) -> Graph:
        """Return the body of a function as a graph, for a call with the attributes `attrs`. Raises
        CompileError if the calls are nested too deep."""
        if scope.depth > MOST_CALLS:
            raise CompileError(
                f"function '{proto.name}' calls itself, or is nested more than {MOST_CALLS} deep"
            )
        what = f"function '{proto.name}'"
        defaults = {a.name: attribute(a, what, scope.folder) for a in proto.attribute_proto}
        inner = Scope(
            opsets(proto.opset_import), scope.functions, scope.folder, {**defaults, **attrs}, scope.depth + 1
        )
        return body_graph(proto.name, proto.input, proto.output, self.nodes(proto.node, inner), {}, what)


class _Importer:
    """The import of one model as a graph."""

    def __init__(self, read: ModelFile, symbols: Symbols) -> None:
        model, folder = read.proto, read.folder
        self.proto, self.folder, self.symbols = model.graph, folder, symbols
        self.contents = read.contents
        functions = {(_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions}
        self.scope = Scope(opsets(model.opset_import), functions, folder)

    def graph(self) -> Graph:
        constants = self._constants()
        inputs = self._inputs(constants)
        nodes = NodeReader().nodes(self.proto.node, self.scope)
        outputs = [o.name for o in self.proto.output]
        return model_graph(self.proto.name, inputs, outputs, nodes, constants, self.symbols)

    def _constants(self) -> dict[str, Array]:
        constants: dict[str, Array] = {}
        used = {n for node in self.proto.node for n in node.input} | {o.name for o in self.proto.output}
        nested = any(a.HasField("g") for node in self.proto.node for a in node.attribute)
        for n, t in enumerate(self.proto.initializer):
            if t.name in constants:
                raise CompileError(f"constant '{t.name}' is defined twice")
            if t.name in used or nested:
                constants[t.name] = tensor(t, f"constant '{t.name}'", self.folder, self.contents.get(n))
        for s in self.proto.sparse_initializer:
            if s.values.name in constants:
                raise CompileError(f"constant '{s.values.name}' is defined twice")
            if s.values.name in used or nested:
                constants[s.values.name] = dense(s, f"constant '{s.values.name}'", self.folder)
        return constants

    def _inputs(self, constants: dict[str, Array]) -> list[Value]:
        unused = {t.name for t in self.proto.initializer}
        inputs: dict[str, Value] = {}
        for info in self.proto.input:
            if info.name in constants or info.name in unused:
                continue
            if info.name in inputs:
                raise CompileError(f"input '{info.name}' is declared twice")
            inputs[info.name] = self._input(info)
        return list(inputs.values())

    def _input(self, info: messages.ValueInfoProto) -> Value:
        what = f"input '{info.name}'"
        kind = info.type.WhichOneof("value")
        if kind not in ("tensor_type", SPARSE):
            return Value(info.name, None, None, type_of(info.type, what))
        declared = getattr(info.type, kind)
        text = declared.elem_type == messages.TensorProto.STRING
        dtype = STRING if text else dtype_of(declared.elem_type, what)
        sizes = [_declared_size(d) for d in declared.shape.dim] if declared.HasField("shape") else None
        shape = self.symbols.shape(info.name, sizes)
        if text:
            return Value(info.name, None, None, tensor_type(STRING, shape))
        if shape is None:
            raise CompileError(f'{what} has no shape in the model: give shapes={{"{info.name}": (...)}}')
        return Value(info.name, dtype, shape)


def _declared_size(dim: messages.TensorShapeProto.Dimension) -> int | str:
    """Return a declared size: a number, or a symbol's name. The name is "" for any size. Exporters also write
    "?" for this."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    return str(dim.dim_param) if re.search("[A-Za-z]", dim.dim_param) else ""
