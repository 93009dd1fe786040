"""Finds the row-wise extrema of a value in the kernel that makes the value, as further results.

Dynamic quantization by range then reads the value once or twice less. A later kernel of few elements combines
the rows' extrema. A kernel without whole rows (a product's tiles) can't find them; then at least one kernel
finds both extrema of each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jangin.ir.core import Kernel, Map, Reduce, Reshape
from jangin.ir.expr import const
from jangin.ir.graph import Graph, Node, Shape, static_shape
from jangin.ir.records import dataclass
from jangin.ops.editor import Editor, kernel_node
from jangin.passes.fusion.chains import merge
from jangin.passes.fusion.reductions import TASKS
from jangin.passes.fusion.stages import is_opaque, stages
from jangin.targets.target import Target
from jangin.templates.choose import candidates
from jangin.templates.template import Workload, expected

ROW = 24
"""Fewest vectors of a row. In shorter rows, the reduction across a vector's lanes takes longer than another
reading of the row. Measured on a processor with AVX-512, with all data in its caches, on one thread."""
SMALL = 8192
"""A value of at most so many elements is too small to be shared among threads: its vector operations are
fewer than `templates.grain.GRAIN_OPS`."""
WHOLE_ROWS = ("rows", "elementwise")
"""Templates whose kernels may have whole rows as tasks."""


@dataclass(frozen=True)
class _Extremum:
    """A kernel that begins with a reduction of a value to its least or largest elements.

    `value` is the reduction's operand, seen through reshapes. A row consists of the last `axes` axes of
    `value`, and of the last `own` axes of the operand itself.
    """

    kernel: Node
    reduce: Node
    value: str
    axes: int
    own: int


def extrema(graph: Graph, target: Target) -> Graph:
    """Return the fused graph in which kernels give extrema as further results."""
    makers = graph.producers()
    candidates = [e for n in graph.nodes if (e := _extremum(n, graph, makers, target)) is not None]
    return _Extrema(graph, target, makers).run(candidates) if candidates else graph


def _extremum(kernel: Node, graph: Graph, makers: Mapping[str, Node], target: Target) -> _Extremum | None:
    """Return a kernel's min or max reduction of long rows, followed by nothing but maps, or None for any
    other kernel."""
    if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
        return None
    body = kernel.attrs.body
    own = [n for n in body.nodes if not isinstance(n.attrs, Map)]
    if len(own) != 1 or not isinstance(own[0].attrs, Reduce) or own[0].attrs.combiner not in ("min", "max"):
        return None
    (reduce,) = own
    (x,), axes = reduce.inputs, reduce.of(Reduce).axes
    alone = x in body.inputs and sum(x in n.inputs for n in body.nodes) == 1
    if not alone or x in graph.constants or body.dtype(x).wide is not body.dtype(x):
        return None
    value = x
    while value in makers and isinstance(attrs := makers[value].attrs, Reshape) and attrs.dtype is None:
        value = makers[value].inputs[0]
    shape, rank = graph.shape(x), len(graph.shape(x))
    inner = next((n for n in range(rank) if rank - 1 - n not in axes), rank)
    least = ROW * target.machine.lanes(body.dtype(x).bytes)
    rows = {size: n for n in range(1, inner + 1) if (size := _row(shape, n)) >= least}
    whole = graph.shape(value)
    fitting = (n for n in range(1, len(whole) + 1) if _row(whole, n) in rows)
    count = next(fitting, 0)
    return _Extremum(kernel, reduce, value, count, rows[_row(whole, count)]) if count else None


def _row(shape: Shape, axes: int) -> int:
    """Return the number of elements of a row that consists of the last `axes` axes, or 0 if it isn't
    known."""
    sizes = static_shape(shape[len(shape) - axes :])
    return math.prod(sizes) if sizes else 0


class _Extrema(Editor):
    """One run. `joined`: kernels of several results, by the result of the node that they replace. `known`:
    the value that holds the rows' extrema, by the result of the kernel that finishes them."""

    def __init__(self, graph: Graph, target: Target, makers: Mapping[str, Node]) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.target, self.makers = graph, target, makers
        self.joined: dict[str, Node] = {}
        self.known: dict[str, str] = {}

    def run(self, found: Sequence[_Extremum]) -> Graph:
        of_value: dict[tuple[str, int], list[_Extremum]] = {}
        for e in found:
            of_value.setdefault((e.value, e.axes), []).append(e)
        for wanted in of_value.values():
            self.known |= self.rows([e for e in wanted if e.kernel.outputs[0] not in self.joined])
        by_result = {e.kernel.outputs[0]: e for e in found if e.kernel.outputs[0] in self.known}
        for node in self.graph.nodes:
            name = node.outputs[0]
            if name in self.joined:
                self.emit(self.joined[name])
            if name in by_result:
                self.finish(by_result[name], self.known[name])
            elif name not in self.joined:
                self.emit(node)
        return self.rewritten(self.graph)

    def rows(self, wanted: Sequence[_Extremum]) -> dict[str, str]:
        """Return the values of rows' extrema, by the results of the kernels `wanted`, which reduce one value.

        The extrema are a further result of the kernel that makes the value, or a result of one kernel that
        finds both extrema. The mapping is empty if neither pays.
        """
        known: dict[str, str] = {}
        parts: dict[str, Node] = {}
        for e in wanted:
            attrs, rank = e.reduce.of(Reduce), len(self.shape(e.value))
            if attrs.combiner not in parts:
                own = Reduce(attrs.combiner, tuple(range(rank - e.axes, rank)))
                name = self.declare(f"{e.kernel.outputs[0]}.rows", *self.infer(own, [e.value]))
                parts[attrs.combiner] = self.kernel(own, [e.value], name, e.kernel.source)
            known[e.kernel.outputs[0]] = parts[attrs.combiner].outputs[0]
        if wanted and self.can_join(wanted[0]):
            value = wanted[0].value
            self.joined[value] = self.merged([self.makers[value], *parts.values()])
            return known
        if len(parts) > 1:
            both = self.merged([*parts.values()])
            if self.seconds(both) <= self.seconds(*(e.kernel for e in wanted)):
                self.joined[next(iter(known))] = both
                return known
        return {}

    def can_join(self, e: _Extremum) -> bool:
        """Return whether the kernel that makes the value can have whole rows as tasks, and has enough
        rows."""
        maker, shape = self.makers.get(e.value), self.shape(e.value)
        if maker is None or e.value in self.joined or e.value in self.known:
            return False
        rows, row = (
            math.prod(expected(d, self.symbols) for d in sizes)
            for sizes in (shape[: len(shape) - e.axes], shape[len(shape) - e.axes :])
        )
        if not isinstance(maker.attrs, Kernel) or is_opaque(maker) or (rows < TASKS and rows * row > SMALL):
            return False
        return self.best(maker)[0] in WHOLE_ROWS

    def seconds(self, *kernels: Node) -> float:
        """Return the estimated seconds of kernels, on one thread."""
        return sum(self.best(n)[1] for n in kernels)

    def best(self, kernel: Node) -> tuple[str, float]:
        """Return the name of the best template for a kernel, and the estimated seconds on one thread."""
        parts, inputs, results = stages(kernel)
        constants = [n for n in kernel.inputs if n in self.constants]
        asked = Workload(kernel.name, parts, inputs, self.symbols, constants, self.target, len(results))
        way, seconds = candidates(asked)[0]
        return way.template, seconds

    def merged(self, chain: Sequence[Node]) -> Node:
        """Return one kernel with the results of all kernels of the chain."""
        return merge(self.rewritten(self.graph), chain, [o for n in chain for o in n.outputs])

    def finish(self, e: _Extremum, rows: str) -> None:
        """Emit the nodes that compute the kernel's result from the extrema of the rows."""
        (x,), own, body = e.reduce.inputs, e.reduce.of(Reduce), e.kernel.of(Kernel).body
        shape, (out,) = self.graph.shape(x), e.kernel.outputs
        last = tuple(range(len(shape) - e.own, len(shape)))
        if own.axes == last and len(body.nodes) == 1:
            self.emit(Node(out, (rows,), (out,), Reshape(self.shape(out)), e.kernel.source))
            return
        short = (*shape[: len(shape) - e.own], *(const(1) for _ in last))
        if short != self.shape(rows):
            rows = self.add(Reshape(short), [rows], rows, e.kernel.source)
        nodes = (replace(n, inputs=(rows,)) if n is e.reduce else n for n in body.nodes)
        inputs = tuple(rows if n == x else n for n in body.inputs)
        values = {**body.values, rows: self.values[rows]}
        self.emit(
            kernel_node(replace(body, inputs=inputs, nodes=tuple(nodes), values=values), e.kernel.source)
        )
