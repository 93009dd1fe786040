"""Replaces chains of maps on 8-bit numbers by one table lookup.

Between two quantizations lie functions of one number that has at most 256 values. The parts of GELU are an
example, each rounded to 8 bits again. The interpreter evaluates them for all values while compiling.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jangin.ir.core import Gather, Map
from jangin.ir.dtype import I64, U8
from jangin.ir.expr import Var, cast, const
from jangin.ir.graph import Array, Graph, Node, Value
from jangin.ops.editor import Editor
from jangin.ops.folding import evaluated
from jangin.passes.algebra.dce import dce
from jangin.passes.fusion.fuse import producer_class
from jangin.targets.target import Target
from jangin.templates.cost import arithmetic

LOOKED_UP = 32.0
"""Vector instructions that take as long as gathering a vector of table elements, lane by lane. They are some
four for each of eight lanes: its index is taken out, and its element loaded, converted and inserted."""


def lookups(graph: Graph, target: Target) -> Graph:
    """Return the graph with a table lookup instead of each chain of maps on 8-bit numbers that takes longer
    than the lookup."""
    return _Lookups(graph).run()


class _Lookups(Editor):
    """One run. `origin`: the 8-bit value that a value is a function of. `work`: vector instructions of this
    function. `made`: the function's values for all 8-bit numbers."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.producers, self.users = graph, graph.producers(), graph.consumers()
        self.origin: dict[str, str] = {}
        self.work: dict[str, float] = {}
        self.made: dict[str, Array] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if isinstance(node.attrs, Map):
                self.follow(node)
        last = (self.narrowest(name) for name in self.origin if self.is_last(name))
        tabulated = {name for name in last if self.work.get(name, 0.0) > LOOKED_UP}
        if not tabulated:
            return self.graph
        for node in self.graph.nodes:
            self.emit(self.lookup(node) if node.outputs[0] in tabulated else node)
        return dce(self.rewritten(self.graph))

    def follow(self, node: Node) -> None:
        """Record the 8-bit value of which the node's result is a function, if all its operands are functions
        of one."""
        (out,), parts = node.outputs, self.operands(node)
        origins = {self.origin.get(n, n) for n in parts}
        if len(origins) != 1:
            return
        (origin,) = origins
        small = self.dtype(origin).is_int and self.dtype(origin).bits == 8
        if small and self.shape(origin) == self.shape(out):
            self.origin[out] = origin
            self.work[out] = arithmetic(node.of(Map).body) + sum(self.work.get(n, 0.0) for n in parts)

    def operands(self, node: Node) -> set[str]:
        """Return the node's operands without constants of one element."""
        return {n for n in node.inputs if n not in self.constants or self.constants[n].size != 1}

    def is_last(self, name: str) -> bool:
        """Return whether the value is a result of the model, or a node that isn't a function of the same
        origin reads it."""
        own, users = self.origin[name], self.users.get(name, ())
        return name in self.graph.outputs or any(self.origin.get(n.outputs[0]) != own for n in users)

    def narrowest(self, name: str) -> str:
        """Return the value, or the 8-bit operand of the cheap widening map that makes it.

        8-bit results are a quarter of the bytes, and an instruction looks up several times as many of them at
        once.
        """
        node = self.producers[name]
        few = len(node.inputs) == 1 and self.dtype(node.inputs[0]).bits == 8
        return node.inputs[0] if few and producer_class(node) == "widening" else name

    def lookup(self, node: Node) -> Node:
        (out,), values = node.outputs, self.values_of(node.outputs[0])
        places = self.origin[out]
        if least := self.dtype(places).limits[0]:  # in the order of the places' bits as u8
            values = np.roll(values, least)
            body = cast(I64, cast(U8, Var("x0", self.dtype(places))))
            places = self.add(Map(body), [places], f"{out}.places")
        table = self.constant(values, f"{out}.table")
        return replace(node, inputs=(table, places), attrs=Gather(0))

    def values_of(self, name: str) -> Array:
        """Return the function's values for all values of its origin, from the least on."""
        if name in self.constants:
            return self.constants[name].reshape(1)
        if name not in self.origin:
            low, high = self.dtype(name).limits
            return np.arange(low, high + 1).astype(self.dtype(name).numpy)
        if name not in self.made:
            node = self.producers[name]
            arrays = {n: self.values_of(n) for n in node.inputs}
            values = {n: Value(n, self.dtype(n), (const(a.size),)) for n, a in arrays.items()}
            values[name] = Value(name, self.dtype(name), (const(max(a.size for a in arrays.values())),))
            self.made[name] = evaluated(node, arrays, values)[name]
        return self.made[name]
