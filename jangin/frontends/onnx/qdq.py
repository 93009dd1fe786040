"""Convolutions and matrix products between DequantizeLinear and QuantizeLinear, as quantizers write
them, become ONNX's operators on integers: their sums are exact, and rounded once.

That is what the pattern means to ONNX Runtime too. It is found in the imported graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jangin.frontends.order import reads
from jangin.ir.graph import Graph, ImportedAttributes, Node

DEQUANTIZE, QUANTIZE = "onnx.DequantizeLinear", "onnx.QuantizeLinear"
QLINEAR_OPSET = 10
EIGHT_BITS = ("int8", "uint8")


def fuse_quantized(graph: Graph) -> Graph:
    """The graph with such nodes replaced. What they no longer read stays, and isn't lowered if nothing
    else needs it."""
    return _Fusing(graph).run()


class _Fusing:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {o: n for n in graph.nodes for o in n.outputs}
        self.uses = Counter((*graph.outputs, *(name for n in graph.nodes for name in reads(n))))
        self.readers: Mapping[str, Node] = {name: n for n in graph.nodes for name in n.inputs}

    def run(self) -> Graph:
        if not any(n.op == QUANTIZE for n in self.graph.nodes):
            return self.graph
        nodes: list[Node] = []
        fused: set[str] = set()
        for node in self.graph.nodes:
            found = self.fused(node) if node.op in ("onnx.Conv", "onnx.MatMul") else None
            if found is not None:
                fused |= {*found.outputs}
                nodes.append(found)
            elif fused.isdisjoint(node.outputs):
                nodes.append(node)
        return replace(self.graph, nodes=tuple(nodes))

    def fused(self, node: Node) -> Node | None:
        """What stands for the node and the QuantizeLinear behind it."""
        after = self.readers.get(node.outputs[0])
        if after is None or after.op != QUANTIZE or self.uses[node.outputs[0]] != 1:
            return None
        parts = [self.makers.get(name) for name in node.inputs]
        if not all(p is not None and p.op == DEQUANTIZE for p in parts):
            return None
        x, w, *bias = (p for p in parts if p is not None)
        each = node.op == "onnx.Conv"  # filters may each have a scale
        if not (
            self.fits(x)
            and self.fits(after)
            and self.fits(w, each)
            and all(self.is_bias(v, x, w) for v in bias)
        ):
            return None
        op = "onnx.QLinearConv" if each else "onnx.QLinearMatMul"
        return replace(
            node,
            inputs=(*x.inputs, *w.inputs, *after.inputs[1:], *(b.inputs[0] for b in bias)),
            outputs=after.outputs,
            attrs=ImportedAttributes(op, {**node.of(ImportedAttributes), "opset": QLINEAR_OPSET}),
        )

    def fits(self, node: Node, each: bool = False) -> bool:
        """Whether a node quantizes by one scale (or, if `each`, one for each entry of axis 0), to or from
        8 bits."""
        attrs = node.of(ImportedAttributes)
        if len(node.inputs) != 3 or attrs.get("block_size") or attrs.get("output_dtype"):
            return False
        scale, zero = (self.graph.constants.get(n) for n in node.inputs[1:])
        if scale is None or zero is None or scale.dtype != np.float32 or zero.dtype.name not in EIGHT_BITS:
            return False
        return scale.size == 1 or (each and attrs.get("axis", 1) == 0 and scale.ndim == 1)

    def is_bias(self, node: Node, x: Node, w: Node) -> bool:
        """Whether it dequantizes a bias of 32-bit integers in units of both scales."""
        bias, scale, *zero = (self.graph.constants.get(n) for n in node.inputs)
        if bias is None or bias.dtype != np.int32 or scale is None or any(z is None or z.any() for z in zero):
            return False
        unit = self.graph.constants[x.inputs[1]] * self.graph.constants[w.inputs[1]]
        return scale.size in (1, unit.size) and bool(np.allclose(scale, unit, rtol=1e-4, atol=0))
