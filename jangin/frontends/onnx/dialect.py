"""ONNX's operators as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering, Outputs
from jangin.frontends.onnx import control
from jangin.frontends.onnx.blocked import keep_blocks
from jangin.frontends.onnx.importer import split_op
from jangin.frontends.onnx.nchwc import with_blocks
from jangin.frontends.onnx.operators import OPERATORS
from jangin.frontends.onnx.operators.strings import MEASURING, MOVING, is_text, moved
from jangin.frontends.onnx.qdq import fuse_quantized
from jangin.frontends.onnx.registry import find
from jangin.frontends.onnx.schema import check_types, has_body
from jangin.frontends.onnx.types import LEVEL_OF_INT8
from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node
from jangin.ops.builder import Builder
from jangin.ops.nontensor import type_of

CONTROL: Mapping[str, Lowering] = {
    "onnx.If": control.branch,
    "onnx.Loop": control.loop,
    "onnx.Scan": control.scan,
}
"""Lowerings of the operators with sub-graphs."""
REMARKS = frozenset({"opset", "consumed_inputs"})
"""Attributes that no lowering reads: the version of the node's domain, and a hint about memory of opset 1."""

IN_BLOCKS = frozenset({"MatMulNBits", "MatMulBlocks"})
"""Operators that multiply by blockwise quantized weights. They have the attribute `accuracy_level`."""
UNSET = 0
"""The value of `accuracy_level` that demands no accuracy, as ONNX Runtime defines it."""


class Onnx(Dialect):
    """ONNX's dialect, which finds a lowering by a node's domain, name and opset. `OnnxFormat` explains
    `activations` and `block`."""

    domain = "onnx"

    def __init__(self, activations: str = "float32", block: int = 0) -> None:
        self.activations, self.block = activations, block

    def lowering(self, node: Node) -> Lowering | None:
        if node.op in CONTROL:
            return CONTROL[node.op]
        opset: int = node.of(ImportedAttributes)["opset"]
        if find(OPERATORS, *split_op(node.op), opset) is not None:
            return self._by_operator
        return self._by_body if has_body(*split_op(node.op), opset) else None

    def _by_operator(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        """Lower a node by the version of its operator that belongs to the node's opset."""
        domain, name = split_op(node.op)
        opset: int = node.of(ImportedAttributes)["opset"]
        operator = find(OPERATORS, domain, name, opset)
        assert operator is not None
        check_types(domain, name, opset, [None if t is None else type_of(t) for t in inputs])
        attrs = self.attributes(node)
        if name in IN_BLOCKS:
            level = attrs.get("accuracy_level", UNSET)
            attrs = {**attrs, "accuracy_level": self.level(level)}
        if name in MOVING | MEASURING and any(map(is_text, inputs)):
            return moved(b, name, operator.lower, inputs, attrs)
        lowered: Outputs = operator.lower(b, *inputs, **attrs)
        return lowered

    def level(self, asked: int) -> int:
        """Return the `accuracy_level` at which a product by blockwise quantized weights is computed, if a
        model asks for `asked`."""
        allowed = self.activations == "int8" and asked in (UNSET, LEVEL_OF_INT8)
        return LEVEL_OF_INT8 if allowed else UNSET

    def _by_body(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        """Lower a node by the function body that the standard gives for its operator. Raises CompileError if
        there is none for these inputs.

        Few models need such a body, and finding one imports ONNX's whole library."""
        from jangin.frontends.onnx import functions

        types = [None if t is None else type_of(t) for t in inputs]
        check_types(*split_op(node.op), node.of(ImportedAttributes)["opset"], types)
        body = functions.body(node, types)
        if body is None:
            raise CompileError("the standard has no body of this operator for these inputs")
        return bodies.expand(b, body, inputs)

    def remedy(self, node: Node) -> str:
        domain, name = split_op(node.op)
        known = {n for d, n in OPERATORS if d == domain}
        if name in known:
            since = min(o.since for o in OPERATORS[domain, name])
            return f"it came with opset {since}: export the model for that one or a later one"
        elsewhere = [d or "ai.onnx" for d, n in OPERATORS if n == name]
        if elsewhere:
            return f"'{domain or 'ai.onnx'}' has no such operator, but {' and '.join(elsewhere)} have"
        import difflib

        close = difflib.get_close_matches(name, known, 1, 0.8)
        if close:
            return f"there is no such operator; {close[0]} is called alike"
        return super().remedy(node)

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in REMARKS}

    def rewrite(self, graph: Graph) -> Graph:
        return fuse_quantized(keep_blocks(with_blocks(graph, self.block)))


ONNX = Onnx()
