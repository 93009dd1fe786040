"""Write a prepared graph as an ONNX model with its chosen parts quantized.

Integers are written as QuantizeLinear and DequantizeLinear around operators on floats (QDQ). Jangin, ONNX
Runtime and other engines replace them by operators on integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.expressions import CODES
from jangin.frontends.onnx.writer import OnnxWriter
from jangin.frontends.writer import Name
from jangin.ir import core
from jangin.ir.dtype import F16, F32
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.records import dataclass
from jangin.quantization.parts import Part, moved
from jangin.quantization.scales import Scheme, bias_scheme


@dataclass(frozen=True)
class Chosen:
    """A quantized part: its `kind` ("int8", "int4", "float16"), its weights in the kind's type, and their
    scheme if they are integers.

    `bias` is f32, or None if the model's bias is used."""

    kind: str
    weights: Array
    scheme: Scheme | None = None
    bias: Array | None = None

    def floats(self) -> tuple[Array, Array | None]:
        """Return the weights, dequantized to f32, and the bias."""
        w = self.weights.astype(np.float32) if self.scheme is None else self.scheme.dequantized(self.weights)
        return w, self.bias


@dataclass(frozen=True)
class Quantization:
    """The chosen `parts`, by the name of their product, and the schemes of activations, `values`, by name."""

    parts: Mapping[str, Chosen]
    values: Mapping[str, Scheme]


def written(
    graph: Graph, parts: Sequence[Part], how: Quantization, described: Mapping[str, Any]
) -> tuple[bytes, dict[str, str]]:
    """Return the bytes of an ONNX model, and each node's part by the node's name. `described` is the model's
    metadata, as in `Imported`."""
    writer = _QdqWriter(graph, parts, how)
    return writer.model(described), writer.owners


def quantized_values(graph: Graph, parts: Sequence[Part], integer: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that become integers if the parts named in `integer` become int8. Each maps to the
    value whose scheme it has."""
    makers, sources = graph.producers(), {}
    for part in parts:
        if part.name not in integer:
            continue
        if part.is_conv:
            sources[part.result] = part.result
        chain = moved(graph, part.x, makers)
        sources |= dict.fromkeys(chain, chain[-1])
    return sources


class _QdqWriter(OnnxWriter):
    def __init__(self, graph: Graph, parts: Sequence[Part], how: Quantization) -> None:
        super().__init__(graph)
        self.how = how
        self.parts = {p.name: p for p in parts if p.name in how.parts}
        integer = [p for p in self.parts.values() if how.parts[p.name].kind == "int8"]
        self.whole = {v for p in integer if p.is_conv for v in (p.x, p.result)}
        self.results = {p.result for p in integer if p.is_conv}
        self.within = {
            n.outputs[0] for p in integer for n in (p.bias, p.clamp) if p.is_conv and n is not None
        }
        self.read: dict[str, Name] = {}
        self.owners: dict[str, str] = {}
        self.owner_of = {p.result: p.name for p in parts}
        self.owner_of |= {
            o: p.name for p in parts for n in (p.node, p.bias) if n is not None for o in n.outputs
        }
        self.unread = {p.w for p in self.parts.values()} | {
            name for p in integer if (name := p.bias_name()) is not None
        }
        users = graph.consumers()
        mine = {n.name for p in self.parts.values() for n in (p.node, p.bias) if n is not None}
        self.unread = {v for v in self.unread if all(n.name in mine for n in users[v])}

    def constant(self, name: str) -> None:
        if name not in self.unread:
            super().constant(name)

    def _node(self, node: Node) -> None:
        if node.outputs[0] in self.within:
            return
        start = len(self.nodes)
        super()._node(node)
        for value in node.outputs:
            if value in self.how.values and value not in self.results:
                self.integers(value)
        out = node.outputs[0]
        if out not in self.owner_of:  # a node outside of parts belongs to the part of its inputs
            self.owner_of[out] = next((self.owner_of[n] for n in node.inputs if n in self.owner_of), "")
        self.owners |= {n.name: self.owner_of[out] for n in self.nodes[start:]}

    def integers(self, value: str) -> Name:
        """Write the quantization of a value, and return the name of the dequantized value that parts read.

        If a convolution reads the value, other nodes read the dequantized value too, so that the value is in
        memory only once."""
        if value not in self.read:
            dequantized = self.rounded(self.named(value), self.how.values[value], value)
            self.read[value] = dequantized
            if value in self.whole and value not in self.graph.outputs:
                self.names[value] = dequantized
        return self.read[value]

    def rounded(self, x: Name, scheme: Scheme, hint: str, result: str = "") -> Name:
        """Write QuantizeLinear and DequantizeLinear for a value, and return the result's name."""
        scale, zero = self.scales(scheme, hint)
        axis: dict[str, Any] = {} if scheme.axis is None else {"axis": scheme.axis}
        q = self.emit("QuantizeLinear", x, scale, zero, hint=hint, **axis)
        return self.emit("DequantizeLinear", q, scale, zero, result=result, hint=hint, **axis)

    def scales(self, scheme: Scheme, hint: str) -> tuple[Name, Name]:
        return self.array(scheme.scale, F32, f"{hint}.scale"), self.array(
            scheme.zero, scheme.dtype, f"{hint}.zero"
        )

    def stored(self, q: Array, scheme: Scheme, hint: str) -> Name:
        """Write a constant's integers and their DequantizeLinear, and return the result's name."""
        held = self.array(q, scheme.dtype, f"{hint}.integers")
        axis_and_block: dict[str, Any] = {} if scheme.axis is None else {"axis": scheme.axis}
        axis_and_block["block_size"] = scheme.block or None
        return self.emit("DequantizeLinear", held, *self.scales(scheme, hint), hint=hint, **axis_and_block)

    def in_halves(self, operation: str, node: Node, w: Array, **given: Any) -> None:
        """Write a product with operands in half precision."""
        x = self.emit("Cast", self.named(node.inputs[0]), hint=f"{node.inputs[0]}.half", to=CODES[F16])
        y = self.emit(operation, x, self.array(w, F16, f"{node.inputs[1]}.half"), hint=node.name, **given)
        self.emit("Cast", y, result=node.outputs[0], to=CODES[F32])

    def write_conv(self, node: Node, attrs: core.Conv) -> None:
        part = self.parts.get(node.name)
        if part is None:
            super().write_conv(node, attrs)
            return
        chosen = self.how.parts[node.name]
        attributes: dict[str, Any] = {
            "kernel_shape": list(attrs.kernel), "strides": list(attrs.strides),
            "dilations": list(attrs.dilations), "pads": list(attrs.pads), "group": attrs.groups,
        }  # fmt: skip
        if chosen.scheme is None:
            self.in_halves("Conv", node, chosen.weights, **attributes)
            return
        operands = [self.integers(part.x), self.stored(chosen.weights, chosen.scheme, part.w)]
        if chosen.bias is not None:
            scheme = bias_scheme(self.how.values[part.x], chosen.scheme)
            operands.append(self.stored(scheme.quantized(chosen.bias), scheme, f"{node.name}.bias"))
        y = self.emit("Conv", *operands, hint=node.name, **attributes)
        self.rounded(y, self.how.values[part.result], part.result, part.result)
        self.read[part.result] = self.named(part.result)

    def write_matmul(self, node: Node, attrs: core.MatMul) -> None:
        part = self.parts.get(node.name)
        if part is None:
            super().write_matmul(node, attrs)
            return
        chosen = self.how.parts[node.name]
        if chosen.scheme is None:
            self.in_halves("MatMul", node, chosen.weights)
            return
        x = self.integers(part.x) if chosen.kind == "int8" else self.named(part.x)
        w = self.stored(chosen.weights, chosen.scheme, part.w)
        self.emit("MatMul", x, w, result=node.outputs[0])
