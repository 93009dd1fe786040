"""Folds nodes of constants while a graph is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from jangin.ir.core import LoopNest
from jangin.ir.expr import Expr, Var
from jangin.ir.graph import Array, Graph, Node, Value, static_shape
from jangin.ir.loop import Stmt, expressions, statements
from jangin.ir.te import Stage
from jangin.ir.traversal import free_vars
from jangin.ops.interpret import run_graph

FOLD_LIMIT = 1 << 24
"""Most elements of the results of a node of constants that is evaluated while the graph is built. More would
take memory in the model's file that a run could compute instead."""
NEST_FOLD_LIMIT = 1 << 12
"""`FOLD_LIMIT` for loop nests, which the interpreter runs one element at a time."""


def folded(
    node: Node, constants: Mapping[str, Array], values: Mapping[str, Value], symbols: Container[Var]
) -> Array | None:
    """Return the value of a core node of one output, or None if it isn't known or is too large. `values`: the
    types of its operands and its output."""
    size = elements(node, values)
    limit = NEST_FOLD_LIMIT if isinstance(node.attrs, LoopNest) else FOLD_LIMIT
    if size is None or size > limit or not all(n in constants for n in node.inputs):
        return None
    if any(v in symbols for v in variables(node.attrs.named())):
        return None
    return evaluated(node, constants, values)[node.name]


def elements(node: Node, values: Mapping[str, Value]) -> int | None:
    """Return the number of elements of all results of a node; None if a size isn't known."""
    count = 0
    for name in node.outputs:
        shape = values[name].shape
        sizes = None if shape is None else static_shape(shape)
        if sizes is None:
            return None
        count += math.prod(sizes)
    return count


def evaluated(node: Node, constants: Mapping[str, Array], values: Mapping[str, Value]) -> dict[str, Array]:
    """Return the results of a core node whose operands are constants."""
    arrays = {n: constants[n] for n in node.inputs}
    known = {n: values[n] for n in (*node.inputs, *node.outputs)}
    return run_graph(Graph("fold", (), node.outputs, (node,), arrays, known), {})


def variables(value: Any, inside: Callable[[Graph], Iterable[Var]] = lambda graph: ()) -> Iterator[Var]:
    """Yield every variable that an attribute mentions, in no certain order. `inside` returns the variables of
    a nested graph."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if part.__class__ in _PLAIN:
            continue
        if isinstance(part, (tuple, list)):
            waiting += part
        elif isinstance(part, Expr):
            yield from free_vars(part)
        elif isinstance(part, Stmt):
            waiting += (e for s in statements(part) for e in expressions(s))
        elif isinstance(part, Stage):
            extents = (a.extent for a in (*part.axes, *part.reduce_axes))
            waiting += (part.body, part.epilogue, *part.out.shape, *extents)
        elif isinstance(part, Graph):
            yield from inside(part)
        elif isinstance(part, Mapping):
            waiting += part.values()


_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})
"""The types of most parts of attributes. They mention no variable."""
