"""Decides which sizes that a model calls by one name are one size.

ONNX Runtime takes a name only for a hint: inputs may differ in the size that they both call N. Each input
therefore gets a symbol of its own, unless a node needs the sizes to be equal. In that case an error at run
time names the node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from jangin.frontends.assemble import with_sizes
from jangin.frontends.dialect import Imported, Place
from jangin.ir.core import IfStep, LoopStep
from jangin.ir.expr import Binary, Var
from jangin.ir.graph import CompileError, Graph
from jangin.ir.own_names import marked, own_name
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars
from jangin.passes.partition import has_steps, needed_symbols, partition


def settled(imported: Imported, lower: Callable[[Imported], Graph]) -> Imported:
    """Return the model, in which inputs share a symbol only if its nodes need equal sizes. `lower` is called
    for the model with a symbol for each input's axis, which shows what the nodes need."""
    apart = _Apart(imported.graph, imported.hints)
    if not apart.places:
        return imported
    try:
        needs = [*_needs(lower(replace(imported, graph=apart.graph)))]
    except CompileError:  # sizes with symbols of their own may be the reason
        return imported
    for symbols, source in needs:
        apart.join(symbols, source)
    return replace(imported, graph=apart.joined())


def _needs(graph: Graph) -> Iterator[tuple[frozenset[Var], Sources]]:
    """Yield each set of symbols that an equation in a lowered graph relates, with the node that needs the
    equation. Symbols of one name within a set must be equal.

    All symbols of a branch or a loop form a set as well. Otherwise the sizes of its results would depend on
    data."""
    for node in graph.nodes:
        if isinstance(node.attrs, (IfStep, LoopStep)):
            shapes = (graph.values[n].shape or () for n in node.inputs if n)
            sizes = {v for shape in shapes for d in shape for v in free_vars(d)}
            yield frozenset(needed_symbols(graph, node) | sizes), node.source
    for part in partition(graph, "")[1] if has_steps(graph) else [graph]:
        for condition, source in part.constraints.items():
            if isinstance(condition, Binary) and condition.op == "eq":
                yield free_vars(condition), source


class _Apart:
    """A graph with a symbol of its own for each axis that has a name. `places` maps each new symbol to its
    input and axis; a name's first axis keeps the name's symbol. `sources` maps each symbol that must equal
    another to the first node that needs it."""

    def __init__(self, graph: Graph, hints: frozenset[Place]) -> None:
        self.places: dict[Var, Place] = {}
        self.sources: dict[Var, Sources] = {}
        self.names: dict[Var, Var] = {}
        """The symbol of the name that each symbol stands for."""
        self.same: dict[Var, Var] = {}
        """The earlier symbol that a symbol must equal."""
        self.symbols = dict(graph.symbols)
        values = dict(graph.values)
        for name in graph.inputs:
            shape = list(values[name].shape or ())
            for axis, size in enumerate(shape):
                if isinstance(size, Var) and (name, axis) in hints:
                    shape[axis] = self._own(size, name, axis)
            values[name] = replace(values[name], shape=values[name].shape and tuple(shape))
        self.graph = replace(graph, values=values, symbols=self.symbols)

    def _own(self, symbol: Var, name: str, axis: int) -> Var:
        if symbol not in self.names:
            self.names[symbol] = symbol
            return symbol
        called = f"{name}.{own_name(symbol)}"
        own = marked(called if marked(called) not in self.symbols else f"{called}.{axis}")
        self.names[own], self.places[own] = symbol, (name, axis)
        self.symbols[own] = self.symbols[symbol]
        return own

    def join(self, symbols: Collection[Var], source: Sources) -> None:
        """Record that those of the symbols that stand for the same name must be equal, because `source` needs
        it."""
        for name in {self.names[v] for v in symbols if v in self.names}:
            met = [v for v in self.names if v in symbols and self.names[v] == name]
            for v in met[1:]:
                first, second = sorted((self._first(met[0]), self._first(v)), key=[*self.names].index)
                if first != second:
                    self.same[second] = first
                    self.sources.setdefault(v, source)
                    self.sources.setdefault(met[0], source)

    def _first(self, symbol: Var) -> Var:
        while symbol in self.same:
            symbol = self.same[symbol]
        return symbol

    def joined(self) -> Graph:
        """Return the graph in which symbols that must be equal are one symbol."""
        graph = with_sizes(self.graph, {v: self._first(v) for v in self.same})
        sources = {self.places[v]: source for v, source in self.sources.items() if v in self.places}
        return replace(graph, joined={f"{name}[{axis}]": source for (name, axis), source in sources.items()})
