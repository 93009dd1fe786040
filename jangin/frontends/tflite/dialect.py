"""TensorFlow Lite's builtin operators behind the protocol of all dialects."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering, Outputs
from jangin.frontends.tflite.control import CONTROL
from jangin.frontends.tflite.left_out import LEFT_OUT
from jangin.frontends.tflite.operators import BUILTINS
from jangin.frontends.tflite.operators.common import Call, Quantization
from jangin.frontends.tflite.operators.complex import of_complex
from jangin.ir.graph import ImportedAttributes, Node
from jangin.ops.builder import Builder

KINDS = frozenset({"inputs", "outputs", "intermediates"})
"""What the importer says of a node's tensors, beside the operator's own options."""


class Tflite(Dialect):
    """Nodes are known by the names of builtin operators ("tflite.CONV_2D"), and custom ones by theirs."""

    domain = "tflite"

    def lowering(self, node: Node) -> Lowering | None:
        if node.op in CONTROL:
            return CONTROL[node.op]
        return self._lower if node.op.removeprefix("tflite.") in BUILTINS else None

    def _lower(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        attrs = node.of(ImportedAttributes)
        call = Call(
            b,
            tuple(inputs),
            tuple(Quantization(*k) for k in attrs["inputs"]),
            tuple(Quantization(*k) for k in attrs["outputs"]),
            self.attributes(node),
            tuple(Quantization(*k) for k in attrs.get("intermediates", ())),
        )
        name = node.op.removeprefix("tflite.")
        if any(q.complex for q in (*call.given, *call.gives)):
            return of_complex(name, BUILTINS[name], call)
        made: Outputs = BUILTINS[name](call)
        return made

    def remedy(self, node: Node) -> str:
        name = node.op.removeprefix("tflite.")
        close = difflib.get_close_matches(name, BUILTINS, 1, 0.8)
        why = f": {LEFT_OUT[name]}" if name in LEFT_OUT else ""
        also = why or (f" ({close[0]} is)" if close else "")
        return f"{name} is not supported{also}; give your own with operators=[...] (see jangin.custom)"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in KINDS}


TFLITE = Tflite()
