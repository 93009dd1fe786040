"""Large reductions to few results in two steps, so that several threads share them.

A kernel's tasks are the results that a reduction's first axes give. A reduction of a whole tensor, or of all
rows of a matrix, has one task. Parts are therefore reduced first, side by side, and their results are reduced
then. Minima and maxima keep their bits. Sums are taken in another order, of shorter partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.core import Map, Reduce, Reshape, Slice
from jangin.ir.expr import Const, const, is_const, minimum
from jangin.ir.graph import Graph, Node
from jangin.ir.simplify import prove
from jangin.ops.editor import Editor
from jangin.templates.template import expected, least

TASKS = 16
"""A reduction to at least so many results isn't split, because its results are shared well among threads."""
LARGE = 256 << 10
"""Fewest elements that a split reduction reads. With fewer, waking a second thread takes as long."""
EACH = 64
"""Fewest elements that each part of a split reduction reduces, because its result is written and read once
more."""


def reductions(graph: Graph) -> Graph:
    """Return the graph with large reductions in two steps."""
    run = Editor(graph.symbols, graph.values, graph.constants)
    maps = {v for n in graph.nodes if isinstance(n.attrs, Map) for v in n.outputs}
    for node in graph.nodes:
        parts = _parts(run, node, node.attrs, maps) if isinstance(node.attrs, Reduce) else None
        run.emit(node if parts is None else replace(node, inputs=(parts,)))
    return run.rewritten(graph)


def _unless_empty(run: Editor, node: Node, x: str, axis: int, left: Sequence[int]) -> str:
    """Return the operand, cut to no elements along `axis` if another axis is empty. A reshape of no elements
    would allow any number of parts."""
    shape = list(run.shape(x))
    for size in (shape[i] for i in left):
        if not prove(size >= 1, run.symbols):
            shape[axis] = shape[axis] * minimum(size, 1)
    if shape[axis] == run.shape(x)[axis]:
        return x
    none, one = (const(0),) * len(shape), (1,) * len(shape)
    return run.add(Slice(none, one, tuple(shape)), [x], f"{node.name}.filled", node.source)


def _parts(run: Editor, node: Node, attrs: Reduce, maps: set[str]) -> str | None:
    """Emit the reductions of the parts, and return the value that the node is to reduce then. Return None if
    one step is best."""
    (x,) = node.inputs
    shape, axes, exact = run.shape(x), attrs.axes, run.dtype(x).wide is run.dtype(x)
    sizes = [expected(d, run.symbols) for d in shape]
    fewest = [0 if is_const(d, 0) else least(d, run.symbols) for d in shape]
    tasks = math.prod(fewest[: axes[0]]) if axes else TASKS
    if tasks >= TASKS or math.prod(sizes) < LARGE or not exact:
        return None
    count = 0
    while tasks < TASKS and count < len(axes) - 1:
        tasks *= fewest[axes[count]]
        count += 1
    left = axes[count:]
    results = math.prod(n for i, n in enumerate(sizes) if i not in left)
    filled = all(fewest[i] for i in left)
    if filled and any(sizes[i] > 1 for i in axes[:count]) and results * EACH <= math.prod(sizes):
        x = _unless_empty(run, node, x, axes[0], left)
        return run.add(Reduce(attrs.combiner, left, True), [x], f"{node.name}.parts", node.source)
    (axis, *others), size = axes, shape[axes[0]]
    if others or not isinstance(size, Const) or x in maps:  # a reshape's operand must be in memory
        return None
    fit = (n for n in range(TASKS, int(size.value) // EACH) if int(size.value) % n == 0)
    parts = next((n for n in fit if results * n * EACH <= math.prod(sizes)), 0)
    if not parts:
        return None
    cut = (*shape[:axis], const(parts), const(int(size.value) // parts), *shape[axis + 1 :])
    rows = run.add(Reshape(cut), [x], f"{node.name}.cut", node.source)
    return run.add(Reduce(attrs.combiner, (axis + 1,)), [rows], f"{node.name}.parts", node.source)
