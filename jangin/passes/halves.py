"""Weights whose numbers floats of 16 bits have are kept as such, with the same bits in every result: half the
memory, and half as much comes from it. Products read them by panels, which a task widens once for all its
rows (see `templates.contraction`), or, for a few rows, where it multiplies by them.

It doesn't matter of which type a model's file says they are: those of a float32 file that was made of a
smaller one are found too. Of weights that are transformed `winograd` decides, which comes before.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from jangin.ir.core import Conv, Kernel, MatMul
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.graph import Array, Graph, Node, Value, static_shape
from jangin.ops.editor import kernel_node
from jangin.passes.stages import is_opaque, stages
from jangin.targets.target import Target
from jangin.templates import contraction
from jangin.templates.template import Workload

LEAST = 1 << 14
"""Weights that are worth it."""
SAMPLE = 1 << 10
"""Numbers that are looked at first, where an array begins and in its middle."""
BYTE = 255
"""The largest difference of two bytes."""


def halves(graph: Graph, target: Target) -> Graph:
    """The fused graph with such weights small."""
    large = {n for n, a in graph.constants.items() if a.dtype == np.float32 and a.size >= LEAST}
    users = graph.consumers()
    found: dict[str, DType] = {}
    for name in large - set(graph.outputs):
        dtype = half_of(graph.constants[name], target)
        if dtype and all(_multiplies(n, name, graph, target) for n in users.get(name, ())):
            found[name] = dtype
    if not found:
        return graph
    constants = {n: np.asarray(a, found[n].numpy) if n in found else a for n, a in graph.constants.items()}
    nodes = [_reading(n, found) if set(n.inputs) & set(found) else n for n in graph.nodes]
    return graph.with_nodes(nodes, values=_typed(graph, found), constants=constants)


def half_of(array: Array, target: Target) -> DType | None:
    """The type of 16 bits that has all numbers of a float32 array, and that the target widens quickly; None
    where there is none, and for bytes, whose products `integers` has weighed."""
    flat, middle = array.reshape(-1), array.size // 2
    some = flat[:SAMPLE], flat[middle : middle + SAMPLE], flat
    if all(np.array_equal(np.clip(np.rint(a), -BYTE, BYTE), a) for a in some[:2]):
        return None
    return next((t for t in (F16, BF16) if widens(target, t) and all(_holds(t, a) for a in some)), None)


def widens(target: Target, dtype: DType) -> bool:
    """Whether a target widens numbers of 16 bits by an instruction or two."""
    row = target.row("widen", dtype)
    return dtype is BF16 or target.groups or (row is not None and bool(row.llvm))


def _holds(dtype: DType, array: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array.astype(dtype.numpy).astype(np.float32), array))


def _multiplies(kernel: Node, name: str, graph: Graph, target: Target) -> bool:
    """Whether all that a kernel does with constant weights is multiply rows by panels of them."""
    if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
        return False
    body = kernel.of(Kernel).body
    readers = [n for n in body.nodes if name in n.inputs]
    if len(readers) != 1 or not isinstance(readers[0].attrs, (Conv, MatMul)):
        return False
    (product,) = readers
    x, w = product.inputs
    if w != name or x == name or body.dtype(x) is not F32 or body.dtype(product.outputs[0]) is not F32:
        return False
    if target.groups:  # whose panels are copied as they are
        rows = static_shape(body.shape(product.outputs[0])[:-1])
        return isinstance(product.attrs, MatMul) and rows is not None and math.prod(rows) == 1
    parts, inputs, _ = stages(kernel)
    found = contraction.match(Workload(name, parts, inputs, graph.symbols, graph.constants, target))
    return found is not None and found.packed and found.role.right.buffer.name == name


def _reading(kernel: Node, found: dict[str, DType]) -> Node:
    """The kernel with such inputs."""
    body = kernel.of(Kernel).body
    return kernel_node(replace(body, values=_typed(body, found)), kernel.source)


def _typed(graph: Graph, found: dict[str, DType]) -> dict[str, Value]:
    return {n: replace(v, dtype=found[n]) if n in found else v for n, v in graph.values.items()}
