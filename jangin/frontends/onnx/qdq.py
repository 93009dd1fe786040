"""Replace operators between DequantizeLinear and QuantizeLinear by ONNX's operators on integers, as ONNX
Runtime does.

Convolutions and matrix products then have exact sums that are rounded once. A matrix product with constant
weights whose result isn't quantized gives floats from exact sums.

Operators that only move or select elements work on the integers. A gather from a table of integers is
dequantized after the gather. The patterns are matched in the imported graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.frontends.order import reads
from jangin.ir.graph import Graph, ImportedAttributes, Node

DEQUANTIZE, QUANTIZE, GATHER = "onnx.DequantizeLinear", "onnx.QuantizeLinear", "onnx.Gather"
GEMM, TO_FLOAT = "com.microsoft.QGemm", "com.microsoft.MatMulIntegerToFloat"
PRODUCTS = {"onnx.Conv": "onnx.QLinearConv", "onnx.MatMul": "onnx.QLinearMatMul", "onnx.Gemm": GEMM}
QLINEAR_OPSET = 10
"""The opset that introduced QLinearConv and QLinearMatMul, which replace patterns of QuantizeLinear and
DequantizeLinear."""
EIGHT_BITS = ("int8", "uint8")
MOVING = {
    f"onnx.{name}"
    for name in [
        "MaxPool",
        "Reshape",
        "Transpose",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "DepthToSpace",
    ]
}
"""Operators whose results are elements of their first operand. They may work on its integers, because these
are ordered like the floats that they represent."""


def fuse_quantized(graph: Graph) -> Graph:
    """Return the graph with such operators replaced. DequantizeLinear nodes whose results nothing reads any
    more are removed.

    If they stayed, lowering would dequantize their constants, and weights in f32 are four times as large."""
    return _Fusing(graph).run()


class _Fusing:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {o: n for n in graph.nodes for o in n.outputs}
        self.uses = Counter((*graph.outputs, *(name for n in graph.nodes for name in reads(n))))
        self.readers: Mapping[str, Node] = {name: n for n in graph.nodes for name in n.inputs}

    def run(self) -> Graph:
        if not any(n.op == DEQUANTIZE for n in self.graph.nodes):
            return self.graph
        nodes: list[Node] = []
        fused: set[str] = set()
        for node in self.graph.nodes:
            replacement = None
            if node.op in PRODUCTS:
                replacement = self.fused(node)
            elif node.op in MOVING and len(node.outputs) == 1:
                replacement = self.moved(node)
            elif node.op == GATHER and (picked := self.picked(node)) is not None:
                nodes.append(picked)
                table = self.makers[node.inputs[0]]
                operands = (*picked.outputs, *table.inputs[1:])
                replacement = replace(
                    table, name=f"{node.name}.floats", inputs=operands, outputs=node.outputs
                )
            if replacement is not None:
                fused |= {*replacement.outputs}
                nodes.append(replacement)
            elif fused.isdisjoint(node.outputs):
                nodes.append(node)
        read = {*self.graph.outputs, *(name for n in nodes for name in reads(n))}
        kept = (n for n in nodes if n.op != DEQUANTIZE or not read.isdisjoint(n.outputs) or not self.used(n))
        return replace(self.graph, nodes=tuple(kept))

    def used(self, node: Node) -> bool:
        """Tell if an operator or an output of the graph reads a result of the node."""
        return any(self.uses[name] for name in node.outputs)

    def fused(self, node: Node) -> Node | None:
        """Return the operator on integers for a node and the QuantizeLinear after it, or None if there is
        none."""
        parts = [self.makers.get(name) for name in node.inputs]
        if not all(p is not None and p.op == DEQUANTIZE for p in parts):
            return None
        x, w, *bias = (p for p in parts if p is not None)
        attrs = node.of(ImportedAttributes)
        if attrs.get("transA") or attrs.get("alpha", 1) != 1 or (bias and attrs.get("beta", 1) != 1):
            return None
        if not (
            self.fits(x)
            and self.fits(w, self.outputs_axis(node, w))
            and all(self.is_bias(v, x, w) for v in bias)
        ):
            return None
        after = self.readers.get(node.outputs[0])
        if after is None or after.op != QUANTIZE or self.uses[node.outputs[0]] != 1 or not self.fits(after):
            return self.in_floats(node, x, w, bias)
        constant, result = [b.inputs[0] for b in bias], after.inputs[1:]
        if node.op == "onnx.Gemm":
            operands = (*x.inputs, *w.inputs, *(constant or [""]), *result)
            attrs = ImportedAttributes(GEMM, {"transB": attrs.get("transB", 0), "opset": 1})
        else:
            operands = (*x.inputs, *w.inputs, *result, *constant)
            attrs = ImportedAttributes(PRODUCTS[node.op], {**attrs, "opset": QLINEAR_OPSET})
        return replace(node, inputs=operands, outputs=after.outputs, attrs=attrs)

    def in_floats(self, node: Node, x: Node, w: Node, bias: Sequence[Node]) -> Node | None:
        """Return a product of integers with a result in floats for a matrix product, or None if there is
        none."""
        if node.op == "onnx.Conv" or w.inputs[0] not in self.graph.constants:
            return None
        if node.op == "onnx.Gemm":
            turned = node.of(ImportedAttributes).get("transB", 0)
            operands = (*x.inputs, *w.inputs, *(b.inputs[0] for b in bias))
            return replace(
                node, inputs=operands, attrs=ImportedAttributes(GEMM, {"transB": turned, "opset": 1})
            )
        (q, step, zero), (v, steps, zeros) = x.inputs, w.inputs
        return replace(
            node, inputs=(q, v, step, steps, zero, zeros), attrs=ImportedAttributes(TO_FLOAT, {"opset": 1})
        )

    def outputs_axis(self, node: Node, w: Node) -> int:
        """Return the axis of the weights along which each entry may have a scale. These are the filters of a
        convolution, or the columns of a matrix."""
        known = self.graph.constants.get(w.inputs[0])
        if node.op == "onnx.Conv" or known is None or node.of(ImportedAttributes).get("transB"):
            return 0
        return known.ndim - 1

    def moved(self, node: Node) -> Node | None:
        """Return the node on integers, without conversions around it. Return None unless its operand and its
        result are quantized in the same way."""
        before, after = self.makers.get(node.inputs[0]), self.readers.get(node.outputs[0])
        if before is None or before.op != DEQUANTIZE or after is None or after.op != QUANTIZE:
            return None
        if self.uses[node.outputs[0]] != 1 or not (self.fits(before) and self.fits(after)):
            return None
        pairs = zip(before.inputs[1:], after.inputs[1:], strict=True)
        same = all(np.array_equal(self.graph.constants[a], self.graph.constants[b]) for a, b in pairs)
        kinds = {self.graph.constants[n.inputs[2]].dtype for n in (before, after)}
        if not same or len(kinds) > 1 or self.graph.constants[before.inputs[1]] <= 0:
            return None
        return replace(node, inputs=(before.inputs[0], *node.inputs[1:]), outputs=after.outputs)

    def picked(self, node: Node) -> Node | None:
        """Return a gather from a table of integers with one scale, or None. Its table would be four times as
        large in f32."""
        table = self.makers.get(node.inputs[0])
        if table is None or table.op != DEQUANTIZE or not self.fits(table):
            return None
        return replace(
            node, inputs=(table.inputs[0], *node.inputs[1:]), outputs=(f"{node.outputs[0]}.integers",)
        )

    def fits(self, node: Node, each: int | None = None) -> bool:
        """Tell if a node converts to or from 8-bit integers by one scale. There may also be one scale for
        each entry of the axis `each`, if given."""
        attrs = node.of(ImportedAttributes)
        if len(node.inputs) != 3 or attrs.get("block_size") or attrs.get("output_dtype"):
            return False
        scale, zero = (self.graph.constants.get(n) for n in node.inputs[1:])
        if scale is None or zero is None or scale.dtype != np.float32 or zero.dtype.name not in EIGHT_BITS:
            return False
        return scale.size == 1 or (each is not None and attrs.get("axis", 1) == each and scale.ndim == 1)

    def is_bias(self, node: Node, x: Node, w: Node) -> bool:
        """Tell if a node dequantizes a bias of 32-bit integers whose scale is the product of the scales of x
        and w."""
        bias, scale, *zero = (self.graph.constants.get(n) for n in node.inputs)
        if bias is None or bias.dtype != np.int32 or scale is None or any(z is None or z.any() for z in zero):
            return False
        unit = self.graph.constants[x.inputs[1]] * self.graph.constants[w.inputs[1]]
        return scale.size in (1, unit.size) and bool(np.allclose(scale, unit, rtol=1e-4, atol=0))
