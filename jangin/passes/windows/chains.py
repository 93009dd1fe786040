"""Splits maps of several stages, such as a resize of each axis, into kernels of one axis.

A linear resize of an image is a resize of its columns and one of its rows. If neighbouring elements of the
result are neighbours in memory along a resized axis, reading them takes a load for each. Each stage is then
a kernel of its own, and only the shorter stage has these loads. The places and weights along this axis are
constants. Otherwise, with channels last, whole vectors are read. The stages are then one expression, and no
value between them goes through memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jangin.ir.core import Compute
from jangin.ir.dtype import F32, I32, I64
from jangin.ir.expr import Binary, Buffer, Const, Expr, Load, cast
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.interpret import evaluate_stage
from jangin.ir.simplify import linear
from jangin.ir.te import Axis, Stage, inline, redirect
from jangin.ir.traversal import buffers_loaded, children, free_vars, loads, rebuild, walk
from jangin.ops.editor import Editor
from jangin.targets.target import Target

MOST_BETWEEN = 2
"""Most elements between two stages for each one of the result. An axis that shrinks more reads few of
them."""
LONGEST = 1 << 16
"""Most entries of a table of places or weights. A table of so many entries takes 256 KiB, and images have
shorter axes."""


def chains(graph: Graph, target: Target) -> Graph:
    """Return the graph with each map of several stages as one stage, or as a node for each stage."""
    run = Editor(graph.symbols, graph.values, graph.constants)
    for node in graph.nodes:
        if isinstance(node.attrs, Compute) and not any(s.reduce_axes for s in node.attrs.stages):
            _rewritten(run, node, node.attrs, target)
        else:
            run.emit(node)
    return run.rewritten(graph) if run.nodes != list(graph.nodes) else graph


def _rewritten(run: Editor, node: Node, attrs: Compute, target: Target) -> None:
    """Emit the node's stages, apart if neighbouring elements are read one by one."""
    *inner, last = attrs.stages
    whole = last
    for producer in reversed(inner):
        whole = inline(whole, producer)
    least = 0 if target.groups else target.machine.shortest(F32.bytes)
    one_by_one = bool(least) and gathers(whole, least, copies=bool(inner))
    known = {f"x{i}": name for i, name in enumerate(node.inputs)}
    if one_by_one and all(_elements(s) <= MOST_BETWEEN * _elements(last) for s in inner):
        for stage in inner:
            name = run.declare(f"{node.name}.{stage.out.name}", stage.out.dtype, stage.out.shape)
            run.emit(_alone(run, stage, known, name, node, least))
            known[stage.out.name] = name
        whole = last
    if inner or one_by_one:
        node = replace(_alone(run, whole, known, node.outputs[0], node, one_by_one * least), name=node.name)
    run.emit(node)


def _elements(stage: Stage) -> int:
    """Return a stage's number of elements. An unknown size counts as 1."""
    return math.prod(int(a.extent.value) for a in stage.axes if isinstance(a.extent, Const))


def _alone(
    run: Editor, stage: Stage, known: Mapping[str, str], result: str, node: Node, least: int = 0
) -> Node:
    """Return a stage as a node whose result is the value `result`. `known`: values by names of buffers.
    `least`: see `gathers`; no table is made for 0."""
    tables: dict[str, Array] = {}
    body = tabulated(stage, tables) if least and gathers(stage, least, copies=True) else stage.body
    read = list(dict.fromkeys(n.buffer.name for n in loads(body)))
    names = [known[n] if n in known else run.constant(tables[n], f"{result}.{n}") for n in read]
    buffers = {n: Buffer(f"x{i}", *run.typed(v)) for i, (n, v) in enumerate(zip(read, names, strict=True))}
    alone = redirect(replace(stage, body=body), buffers)
    alone = replace(alone, out=replace(alone.out, name="out"))
    return Node(result, tuple(names), (result,), replace(node.of(Compute), stages=(alone,)), node.source)


def gathers(stage: Stage, least: int, copies: bool = False) -> bool:
    """Return whether the stage reads neighbouring elements of its result one by one, and weighs them by their
    place along the last axis. The axis has `least` elements or more. `copies`: elements without weights count
    too."""
    if not stage.axes or stage.reduce_axes:
        return False
    axis = stage.axes[-1]
    size = int(axis.extent.value) if isinstance(axis.extent, Const) else 0
    if not least <= size <= LONGEST:
        return False
    weighs = any(e.dtype.is_float and _is_of(e, axis) for e in walk(stage.body))
    places = (i for n in loads(stage.body) for i in n.index if _is_of(i, axis))
    return (weighs or copies) and any(_is_uneven(i, axis) for i in places)


def _is_of(e: Expr, axis: Axis) -> bool:
    """Return whether a value depends on one axis alone, and on no operand."""
    return free_vars(e) == {axis.var} and not buffers_loaded(e)


def _is_uneven(place: Expr, axis: Axis) -> bool:
    """Return whether neighbours along an axis are read neither at even steps nor in equal runs that fill
    vectors."""
    if isinstance(place, Binary) and place.op == "floordiv" and isinstance(place.b, Const):
        run = int(place.b.value)
        return run & (run - 1) != 0 or linear(place.a, axis.var) is None
    return linear(place, axis.var) is None


def tabulated(stage: Stage, tables: dict[str, Array]) -> Expr:
    """Return the stage's body with all that depends on the last axis alone taken from tables, which are
    added to `tables` by name. The largest such parts are taken whole."""
    axis = stage.axes[-1]

    def go(e: Expr) -> Expr:
        uneven = e.dtype is I64 and _is_of(e, axis) and linear(e, axis.var) is None
        if uneven or (e.dtype.is_float and _is_of(e, axis)):
            return _looked_up(e, axis, tables)
        parts = children(e)
        return rebuild(e, tuple(map(go, parts))) if parts else e

    return go(stage.body)


def _looked_up(e: Expr, axis: Axis, tables: dict[str, Array]) -> Expr:
    """Return an entry of a new table of an expression's values along an axis. Places are kept as i32."""
    dtype = I32 if e.dtype is I64 else e.dtype
    out = Buffer("out", e.dtype, (axis.extent,))
    values = evaluate_stage(Stage(out, (axis,), e), {}, {}).astype(dtype.numpy)
    name = next((n for n, t in tables.items() if t.dtype == values.dtype and np.array_equal(t, values)), "")
    name = name or f"table{len(tables)}"
    tables[name] = values
    entry = Load(Buffer(name, dtype, (axis.extent,)), (axis.var,))
    return cast(I64, entry) if e.dtype is I64 else entry
