"""Common sub-expression elimination: equal nodes become one node, equal constants one constant."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.graph import Array, Graph, Node

_SAMPLE = 64
"""Elements that are compared before whole constants are. Constants that differ nearly always differ among
their first elements."""


def cse(graph: Graph) -> Graph:
    """Return the graph with nodes merged that have equal operators, inputs and attributes. Constants are
    compared by content. A node that computes a result of the model keeps its name."""
    same = _equal_constants(graph.constants)
    first: dict[Hashable, Node] = {}
    nodes = []
    results = set(graph.outputs)
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(n, n) for n in node.inputs))
        seen = first.setdefault((node.op, node.inputs, frozen(node.attrs.named())), node)
        if seen is node or results.intersection(node.outputs):
            nodes.append(node)
        else:
            same |= dict(zip(node.outputs, seen.outputs, strict=True))
    return graph.with_nodes(nodes)


def frozen(value: Any) -> Hashable:
    """Return an attribute as a hashable key. 1, 1.0 and True differ, and so do 0.0 and -0.0. Arrays are
    compared by content."""
    if isinstance(value, Mapping):
        return tuple((k, frozen(v)) for k, v in sorted(value.items()))
    if isinstance(value, (tuple, list)):
        return tuple(map(frozen, value))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, (bool, int, float, np.generic)):
        return (type(value).__name__, repr(value))
    hashable: Hashable = value
    return hashable


def _equal_constants(constants: Mapping[str, Array]) -> dict[str, str]:
    """Return for each repeated constant the first constant of equal contents."""
    kinds: dict[Hashable, list[str]] = {}
    same: dict[str, str] = {}
    for name, array in constants.items():
        key = (str(array.dtype), array.shape, array.reshape(-1)[:_SAMPLE].tobytes())
        peers = kinds.setdefault(key, [])
        equal = next((p for p in peers if _identical(constants[p], array)), None)
        if equal is None:
            peers.append(name)
        else:
            same[name] = equal
    return same


def _identical(a: Array, b: Array) -> bool:
    """Return whether arrays are equal bit by bit, NaNs and signed zeros included."""
    if a is b or a.size <= _SAMPLE:
        return True
    return np.array_equal(_bytes(a), _bytes(b))


def _bytes(a: Array) -> Array:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)
