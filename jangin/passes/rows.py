"""Finds graphs whose batch rows are computed independently, so that any part of a batch can be computed
elsewhere.

Each value that depends on the batch must hold it along one axis, as `rows` times some elements. A row of a
result may depend only on the same rows of operands, whatever the number of rows is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jangin.ir.core import IndexCheck, LoopNest, Reshape
from jangin.ir.expr import Buffer, Expr, Load, Var, const
from jangin.ir.graph import Graph, Node, Shape
from jangin.ir.own_names import own_name
from jangin.ir.simplify import linear, simplify
from jangin.ir.te import Stage
from jangin.ir.traversal import free_vars, loads, rewrite
from jangin.ops.core import core_op
from jangin.passes.partition import has_steps, needed_symbols

Held = tuple[int, Expr]
"""The axis along which a value has the batch, and the elements of a row along this axis."""


COUNTS = "depends on a row's number or on how many there are"


class Mixed(Exception):
    """The reason why the rows of a batch can't be computed apart."""


def row_symbol(graph: Graph) -> str:
    """Return the name of the batch symbol of a lowered graph. It is the first size of inputs and outputs,
    whose rows are computed apart. Raises Mixed if there is none."""
    if has_steps(graph):
        raise Mixed("the model runs in steps")
    firsts = dict.fromkeys(graph.shape(n)[0] for n in graph.inputs if graph.shape(n))
    reasons = []
    for rows in firsts:
        if isinstance(rows, Var):
            try:
                _check(graph, rows)
            except Mixed as error:
                reasons.append(str(error))
            else:
                return own_name(rows)
    raise Mixed("; ".join(reasons) or "no input's first size is a symbol: compile it with a free batch")


def _check(graph: Graph, rows: Var) -> None:
    """Raise Mixed if the batch of this size can't be cut."""
    held: dict[str, Held] = {}
    for name in graph.inputs:
        if _mentions(graph.shape(name), rows):
            if graph.shape(name)[0] != rows or _mentions(graph.shape(name)[1:], rows):
                raise Mixed(f"input {name!r} has the batch {rows} in another size than its first")
            held[name] = 0, const(1)
    for node in graph.nodes:
        layout = _of_node(graph, node, held, rows)
        if layout is not None:
            held[node.outputs[0]] = layout
    for name in graph.outputs:
        if held.get(name) != (0, const(1)):
            raise Mixed(f"output {name!r} doesn't have one row for each of the batch {rows}")


def _of_node(graph: Graph, node: Node, held: dict[str, Held], rows: Var) -> Held | None:
    """Return how the node's result holds the batch, or None if it doesn't depend on the batch."""
    if isinstance(node.attrs, IndexCheck):
        return None
    (name,) = node.outputs
    where = str(node.source or node.name)
    batched = [n for n in node.inputs if n in held]
    if isinstance(node.attrs, Reshape) and batched:
        return _reshaped(graph.shape(node.inputs[0]), held[node.inputs[0]], graph.shape(name), rows, where)
    if not batched and rows not in needed_symbols(graph, node):
        return None
    if isinstance(node.attrs, (LoopNest, Reshape)):
        raise Mixed(f"{where} may mix rows")
    buffers = {n: Buffer(n, graph.dtype(n), graph.shape(n)) for n in (*node.inputs, name)}
    stages = core_op(node).te([buffers[n] for n in node.inputs], buffers[name], node.attrs)
    known = dict(held)
    for stage in stages:
        state = _of_stage(stage, known, rows, where)
        if state is not None:
            known[stage.out.name] = state
    return known.get(name)


def _of_stage(stage: Stage, held: dict[str, Held], rows: Var, where: str) -> Held | None:
    parts = [stage.body, *([] if stage.epilogue is None else [stage.epilogue])]
    reads = [n for e in parts for n in loads(e) if n.buffer.name in held]
    axes = {n.index[held[n.buffer.name][0]] for n in reads}
    extents = [a.extent for a in stage.axes]
    along = [d for d, extent in enumerate(extents) if _mentions([extent], rows)]
    used = {v for e in (*parts, *(a.extent for a in stage.reduce_axes)) for v in free_vars(e)}
    if not reads and not along and rows not in used:
        return None
    if not reads and not along:
        raise Mixed(f"{where} {COUNTS}")
    if len(along) != 1 or axes - {stage.axes[along[0]].var}:
        raise Mixed(f"{where} mixes rows")
    axis = stage.axes[along[0]]
    factor = _factor(axis.extent, rows, where)
    if any(held[n.buffer.name][1] != factor for n in reads):
        raise Mixed(f"{where} mixes rows")

    def at_row(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name in held:
            place = held[e.buffer.name][0]
            return Load(e.buffer, (*e.index[:place], const(0), *e.index[place + 1 :]))
        return None

    rest = [rewrite(e, at_row) for e in parts] + [a.extent for a in stage.reduce_axes] + list(stage.at)
    used = {v for e in rest for v in free_vars(e)}
    if used & {axis.var, rows}:
        raise Mixed(f"{where} {COUNTS}")
    return along[0], factor


def _reshaped(before: Shape, held: Held, after: Shape, rows: Var, where: str) -> Held:
    """Return how a reshape's result holds the batch. Raises Mixed if the elements of a row don't stay
    together."""
    along = [d for d, size in enumerate(after) if _mentions([size], rows)]
    if len(along) == 1 and _product(before[: held[0]]) == _product(after[: along[0]]):
        return along[0], _factor(after[along[0]], rows, where)
    raise Mixed(f"{where} mixes rows")


def _factor(size: Expr, rows: Var, where: str) -> Expr:
    """Return the number of elements that each row of the batch has along an axis of this size. Raises Mixed
    if the size isn't a multiple of the rows."""
    ratio = linear(size, rows)
    if ratio is None or ratio[1] != const(0) or rows in free_vars(ratio[0]):
        raise Mixed(f"{where} makes an axis of {size} elements, which isn't a multiple of the batch")
    return ratio[0]


def _product(sizes: Sequence[Expr]) -> Expr:
    return simplify(prod(sizes, start=const(1)))


def _mentions(sizes: Sequence[Expr], rows: Var) -> bool:
    return any(rows in free_vars(size) for size in sizes)
