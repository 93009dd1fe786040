"""ONNX models as imported graphs: one node a node, nothing interpreted yet.

A node's `op` is "onnx.Conv", or "domain.Name" outside the default domain; its attributes are
plain values plus "opset", the version of its domain that is in force. A call of a function that
the model defines is a node "function" whose attribute "body" is that function's graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from jangin.frontends.onnx.file import Folder
from jangin.frontends.onnx.proto import (
    ModelFile,
    attribute,
    dtype_of,
    read_model,
    tensor,
    text,
    type_of,
)
from jangin.frontends.onnx.schema import check_node
from jangin.frontends.order import topological
from jangin.ir.dtype import from_numpy
from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import Array, CompileError, Graph, Node, Value
from jangin.ir.simplify import Range
from jangin.ir.types import STRING, Type, tensor_type

Size = int | str | None
Binding = int | Sequence[Size]
ShapeBindings = Mapping[str, Binding]
MAX_SIZE = (1 << 31) - 1
NODE_LIMIT = 1_000_000
"""Most nodes that a model may have, its functions expanded."""


def load(
    model: str | Path | bytes | onnx.ModelProto,
    shapes: ShapeBindings | None = None,
) -> Graph:
    """Import an ONNX model (path, bytes or message).

    `shapes` binds sizes: {"batch": 1} a symbol, {"seq": (1, 512)} a symbol's inclusive range,
    {"image": (1, 3, 224, 224)} a whole input (None keeps a dimension). Raises CompileError
    for anything malformed. Large constants lie in the model's file or bytes until `owned`.
    """
    read = read_model(model)
    try:
        return _Importer(read, dict(shapes or {})).graph()
    except (UnicodeDecodeError, OverflowError, RecursionError, MemoryError) as error:
        raise CompileError(f"the ONNX model is malformed: {type(error).__name__}: {error}") from error


def metadata(model: str | Path | bytes | onnx.ModelProto) -> dict[str, Any]:
    """What the model says of itself, under the names that `jangin.session.ModelMetadata` has."""
    proto = read_model(model).proto
    return {
        "producer_name": proto.producer_name,
        "domain": proto.domain,
        "description": text(proto.doc_string),
        "graph_description": text(proto.graph.doc_string),
        "version": proto.model_version,
        "custom_metadata_map": {text(p.key): text(p.value) for p in proto.metadata_props},
    }


def node_op(domain: str, name: str) -> str:
    return f"{domain or 'onnx'}.{name}"


def split_op(op: str) -> tuple[str, str]:
    """(domain, operator) of an imported node's `op`; the default domain is ""."""
    domain, _, name = op.rpartition(".")
    return "" if domain == "onnx" else domain, name


def opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Version by domain; a model that imports none is of the first opset."""
    return {_domain(i.domain): i.version for i in imports} or {"": 1}


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


Functions = Mapping[tuple[str, str, str], onnx.FunctionProto]


@dataclass
class Scope:
    """What reading nodes depends on: versions, functions of the model, attributes that a function
    body refers to, and how deep function calls are nested."""

    opsets: Mapping[str, int]
    functions: Functions = field(default_factory=dict)
    folder: Folder | None = None
    references: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0


class NodeReader:
    """Turns NodeProtos into Nodes, with sub-graphs and calls of the model's functions."""

    def __init__(self) -> None:
        self.count = 0

    def nodes(self, protos: Iterable[onnx.NodeProto], scope: Scope) -> list[Node]:
        seen: dict[str, int] = {}
        return [self._node(p, scope, seen) for p in protos]

    def _node(self, proto: onnx.NodeProto, scope: Scope, seen: dict[str, int]) -> Node:
        self.count += 1
        if self.count > NODE_LIMIT:
            raise CompileError(f"the model has more than {NODE_LIMIT} nodes, its functions expanded")
        domain = _domain(proto.domain)
        name = proto.name or next((o for o in proto.output if o), "") or f"{proto.op_type}_{self.count}"
        number = seen[name] = seen.get(name, -1) + 1
        what = f"{proto.op_type} '{name}'"
        unique = f"{name}#{number}" if number else name
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        function = scope.functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
        if function is not None:
            attrs = self._attributes(proto, what, scope)
            body = self.function(function, attrs, scope)
            return Node("function", unique, inputs, outputs, {"body": body}, f"{what} ({domain})")
        if domain not in scope.opsets:
            known = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in scope.opsets.items())
            raise CompileError(
                f"{what} is of domain '{domain or 'ai.onnx'}', which the model does not import ({known})"
            )
        opset = scope.opsets[domain]
        check_node(proto, domain, opset, what)
        attrs = self._attributes(proto, what, scope)
        attrs["opset"] = opset
        source = f"{what} ({domain or 'ai.onnx'} {opset})"
        return Node(node_op(domain, proto.op_type), unique, inputs, outputs, attrs, source)

    def _attributes(self, proto: onnx.NodeProto, what: str, scope: Scope) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        for a in proto.attribute:
            if a.name in attrs:
                raise CompileError(f"{what} has attribute '{a.name}' twice")
            if a.ref_attr_name:
                if a.ref_attr_name in scope.references:
                    attrs[a.name] = scope.references[a.ref_attr_name]
            elif a.type == onnx.AttributeProto.GRAPH:
                attrs[a.name] = self.subgraph(a.g, scope)
            else:
                attrs[a.name] = attribute(a, what, scope.folder)
        return attrs

    def subgraph(self, proto: onnx.GraphProto, scope: Scope) -> Graph:
        """A sub-graph; names that it does not define are of the graph around it."""
        constants = {t.name: tensor(t, f"constant '{t.name}'", scope.folder) for t in proto.initializer}
        inputs = tuple(i.name for i in proto.input)
        nodes = topological(self.nodes(proto.node, scope), {*inputs, *constants}, None)
        outputs = tuple(o.name for o in proto.output)
        return _untyped(proto.name, inputs, outputs, nodes, constants)

    def function(self, proto: onnx.FunctionProto, attrs: Mapping[str, Any], scope: Scope) -> Graph:
        """A function's body with its attributes' values put in."""
        if scope.depth > 32:
            raise CompileError(f"function '{proto.name}' calls itself, or is nested more than 32 deep")
        what = f"function '{proto.name}'"
        defaults = {a.name: attribute(a, what, scope.folder) for a in proto.attribute_proto}
        inner = Scope(
            opsets(proto.opset_import), scope.functions, scope.folder, {**defaults, **attrs}, scope.depth + 1
        )
        nodes = topological(self.nodes(proto.node, inner), set(proto.input), what)
        return _untyped(proto.name, tuple(proto.input), tuple(proto.output), nodes, {})


def _untyped(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[Node],
    constants: dict[str, Array],
) -> Graph:
    values = {n: Value(n, None, None) for n in (*inputs, *(o for node in nodes for o in node.outputs if o))}
    values |= {n: constant_value(n, a) for n, a in constants.items()}
    return Graph(name, tuple(inputs), tuple(outputs), tuple(nodes), constants, values)


def constant_value(name: str, array: Array) -> Value:
    if array.dtype == object:
        return Value(name, None, None, tensor_type(STRING, tuple(const(d) for d in array.shape)))
    return Value(name, from_numpy(array.dtype), tuple(const(d) for d in array.shape))


class _Importer:
    """One model being imported."""

    def __init__(self, read: ModelFile, shapes: dict[str, Binding]) -> None:
        model, folder = read.proto, read.folder
        self.proto, self.folder, self.shapes = model.graph, folder, shapes
        self.contents = read.contents
        functions = {(_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions}
        self.scope = Scope(opsets(model.opset_import), functions, folder)
        self.symbols = Symbols(self.shapes)

    def graph(self) -> Graph:
        constants = self._constants()
        inputs = self._inputs(constants)
        reader = NodeReader()
        nodes = topological(reader.nodes(self.proto.node, self.scope), {*inputs, *constants}, "the model")
        values: dict[str, Value] = dict(inputs)
        values |= {n: constant_value(n, a) for n, a in constants.items()}
        for node in nodes:
            values |= {o: Value(o, None, None) for o in node.outputs if o}
        outputs = self._outputs(values)
        self._check_keys(inputs)
        return Graph(
            self.proto.name, tuple(inputs), outputs, tuple(nodes), constants, values, self.symbols.ranges,
            bound={n: int(e.value) for n, e in self.symbols.names.items() if isinstance(e, Const)},
        )  # fmt: skip

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
            if s.values.name in used:
                raise CompileError(
                    f"constant '{s.values.name}' is sparse, which is not supported: store it dense"
                )
        return constants

    def _inputs(self, constants: dict[str, Array]) -> dict[str, Value]:
        unused = {t.name for t in self.proto.initializer}
        inputs: dict[str, Value] = {}
        for info in self.proto.input:
            if info.name in constants or info.name in unused:
                continue
            if info.name in inputs:
                raise CompileError(f"input '{info.name}' is declared twice")
            inputs[info.name] = self._input(info)
        return inputs

    def _input(self, info: onnx.ValueInfoProto) -> Value:
        kind = info.type.WhichOneof("value")
        what = f"input '{info.name}'"
        if kind != "tensor_type":
            return Value(info.name, None, None, type_of(info.type, what))
        declared = info.type.tensor_type
        if declared.elem_type == onnx.TensorProto.STRING:
            return Value(info.name, None, None, self._text(info))
        dtype = dtype_of(declared.elem_type, what)
        wanted = self.shapes.get(info.name)
        whole = None if wanted is None or isinstance(wanted, int) else tuple(wanted)
        if not declared.HasField("shape"):
            if whole is None:
                raise CompileError(f'{what} has no shape in the model: give shapes={{"{info.name}": (...)}}')
            sizes: list[int | str] = [d if d is not None else "" for d in whole]
        else:
            sizes = [_declared_size(d) for d in declared.shape.dim]
        if whole is not None and len(whole) != len(sizes):
            raise CompileError(f"{what} is of rank {len(sizes)}, shapes gives it {list(whole)}")
        shape: list[Expr] = []
        for i, size in enumerate(sizes):
            shape.append(self.symbols.dim(size, f"{info.name}_d{i}", whole[i] if whole else None, what))
        return Value(info.name, dtype, tuple(shape))

    def _text(self, info: onnx.ValueInfoProto) -> Type:
        """The type of an input of strings."""
        declared = info.type.tensor_type
        if not declared.HasField("shape"):
            return tensor_type(STRING, None)
        sizes = [_declared_size(d) for d in declared.shape.dim]
        names = (f"{info.name}_d{i}" for i in range(len(sizes)))
        shape = (self.symbols.dim(s, n, None, info.name) for s, n in zip(sizes, names, strict=True))
        return tensor_type(STRING, tuple(shape))

    def _outputs(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        names = tuple(o.name for o in self.proto.output)
        if not names:
            raise CompileError("the model has no outputs")
        for name in names:
            if name not in values:
                raise CompileError(f"output '{name}' of the model is computed by no node")
            if names.count(name) > 1:
                raise CompileError(f"output '{name}' of the model is listed twice")
        return names

    def _check_keys(self, inputs: Mapping[str, Value]) -> None:
        for key in self.shapes:
            if key not in inputs and key not in self.symbols.names:
                known = ", ".join((*inputs, *self.symbols.names))
                raise CompileError(f"shapes names '{key}'; the model's inputs and symbols are: {known}")


def _declared_size(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    """A fixed size, or a symbol's name ("" for a nameless one, which exporters also write as "?")."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        if dim.dim_value > MAX_SIZE:
            raise CompileError(f"a dimension of {dim.dim_value} is too large (at most {MAX_SIZE})")
        return int(dim.dim_value)
    return str(dim.dim_param) if re.search("[A-Za-z]", dim.dim_param) else ""


class Symbols:
    """The size symbols of a model: their identifiers, ranges, and what the user bound them to."""

    def __init__(self, bindings: ShapeBindings) -> None:
        self.bindings = bindings
        self.names: dict[str, Expr] = {}
        self.ranges: dict[Var, Range] = {}

    def dim(self, declared: int | str, fresh: str, wanted: Size, what: str) -> Expr:
        """One dimension of an input: `declared` by the model, `wanted` by the user."""
        if isinstance(declared, int):
            if wanted is not None and wanted != declared:
                raise CompileError(f"{what} has a fixed dimension {declared}; shapes asks for {wanted}")
            return const(declared)
        name = declared or (wanted if isinstance(wanted, str) else "") or fresh
        if name not in self.names:
            self.names[name] = self._define(name, wanted if isinstance(wanted, int) else None)
        found = self.names[name]
        if isinstance(wanted, int) and found != const(wanted):
            raise CompileError(f"{what}: shapes gives symbol {name} the sizes {found} and {wanted}")
        return found

    def _define(self, name: str, size: int | None) -> Expr:
        identifier = self._identifier(name)
        bound = self.bindings.get(name, self.bindings.get(identifier))
        if size is not None and not isinstance(bound, int):
            bound = size
        if isinstance(bound, int):
            if not 0 <= bound <= MAX_SIZE:
                raise CompileError(f"shapes gives symbol '{name}' the size {bound}")
            return const(bound)
        low, high = 1, MAX_SIZE
        if bound is not None:
            pair = tuple(bound)
            if len(pair) != 2 or not all(isinstance(b, int) for b in pair):
                raise CompileError(f"shapes['{name}'] must be a size or a (low, high) pair, not {bound}")
            low, high = int(pair[0] or 0), int(pair[1] or 0)
            if not 0 <= low <= high <= MAX_SIZE:
                raise CompileError(f"shapes['{name}'] = ({low}, {high}) is not a range of sizes")
        var = Var(identifier)
        self.ranges[var] = (const(low), const(high))
        return var

    def _identifier(self, name: str) -> str:
        """A symbol's name as the text forms can print it, and never one that the compiler makes
        itself (x0, i1, acc, ...)."""
        clean = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not clean or clean[0].isdigit() or re.fullmatch(r"[a-z]{1,2}\d+|[a-z]|acc|out", clean):
            clean = f"n_{clean}"
        taken = {v.name for v in self.ranges}
        unique, count = clean, 1
        while unique in taken:
            count += 1
            unique = f"{clean}_{count}"
        return unique
