"""Recurrent layers and decision trees in NumPy, for models that are interpreted.

The functions of layers take the inputs that `ops.recurrent` gives a layer that stays whole.

- `x` is [steps, batch, size].
- The weights `w` are [D, gates * hidden, size], and `r` are [D, gates * hidden, hidden].
- `bias` is [D, 2 * gates * hidden], and `lengths` is [batch].
- The first states are [D, batch, hidden]. Missing ones are None.

The results are y [steps, D, batch, hidden] and the last states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
Product = Callable[[Array], Array]
"""A product multiplies rows [..., size] by a direction's weights."""


def rnn(
    x: Array, w: Array, r: Array, bias: Any, lengths: Any, h: Any, *, hidden: int, backward: Sequence[bool],
    activations: Sequence[Sequence[Expr]],
) -> Sequence[Array]:  # fmt: skip
    """Return h' = f(W x + R h + bias) at each step."""

    def cell(d: int, fns: Sequence[Function]) -> Step:
        own = _bias(bias, d, 2, hidden).sum(0)
        return lambda given, states: (fns[0](given + states[0] @ r[d].T + own),)

    return _layer(x, _products(w), lengths, [h], hidden, backward, activations, cell)


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

    return _layer(x, _products(w), lengths, [h], hidden, backward, activations, cell)


def lstm(
    x: Array, w: Array, r: Array, bias: Any, lengths: Any, h: Any, c: Any, p: Any = None, **settings: Any
) -> Sequence[Array]:
    """Return the states of an LSTM at each step, and its last cell. The gates are input, output, forget and
    candidate. `p` [D, 3 * hidden] are the weights by which the first three see the cell."""
    return _lstm(x, _products(w), _products(r), bias, lengths, h, c, p, **settings)


def leveled_lstm(
    x: Array, w: Array, r: Array, bias: Any, lengths: Any, h: Any, c: Any, p: Any, w_scale: Array,
    w_zero: Array, r_scale: Array, r_zero: Array, **settings: Any,
) -> Sequence[Array]:  # fmt: skip
    """Return what `lstm` does, for weights of 8-bit levels. `w` and `r` are transposed. The rows that they
    multiply become levels as in `ops.levels.TensorLevels`."""
    if lengths is not None:  # the padding must not widen the range of the levels
        x = np.where((np.arange(len(x)) < lengths.max())[:, None, None], x, 0)
    of_x, of_h = _leveled(w, w_scale, w_zero), _leveled(r, r_scale, r_zero)
    return _lstm(x, of_x, of_h, bias, lengths, h, c, p, **settings)


def _lstm(
    x: Array, w: Sequence[Product], r: Sequence[Product], bias: Any, lengths: Any, h: Any, c: Any, p: Any, *,
    hidden: int, backward: Sequence[bool], activations: Sequence[Sequence[Expr]], coupled: bool, limit: float,
) -> Sequence[Array]:  # fmt: skip
    def cell(d: int, fns: Sequence[Function]) -> Step:
        f, g, squash = fns
        own = _bias(bias, d, 8, hidden).reshape(2, 4 * hidden).sum(0)
        peeps = np.zeros((3, hidden), x.dtype) if p is None else p[d].reshape(3, hidden)

        def step(given: Array, states: States) -> States:
            h, old = states
            enter, leave, forget, candidate = np.split(given + r[d](h) + own, 4, axis=1)
            enter = f(enter + peeps[0] * old)
            kept = 1 - enter if coupled else f(forget + peeps[2] * old)
            new = kept * old + enter * g(candidate)
            new = np.clip(new, -limit, limit) if limit else new
            return f(leave + peeps[1] * new) * squash(new), new

        return step

    return _layer(x, w, lengths, [h, c], hidden, backward, activations, cell)


def trees(
    x: Array, *arrays: Array, names: Sequence[str], modes: Sequence[int], targets: int, aggregate: str
) -> Array:
    """Return the scores of `ops.trees.grown`. `names` has the names of the tables `arrays`, and `modes` the
    tests that occur. All rows go down all trees together, a level at a time."""
    table = dict(zip(names, arrays, strict=True))
    size = max(1, MOST // max(1, table["root"].size))
    parts = [_scores(x[n : n + size], table, modes, targets, aggregate) for n in range(0, len(x), size)]
    return np.concatenate([np.zeros((0, targets)), *parts])


def _scores(
    x: Array, table: Mapping[str, Array], modes: Sequence[int], targets: int, aggregate: str
) -> Array:
    count = table["root"].size
    at = np.broadcast_to(table["root"], (len(x), count))
    below = at
    while below is at or (below != at).any():
        at = below
        values = np.take_along_axis(x, np.minimum(table["feature"][at], x.shape[1] - 1), 1)
        below = np.where(_tested(table, modes, values, at), table["yes"][at], table["no"][at])
    first = table["first"][at].reshape(-1)
    counts = table["first"][at + 1].reshape(-1) - first
    before = np.cumsum(counts) - counts
    added = np.repeat(first - before, counts) + np.arange(counts.sum())  # each leaf's weights, in order
    rows = np.repeat(np.repeat(np.arange(len(x)), count), counts)
    combined, start = {"MIN": (np.minimum, np.inf), "MAX": (np.maximum, -np.inf)}.get(
        aggregate, (np.add, 0.0)
    )
    scores = np.full((len(x), targets), start)
    combined.at(scores, (rows, table["target"][added]), table["weight"][added])
    if aggregate == "AVERAGE":
        return scores / max(count, 1)
    return scores if aggregate == "SUM" else np.where(np.isinf(scores), 0, scores)


def _tested(table: Mapping[str, Array], modes: Sequence[int], values: Array, at: Array) -> Array:
    """Return whether the tests at the nodes `at` hold. A NaN goes where the node says."""
    split, missing = table["split"][at], np.isnan(values)
    holds = COMPARED[modes[-1]](values, split)
    for mode in modes[:-1]:
        holds = np.where(table["mode"][at] == mode, COMPARED[mode](values, split), holds)
    return np.where(missing, table["missing"][at] != 0 if "missing" in table else False, holds)


COMPARED: Sequence[Callable[[Array, Array], Array]] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
)  # fmt: skip
"""The comparisons of `ops.trees.TESTS`."""
MOST = 1 << 20
"""The most pairs of a row and a tree that go down together. More would need much memory."""
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "rnn": rnn, "gru": gru, "lstm": lstm, "leveled_lstm": leveled_lstm, "trees": trees,
}  # fmt: skip


def _products(weights: Array) -> Sequence[Product]:
    """Return the product with each direction's weights."""
    return [partial(_product, matrix.T) for matrix in weights]


def _product(matrix: Array, rows: Array) -> Array:
    product: Array = rows @ matrix
    return product


def _leveled(weights: Array, scales: Array, zeros: Array) -> Sequence[Product]:
    """Return the product with each direction's weights, which are transposed levels."""
    whole = [m.astype(np.float32) - z for m, z in zip(weights, zeros, strict=True)]
    return [partial(_leveled_product, m, s) for m, s in zip(whole, scales, strict=True)]


def _leveled_product(matrix: Array, scale: Array, rows: Array) -> Array:
    low, high = min(rows.min(initial=0), np.float32(0)), max(rows.max(initial=0), np.float32(0))
    own = (high - low) / np.float32(255) or np.float32(1)
    zero = np.clip(np.rint(-low / own), 0, 255)
    levels = np.clip(np.rint(rows / own) + zero, 0, 255) - zero
    product: Array = levels @ matrix * (own * scale)
    return product


def _bias(bias: Any, d: int, count: int, hidden: int) -> Array:
    """Return a direction's biases, one row for each gate of the inputs, then of the states."""
    row: Array = np.zeros((count, hidden), np.float32) if bias is None else bias[d].reshape(count, hidden)
    return row


def _layer(
    x: Array, w: Sequence[Product], lengths: Any, initial: Sequence[Any], hidden: int,
    backward: Sequence[bool], activations: Sequence[Sequence[Expr]],
    cell: Callable[[int, Sequence[Function]], Step],
) -> Sequence[Array]:  # fmt: skip
    """Run all directions of a layer. Shorter sequences keep their last states, and their further results are
    0."""
    steps, batch = x.shape[:2]
    y = np.zeros((steps, len(backward), batch, hidden), x.dtype)
    last = [np.zeros((len(backward), batch, hidden), x.dtype) for _ in initial]
    rows, ends = np.arange(batch), np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
    for d, turned in enumerate(backward):
        step = cell(d, [_function(e) for e in activations[d]])
        projected = w[d](x)
        states = [np.zeros((batch, hidden), x.dtype) if s is None else s[d] for s in initial]
        seen = states[0]
        for t in range(int(ends.max(initial=0))):
            goes = t < ends
            at = np.where(goes, ends - 1 - t, t) if turned else np.full(batch, t)
            new = step(projected[at, rows], (seen, *states[1:]))
            y[at, d, rows] = seen = np.where(goes[:, None], new[0], 0)
            states = [np.where(goes[:, None], a, b) for a, b in zip(new, states, strict=True)]
        for whole, state in zip(last, states, strict=True):
            whole[d] = state
    return y, *last


def _function(e: Expr) -> Function:
    """Return an activation, an expression of x0, as a function of arrays."""
    return lambda v: value_of(e, {"x0": v.astype(F32.numpy, copy=False)}).astype(v.dtype, copy=False)
