"""Merges kernels that compute single elements from other kernels of this kind: each has one task, and a
launch takes longer than its computation."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.core import Kernel, Map, Reduce
from jangin.ir.expr import const
from jangin.ir.graph import Graph, Node
from jangin.passes.fusion.chains import merge
from jangin.passes.fusion.stages import stages
from jangin.targets.target import Target

MOST = 8
"""Most kernels that become one. A launch of its own takes longer than a scalar's work, but a kernel's compile
time grows with its stages."""


def scalars(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with kernels of single elements merged, up to `MOST` into one."""
    users, groups = graph.consumers(), list[list[Node]]()
    unread: dict[str, list[Node]] = {}  # the groups whose results no other node has read yet, by result
    for node in graph.nodes:
        read = {id(g): g for n in node.inputs if (g := unread.get(n))}.values()
        group = [*(n for g in read for n in g), node]
        for member in group[:-1]:
            del unread[member.outputs[0]]
        if not _makes_scalars(node, graph):
            continue
        if len(group) > MOST or not _stands(_joined(graph, group, users)):
            group = [node]
        else:
            for g in read:
                g.clear()
        groups.append(group)
        unread |= {n.outputs[0]: group for n in group}
    whole = {g[-1].outputs[0]: _joined(graph, g, users) for g in groups if len(g) > 1}
    gone = {n.outputs[0] for g in groups for n in g[:-1]}
    nodes = [whole.get(n.outputs[0], n) for n in graph.nodes if n.outputs[0] not in gone]
    return graph.with_nodes(nodes) if whole else graph


def _makes_scalars(kernel: Node, graph: Graph) -> bool:
    """Return whether a kernel makes one element, by maps and reductions."""
    if not isinstance(kernel.attrs, Kernel) or len(kernel.outputs) > 1:
        return False
    one = all(d == const(1) for d in graph.shape(kernel.outputs[0]))
    return one and all(isinstance(n.attrs, (Map, Reduce)) for n in kernel.attrs.body.nodes)


def _joined(graph: Graph, group: Sequence[Node], users: dict[str, list[Node]]) -> Node:
    """Return one kernel for a group, whose results are those that others read."""
    inside = {n.outputs[0] for n in group}

    def is_read(name: str) -> bool:
        return name in graph.outputs or any(inside.isdisjoint(u.outputs) for u in users.get(name, ()))

    return merge(graph, group, [n.outputs[0] for n in group if is_read(n.outputs[0])])


def _stands(kernel: Node) -> bool:
    """Return whether a kernel's last stages are its results, in order."""
    parts, _, results = stages(kernel)
    return tuple(s.out for s in parts[-len(results) :]) == results
