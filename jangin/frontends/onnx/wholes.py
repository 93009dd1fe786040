"""Write host calls as ONNX's operators. These are recurrent layers, box suppression and others that lowering
keeps in one node for a writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from jangin.frontends.onnx.operators.activation import NAMES
from jangin.frontends.onnx.operators.recurrent import BACKWARD, FUNCTIONS
from jangin.frontends.onnx.schema import check_types
from jangin.frontends.writer import Name, Writer, unified
from jangin.ir import core
from jangin.ir.dtype import F32
from jangin.ir.expr import Const, Expr, Var, maximum, minimum
from jangin.ir.graph import CompileError, Node
from jangin.ir.types import tensor_type
from jangin.ops.activation import ACTIVATIONS, parameters

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's operators."""
CALLS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "Identity": ("Identity", lambda s: {}),
    "non_max_suppression": ("NonMaxSuppression", lambda s: {"center_point_box": int(s["centred"])}),
    "roi_align": (
        "RoiAlign",
        lambda s: {
            "output_height": s["size"][0], "output_width": s["size"][1], "spatial_scale": s["scale"],
            "sampling_ratio": s["samples"], "mode": s["mode"],
            "coordinate_transformation_mode": "half_pixel" if s["half_pixel"] else "output_half_pixel",
        },
    ),
    "roi_max_pool": ("MaxRoiPool", lambda s: {"pooled_shape": s["size"], "spatial_scale": s["scale"]}),
    "unique": ("Unique", lambda s: {"axis": s["axis"], "sorted": int(s["ascending"])}),
}  # fmt: skip
"""For each host function, ONNX's operator with the same operands, and a function that gives its attributes
from the call's settings."""


RECURRENT: Mapping[str, tuple[str, str, int]] = {
    "rnn": ("RNN", "", 1), "gru": ("GRU", "", 2), "lstm": ("LSTM", "", 3),
    "leveled_lstm": ("DynamicQuantizeLSTM", MICROSOFT, 2),
}  # fmt: skip
"""For each kind of recurrent layer, ONNX's operator, its domain, and a number. The attribute `clip` bounds
the arguments of this many of its activations."""


class Wholes(Writer):
    """The part of ONNX's writer that writes host steps: copies, and calls that `Builder.whole` keeps in one
    node."""

    nodes: list[onnx.NodeProto]
    opset: int
    domains: set[str]
    """The domains of the written operators, without the standard's."""
    counted: dict[Var, tuple[str, int]]
    """Sizes that a value has, each with the value's name and the axis."""

    def write_host(self, node: Node, attrs: core.HostStep) -> None:
        """Write a host step. Raises CompileError for other host functions than those in `RECURRENT` and
        `CALLS`. They have values that ONNX can't express."""
        settings = dict(attrs.attrs)
        if attrs.function in RECURRENT:
            self._recurrence(node, attrs.function, settings)
        elif attrs.function in CALLS:
            operator, said = CALLS[attrs.function]
            self._call(node, operator, **said(settings))
        else:
            raise CompileError(f"the host's function {attrs.function} can't be expressed in ONNX")
        axes = ((o, i, d) for o in node.outputs for i, d in enumerate(self.graph.shape(o)))
        self.counted |= {d: (o, i) for o, i, d in axes if isinstance(d, Var) and d in attrs.symbols}

    def _call(self, node: Node, operator: str, domain: str = "", **attributes: Any) -> None:
        inputs, outputs = (
            [self.named(n) if n else Name("") for n in ns] for ns in (node.inputs, node.outputs)
        )
        while inputs and not inputs[-1]:
            inputs.pop()
        types = [tensor_type(self.graph.dtype(n), self.graph.shape(n)) if n else None for n in node.inputs]
        try:
            check_types(domain, operator, self.opset, types)
        except CompileError as error:
            raise CompileError(f"{operator} can't be expressed in ONNX: {error}") from None
        self.domains |= {domain} - {""}
        proto = helper.make_node(operator, inputs, outputs, str(outputs[0]), domain=domain, **attributes)
        self.nodes.append(proto)

    def _recurrence(self, node: Node, function: str, settings: Mapping[str, Any]) -> None:
        """Write a layer that `ops.recurrent` keeps in one node. Its operands are in ONNX's order. Raises
        CompileError if ONNX can't express it."""
        direction = next((k for k, v in BACKWARD.items() if v == tuple(settings["backward"])), None)
        if direction is None or settings.get("limit"):
            why = (
                "limits its cell's values"
                if direction
                else "has directions that aren't forward, then backward"
            )
            raise CompileError(f"an {function.upper()} that {why} can't be expressed in ONNX")
        words: dict[str, Any] = {"hidden_size": settings["hidden"], "direction": direction}
        operator, domain, clipped = RECURRENT[function]
        words |= activations(settings["activations"], clipped)
        if function == "gru":
            words["linear_before_reset"] = int(settings["reset_after"])
        if settings.get("coupled"):
            words["input_forget"] = 1
        self._call(node, operator, domain, **words)


def activations(functions: Sequence[Sequence[Expr]], clipped: int) -> dict[str, Any]:
    """Return ONNX's attributes for the activations of each direction, which are functions of x0. The
    arguments of the first `clipped` activations are bounded.

    Raises CompileError if ONNX can't express them."""
    each = [[_activation(e) for e in of] for of in functions]
    bounds = {bound for of in each for _, _, bound in of[:clipped]}
    if len(bounds) > 1 or any(bound is not None for of in each for _, _, bound in of[clipped:]):
        raise CompileError("ONNX's recurrent layers clip the arguments of all activations to one bound")
    said = [one for of in each for one in of]
    words: dict[str, Any] = {"activations": [name for name, _, _ in said], "clip": bounds.pop()}
    for i, which in enumerate(("activation_alpha", "activation_beta")):
        words[which] = [numbers[i] for _, numbers, _ in said if len(numbers) > i] or None
    return {k: v for k, v in words.items() if v is not None}


def _activation(e: Expr) -> tuple[str, list[float], float | None]:
    """Return ONNX's name of a function of x0, its parameters, and the bound of its argument or None. Raises
    CompileError if ONNX has no such function."""
    x0, low, high = (Var(n, F32) for n in ("x0", "low", "high"))
    for name in FUNCTIONS:
        fn, usual = ACTIVATIONS[NAMES[name]], parameters(NAMES[name])
        if fn(x0) is e:
            return name, usual, None
        own = [Var(f"p{i}", F32) for i in range(len(usual))]
        for x in (x0, minimum(maximum(x0, low), high)):
            bindings: dict[str, Expr] = {}
            if not unified(fn(x, *own), e, bindings) or bindings.pop("x0") is not x0:
                continue
            values = {n: float(v.value) for n, v in bindings.items() if isinstance(v, Const)}
            if len(values) == len(bindings) and values.get("low", -1.0) == -values.get("high", 1.0):
                return name, [values[v.name] for v in own], values.get("high")
    raise CompileError("ONNX's recurrent layers don't have this layer's activation")
