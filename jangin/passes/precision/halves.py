"""Keeps f32 weights in 16 bits if a 16-bit float type represents all of them exactly; results stay the same
bit for bit.

This halves their memory and their traffic. Products read the weights in panels. A task widens a panel once
for all its rows (see `templates.contraction`), or at the multiplication if there are few rows.

The type in the model's file doesn't matter: weights of a float32 file made from a smaller type are found too.
Weights that Winograd's method transforms are left to `winograd`, which runs before.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from jangin.ir.core import Conv, Kernel, MatMul
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.graph import Array, Graph, Node, Value, static_shape
from jangin.ops.editor import kernel_node
from jangin.passes.fusion.stages import is_opaque, stages
from jangin.targets.target import Target
from jangin.templates import contraction
from jangin.templates.template import Workload

LEAST = 1 << 14
"""Fewest weights of an array. Smaller arrays would save less than 32 KiB of memory."""
SAMPLE = 1 << 10
"""Numbers that are tested first, at an array's beginning and in its middle. Most arrays that don't qualify
show it there, so that the rest needn't be read."""
BYTE = 255
"""The largest difference of two bytes. Weights that are whole numbers of at most this magnitude belong to
products of bytes."""


def halves(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with weights in 16 bits if these represent them exactly."""
    large = {n for n, a in graph.constants.items() if a.dtype == np.float32 and a.size >= LEAST}
    users = graph.consumers()
    narrowed: dict[str, DType] = {}
    for name in large - set(graph.outputs):
        dtype = half_of(graph.constants[name], target)
        if dtype and all(_multiplies(n, name, graph, target) for n in users.get(name, ())):
            narrowed[name] = dtype
    if not narrowed:
        return graph
    constants = {
        n: np.asarray(a, narrowed[n].numpy) if n in narrowed else a for n, a in graph.constants.items()
    }
    nodes = [reading(n, narrowed) if set(n.inputs) & set(narrowed) else n for n in graph.nodes]
    return graph.with_nodes(nodes, values=typed(graph, narrowed), constants=constants)


def half_of(array: Array, target: Target) -> DType | None:
    """Return the 16-bit type that represents all numbers of a float32 array, and that the target widens
    quickly.

    Return None if there is no such type, or if the sampled numbers are whole and no larger than `BYTE`.
    `integers` has decided about products of bytes.
    """
    flat, middle = array.reshape(-1), array.size // 2
    some = flat[:SAMPLE], flat[middle : middle + SAMPLE], flat
    if all(np.array_equal(np.clip(np.rint(a), -BYTE, BYTE), a) for a in some[:2]):
        return None
    return next((t for t in (F16, BF16) if widens(target, t) and all(_holds(t, a) for a in some)), None)


def widens(target: Target, dtype: DType) -> bool:
    """Return whether a target widens 16-bit numbers by an instruction or two."""
    row = target.row("widen", dtype)
    return dtype is BF16 or target.groups or (row is not None and bool(row.llvm))


def _holds(dtype: DType, array: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array.astype(dtype.numpy).astype(np.float32), array))


def _multiplies(kernel: Node, name: str, graph: Graph, target: Target) -> bool:
    """Return whether a kernel uses constant weights only as packed panels of one product."""
    if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
        return False
    body = kernel.of(Kernel).body
    readers = [n for n in body.nodes if name in n.inputs]
    if len(readers) != 1 or not isinstance(readers[0].attrs, (Conv, MatMul)):
        return False
    (product,) = readers
    x, w = product.inputs
    if isinstance(product.attrs, (Conv, MatMul)) and product.attrs.dot is not None:
        return False  # its numbers are those of the instruction
    if w != name or x == name or body.dtype(x) is not F32 or body.dtype(product.outputs[0]) is not F32:
        return False
    if target.groups:  # kernels for work-groups copy panels as they are
        rows = static_shape(body.shape(product.outputs[0])[:-1])
        return isinstance(product.attrs, MatMul) and rows is not None and math.prod(rows) == 1
    parts, inputs, _ = stages(kernel)
    matched = contraction.match(Workload(name, parts, inputs, graph.symbols, graph.constants, target))
    return matched is not None and matched.packed and matched.role.right.buffer.name == name


def reading(kernel: Node, found: dict[str, DType]) -> Node:
    """Return the kernel with inputs of these types."""
    body = kernel.of(Kernel).body
    return kernel_node(replace(body, values=typed(body, found)), kernel.source)


def typed(graph: Graph, found: dict[str, DType]) -> dict[str, Value]:
    return {n: replace(v, dtype=found[n]) if n in found else v for n, v in graph.values.items()}
