"""Core ML's layers and operations as a dialect.

A node's `op` names its kind of model and its operation. It is "coreml.mil.conv" in a program,
"coreml.nn.convolution" in a neural network, and "coreml.ml.scaler" for a model of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.frontends.bodies import CONTROL
from jangin.frontends.coreml.mil.operators import OPERATIONS
from jangin.frontends.coreml.mil.operators.common import Call
from jangin.frontends.coreml.rows.models import MODELS
from jangin.frontends.dialect import OWN, Bodies, Dialect, Inputs, Lowering, Outputs, near
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

MARKS = frozenset({"inputs"})
"""Attributes that the importer adds to a node to describe it. A node's other attributes are the operation's
own arguments."""


def _kind(node: Node) -> tuple[str, str]:
    """Return the kind of model and the operation's name."""
    _, kind, name = node.op.split(".", 2)
    return kind, name


class CoreML(Dialect):
    domain = "coreml"

    def lowering(self, node: Node) -> Lowering | None:
        if node.op in CONTROL:
            return CONTROL[node.op]
        kind, name = _kind(node)
        if kind == "mil":
            return self._operation if name in OPERATIONS else None
        return self._rows if kind == "ml" and name in MODELS else None

    def _rows(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        xs = [x for x in inputs if isinstance(x, Tensor)]
        outputs: Outputs = MODELS[_kind(node)[1]](b, xs, node.of(ImportedAttributes))
        return outputs

    def _operation(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        attrs = node.of(ImportedAttributes)
        rest = iter(inputs)
        args: dict[str, Sequence[Tensor]] = {}
        for name, count in attrs["inputs"]:
            values = [next(rest) for _ in range(count)]
            args[name] = [x for x in values if isinstance(x, Tensor)]
        kind = _kind(node)[1]
        call = Call(b, args, self.attributes(node), len(node.outputs))
        outputs: Outputs = OPERATIONS[kind](call)
        unread = call.unread(kind)
        if unread:
            raise CompileError(f"its arguments {', '.join(unread)} are not supported")
        return outputs

    def remedy(self, node: Node) -> str:
        name = _kind(node)[1]
        return f"{name} is not supported{near(name, [*OPERATIONS, *MODELS], 0.85)}: {OWN}"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in MARKS}


COREML = CoreML()
