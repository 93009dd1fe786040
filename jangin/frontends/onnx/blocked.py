"""Combine a matrix product and the blockwise DequantizeLinear of its constant weights into one operator,
which keeps the weights in blocks.

The pattern is matched in the imported graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jangin.ir.graph import Graph, ImportedAttributes, Node

DEQUANTIZE = "onnx.DequantizeLinear"
PRODUCTS = ("onnx.MatMul", "onnx.Gemm")
WHOLE = ("int2", "uint2", "int4", "uint4", "int8", "uint8")


def keep_blocks(graph: Graph) -> Graph:
    """Return the graph with each such product and its DequantizeLinear combined. The old DequantizeLinear
    remains. It isn't lowered if no other node reads its result."""
    makers = {o: n for n in graph.nodes if n.op == DEQUANTIZE for o in n.outputs}
    return replace(graph, nodes=tuple(_kept(n, makers, graph) or n for n in graph.nodes)) if makers else graph


def _kept(node: Node, makers: Mapping[str, Node], graph: Graph) -> Node | None:
    """Return the operator that combines a product and the DequantizeLinear of its weights. Return None if the
    node isn't such a product."""
    weights = makers.get(node.inputs[1]) if node.op in PRODUCTS else None
    if weights is None:
        return None
    x, _, *bias = node.inputs
    attrs, how = node.of(ImportedAttributes), weights.of(ImportedAttributes)
    turned = bool(attrs.get("transB"))
    block, axis = how.get("block_size", 0), how.get("axis", 1) % 2
    changed = attrs.get("alpha", 1) != 1 or (any(bias) and attrs.get("beta", 1) != 1) or attrs.get("transA")
    if not block or axis != turned or changed or how.get("output_dtype"):
        return None
    numbers, *scales = (graph.constants.get(n) for n in weights.inputs if n)
    if numbers is None or numbers.ndim != 2 or numbers.dtype.name not in WHOLE:
        return None
    sizes = tuple(-(-d // block) if n == axis else d for n, d in enumerate(numbers.shape))
    if any(s is None or s.shape != sizes for s in scales):
        return None
    settings = {"turned": turned, "block_size": block, "opset": 1}
    zero = [*weights.inputs[2:], ""][0]
    operands = (x, *weights.inputs[:2], zero, *bias)
    return replace(node, inputs=operands, attrs=ImportedAttributes("jangin.MatMulBlocks", settings))
