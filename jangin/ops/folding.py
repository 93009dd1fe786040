"""Nodes of constants, evaluated while a graph is being built."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from jangin.ir.core import LoopNest
from jangin.ir.expr import Expr, Var, free_vars
from jangin.ir.graph import Array, Graph, Node, Value, static_shape
from jangin.ir.loop import Stmt, expressions, statements
from jangin.ir.te import Stage
from jangin.ops.interpret import run_graph

FOLD_LIMIT = 1 << 24
"""Elements up to which a node of constants is evaluated while building."""
NEST_FOLD_LIMIT = 1 << 12
"""As `FOLD_LIMIT`, for loop nests, which the interpreter runs one element at a time."""


def folded(
    node: Node, constants: Mapping[str, Array], values: Mapping[str, Value], symbols: Container[Var]
) -> Array | None:
    """What a core node of one output gives, or None where it isn't known or is too large. `values`: the
    types of its operands and of its output."""
    shape = values[node.name].shape
    size = None if shape is None else static_shape(shape)
    limit = NEST_FOLD_LIMIT if isinstance(node.attrs, LoopNest) else FOLD_LIMIT
    if size is None or math.prod(size) > limit:
        return None
    if not all(n in constants for n in node.inputs):
        return None
    if any(_mentions(v, symbols) for v in node.attrs.named().values()):
        return None
    given = {n: constants[n] for n in node.inputs}
    known = {n: values[n] for n in (*node.inputs, node.name)}
    return run_graph(Graph("fold", (), node.outputs, (node,), given, known), {})[node.name]


def _mentions(value: Any, symbols: Container[Var]) -> bool:
    """Whether an attribute depends on a size symbol."""
    if isinstance(value, Expr):
        return any(v in symbols for v in free_vars(value))
    if isinstance(value, Stmt):
        return any(_mentions(expressions(s), symbols) for s in statements(value))
    if isinstance(value, Stage):
        extents = tuple(a.extent for a in (*value.axes, *value.reduce_axes))
        return _mentions((value.body, value.epilogue, *extents), symbols)
    return isinstance(value, tuple) and any(_mentions(v, symbols) for v in value)
