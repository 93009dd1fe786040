"""Lower recurrent operations. MIL has an LSTM's gates in the order input, forget, output, cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.frontends.coreml.mil.operators.common import Call
from jangin.frontends.registry import lowers
from jangin.ir.graph import CompileError
from jangin.ops import activation, move
from jangin.ops.builder import Builder
from jangin.ops.recurrent import Layer, gru, lstm, rnn
from jangin.ops.rounds import Activation
from jangin.ops.values import Tensor

LSTM = ("input", "forget", "output", "candidate")
GRU = (2, 0, 1)
"""The positions of the update, reset and candidate gates among MIL's gates of a GRU, whose order is reset,
candidate, update."""
FUNCTIONS: dict[str, Activation] = {
    "relu": activation.relu, "sigmoid": activation.sigmoid, "tanh": activation.tanh,
    "sigmoid_hard": activation.hard_sigmoid, "linear_activation": lambda v: v,
}  # fmt: skip


def _functions(c: Call, defaults: Sequence[tuple[str, str]], directions: int) -> list[list[Activation]]:
    names = [c.text(name, default) for name, default in defaults]
    unknown = [f for f in names if f not in FUNCTIONS]
    if unknown:
        raise CompileError(f"the activation {unknown[0]} is none of {', '.join(FUNCTIONS)}")
    return [[FUNCTIONS[f] for f in names]] * directions


def _both(c: Call, name: str, directions: int, order: Sequence[int] = ()) -> Tensor | None:
    """Return a weight of all directions as [directions, ...], or None if the operation doesn't have it.
    `order` has the positions of its gates in the order to return."""
    parts = [c.optional(n) for n in (name, f"{name}_back")[:directions]]
    present = [p for p in parts if p is not None]
    if not present:
        return None
    if len(present) < directions:
        raise CompileError(f"both directions must have {name}, and one lacks it")
    whole = c.b.concat([c.b.reshape(p, [1, *p.shape]) for p in present], 0)
    if not order:
        return whole
    gates = move.parts_of(c.b, whole, 1, move.equal_sizes(c.b, whole, 1, len(order)))
    return c.b.concat([gates[n] for n in order], 1)


def _layer(
    c: Call, gates: int, functions: Sequence[tuple[str, str]], order: Sequence[int] = ()
) -> tuple[Layer, int]:
    """Return a recurrent layer and its number of directions. `functions` are the default activations. `order`
    has the positions of the gates in the order of `Layer`."""
    b, direction = c.b, c.text("direction", "forward")
    known = "forward", "reverse", "bidirectional"
    if direction not in known:
        raise CompileError(f"the direction {direction} is none of {', '.join(known)}, and is not supported")
    count = 2 if direction == "bidirectional" else 1
    w, r = (_both(c, n, count, order) for n in ("weight_ih", "weight_hh"))
    if w is None or r is None:
        raise CompileError("its arguments weight_ih and weight_hh are missing: convert the model again")
    inner, outer = (_both(c, n, count, order) for n in ("bias", "input_bias"))
    bias = None
    if inner is not None:
        one = b.reshape(inner, [count, 1, gates, r.shape[2]])
        zero = b.map(lambda v: v * 0.0, one)
        bias = b.concat([zero if outer is None else b.reshape(outer, one.shape), one], 1)
    backward = (False, True) if count == 2 else (direction == "reverse",)
    return Layer(c.x(), w, r, bias, None, backward, _functions(c, functions, count)), count


def _state(b: Builder, t: Tensor | None, count: int) -> Tensor | None:
    """Return a state [batch, directions * hidden] as [directions, batch, hidden], or None for None."""
    if t is None:
        return None
    return b.transpose(b.reshape(t, [t.shape[0], count, t.shape[1] // count]), [1, 0, 2])


def _given(c: Call, y: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return an operation's results: the sequence, then the last states [batch, directions * hidden].

    The sequence is [steps, batch, directions * hidden]. It is only the last step unless `output_sequence` is
    set."""
    b = c.b

    def joined(t: Tensor) -> Tensor:
        d, n, h = t.shape
        return b.reshape(b.transpose(t, [1, 0, 2]), [n, d * h])

    d, s, n, h = y.shape
    ends = tuple(joined(t) for t in states)
    if c.flag("output_sequence"):
        return (b.reshape(b.transpose(y, [1, 2, 0, 3]), [s, n, d * h]), *ends)[: c.outputs]
    return (b.reshape(ends[0], [1, n, d * h]), *ends)[: c.outputs]


@lowers("lstm")
def lstm_(c: Call) -> tuple[Tensor, ...]:
    names = (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    layer, count = _layer(c, 4, names)
    h, cell = (_state(c.b, c.optional(n), count) for n in ("initial_h", "initial_c"))
    peepholes = _both(c, "peephole", count)
    if peepholes is not None:  # MIL's order is input, forget, output
        rows = c.b.reshape(peepholes, [count, 3, layer.r.shape[2]])
        peepholes = c.b.gather(rows, c.b.const(np.array([0, 2, 1])), 1)
    y, *states = lstm(
        c.b, layer, h=h, c=cell, gates=LSTM, peepholes=peepholes, coupled=c.flag("coupled"),
        limit=c.number("clip", 0.0),
    )  # fmt: skip
    return _given(c, y, states)


@lowers("gru")
def gru_(c: Call) -> tuple[Tensor, ...]:
    layer, count = _layer(c, 3, (("recurrent_activation", "sigmoid"), ("activation", "tanh")), GRU)
    if c.flag("reset_after"):
        raise CompileError("reset_after is not supported: MIL's definition contradicts the default's")
    y, *states = gru(c.b, layer, h=_state(c.b, c.optional("initial_h"), count), reset_after=True)
    return _given(c, y, states)


@lowers("rnn")
def rnn_(c: Call) -> tuple[Tensor, ...]:
    layer, count = _layer(c, 1, (("activation", "tanh"),))
    y, *states = rnn(c.b, layer, h=_state(c.b, c.optional("initial_h"), count))
    return _given(c, y, states)
