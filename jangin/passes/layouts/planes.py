"""Chooses the convolutions and pools that stay channels-first (NCHW).

These are few neighbours between operators that keep their order; copies to channels-last and back would cost
more than they gain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from jangin.ir.core import Conv, Pad, Pool, Transpose
from jangin.ir.expr import Buffer
from jangin.ir.graph import Graph, Node
from jangin.ops.core import core_op
from jangin.passes.fusion.stages import simplified
from jangin.targets.target import Target
from jangin.templates import planes
from jangin.templates.choose import candidates
from jangin.templates.template import Workload

FEW = 4
"""Most convolutions and pools of a connected part for which copies are estimated. In larger parts, most nodes
read channels-last results of others, and all become channels-last."""

Rewrite = Callable[[Graph, Collection[str]], Graph]


def in_planes(graph: Graph, target: Target, follow: Collection[str], rewrite: Rewrite) -> set[str]:
    """Return the names of the convolutions and pools that stay channels-first.

    `follow`: operators that follow their operands' order. `rewrite`: a function that returns a graph made
    channels-last, except for the named nodes.
    """
    kept: set[str] = set()
    for nodes in _parts(graph, follow):
        windows = [n for n in nodes if isinstance(n.attrs, (Conv, Pool))]
        if any(isinstance(n.attrs, Conv) and n.attrs.dot for n in windows):  # paired terms are channels
            continue
        names = {n.name for n in windows}
        if len(windows) > FEW or any(planes.match(_workload(n, graph, target)) is None for n in windows):
            continue
        part = _graph_of(graph, nodes)
        if _seconds(rewrite(part, names), target) < _seconds(rewrite(part, ()), target):
            kept |= names
    return kept


def _parts(graph: Graph, follow: Collection[str]) -> list[list[Node]]:
    """Return the nodes of each connected part of convolutions, pools and the operators that follow their
    order."""
    part: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op not in follow:
            continue
        met = list({id(part[n]): part[n] for n in node.inputs if n in part}.values())
        if not met and not isinstance(node.attrs, (Conv, Pool)):
            continue
        joined = max(met, key=len, default=[])
        for other in met:
            if other is not joined:
                joined += other
                part |= dict.fromkeys((o for n in other for o in n.outputs), joined)
        joined.append(node)
        part |= dict.fromkeys(node.outputs, joined)
    return list({id(nodes): nodes for nodes in part.values()}.values())


def _graph_of(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Return the nodes as a graph of their own."""
    names = {n.name for n in nodes}
    inside = [n for n in graph.nodes if n.name in names]
    outputs_inside = {o for n in inside for o in n.outputs}
    read = dict.fromkeys(i for n in inside for i in n.inputs if i)
    users = graph.consumers()
    outputs = [
        o for o in outputs_inside if o in graph.outputs or any(u.name not in names for u in users.get(o, ()))
    ]
    constants = {n: graph.constants[n] for n in read if n in graph.constants}
    inputs = tuple(n for n in read if n not in outputs_inside and n not in constants)
    values = {n: graph.values[n] for n in (*read, *outputs_inside)}
    return Graph(graph.name, inputs, tuple(outputs), tuple(inside), constants, values, graph.symbols)


def _seconds(graph: Graph, target: Target) -> float:
    """Return the estimated seconds of a graph's convolutions, pools and copies, on one thread."""
    nodes = (n for n in graph.nodes if isinstance(n.attrs, (Conv, Pool, Pad, Transpose)))
    return sum(candidates(_workload(n, graph, target))[0][1] for n in nodes)


def _workload(node: Node, graph: Graph, target: Target) -> Workload:
    """Return the node as a kernel of its own."""
    out, inputs = (
        [Buffer(n, graph.dtype(n), graph.shape(n)) for n in names] for names in (node.outputs, node.inputs)
    )
    own = core_op(node).te(inputs, out[0], node.attrs)
    stages = tuple(simplified(s, graph.symbols) for s in own)
    held = [n for n in node.inputs if n in graph.constants]
    return Workload(node.name, stages, tuple(inputs), graph.symbols, held, target)
