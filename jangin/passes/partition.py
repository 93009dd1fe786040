"""Partitions lowered graphs with steps (host calls, bound sizes, branches, loops) into programs.

The core nodes between steps become segments. Each segment is the largest set of nodes that can run without
waiting for a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from jangin.ir.core import BindStep, GraphStep, HostStep, IfStep, LoopStep
from jangin.ir.expr import Var
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.own_names import with_own_names
from jangin.ir.program import Bind, Branch, HostCall, Loop, Program, Region, Segment, Step
from jangin.ir.simplify import Range
from jangin.ir.traversal import free_vars
from jangin.mapped import owned
from jangin.ops.folding import variables
from jangin.passes.constraints import constraints


def is_step(node: Node) -> bool:
    """Return whether a node of a lowered graph is a step of a program."""
    return isinstance(node.attrs, GraphStep)


def has_steps(graph: Graph) -> bool:
    """Return whether the graph needs more than one plan: it has steps, or inputs that aren't tensors."""
    return any(map(is_step, graph.nodes)) or any(graph.value(n).type is not None for n in graph.inputs)


def partition(graph: Graph, target: str) -> tuple[Program, list[Graph]]:
    """Return the program, and the graph of each of its segments."""
    maker = _Partition(graph.symbols)
    region = maker.region(graph)
    return _program(graph, target, region, maker.constants), maker.segments


def segmented(graph: Graph, runs: Sequence[Sequence[Node]], target: str) -> tuple[Program, list[Graph]]:
    """Return a graph without steps as a program whose segments are the `runs` of its nodes, and the graph of
    each segment."""
    maker = _Partition(graph.symbols)
    maker.segments = [maker.segment(graph, nodes) for nodes in runs]
    steps = tuple(Segment(n, s.inputs, s.outputs) for n, s in enumerate(maker.segments))
    values = {n: v for n, v in graph.values.items() if n in {*graph.inputs, *graph.outputs}}
    region = Region(graph.inputs, graph.outputs, values, steps)
    return _program(graph, target, region, {}), maker.segments


def _program(graph: Graph, target: str, region: Region, constants: Mapping[str, Array]) -> Program:
    symbols = dict(graph.symbols)
    program = Program(graph.name, target, symbols, region, constants, graph.bound, graph.joined)
    return with_own_names(program, symbols)


class _Partition:
    """A program under construction: its segments so far, and the constants that steps read."""

    def __init__(self, symbols: Mapping[Var, Range]) -> None:
        self.symbols = symbols
        self.segments: list[Graph] = []
        self.constants: dict[str, Array] = {}

    def region(self, graph: Graph) -> Region:
        graph = self._with_constants(graph)
        levels = _levels(graph)
        steps: list[Step] = []
        for level in range(max(levels, default=-1) + 1):
            here = [n for n, at in zip(graph.nodes, levels, strict=True) if at == level]
            core = [n for n in here if not is_step(n)]
            if core:
                cut = self.segment(graph, core)
                steps.append(Segment(len(self.segments), cut.inputs, cut.outputs))
                self.segments.append(cut)
            steps += [self._step(n) for n in here if is_step(n)]
        typed = {*graph.inputs, *graph.outputs, *(o for n in graph.nodes if is_step(n) for o in n.outputs)}
        values = {n: v for n, v in graph.values.items() if n in typed}
        return Region(graph.inputs, graph.outputs, values, tuple(steps))

    def _with_constants(self, graph: Graph) -> Graph:
        """Store the constants that steps read, under unique names. Return the graph with these names."""
        read = {name for n in graph.nodes if is_step(n) for name in n.inputs} | set(graph.outputs)
        names: dict[str, str] = {}
        for name in (n for n in graph.constants if n in read):
            unique, count = name, 0
            while unique in self.constants or (count and unique in graph.values):
                count += 1
                unique = f"{name}.{count}"
            names[name] = unique
            self.constants[unique] = owned(graph.constants[name])
        return renamed(graph, names)

    def segment(self, graph: Graph, nodes: Sequence[Node]) -> Graph:
        defined = {o for n in nodes for o in n.outputs}
        read = dict.fromkeys(name for n in nodes for name in n.inputs if name)
        inputs = tuple(n for n in read if n not in defined and n not in graph.constants)
        inside = {id(n) for n in nodes}
        outside = {name for n in graph.nodes if id(n) not in inside for name in n.inputs} | set(graph.outputs)
        outputs = tuple(o for n in nodes for o in n.outputs if o in outside)
        names = {*defined, *read}
        used = {v for n in nodes for v in needed_symbols(graph, n)}
        used |= {v for n in inputs for d in graph.shape(n) for v in free_vars(d)}
        cut = Graph(
            graph.name, inputs, outputs, tuple(nodes),
            {n: a for n, a in graph.constants.items() if n in names},
            {n: v for n, v in graph.values.items() if n in names},
            {v: r for v, r in self.symbols.items() if v in used},
        )  # fmt: skip
        return replace(cut, constraints=constraints(cut))

    def _step(self, node: Node) -> Step:
        attrs = node.attrs
        if isinstance(attrs, HostStep):
            return HostCall(attrs.function, node.inputs, node.outputs, dict(attrs.attrs), node.source)
        if isinstance(attrs, BindStep):
            return Bind(node.inputs[0], attrs.symbols, node.source)
        if isinstance(attrs, IfStep):
            then, orelse = self.region(attrs.then), self.region(attrs.orelse)
            return Branch(node.inputs[0], node.inputs[1:], node.outputs, then, orelse, node.source)
        (trips, condition, *inputs), step = node.inputs, node.of(LoopStep)
        return Loop(
            trips, condition, tuple(inputs), node.outputs, self.region(step.body), step.carried,
            step.conditional, step.scanned, step.collected, node.source,
        )  # fmt: skip


def _levels(graph: Graph) -> list[int]:
    """Return the number of each node's segment. A step has the number of the segment after which it runs."""
    by_name: dict[str | Var, tuple[int, bool]] = {}
    levels: list[int] = []
    for node in graph.nodes:
        waits = not is_step(node)
        level = 0
        reads: list[str | Var] = [*node.inputs, *needed_symbols(graph, node)]
        makes: list[str | Var] = [*node.outputs, *defined(node)]
        for name in reads:
            at, by_step = by_name.get(name, (0, False))
            level = max(level, at + (by_step and waits))
        levels.append(level)
        for name in makes:
            by_name[name] = level, not waits
    return levels


def defined(node: Node) -> tuple[Var, ...]:
    """Return the symbols that become known when a step has run."""
    return node.attrs.symbols if isinstance(node.attrs, GraphStep) else ()


def needed_symbols(graph: Graph, node: Node) -> set[Var]:
    """Return the size symbols that must be known before a node runs."""
    symbols = set[Var]()
    if graph.symbols:
        symbols = set(variables(node.attrs.named(), _graph_variables)) & graph.symbols.keys()
    if is_step(node):
        return symbols.difference(defined(node))
    return symbols.union(*(free_vars(d) for name in node.outputs for d in graph.shape(name)))


def _graph_variables(graph: Graph) -> Iterator[Var]:
    inside = {v for n in graph.nodes for v in defined(n)} | _of_inputs(graph)
    for node in graph.nodes:
        yield from (v for v in needed_symbols(graph, node) if v not in inside)


def prune(graph: Graph, also: Iterable[str] = ()) -> Graph:
    """Return the graph without nodes, checks and symbols that no output needs, through values or through
    symbols. The values `also` are needed too."""
    needed: set[str | Var] = {*graph.outputs, *also}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        used = node.inputs if node.attrs.lasting else (*node.outputs, *defined(node))
        if not needed.isdisjoint(used):
            kept.append(node)
            needed |= {*node.inputs, *needed_symbols(graph, node)}
    known = needed | _of_inputs(graph) | {*_made_inside(kept)}
    symbols = {v: r for v, r in graph.symbols.items() if v in known}
    return replace(graph.with_nodes(kept[::-1]), symbols=symbols)


def _made_inside(nodes: Iterable[Node]) -> Iterator[Var]:
    """Yield the symbols that become known in nodes, or in their sub-graphs."""
    for node in nodes:
        yield from defined(node)
        for inner in node.attrs.named().values():
            if isinstance(inner, Graph):
                yield from _of_inputs(inner)
                yield from _made_inside(inner.nodes)


def _of_inputs(graph: Graph) -> set[Var]:
    """Return the symbols in the shapes of a graph's inputs."""
    return {v for n in graph.inputs for d in graph.values[n].shape or () for v in free_vars(d)}


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with values renamed, outside its sub-graphs."""

    def of(name: str) -> str:
        return names.get(name, name)

    nodes = [
        replace(n, inputs=tuple(map(of, n.inputs)), outputs=tuple(map(of, n.outputs))) for n in graph.nodes
    ]
    return replace(
        graph,
        nodes=tuple(nodes),
        outputs=tuple(map(of, graph.outputs)),
        constants={of(n): a for n, a in graph.constants.items()},
        values={of(n): replace(v, name=of(n)) for n, v in graph.values.items()},
    )
