"""Dead code elimination: drops nodes, values and constants that no output depends on."""

from __future__ import annotations

from jangin.ir.graph import Graph


def dce(graph: Graph) -> Graph:
    """Return the graph without the parts that its outputs and checks don't need. Unused inputs stay."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs) or node.attrs.lasting:
            kept.append(node)
            needed.update(node.inputs)
    return graph.with_nodes(kept[::-1])
