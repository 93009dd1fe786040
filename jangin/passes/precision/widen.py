"""Computes products of floats smaller than f32, and the operators after them, in f32.

Each operand is widened once, at its producer, and not again at every multiply-add. A result is rounded to 16
bits only for the model's own outputs, or for operators that stay at 16 bits. The results are closer to
unrounded numbers than the model's own types give, and agree with ONNX Runtime on processors. Operators that
follow no product stay at 16 bits: memory bounds them, and they move half the bytes.

Products that a machine makes of pairs (see `bf16`) read 16-bit operands, as the model says. Such an operand
is rounded at its producer, so all its readers read the rounded value. Operators that move, pool, join or
normalize it give 16 bits too. The sums of these products are f32.

Constants are widened too. `halves` keeps them at 16 bits after all if products read panels of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jangin.ir.core import (
    Concat,
    Conv,
    Expand,
    Gather,
    Map,
    MatMul,
    Normalize,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from jangin.ir.dtype import BF16, F16, F32, F64, DType
from jangin.ir.expr import Cast, Const, Expr, Var, cast, const
from jangin.ir.graph import Graph, Node
from jangin.ir.sources import Sources
from jangin.ir.traversal import rewrite, walk
from jangin.ops.editor import Editor
from jangin.passes.algebra.dce import dce

HALVES = (F16, BF16)
"""The types whose arithmetic is done in f32."""
MOVES = (Transpose, Reshape, Slice, Expand)
"""Operators that only move elements. Their operands are widened, so that products still read through them."""
ALIKE = (*MOVES, Concat, Pad, Pool, Reduce, Softmax, Normalize)
"""Operators whose result has their operands' type."""
STAYING = (*MOVES, Concat, Pad, Pool, Normalize)
"""Operators that read 16 bits if products of pairs read their results."""


def widen(graph: Graph) -> Graph:
    """Return the graph with its products of small floats, and the operators after them, made of widened
    operands."""
    if not any(_is_small(node, graph) for node in graph.nodes):
        return graph
    run = _Widening(graph)
    for node in graph.nodes:
        run.visit(node)
    for name in graph.outputs:
        run.rounded(name)
    return dce(run.rewritten(graph))


def _is_small(node: Node, graph: Graph) -> bool:
    if not isinstance(node.attrs, (Conv, MatMul)):
        return False
    types = [graph.dtype(n) for n in node.inputs]
    return all(t.wide is F32 for t in types) and any(t is not F32 for t in types)


def _kept(graph: Graph) -> set[str]:
    """Return the 16-bit values that products of pairs read, and the values from which operators of `STAYING`
    make these."""
    kept: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.attrs, (Conv, MatMul)) and node.attrs.dot:
            kept.update(n for n in node.inputs if n not in graph.constants)
        elif isinstance(node.attrs, STAYING) and node.outputs[0] in kept:
            kept.update(node.inputs)
    return {n for n in kept if graph.dtype(n) in HALVES}


class _Widening(Editor):
    """One run. `wide`: f32 twins of values. `waiting`: values of which only the twin exists. `kept`: values
    whose twins aren't read."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.producers, self.users = graph, graph.producers(), graph.consumers()
        self.wide: dict[str, str] = {}
        self.waiting: dict[str, DType] = {}
        self.kept = _kept(graph)

    def visit(self, node: Node) -> None:
        if not (self.product(node) or self.follower(node)):
            for name in node.inputs:
                self.rounded(name)
            self.emit(node)

    def product(self, node: Node) -> bool:
        """Compute a product of small floats from widened operands. Return False, with nothing done, for other
        nodes."""
        if not _is_small(node, self.graph):
            return False
        assert isinstance(node.attrs, (Conv, MatMul))
        if node.attrs.dot:
            own = replace(node.attrs, dtype=F32)
            if self.dtype(node.outputs[0]) is F32:
                self.emit(replace(node, attrs=own))
            else:
                self.twin_of(node, self.add(own, node.inputs, *self.named(node)))
            return True
        inputs = [self.widened(n) for n in node.inputs]
        if self.dtype(node.outputs[0]) is F32:
            self.emit(replace(node, inputs=tuple(inputs)))
        else:
            attrs = replace(node.attrs, dtype=None)
            if isinstance(attrs, Conv):
                attrs = replace(attrs, halves=self.dtype(node.inputs[1]) in HALVES)
            self.twin_of(node, self.add(attrs, inputs, *self.named(node)))
        return True

    def follower(self, node: Node) -> bool:
        """Compute a float operator that reads widened values in f32. Return False, with nothing done, for
        other nodes."""
        small = [n for n in node.inputs if n and self.dtype(n) in HALVES]
        stays = isinstance(node.attrs, Map) and node.outputs[0] in self.kept
        if not stays and not any(n in self.wide for n in small):
            return False
        if isinstance(node.attrs, Map):
            return self.map(node, small)
        moved = node.inputs[:1] if isinstance(node.attrs, Gather) else node.inputs
        if not isinstance(node.attrs, (*ALIKE, Gather)) or not all(n in self.wide for n in moved):
            return False
        inputs = [self.wide.get(n, n) for n in node.inputs]
        self.twin_of(node, self.add(node.attrs, inputs, *self.named(node)))
        return True

    def map(self, node: Node, small: Sequence[str]) -> bool:
        (out,), body = node.outputs, node.of(Map).body
        dtype, types = self.dtype(out), {self.dtype(n) for n in small}
        rounded = {e.dtype for e in walk(body) if e.dtype.is_float} - {F32, F64}
        if not (dtype in types or dtype in (F32, F64)) or len(types | rounded) > 1:
            return False
        inputs = [self.widened(n) if n in small else n for n in node.inputs]
        body = in_f32(body)
        if dtype in types:
            self.twin_of(node, self.add(Map(body), inputs, *self.named(node)))
        else:
            self.emit(replace(node, inputs=tuple(inputs), attrs=Map(body)))
        return True

    def named(self, node: Node) -> tuple[str, Sources]:
        """Return the name of a node's twin, and its source."""
        return f"{node.outputs[0]}.wide", node.source

    def twin_of(self, node: Node, wide: str) -> None:
        (out,) = node.outputs
        self.wide[out], self.waiting[out] = wide, self.dtype(out)
        if out in self.kept:
            self.rounded(out)
            del self.wide[out]

    def rounded(self, name: str) -> None:
        """Make the 16-bit value `name` if only its f32 twin exists so far."""
        dtype = self.waiting.pop(name, None)
        if dtype is not None:
            wide = self.wide[name]
            self.emit(
                Node(
                    name, (wide,), (name,), Map(cast(dtype, Var("x0", F32))), Sources.of(f"{dtype} of {wide}")
                )
            )

    def widened(self, name: str) -> str:
        """Return the value's f32 twin, which is made at its first use."""
        if self.dtype(name) is F32:
            return name
        if name in self.kept:
            return self.twin(name)
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
        return self.add(
            Map(cast(F32, Var("x0", self.dtype(name)))), [name], hint, Sources.of(f"f32 of {name}")
        )


def in_f32(body: Expr) -> Expr:
    """Return a map's body with all 16-bit arithmetic in f32, without roundings."""

    def wide(e: Expr) -> Expr | None:
        match e:
            case Var(dtype=dtype) if dtype in HALVES:
                return Var(e.name, F32)
            case Const(dtype=dtype, value=value) if dtype in HALVES:
                return const(value, F32)
            case Cast(dtype=dtype, a=a) if dtype in HALVES:
                return cast(F32, a)
        return None

    return rewrite(body, wide)
