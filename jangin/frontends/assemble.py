"""Assemble and check imported graphs, and manage the size symbols of a model's inputs, for every dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jangin.frontends.order import topological
from jangin.ir.dtype import STRING, from_numpy
from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import (
    MAX_RANK,
    MAX_SIZE,
    Array,
    CompileError,
    Graph,
    ImportedAttributes,
    Node,
    Shape,
    Value,
)
from jangin.ir.own_names import marked
from jangin.ir.simplify import Range
from jangin.ir.traversal import free_vars, substitute
from jangin.ir.types import tensor_type

Size = int | str | None
ShapeBindings = Mapping[str, int | Sequence[Size]]
"""The caller's `shapes`: sizes by the name of a symbol or of an input."""


def model_graph(
    name: str,
    inputs: Sequence[Value],
    outputs: Sequence[str],
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
    symbols: Symbols,
) -> Graph:
    """Return a model's graph, with its nodes in an order in which they can run.

    Raises CompileError for a cycle, for a name that is defined twice or nowhere, and for a key of `shapes`
    that names nothing."""
    input_values = {v.name: v for v in inputs}
    known = {*input_values, *constants}
    whole = _graph(
        name, tuple(input_values), outputs, topological(nodes, known, outputs, "the model"), constants
    )
    _check_outputs(whole)
    for key in symbols.bindings:
        if key not in input_values and key not in symbols.names:
            names = ", ".join((*input_values, *symbols.names))
            remedy = "" if symbols.names else f" (all its sizes are fixed, so leave '{key}' out)"
            raise CompileError(
                f"shapes has '{key}', which is none of the model's inputs and symbols: {names}{remedy}"
            )
    return replace(
        whole,
        values={**whole.values, **input_values},
        symbols=symbols.ranges,
        bound={n: int(e.value) for n, e in symbols.names.items() if isinstance(e, Const)},
    )


def body_graph(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
    where: str | None = None,
) -> Graph:
    """Return a graph inside another graph: a sub-graph, which may read outer values, or a function with its
    own names.

    `where` is a function's name in messages, and None for a sub-graph."""
    ordered = topological(nodes, {*inputs, *constants}, outputs, where)
    return _graph(name, inputs, outputs, ordered, constants)


def with_sizes(graph: Graph, known: Mapping[Var, Expr]) -> Graph:
    """Return an imported graph whose symbols are replaced by other sizes."""

    def sized(shape: Shape | None) -> Shape | None:
        return None if shape is None else tuple(substitute(d, known) for d in shape)

    def of(value: Value) -> Value:
        kind = value.type and replace(value.type, shape=sized(value.type.shape))
        return replace(value, shape=sized(value.shape), type=kind)

    others = {v: limits for v, limits in graph.symbols.items() if v not in known}
    values = {n: of(v) for n, v in graph.values.items()}
    nodes = tuple(replace(n, attrs=substituted(n.of(ImportedAttributes), known)) for n in graph.nodes)
    return replace(graph, values=values, nodes=nodes, symbols=others)


def substituted(attrs: ImportedAttributes, known: Mapping[Var, Expr]) -> ImportedAttributes:
    """Return a node's attributes with symbols replaced by sizes."""
    if not known:
        return attrs
    return ImportedAttributes(attrs.key, {k: _within(v, known) for k, v in attrs.items()})


def _within(value: Any, known: Mapping[Var, Expr]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_within(v, known) for v in value)
    if isinstance(value, Expr) and free_vars(value) & known.keys():
        return substitute(value, known)
    if isinstance(value, Graph):
        nodes = (replace(n, attrs=substituted(n.of(ImportedAttributes), known)) for n in value.nodes)
        return replace(value, nodes=tuple(nodes))
    return value


def _graph(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
) -> Graph:
    values = {n: Value(n, None, None) for n in inputs}
    values |= {n: _constant_value(n, a) for n, a in constants.items()}
    values |= {o: Value(o, None, None) for node in nodes for o in node.outputs if o}
    return Graph(name, tuple(inputs), tuple(outputs), tuple(nodes), constants, values)


def _constant_value(name: str, array: Array) -> Value:
    shape = tuple(const(d) for d in array.shape)
    if array.dtype == object:
        return Value(name, None, None, tensor_type(STRING, shape))
    return Value(name, from_numpy(array.dtype), shape)


def _check_outputs(graph: Graph) -> None:
    if not graph.outputs:
        raise CompileError("the model has no outputs")
    for name in graph.outputs:
        if name not in graph.values:
            raise CompileError(f"output '{name}' of the model is computed by no node")
        if graph.outputs.count(name) > 1:
            raise CompileError(f"output '{name}' of the model is listed twice")


class Symbols:
    """The size symbols of a model: their variables, their ranges and the user's bindings. `limits` has the
    model's own ranges of its symbols."""

    def __init__(self, bindings: ShapeBindings, limits: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.bindings = bindings
        self.limits = limits or {}
        self.names: dict[str, Expr] = {}
        self.ranges: dict[Var, Range] = {}

    def shape(self, name: str, declared: Sequence[int | str | Expr] | None) -> Shape | None:
        """Return the shape of the input `name`, with the user's sizes in place of the model's symbols.

        `declared` has the model's sizes: numbers, symbols' names ("" for a nameless size), or expressions of
        symbols. It is None if the model declares no shape. The result is None if the user gives no shape
        either. Raises CompileError if the user's sizes contradict the model's."""
        wanted = self.bindings.get(name)
        whole = None if wanted is None or isinstance(wanted, int) else tuple(wanted)
        if declared is None and whole is None:
            return None
        sizes = ["" if d is None else d for d in whole or ()] if declared is None else [*declared]
        if len(sizes) > MAX_RANK:
            raise CompileError(f"input '{name}' has {len(sizes)} axes; a tensor has {MAX_RANK} at most")
        if whole is not None and len(whole) != len(sizes):
            raise CompileError(f"input '{name}' is of rank {len(sizes)}, shapes gives it {list(whole)}")
        return tuple(
            self._dim(size, f"{name}_d{i}", whole[i] if whole else None, f"input '{name}'")
            for i, size in enumerate(sizes)
        )

    def _dim(self, declared: int | str | Expr, fresh: str, wanted: Size, what: str) -> Expr:
        """Return one dimension of an input, declared by the model and possibly fixed or named by the user
        (`wanted`). A nameless size gets the name `fresh`."""
        if isinstance(declared, Expr):
            size = substitute(declared, {v: self._symbol(v.name) for v in free_vars(declared)})
            if isinstance(wanted, int) and size != const(wanted):
                raise CompileError(f"{what} has a dimension {size}; shapes asks for {wanted}")
            return size
        if isinstance(declared, int):
            if not 0 <= declared <= MAX_SIZE:
                raise CompileError(f"{what} has a dimension of {declared}; sizes are from 0 to {MAX_SIZE}")
            if wanted is not None and wanted != declared:
                raise CompileError(f"{what} has a fixed dimension {declared}; shapes asks for {wanted}")
            return const(declared)
        name = declared or (wanted if isinstance(wanted, str) else "") or fresh
        extent = self._symbol(name, wanted if isinstance(wanted, int) else None)
        if isinstance(wanted, int) and extent != const(wanted):
            raise CompileError(f"{what}: shapes gives symbol {name} the sizes {extent} and {wanted}")
        return extent

    def _symbol(self, name: str, size: int | None = None) -> Expr:
        """Return the symbol of a name, or its size if `shapes` or `size` fixes the symbol."""
        if name not in self.names:
            self.names[name] = self._define(name, size)
        return self.names[name]

    def _define(self, name: str, size: int | None) -> Expr:
        bound = self.bindings.get(name)
        if size is not None and not isinstance(bound, int):
            bound = size
        if isinstance(bound, int):
            if not 0 <= bound <= MAX_SIZE:
                raise CompileError(f"shapes gives symbol '{name}' the size {bound}")
            return const(bound)
        low, high = self.limits.get(name, (0, MAX_SIZE))
        if bound is not None:
            pair = tuple(bound)
            if len(pair) != 2 or not all(isinstance(b, int) for b in pair):
                raise CompileError(f"shapes['{name}'] must be a size or a (low, high) pair, not {bound}")
            low, high = int(pair[0] or 0), int(pair[1] or 0)
            if not 0 <= low <= high <= MAX_SIZE:
                raise CompileError(f"shapes['{name}'] = ({low}, {high}) is not a range of sizes")
        var = marked(name)
        self.ranges[var] = (const(low), const(high))
        return var
