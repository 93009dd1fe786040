"""The check that a device has a model's types, before any kernel is made."""

from __future__ import annotations

from collections.abc import Iterator

from jangin.ir.core import Kernel
from jangin.ir.dtype import F64, DType
from jangin.ir.graph import CompileError, Graph, Node
from jangin.targets.target import Target


def require_types(graph: Graph, target: Target) -> Graph:
    """Return the graph unchanged. Raises CompileError, which names the nodes with a type that the device
    lacks."""
    if target.has("fp64"):
        return graph
    lacking = [n for n in graph.nodes if any(d is F64 for d in _types(n, graph))]
    if not lacking:
        return graph
    named = "; ".join(str(n.source or n.name) for n in lacking)
    raise CompileError(
        f"{target.name} has no numbers of 64 bits (float64), in which these nodes compute: {named}; cast "
        "them to float32 in the model, or compile it for another device"
    )


def _types(node: Node, graph: Graph) -> Iterator[DType]:
    """Return the types of a node's results, and of the values inside a kernel."""
    values = [graph.value(n) for n in node.outputs]
    if isinstance(node.attrs, Kernel):
        values += node.attrs.body.values.values()
    return (v.dtype for v in values if v.dtype is not None)
