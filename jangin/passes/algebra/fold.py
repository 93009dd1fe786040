"""Constant folding: the interpreter evaluates nodes whose inputs are all known. Nodes without elements need
no inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jangin.ir.expr import is_const
from jangin.ir.graph import Array, Graph, Node, static_shape
from jangin.ops.folding import elements, evaluated
from jangin.passes.partition import needed_symbols

SIZE_LIMIT = 1 << 24
"""Most elements of a folded result. A larger one would take memory in the model's file that a run could
compute instead."""
GROWTH_LIMIT = 1 << 12
"""Most elements of a folded result that is larger than its operands together. So many f32 take 16 KiB of the
model's file, which a saved launch is worth."""


def fold(graph: Graph) -> Graph:
    """Return the graph with nodes of constants replaced by their results."""
    constants: dict[str, Array] = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        if all(_is_empty(graph, out) for out in node.outputs):
            constants |= {out: _empty(graph, out) for out in node.outputs}
        elif _foldable(graph, node, constants):
            constants |= evaluated(node, constants, graph.values)
        else:
            nodes.append(node)
    return graph.with_nodes(nodes, constants=constants)


def _is_empty(graph: Graph, name: str) -> bool:
    return any(is_const(d, 0) for d in graph.shape(name)) and static_shape(graph.shape(name)) is not None


def _empty(graph: Graph, name: str) -> Array:
    return np.empty(static_shape(graph.shape(name)) or (), graph.dtype(name).numpy)


def _foldable(graph: Graph, node: Node, constants: Mapping[str, Array]) -> bool:
    size = elements(node, graph.values)
    if size is None or not all(n in constants for n in node.inputs):
        return False
    total = sum(constants[n].size for n in node.inputs)
    if size > SIZE_LIMIT or (size > GROWTH_LIMIT and size > total):
        return False
    return not needed_symbols(graph, node)
