"""Constant folding: nodes whose inputs are all known are evaluated by the interpreter, and those of
no elements need no input at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jangin.ir.expr import Expr, Var, free_vars, is_const
from jangin.ir.graph import Array, Graph, Node, static_shape
from jangin.ir.interpret import run_graph
from jangin.te import Stage

SIZE_LIMIT = 1 << 24
"""Most elements that a folded result may have."""
GROWTH_LIMIT = 1 << 12
"""Most elements that may be folded where the result is larger than what it is made of."""


def fold(graph: Graph) -> Graph:
    """The graph with nodes of constants replaced by their results."""
    constants: dict[str, Array] = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        if all(_is_empty(graph, out) for out in node.outputs):
            constants |= {out: _empty(graph, out) for out in node.outputs}
        elif _foldable(graph, node, constants):
            constants |= _evaluate(graph, node, constants)
        else:
            nodes.append(node)
    return graph.with_nodes(nodes, constants=constants)


def _is_empty(graph: Graph, name: str) -> bool:
    return any(is_const(d, 0) for d in graph.shape(name)) and static_shape(graph.shape(name)) is not None


def _empty(graph: Graph, name: str) -> Array:
    return np.empty(static_shape(graph.shape(name)) or (), graph.dtype(name).numpy)


def _foldable(graph: Graph, node: Node, constants: Mapping[str, Array]) -> bool:
    if not all(n in constants for n in node.inputs):
        return False
    size = 0
    for out in node.outputs:
        shape = static_shape(graph.shape(out))
        if shape is None:
            return False
        size += int(np.prod(shape))
    given = sum(constants[n].size for n in node.inputs)
    if size > SIZE_LIMIT or (size > GROWTH_LIMIT and size > given):
        return False
    return not graph.symbols or (
        node.op != "loop_nest" and graph.symbols.keys().isdisjoint(_variables(node.attrs))
    )


def _variables(value: Any) -> Iterator[Var]:
    """Every variable that an attribute's expressions mention."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _variables(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _variables(item)
    elif isinstance(value, Expr):
        yield from free_vars(value)
    elif isinstance(value, Stage):
        yield from _variables((value.body, value.epilogue, value.out.shape))
        yield from _variables(tuple(a.extent for a in value.reduce_axes))


def _evaluate(graph: Graph, node: Node, constants: Mapping[str, Array]) -> dict[str, Array]:
    used = {n: constants[n] for n in node.inputs}
    values = {n: graph.values[n] for n in (*node.inputs, *node.outputs)}
    return run_graph(Graph("fold", (), node.outputs, (node,), used, values), {})
