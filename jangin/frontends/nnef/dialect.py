"""NNEF's operations as a dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.frontends.dialect import OWN, Bodies, Dialect, Inputs, Lowering, Outputs, near
from jangin.frontends.nnef.operators import DEFINED, OPERATIONS
from jangin.ir.graph import ImportedAttributes, Node
from jangin.ops.builder import Builder

MARKS = frozenset({"tensors"})
"""Attributes that the importer adds to a node. All others are the operation's own arguments."""


class Nnef(Dialect):
    """The dialect of NNEF's operations. A lowering is found by the operation's name ("nnef.conv")."""

    domain = "nnef"

    def lowering(self, node: Node) -> Lowering | None:
        return self._lower if node.op.removeprefix("nnef.") in OPERATIONS else None

    def _lower(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        kwargs: dict[str, Any] = dict(self.attributes(node))
        rest = iter(inputs)
        tensors: Sequence[Any] = node.of(ImportedAttributes)["tensors"]
        for name, count in tensors:
            kwargs[name] = next(rest) if count is None else [next(rest) for _ in range(count)]
        if node.op == "nnef.clamp":
            kwargs["upper"] = kwargs.pop("b")  # the parameter that is named like the builder
        outputs: Outputs = OPERATIONS[node.op.removeprefix("nnef.")](b, **kwargs)
        return outputs

    def remedy(self, node: Node) -> str:
        name = node.op.removeprefix("nnef.")
        also = near(name, [*OPERATIONS, *DEFINED])
        return f"{name} is no standard operation that is supported{also}: define it as a fragment, or {OWN}"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in MARKS}


NNEF = Nnef()
