"""Write a prepared graph as a TensorFlow Lite file with its chosen parts in int8, by LiteRT's specification
of 8-bit quantization.

Values between the parts are int8 too if they have scales, or if their scales follow from those around
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.tails import Tail, clamped, mean, tail
from jangin.frontends.tflite.file import Scales
from jangin.frontends.tflite.forms import ACTIVATIONS
from jangin.frontends.tflite.products import Weights
from jangin.frontends.tflite.writer import FIXED, FUSING, TfliteWriter, step
from jangin.ir.core import Compute, Concat, Map, Pad, Pool, Reduce, Reshape, Slice, Softmax, Transpose
from jangin.ir.dtype import F32, I8
from jangin.ir.graph import CompileError, Graph, Node
from jangin.quantization.parts import Part, scores, sums
from jangin.quantization.scales import Scheme, of_range
from jangin.quantization.writer import Chosen, quantized_values

LEAST_SWISH = -0.27847
"""The least value that x * sigmoid(x) takes, at x = -1.2785. A result's range begins there."""
BIAS = 1 << 30
"""The largest absolute value of a bias, in units of both scales. It is half of int32's range, so that a sum
of products can be added without overflow."""


def written(
    graph: Graph, parts: Sequence[Part], chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme],
    described: Mapping[str, Any],
) -> bytes:  # fmt: skip
    """Return the bytes of a .tflite file.

    `ranges` has the scheme of each observed value, and `described` is the model's metadata. Raises
    CompileError, which names every part that TFLite can't express."""
    return _Writer(graph, parts, chosen, ranges).model(str(described.get("description") or ""))


def scales_of(scheme: Scheme) -> Scales:
    """Convert a scheme of u8 or i8 integers to the scale and zero point of int8."""
    moved = scheme.dtype.limits[0] - I8.limits[0]
    return Scales((float(scheme.scale),), (int(scheme.zero) - moved,))


def of_ends(low: float, high: float) -> Scales:
    return scales_of(of_range(low, high))


def ends(scales: Scales) -> tuple[float, float]:
    """Return the real numbers that the least and the largest int8 represent."""
    low, high = ((end - scales.zero[0]) * scales.scale[0] for end in I8.limits)
    return low, high


class _Writer(TfliteWriter):
    def __init__(
        self, graph: Graph, parts: Sequence[Part], chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme]
    ) -> None:
        super().__init__(graph)
        self.parts = {p.name: p for p in parts if p.name in chosen}
        self.chosen = chosen
        results = {p.name: p.result for p in parts if p.is_conv} | scores(graph, parts)
        whole = {n for n, c in chosen.items() if c.kind == "int8" and results.get(n) in ranges}
        self.results = {n: v for n, v in results.items() if n in whole}
        sources = quantized_values(graph, parts, dict.fromkeys(whole))
        by_value = {v: ranges[source] for v, source in sources.items()}
        by_value |= {v: ranges[v] for v in self.results.values()}
        self.sums = {v: scales_of(ranges[v]) for v in sums(self.graph) if v in ranges}
        self.scales = {v: scales_of(s) for v, s in by_value.items()}
        for node in self.graph.nodes:
            self._spread(node)
        for node in reversed(self.graph.nodes):
            if isinstance(node.attrs, Concat) and node.outputs[0] in self.scales:
                for name in node.inputs:
                    self._adopt(name, self.scales[node.outputs[0]])

    # -- scales ---------------------------------------------------------------------------------

    def _spread(self, node: Node) -> None:
        """Set the scale of an operator's result if it follows from its operands' scales. The operator then
        computes in int8."""
        scales, x, y = self.scales, *(names[0] if names else "" for names in (node.inputs, node.outputs))
        if self._joins(node) and y not in scales:
            reach = [ends(scales[n]) for n in node.inputs]
            scales[y] = of_ends(min(low for low, _ in reach), max(high for _, high in reach))
        if isinstance(node.attrs, Map) and step(node) in FUSING:
            end = tail(self.graph, y, self.users)
            if end.result in self.sums and all(n in scales for n in node.inputs):
                scales.setdefault(end.result, self.sums[end.result])
            if end.result in scales:
                for name in node.inputs:
                    self._constant(name)
        if x not in scales or self.graph.dtype(y) is not F32:
            return
        match node.attrs:
            case Reshape() | Transpose() | Slice() | Compute():
                scales[y] = scales[x]
            case Pad(value=0, mode="constant" | "reflect"):
                scales[y] = scales[x]
            case Pool(combiner) as own:
                whole = combiner == "sum" and own.kernel == self.sizes(x)[2:]
                scales[y] = scales.get(y, scales[x]) if whole else scales[x]
            case Reduce(combiner):
                after = mean(self.graph, node, self.users)
                if after is not None:
                    scales.setdefault(after.outputs[0], scales[x])
                elif combiner in ("max", "min"):
                    scales[y] = scales[x]
            case Softmax(axis, log) if axis == 1 or axis == len(self.graph.shape(x)) - 1:
                scales[y] = FIXED["LOG_SOFTMAX" if log else "SOFTMAX"]
            case Map(body):
                bounds = clamped(body)
                if step(node) == "MUL" and y not in scales:
                    self._gated(node)
                elif step(node) in FIXED:
                    scales[y] = FIXED[step(node)]
                elif bounds in ACTIVATIONS and y not in scales:
                    low, high = ends(scales[x])
                    scales[y] = of_ends(max(low, bounds[0]), min(high, bounds[1]))

    def _joins(self, node: Node) -> bool:
        """Tell if a node concatenates int8 values and an operator that TFLite has in int8 reads the
        result."""
        if not isinstance(node.attrs, Concat) or any(n not in self.scales for n in node.inputs):
            return False
        read = (n for n in self.users.get(node.outputs[0], ()) if not isinstance(n.attrs, Concat))
        return any(not isinstance(n.attrs, Map) or step(n) for n in read)

    def _gated(self, node: Node) -> None:
        """Set the scale of a product whose one factor is a sigmoid. If it is the sigmoid of the other factor,
        the product is x * sigmoid(x), whose least value is known."""
        y, scales = node.outputs[0], self.scales
        for x, gate in (node.inputs, node.inputs[::-1]):
            if x in scales and scales.get(gate) == FIXED["LOGISTIC"]:
                low, high = ends(scales[x])
                own = self.makers[gate].inputs[0] == x
                scales[y] = of_ends(max(low, LEAST_SWISH) if own else low, high)
                return

    def _constant(self, name: str) -> None:
        array = self.graph.constants.get(name)
        if array is not None and array.size and name not in self.scales:
            self.scales[name] = of_ends(float(array.min()), float(array.max()))

    def _adopt(self, name: str, scales: Scales) -> None:
        """Give a part's result the scale of the concatenation `scales` if only the concatenation reads it."""
        if len(self.users[name]) > 1 or name in self.graph.outputs or name not in self.scales:
            return
        part = next((p for n, p in self.parts.items() if self.results.get(n) == name), None)
        if part is not None and (part.low, part.high) in ACTIVATIONS:
            self.scales[name] = scales

    # -- products -------------------------------------------------------------------------------

    def is_whole(self, node: Node) -> bool:
        result = self.results.get(node.name)
        if result is None or result not in self.scales:
            return False
        part = self.parts[node.name]
        behind = tail(self.graph, node.outputs[0], self.users, -1).bias_name(node.outputs[0])
        if part.is_conv or behind is None:
            return True
        bias, units = self.graph.constants[behind].reshape(-1), self._units(part)
        return bool((np.abs(bias) <= BIAS * np.asarray(units)).all())

    def _units(self, part: Part) -> tuple[float, ...]:
        """Return the scales of a part's bias."""
        w = self.chosen[part.name].scheme
        assert w is not None
        return tuple(np.float32(self.scales[part.x].scale[0]) * w.scale)

    def weights(self, node: Node, tail: Tail, channels: int) -> Weights:
        plain = super().weights(node, tail, channels)
        part = self.parts.get(node.name)
        if part is None:
            return plain
        chosen = self.chosen[node.name]
        if chosen.kind not in ("int8", "float16"):
            raise CompileError(f"TFLite can't express weights in {chosen.kind}, by blocks")
        bias = plain.bias if chosen.bias is None else np.broadcast_to(chosen.bias, channels)
        data = part.with_weights(self.graph, chosen.weights)
        if chosen.scheme is None:
            return Weights(data, bias)
        scales = tuple(map(float, chosen.scheme.scale))
        if not self.is_whole(node):
            return Weights(data, bias, scales)
        units = self._units(part)
        whole = np.clip(np.rint(bias / np.asarray(units)), -(1 << 31), (1 << 31) - 1).astype(np.int32)
        return Weights(data, whole, scales, units)
