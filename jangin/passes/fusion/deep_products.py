"""Splits the sums of products of few rows by a computed matrix into parts (split-K).

A product's tasks are tiles of its result. Few rows and columns give few tasks, and each would read short
pieces of the matrix's rows. A part of the sum reads whole rows of the matrix, which lie side by side. All
parts together are a batched product of views. A reduction then adds up its results.
"""

from __future__ import annotations

import math

from jangin.ir.core import Map, MatMul, Reduce, Reshape, Transpose
from jangin.ir.dtype import F32, F64
from jangin.ir.expr import const
from jangin.ir.graph import Graph, Node, Shape, static_shape
from jangin.ops.editor import Editor
from jangin.passes.fusion.reductions import EACH, LARGE, TASKS
from jangin.targets.target import Target

FEW_ROWS = 8
"""Most rows of a product that is split. Its matrix is then read in place, and more rows would be worth
packing it."""
WIDE = 1024
"""Columns of a task that reads long pieces of the matrix's rows. The pieces have a page of 4 KiB of f32,
within which processors prefetch."""


def deep_products(graph: Graph, target: Target) -> Graph:
    """Return the graph in which the sums of products of few rows are split among several tasks (split-K)."""
    run = Editor(graph.symbols, graph.values, graph.constants)
    maps = {v for n in graph.nodes if isinstance(n.attrs, Map) for v in n.outputs}
    for node in graph.nodes:
        parts = _parts(run, node) if node.attrs == MatMul() and maps.isdisjoint(node.inputs) else 0
        if parts:
            _split(run, node, parts)
        else:
            run.emit(node)
    return run.rewritten(graph)


def _parts(run: Editor, node: Node) -> int:
    """Return the number of parts into which a product's sum is split, the fewest that give enough tasks.
    Return 0 if the sum isn't split."""
    left, right = (static_shape(run.shape(n)) for n in node.inputs)
    computed = node.inputs[1] not in run.constants and run.dtype(node.inputs[1]) in (F32, F64)
    if not computed or left is None or right is None or min(len(left), len(right)) < 2:
        return 0
    rows, (terms, columns) = left[-2], right[-2:]
    alone = math.prod(left[:-2]) == math.prod(right[:-2]) == 1
    if not alone or not 1 <= rows <= FEW_ROWS or terms * columns < LARGE:
        return 0
    tasks = max(1, columns // WIDE)
    fit = (n for n in range(2, terms // EACH + 1) if terms % n == 0 and n * tasks >= TASKS)
    return 0 if tasks >= TASKS else next(fit, 0)


def _split(run: Editor, node: Node, parts: int) -> None:
    """Emit a product as the sum of its parts' products."""
    (left, right), result = node.inputs, run.shape(node.outputs[0])
    (rows, terms), columns = run.shape(left)[-2:], run.shape(right)[-1]
    each = terms // parts

    def shaped(x: str, shape: Shape, hint: str) -> str:
        return run.add(Reshape(shape), [x], f"{node.name}.{hint}", node.source)

    if rows == const(1):
        cut = shaped(left, (const(parts), rows, each), "rows")
    else:
        cut = shaped(left, (rows, const(parts), each), "rows")
        cut = run.add(Transpose((1, 0, 2)), [cut], f"{node.name}.parts", node.source)
    matrix = shaped(right, (const(parts), each, columns), "matrix")
    product = run.add(MatMul(), [cut, matrix], f"{node.name}.products", node.source)
    attrs = Reduce("sum", (0,))
    if len(result) == 2:
        run.emit(Node(node.name, (product,), node.outputs, attrs, node.source))
        return
    summed = run.add(attrs, [product], f"{node.name}.sum", node.source)
    run.emit(Node(node.name, (summed,), node.outputs, Reshape(result), node.source))
