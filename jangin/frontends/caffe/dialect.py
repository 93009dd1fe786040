"""Caffe's layers as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jangin.frontends.caffe.operators import LAYERS
from jangin.frontends.caffe.operators.common import Layer
from jangin.frontends.dialect import OWN, Bodies, Dialect, Inputs, Lowering, Outputs, near
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

MARKS = frozenset({"bottoms"})
"""Attributes that the importer adds to a node. All others are the layer's own parameters."""


class Caffe(Dialect):
    """The dialect of Caffe's layers. A lowering is found by the layer's type ("caffe.Convolution")."""

    domain = "caffe"

    def lowering(self, node: Node) -> Lowering | None:
        return self._lower if node.op.removeprefix("caffe.") in LAYERS else None

    def _lower(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        bottoms = node.of(ImportedAttributes)["bottoms"]
        layer = Layer(
            b, tuple(tensors[:bottoms]), tuple(tensors[bottoms:]), self.attributes(node), len(node.outputs)
        )
        outputs: Outputs = LAYERS[node.op.removeprefix("caffe.")](layer)
        unread = layer.unread()
        if unread:
            raise CompileError(f"its parameters {', '.join(unread)} are not supported")
        return outputs

    def remedy(self, node: Node) -> str:
        name = node.op.removeprefix("caffe.")
        return f"layers of type {name} are not supported{near(name, LAYERS)}: {OWN}"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in MARKS}


CAFFE = Caffe()
