"""Merges the kernels that update a parameter and its optimizer's state. Each reads the gradient or what
another one has just made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.core import Kernel, Map
from jangin.ir.graph import Graph, Node
from jangin.ops.editor import kernel_node
from jangin.passes.fusion.chains import merge
from jangin.passes.fusion.stages import stages
from jangin.targets.target import Target
from jangin.templates import joint
from jangin.templates.template import Workload


def joined_updates(graph: Graph, target: Target) -> Graph:
    """Return the fused graph in which one kernel makes a parameter and the state that it is made of. All must
    be maps of one shape, and nothing else may read the state."""
    makers, users = graph.producers(), graph.consumers()
    groups: dict[str, list[Node]] = {}
    whole: dict[str, Node] = {}
    for node in graph.nodes if graph.updates else ():
        if node.outputs[0] not in graph.updates or not _is_map(node):
            continue
        state = [n for n in node.inputs if n in graph.updates and n in makers and _is_map(makers[n])]
        alone = [n for n in state if [u.outputs for u in users[n]] == [node.outputs]]
        parts = [p for n in alone for p in (*groups.get(n, ()), makers[n])]
        if parts and _fits(joint := _joint(graph, node, parts), graph, target):
            for n in alone:
                whole.pop(n, None)
            groups[node.outputs[0]], whole[node.outputs[0]] = parts, joint
    gone = {p.outputs[0] for n in whole for p in groups[n]}
    nodes = [whole.get(n.outputs[0], n) for n in graph.nodes if n.outputs[0] not in gone]
    return graph.with_nodes(nodes) if whole else graph


def _joint(graph: Graph, node: Node, parts: Sequence[Node]) -> Node:
    """Return one kernel with the results of `node` and `parts`, the last one first. Each is computed from the
    operands alone. All may then be updated in place, because each element is read before it is written."""
    chain = [*parts, node]
    makers = {n.outputs[0]: n for n in chain}
    alone = []
    for n, last in reversed([*enumerate(chain)]):
        needed, waiting = {last.outputs[0]}, [last]
        while waiting:
            more = [makers[i] for i in waiting.pop().inputs if i in makers and i not in needed]
            needed |= {m.outputs[0] for m in more}
            waiting += more
        merged = merge(graph, [m for m in chain if m.outputs[0] in needed])
        alone.append(kernel_node(_renamed(merged.of(Kernel).body, f".{n}"), merged.source))
    return merge(graph, alone, [n.outputs[0] for n in reversed(chain)])


def _renamed(body: Graph, mark: str) -> Graph:
    """Return a kernel's body whose intermediates have further names."""
    names = {n: n + mark for n in body.values if n not in {*body.inputs, *body.outputs, *body.constants}}
    nodes = tuple(
        replace(
            n,
            inputs=tuple(names.get(i, i) for i in n.inputs),
            outputs=tuple(names.get(o, o) for o in n.outputs),
        )
        for n in body.nodes
    )
    return replace(body, nodes=nodes, values={names.get(n, n): v for n, v in body.values.items()})


def _is_map(kernel: Node) -> bool:
    """Return whether a kernel makes one result by maps."""
    if not isinstance(kernel.attrs, Kernel) or len(kernel.outputs) > 1:
        return False
    return all(isinstance(n.attrs, Map) for n in kernel.attrs.body.nodes)


def _fits(kernel: Node, graph: Graph, target: Target) -> bool:
    """Return whether one loop can make all results of a kernel."""
    parts, inputs, results = stages(kernel)
    workload = Workload(kernel.name, parts, inputs, graph.symbols, (), target, len(results))
    return tuple(s.out for s in parts) == results and joint.match(workload) is not None
