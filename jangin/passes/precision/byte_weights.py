"""Stores the weights of int8 models as bytes if products read them as pairs of int16 or as f32.

A load of WebAssembly widens bytes to int16, so pairs take no more instructions. A task widens f32 weights
once for all its rows (see `templates.contraction`), or in registers. `winograd`, which runs before, stores
bytes that a run transforms.
"""

from __future__ import annotations

import numpy as np

from jangin.ir.core import Conv, Kernel, MatMul
from jangin.ir.dtype import I8, I16, I32, DType
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.products import DOT2
from jangin.passes.fusion.stages import is_opaque
from jangin.passes.precision.halves import reading, typed
from jangin.targets.target import Target

Small = tuple[DType, Array]
"""The type of stored weights, and the weights."""
LEAST = 64
"""Fewest weights of an array. The loads of smaller arrays would save less memory than their code takes."""


def byte_weights(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with its weights as bytes if these represent them exactly."""
    if not target.machine.fusion.byte_weights:
        return graph
    users = graph.consumers()
    narrowed: dict[str, Small] = {}
    for name, array in graph.constants.items():
        kernels = users.get(name, ())
        if array.size < LEAST or name in graph.outputs or not kernels:
            continue
        small = in_bytes(array)
        if small is not None and all(_multiplies(k, name, graph.dtype(name)) for k in kernels):
            narrowed[name] = small
    if not narrowed:
        return graph
    types = {name: dtype for name, (dtype, _) in narrowed.items()}
    constants = {n: narrowed[n][1] if n in narrowed else a for n, a in graph.constants.items()}
    nodes = [reading(n, types) if types.keys() & set(n.inputs) else n for n in graph.nodes]
    return graph.with_nodes(nodes, values=typed(graph, types), constants=constants)


def in_bytes(array: Array) -> Small | None:
    """Return words of pairs of int16, or f32, as words of two bytes, or as bytes. Return None for numbers
    that bytes don't represent."""
    if array.dtype == I32.numpy:
        pairs = np.ascontiguousarray(array).reshape(-1).view(np.int16)
        small = pairs.astype(np.int8)
        return (I16, small.view(np.int16).reshape(array.shape)) if np.array_equal(small, pairs) else None
    if array.dtype != np.float32 or not np.array_equal(np.clip(np.rint(array), *I8.limits), array):
        return None
    return I8, array.astype(np.int8)


def _multiplies(kernel: Node, name: str, dtype: DType) -> bool:
    """Return whether a kernel uses constants only as the right operand of products: pairs as words of `dot2`,
    floats one by one."""
    if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
        return False
    readers = [n for n in kernel.of(Kernel).body.nodes if name in n.inputs]
    if not readers or any(n.inputs[0] == name or n.inputs[1] != name for n in readers):
        return False
    if dtype is I32:
        return all(isinstance(n.attrs, (Conv, MatMul)) and n.attrs.dot == DOT2 for n in readers)
    return all(isinstance(n.attrs, (Conv, MatMul)) and n.attrs.dot is None for n in readers)
