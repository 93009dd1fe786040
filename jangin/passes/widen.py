"""Products of floats smaller than f32 as products of f32: each operand is widened once, where it is made,
and not again at every multiply-add. Sums were kept in f32 before and are rounded where they were, so a result
keeps its bits; but as products of f32 they may become Winograd's (see `winograd`).

Constant weights take twice the memory, and so does what a product reads. Weights that are read for a single
row are left as they are: as many are widened as are multiplied, and half as many bytes come from memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from jangin.ir.core import Conv, Expand, Map, MatMul, Reshape, Slice, Transpose
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, cast
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ops.editor import Editor
from jangin.passes.dce import dce

MOVES = (Transpose, Reshape, Slice, Expand)
"""Operators that only move elements: what they move is widened, so that products still read through them."""


def widen(graph: Graph) -> Graph:
    """The graph with its products of small floats, and no others, made of widened operands."""
    if not any(_is_small(node, graph) for node in graph.nodes):
        return graph
    run = _Widening(graph)
    for node in graph.nodes:
        run.visit(node)
    return dce(run.rewritten(graph))


def _is_small(node: Node, graph: Graph) -> bool:
    if not isinstance(node.attrs, (Conv, MatMul)):
        return False
    types = [graph.dtype(n) for n in node.inputs]
    return all(t.wide is F32 for t in types) and any(t is not F32 for t in types)


class _Widening(Editor):
    """One run: `wide` has the f32 twins there are."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.producers, self.users = graph, graph.producers(), graph.consumers()
        self.wide: dict[str, str] = {}

    def visit(self, node: Node) -> None:
        attrs, (out,) = node.attrs, node.outputs
        if not isinstance(attrs, (Conv, MatMul)) or not _is_small(node, self.graph):
            self.emit(node)
            return
        x, w = node.inputs
        inputs = (self.widened(x), w if self.is_row(node) else self.widened(w))
        dtype = self.dtype(out)
        if dtype is F32:
            self.emit(replace(node, inputs=inputs))
            return
        sums = self.add(replace(attrs, dtype=None), inputs, f"{out}.wide", node.source)
        self.emit(Node(out, (sums,), (out,), Map(cast(dtype, Var("x0", F32))), f"{dtype} of {sums}"))

    def is_row(self, node: Node) -> bool:
        """Whether a product reads constant weights for one row alone."""
        shape = static_shape(self.shape(node.outputs[0])[:-1])
        constant = node.inputs[1] in self.graph.constants
        return isinstance(node.attrs, MatMul) and constant and shape is not None and math.prod(shape) == 1

    def widened(self, name: str) -> str:
        """The value's f32 twin, which is made where it is first asked for."""
        if self.dtype(name) is F32:
            return name
        if name not in self.wide:
            self.wide[name] = self.twin(name)
        return self.wide[name]

    def twin(self, name: str) -> str:
        hint, producer = f"{name}.wide", self.producers.get(name)
        if name in self.graph.constants:
            return self.constant(np.asarray(self.constants[name], F32.numpy), hint)
        once = len(self.users.get(name, ())) == 1 and name not in self.graph.outputs
        if producer is not None and once and isinstance(producer.attrs, MOVES):
            return self.add(producer.attrs, [self.widened(producer.inputs[0])], hint, producer.source)
        return self.add(Map(cast(F32, Var("x0", self.dtype(name)))), [name], hint, f"f32 of {name}")
