"""Recurrent layers in NumPy, step by step, for models that are interpreted.

The functions take the inputs that `ops.recurrent` gives a layer that stays whole.

- `x` is [steps, batch, size].
- The weights `w` are [D, gates * hidden, size], and `r` are [D, gates * hidden, hidden].
- `bias` is [D, 2 * gates * hidden], and `lengths` is [batch].
- The first states are [D, batch, hidden]. Missing ones are None.

The results are y [steps, D, batch, hidden] and the last states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.dtype import F32
from jangin.ir.expr import Expr
from jangin.ir.graph import Array
from jangin.ir.quick import value_of

States = Sequence[Array]
Step = Callable[[Array, States], States]
"""A step takes the inputs' products [batch, gates * hidden] and the states, and returns the next states."""
Function = Callable[[Array], Array]


def rnn(
    x: Array, w: Array, r: Array, bias: Any, lengths: Any, h: Any, *, hidden: int, backward: Sequence[bool],
    activations: Sequence[Sequence[Expr]],
) -> Sequence[Array]:  # fmt: skip
    """Return h' = f(W x + R h + bias) at each step."""

    def cell(d: int, fns: Sequence[Function]) -> Step:
        own = _bias(bias, d, 2, hidden).sum(0)
        return lambda given, states: (fns[0](given + states[0] @ r[d].T + own),)

    return _layer(x, w, lengths, [h], hidden, backward, activations, cell)


def gru(
    x: Array, w: Array, r: Array, bias: Any, lengths: Any, h: Any, *, hidden: int, backward: Sequence[bool],
    activations: Sequence[Sequence[Expr]], reset_after: bool,
) -> Sequence[Array]:  # fmt: skip
    """Return the states of a GRU at each step. The gates are update, reset and candidate."""

    def cell(d: int, fns: Sequence[Function]) -> Step:
        (f, g), rows = fns, 2 * hidden
        gates, last = r[d][:rows].T, r[d][rows:].T
        own, states_own = _bias(bias, d, 6, hidden).reshape(2, 3 * hidden)

        def step(given: Array, states: States) -> States:
            (h,) = states
            given = given + own
            both = f(given[:, :rows] + h @ gates + states_own[:rows])
            update, reset = both[:, :hidden], both[:, hidden:]
            seen = reset * (h @ last + states_own[rows:]) if reset_after else (reset * h) @ last
            more = 0 if reset_after else states_own[rows:]
            candidate = g(given[:, rows:] + seen + more)
            return (candidate + update * (h - candidate),)

        return step

    return _layer(x, w, lengths, [h], hidden, backward, activations, cell)


def lstm(
    x: Array, w: Array, r: Array, bias: Any, lengths: Any, h: Any, c: Any, p: Any = None, *, hidden: int,
    backward: Sequence[bool], activations: Sequence[Sequence[Expr]], coupled: bool, limit: float,
) -> Sequence[Array]:  # fmt: skip
    """Return the states of an LSTM at each step, and its last cell. The gates are input, output, forget and
    candidate. `p` [D, 3 * hidden] are the weights by which the first three see the cell."""

    def cell(d: int, fns: Sequence[Function]) -> Step:
        f, g, squash = fns
        own = _bias(bias, d, 8, hidden).reshape(2, 4 * hidden).sum(0)
        peeps = np.zeros((3, hidden), x.dtype) if p is None else p[d].reshape(3, hidden)

        def step(given: Array, states: States) -> States:
            h, old = states
            enter, leave, forget, candidate = np.split(given + h @ r[d].T + own, 4, axis=1)
            enter = f(enter + peeps[0] * old)
            kept = 1 - enter if coupled else f(forget + peeps[2] * old)
            new = kept * old + enter * g(candidate)
            new = np.clip(new, -limit, limit) if limit else new
            return f(leave + peeps[1] * new) * squash(new), new

        return step

    return _layer(x, w, lengths, [h, c], hidden, backward, activations, cell)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"rnn": rnn, "gru": gru, "lstm": lstm}


def _bias(bias: Any, d: int, count: int, hidden: int) -> Array:
    """Return a direction's biases, one row for each gate of the inputs, then of the states."""
    row: Array = np.zeros((count, hidden), np.float32) if bias is None else bias[d].reshape(count, hidden)
    return row


def _layer(
    x: Array, w: Array, lengths: Any, initial: Sequence[Any], hidden: int, backward: Sequence[bool],
    activations: Sequence[Sequence[Expr]], cell: Callable[[int, Sequence[Function]], Step],
) -> Sequence[Array]:  # fmt: skip
    """Run all directions of a layer. Shorter sequences keep their last states, and their further results are
    0."""
    steps, batch = x.shape[:2]
    y = np.zeros((steps, len(backward), batch, hidden), x.dtype)
    last = [np.zeros((len(backward), batch, hidden), x.dtype) for _ in initial]
    for d, turned in enumerate(backward):
        step = cell(d, [_function(e) for e in activations[d]])
        projected = x @ w[d].T
        states = [np.zeros((batch, hidden), x.dtype) if s is None else s[d] for s in initial]
        for t in reversed(range(steps)) if turned else range(steps):
            new = step(projected[t], states)
            if lengths is None:
                states, y[t, d] = [*new], new[0]
            else:
                goes = (t < lengths)[:, None]
                states = [np.where(goes, a, b) for a, b in zip(new, states, strict=True)]
                y[t, d] = np.where(goes, new[0], 0)
        for whole, state in zip(last, states, strict=True):
            whole[d] = state
    return y, *last


def _function(e: Expr) -> Function:
    """Return an activation, an expression of x0, as a function of arrays."""
    return lambda v: value_of(e, {"x0": v.astype(F32.numpy, copy=False)}).astype(v.dtype, copy=False)
