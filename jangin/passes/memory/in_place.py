"""Concatenations and slices in place, which move no bytes.

Operands of an in-place concatenation are written directly into its result. `fuse` gives the concatenation a
kernel to itself, and this pass removes the copying kernel. A slice that kernels read needs no memory of its
own either. Both stay in the graph as core operators; `passes.memory.views` gives the places of their values.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from jangin.ir.core import Concat, CoreAttributes, Kernel, Map, Slice
from jangin.ir.expr import Var
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ops.core import CORE
from jangin.ops.editor import Editor

HALF = 0.5
"""A concatenation is made in place if at least this share of its elements needs no copy. With less, most
elements would be copied anyway, by several kernels instead of one."""


def in_place_concats(graph: Graph) -> frozenset[str]:
    """Return the results of the concatenations of a core graph whose operands can be written in place, for at
    least half of the elements.

    The kernels that make these elements write them into the result.
    """
    names: set[str] = set()
    written: set[str] = set()
    operands = _Operands(graph)
    for node in graph.nodes:
        name = node.outputs[0]
        if isinstance(node.attrs, Concat) and operands.gain(node, written) >= HALF:
            operands.take(node, written)
            names.add(name)
            written.add(name)
        elif _is_written(graph, node, written):
            written.add(name)
    return frozenset(names)


def _is_written(graph: Graph, node: Node, written: Set[str]) -> bool:
    """Return whether a kernel stores the node's result: the node is an anchor, or a map in an anchor's
    epilogue."""
    if isinstance(node.attrs, Map):
        shape = graph.shape(node.outputs[0])
        return any(n in written and graph.shape(n) == shape for n in node.inputs)
    return node.op not in CORE or CORE[node.op].kind not in ("injective", "alias")


class _Operands:
    """The operands of concatenations, and which of them may be written directly into the result. An operand
    may if it isn't part of another concatenation, and if neither a reshape nor the caller reads it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.taken: set[str] = set()
        users = graph.consumers()
        self.kept = {n for n, nodes in users.items() if any(u.op == "reshape" for u in nodes)}
        self.kept.update(graph.outputs)

    def fits(self, node: Node, name: str, written: Set[str]) -> bool:
        free = name in written and name not in self.taken and name not in self.kept
        return free and node.inputs.count(name) == 1

    def gain(self, node: Node, written: Set[str]) -> float:
        """Return the share of a concatenation's elements that kernels can write directly into its result.
        `written` has the values that kernels store. Return 0 if sizes aren't known."""
        axis = node.of(Concat).axis
        sizes = static_shape(tuple(self.graph.shape(n)[axis] for n in node.inputs))
        if not sizes or not sum(sizes):
            return 0.0
        fitting = (k for n, k in zip(node.inputs, sizes, strict=True) if self.fits(node, n, written))
        return sum(fitting) / sum(sizes)

    def take(self, node: Node, written: Set[str]) -> None:
        self.taken.update(n for n in node.inputs if self.fits(node, n, written))


def in_place(graph: Graph) -> Graph:
    """Return the fused graph with concatenations and slices in place instead of kernels that only copy.

    These kernels only join results of kernels, or only cut an operand of kernels. An operand that can't be
    written in place is copied.
    """
    return _slices(_concats(graph))


def _concats(graph: Graph) -> Graph:
    editor, operands = Editor(graph.symbols, graph.values, graph.constants), _Operands(graph)
    written: set[str] = set()
    for kernel in graph.nodes:
        node = _alone(kernel, Concat)
        if node is None or operands.gain(node, written) < HALF:
            editor.emit(kernel)
            written.update(kernel.outputs if isinstance(kernel.attrs, Kernel) else ())
            continue
        inputs = []
        for n, name in enumerate(node.inputs):
            if not operands.fits(node, name, written):
                dtype, shape = editor.typed(name)
                copied = editor.declare(f"{node.outputs[0]}.part{n}", dtype, shape)
                editor.emit(editor.kernel(Map(Var("x0", dtype)), (name,), copied, kernel.source))
                written.add(copied)
                name = copied
            inputs.append(name)
        node = replace(node, inputs=tuple(inputs), source=kernel.source)
        operands.take(node, written)
        written.update(node.outputs)
        editor.emit(node)
    return editor.rewritten(graph)


def _slices(graph: Graph) -> Graph:
    users = graph.consumers()
    nodes = []
    for kernel in graph.nodes:
        node = _alone(kernel, Slice)
        if node is not None and node.inputs[0] not in graph.constants:
            (out,) = node.outputs
            read = all(isinstance(u.attrs, Kernel) for u in users.get(out, ())) and out not in graph.outputs
            if read and _is_plain(node.of(Slice)):
                kernel = replace(node, source=kernel.source)
        nodes.append(kernel)
    return graph.with_nodes(nodes)


def _is_plain(cut: Slice) -> bool:
    """Return whether a slice takes consecutive elements, from constant starts on."""
    return static_shape(cut.starts) is not None and all(t == 1 for t in cut.steps)


def _alone(kernel: Node, operator: type[CoreAttributes]) -> Node | None:
    """Return the kernel's only node if it is of this operator and reads only the kernel's operands, else
    None."""
    body = kernel.attrs.body if isinstance(kernel.attrs, Kernel) else None
    if body is None or body.constants or len(body.nodes) != 1:
        return None
    (node,) = body.nodes
    return node if isinstance(node.attrs, operator) else None
