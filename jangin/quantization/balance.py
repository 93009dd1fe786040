"""Balance the sizes of weights and activations before they are quantized. The computed function stays the
same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jangin.ir.core import Conv, Map
from jangin.ir.dtype import F32
from jangin.ir.expr import Var
from jangin.ir.graph import Array, Graph, Node
from jangin.ops.editor import Editor
from jangin.quantization.parts import Part, find_parts

TIMES = 10
"""Most passes over the pairs of layers. Each pair's scales change those of its neighbours, by less in each
pass. Chains of up to three pairs settle (`CLOSE`) within ten passes, and longer ones nearly."""
CLOSE = 1e-3
"""The largest logarithm of a scale at which the scales count as settled: a change of 0.1 %, far less than a
step of int8."""


def smoothed(graph: Graph, largest: Mapping[str, Array], strength: float) -> Graph:
    """Divide each column of the matrix products' inputs by a number, and multiply the row of weights by it.
    Outliers of activations thus move into weights. Return the new graph.

    `largest` has the largest absolute value in each column of each value that is read. `strength` from 0 to 1
    is the share that moves. (G. Xiao et al., SmoothQuant, ICML 2023.)"""
    run = Editor(graph.symbols, graph.values, graph.constants)
    by_value: dict[str, list[Part]] = {}
    for part in find_parts(graph):
        if not part.is_conv and part.x in largest:
            by_value.setdefault(part.x, []).append(part)
    rewired: dict[str, Node] = {}
    divided: dict[str, str] = {}
    for value, parts in by_value.items():
        rows = np.max([np.abs(p.weights(graph)).max(1) for p in parts], axis=0)
        size = np.maximum(largest[value], 1e-5) ** strength / np.maximum(rows, 1e-5) ** (1 - strength)
        factor = np.where(rows > 0, size, 1.0).astype(np.float32)
        divided[value] = run.constant(1 / factor, f"{value}.smoothing")
        for part in parts:
            scaled = part.with_weights(graph, part.weights(graph) * factor[:, None])
            held = run.constant(np.ascontiguousarray(scaled), f"{part.w}.smoothed")
            rewired[part.name] = replace(part.node, inputs=(value, held))
    product = Map(Var("x0", F32) * Var("x1", F32))
    smooth_values: dict[str, str] = {}
    for node in graph.nodes:
        if node.name not in rewired:
            run.emit(node)
            continue
        value, w = rewired[node.name].inputs
        if value not in smooth_values:
            smooth_values[value] = run.add(product, [value, divided[value]], f"{value}.smooth", node.source)
        run.emit(replace(node, inputs=(smooth_values[value], w)))
    return run.rewritten(graph)


def equalized(graph: Graph) -> Graph:
    """Scale each channel between two consecutive convolutions so that its weights are equally large in both.
    Return the new graph.

    Only pairs with nothing or a ReLU between them are scaled. (M. Nagel et al., Data-Free Quantization, ICCV
    2019.)"""
    pairs = _pairs(graph)
    constants = dict(graph.constants)
    for _ in range(TIMES):
        change = max((_balance(constants, one, other) for one, other in pairs), default=0.0)
        if change < CLOSE:
            break
    return replace(graph, constants=constants)


def _pairs(graph: Graph) -> list[tuple[Part, Part]]:
    """Return pairs of convolutions where only the second reads the first's result, with nothing or a ReLU
    between. No other node may read their constants."""
    parts, users = find_parts(graph), graph.consumers()
    readers = {p.x: p for p in parts if p.is_conv and len(users[p.x]) == 1}
    pairs = []
    for one in parts:
        other = readers.get(one.result)
        scales = one.is_conv and other is not None and one.result not in graph.outputs
        if not scales or other is None or one.high != np.inf or one.low not in (0, -np.inf):
            continue
        names = [n for n in (one.w, other.w, one.bias_name()) if n is not None]
        if all(len(users[n]) == 1 for n in names) and _connected(graph, one, other):
            pairs.append((one, other))
    return pairs


def _connected(graph: Graph, one: Part, other: Part) -> bool:
    """Tell if channels between two convolutions can be scaled one by one. The bias must have a number for
    each channel. The second convolution must have one group, or one group for each channel."""
    groups, w, channels = other.node.of(Conv).groups, graph.constants[other.w], len(graph.constants[one.w])
    name = one.bias_name()
    if name is not None and graph.constants[name].size != channels:
        return False
    return groups == 1 or (w.shape[:2] == (groups, 1) and groups == channels)


def _balance(constants: dict[str, Array], one: Part, other: Part) -> float:
    """Scale the constants of two convolutions so that each channel between them has equally large weights.
    Return the largest absolute logarithm of a scale."""
    first, second = constants[one.w], constants[other.w]
    each = other.node.of(Conv).groups > 1
    behind = (0, *range(2, second.ndim)) if not each else tuple(range(1, second.ndim))
    before, after = np.abs(first).max(tuple(range(1, first.ndim))), np.abs(second).max(behind)
    both = (before > 0) & (after > 0)
    size = np.where(both, np.sqrt(before / np.where(after > 0, after, 1)), 1).astype(np.float32)
    size = np.where(size > 0, size, 1).astype(np.float32)

    def along(axis: int, rank: int) -> Array:
        return size.reshape([-1 if i == axis else 1 for i in range(rank)])

    constants[one.w] = first / along(0, first.ndim)
    constants[other.w] = second * along(0 if each else 1, second.ndim)
    name = one.bias_name()
    if name is not None:
        bias = constants[name]
        constants[name] = (bias.reshape(-1) / size).reshape(bias.shape)
    return float(np.abs(np.log(size)).max(initial=0))


def corrected(part: Part, w: Array, rounded: Array, means: Array, bias: Array | None) -> Array:
    """Return a convolution's bias, less the change of each output channel's mean that rounding the weights
    causes. `means` are the means of the channels that it reads.

    The method is that of the paper cited in `equalized`."""
    error = (rounded - w).astype(np.float64).sum(tuple(range(2, w.ndim)))
    groups = part.node.of(Conv).groups
    read = means.reshape(groups, -1)  # one row for each group
    of = np.repeat(np.arange(groups), len(w) // groups)
    added = (error * read[of]).sum(1)
    return np.asarray((0.0 if bias is None else bias) - added, np.float32)
