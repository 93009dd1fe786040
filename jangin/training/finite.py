"""The node at which a step's numbers stop being finite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jangin.ir.graph import Array, Graph, Node
from jangin.ops.interpret import run_nodes


def is_finite(array: Array) -> bool:
    return array.dtype.kind in "iub" or bool(np.isfinite(array).all())


def first_fault(graph: Graph, feeds: Mapping[str, Array]) -> str:
    """Run a graph node by node, and describe the first node that gives NaN. If infinity went into it, name
    the first node that gave that too. Without NaN, describe the first node that gives infinity."""
    faulty = [n for n in graph.inputs if not is_finite(feeds[n])]
    if faulty:
        return f"the input {faulty[0]!r} has {_kind(feeds[faulty[0]])} already"
    infinite: dict[str, Node] = {}
    before: dict[str, set[str]] = {}
    with np.errstate(all="ignore"):
        for node, values in run_nodes(graph, feeds):
            (out, *_) = node.outputs
            before[out] = {n for i in node.inputs for n in (i, *before.get(i, ()))}
            if values[out].dtype.kind not in "iub" and np.isnan(values[out]).any():
                cause = next((n for n in infinite if n in before[out]), None)
                text = f"{_named(node)} gives NaN first"
                return (
                    text if cause is None else f"{text}, from infinity that {_named(infinite[cause])} gives"
                )
            if not is_finite(values[out]):
                infinite[out] = node
    if infinite:
        return f"{_named(next(iter(infinite.values())))} gives infinity first"
    return "no node gives it when they are run one by one: the sums that overflow are in another order there"


def _kind(array: Array) -> str:
    return "NaN" if np.isnan(array).any() else "infinity"


def _named(node: Node) -> str:
    return f"{node.source or node.op} ({node.outputs[0]!r})"
