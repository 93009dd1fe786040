"""Lower ONNX's LSTM, GRU and RNN: names of directions and activations, layouts, and ONNX's form of biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jangin.frontends.onnx.operators.activation import NAMES
from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.expr import Expr, ne
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ir.simplify import prove
from jangin.ops import recurrent
from jangin.ops.activation import ACTIVATIONS, clip, parameters
from jangin.ops.builder import Builder
from jangin.ops.recurrent import Layer
from jangin.ops.rounds import Activation
from jangin.ops.values import Tensor

BACKWARD: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
"""For each value of the attribute `direction`, its directions. A direction is true if it goes backward."""

FUNCTIONS = (
    "Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign",
    "Tanh", "ThresholdedRelu",
)  # fmt: skip
"""The activations that the attribute `activations` may name, in upper or lower case."""
_NEUTRAL: Mapping[str, str] = {name.lower(): NAMES[name] for name in FUNCTIONS}


@dataclass(frozen=True)
class Settings:
    """The attributes that LSTM, GRU and RNN share."""

    hidden_size: int | None = None
    direction: str = "forward"
    activations: Sequence[str] | None = None
    activation_alpha: Sequence[float] = ()
    activation_beta: Sequence[float] = ()
    clip: float | None = None
    layout: int = 0
    output_sequence: int = 1
    """Tells if Y is wanted, before opset 7. Outputs that aren't wanted are left out in any case."""

    def functions(self, usual: Sequence[str], clipped: int) -> list[list[Activation]]:
        """Return the activations of each direction. `usual` are the default ones.

        The given parameters are assigned in order to the activations that have parameters. The arguments of
        the first `clipped` activations of each direction are clipped."""
        directions = len(BACKWARD[self.direction])
        names = self.activations or [*usual] * directions
        if len(names) != len(usual) * directions:
            raise CompileError(f"activations {list(names)} must be {len(usual) * directions} functions")
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        activations: list[Activation] = []
        for n, name in enumerate(names):
            fn = _NEUTRAL.get(name.lower())
            if fn is None:
                raise CompileError(
                    f"activation {name!r} is none of {', '.join(_NEUTRAL)}, and is not supported"
                )
            usually = zip((alphas, betas), parameters(fn), strict=False)
            values = [next(numbers, d) for numbers, d in usually]
            bound = self.clip if n % len(usual) < clipped else None
            activations.append(partial(_activated, ACTIVATIONS[fn], values, bound))
        return [activations[d * len(usual) : (d + 1) * len(usual)] for d in range(directions)]


def _activated(fn: Callable[..., Expr], values: Sequence[float], bound: float | None, x: Expr) -> Expr:
    return fn(x if bound is None else clip(x, -bound, bound), *values)


def _swapped(b: Builder, t: Tensor) -> Tensor:
    """Return a tensor with its first two axes exchanged. In layout 1 the batch is the first axis."""
    return b.transpose(t, [1, 0, *range(2, t.rank)])


def _layer(
    b: Builder, cell: Callable[..., tuple[Tensor, ...]], usual: Sequence[str], layer: Layer,
    states: Mapping[str, Tensor | None], attributes: Mapping[str, Any], clipped: int | None = None,
    **own: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return Y [steps, directions, batch, hidden] and the last value of each state.

    `cell` is a function of `ops.recurrent`, and `usual` are its default activations. `own` are further
    arguments of `cell`. The layer's bias and sequence are in ONNX's form."""
    settings = Settings(**attributes)
    one_of("direction", settings.direction, BACKWARD)
    backward = BACKWARD[settings.direction]
    x, w, r, bias = layer.x, layer.w, layer.r, layer.bias
    if r.rank != 3 or w.rank != 3:
        raise CompileError(f"weights {w} and {r} must have rank 3")
    if settings.hidden_size is not None and prove(ne(r.shape[2], settings.hidden_size), b.symbols):
        raise CompileError(f"hidden_size {settings.hidden_size} does not fit the weights {r}")
    if bias is not None:
        bias = b.reshape(bias, [len(backward), 2, w.shape[1] // r.shape[2], r.shape[2]])
    if settings.layout:
        x, states = _swapped(b, x), {n: t and _swapped(b, t) for n, t in states.items()}
    fns = settings.functions(usual, len(usual) if clipped is None else clipped)
    layer = replace(layer, x=x, bias=bias, backward=backward, activations=fns)
    y, *last = cell(b, layer, **states, **own)
    if settings.layout:
        return b.transpose(y, [2, 1, 0, 3]), *(_swapped(b, t) for t in last)
    return b.transpose(y, [1, 0, 2, 3]), *last


@op("RNN")
def rnn(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    layer = Layer(x, w, r, bias, lengths)
    return _layer(b, recurrent.rnn, ["Tanh"], layer, {"h": initial_h}, attributes)


@op("GRU")
def gru(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, *,
    linear_before_reset: int = 0, **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of a GRU. Its gates are in the order z, r, h."""
    return _layer(
        b, recurrent.gru, ["Sigmoid", "Tanh"], Layer(x, w, r, bias, lengths), {"h": initial_h}, attributes,
        gates=("update", "reset", "candidate"), reset_after=bool(linear_before_reset),
    )  # fmt: skip


@op("LSTM")
def lstm(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, initial_c: Tensor | None = None,
    peepholes: Tensor | None = None, **attributes: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    layer = Layer(x, w, r, bias, lengths)
    return lstm_layer(b, layer, {"h": initial_h, "c": initial_c}, peepholes, attributes)


def lstm_layer(
    b: Builder, layer: Layer, states: Mapping[str, Tensor | None], peepholes: Tensor | None,
    attributes: Mapping[str, Any], clipped: int = 3,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of an LSTM. Its gates are in the order i, o, f, c, and its peephole weights in the
    order i, o, f.

    The attribute `clip` bounds the arguments of the first `clipped` of the functions f, g and h."""
    if peepholes is not None:
        peepholes = b.reshape(peepholes, [peepholes.shape[0], 3, peepholes.shape[1] // 3])
    shared = {n: v for n, v in attributes.items() if n != "input_forget"}
    return _layer(
        b, recurrent.lstm, ["Sigmoid", "Tanh", "Tanh"], layer, states, shared, clipped,
        gates=("input", "output", "forget", "candidate"), peepholes=peepholes,
        coupled=bool(attributes.get("input_forget")),
    )  # fmt: skip
