"""Lower Caffe's LSTM and RNN by unrolling, because a sequence may begin anew at each step (Donahue et al.
2014)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.frontends.caffe.operators.common import Layer, sizes_of
from jangin.frontends.registry import lowers
from jangin.ir.expr import const
from jangin.ir.graph import CompileError
from jangin.ops.activation import sigmoid, tanh
from jangin.ops.axes import product
from jangin.ops.values import Tensor

MOST_STEPS = 256
"""Sequences of at most this many steps are unrolled. More steps would make too large a graph."""
Step = Callable[[Tensor, Sequence[Tensor], Tensor], tuple[Tensor, list[Tensor]]]
"""A function that computes a step. It takes the input sums, the states before, and for each row whether its
sequence goes on (1) or begins (0). It returns the step's result and the states after it."""


@lowers("LSTM")
def lstm(layer: Layer) -> tuple[Tensor, ...]:
    """Compute an LSTM with the gates in the order i, f, o, g.

    Blobs: weights of x, a bias, weights of an input that all steps share (if any), weights of h."""
    b = layer.b
    w = layer.blob(3 if _shared(layer, 2) is not None else 2, "weights of the state")

    def step(sums: Tensor, states: Sequence[Tensor], goes_on: Tensor) -> tuple[Tensor, list[Tensor]]:
        h, c = states
        kept = b.map(lambda v, f: v * f, h, goes_on)
        total = b.map(lambda v, p: v + p, sums, b.matmul(kept, w, transpose_b=True))
        hidden = sizes_of(w, "the weights")[1]
        rows = total.shape[0]
        parts = [b.slice(total, [0, n * hidden], [rows, const(hidden)], [1, 1]) for n in range(4)]
        cell = b.map(
            lambda i, f, g, c, on: sigmoid(i) * tanh(g) + on * sigmoid(f) * c,
            parts[0], parts[1], parts[3], c, goes_on,
        )  # fmt: skip
        output = b.map(lambda o, v: sigmoid(o) * tanh(v), parts[2], cell)
        return output, [output, cell]

    return _unrolled(layer, 2, sizes_of(w, "the weights")[1], step)


@lowers("RNN")
def rnn(layer: Layer) -> tuple[Tensor, ...]:
    """Compute an RNN. Its blobs are those of `lstm`, then the weights and the bias of the output from h."""
    b = layer.b
    first = 3 if _shared(layer, 1) is not None else 2
    w, out, bias = (layer.blob(first + n, "weights of the state") for n in range(3))

    def step(sums: Tensor, states: Sequence[Tensor], goes_on: Tensor) -> tuple[Tensor, list[Tensor]]:
        kept = b.map(lambda v, f: v * f, states[0], goes_on)
        h = b.map(lambda v, p: tanh(v + p), sums, b.matmul(kept, w, transpose_b=True))
        return b.map(lambda v, o: tanh(v + o), b.matmul(h, out, transpose_b=True), bias), [h]

    return _unrolled(layer, 1, sizes_of(w, "the weights")[0], step)


def _shared(layer: Layer, states: int) -> Tensor | None:
    """Return the input that is the same at all steps, or None if there is none."""
    extra = states if layer.flag("recurrent_param.expose_hidden", False) else 0
    return layer.inputs[2] if len(layer.inputs) > 2 + extra else None


def _unrolled(layer: Layer, states: int, hidden: int, step: Step) -> tuple[Tensor, ...]:
    """Unroll a recurrent layer. Return its results [steps, rows, outputs], and the last states [1, rows,
    hidden] if they are exposed.

    Bottoms: x [steps, rows, ...], continuation flags [steps, rows], the shared input [rows, ...], and the
    first states."""
    b, p = layer.b, "recurrent_param."
    exposed, x, goes_on = layer.flag(p + "expose_hidden", False), layer.x(), layer.x(1)
    layer.whole(p + "num_output"), layer.flag(p + "debug_info", False)
    steps = sizes_of(goes_on, "where sequences go on")[0]
    if steps > MOST_STEPS:
        raise CompileError(f"the layer has {steps} steps, and may have at most {MOST_STEPS}")
    rows = x.shape[1]
    flat = b.reshape(x, [steps * rows, product(x.shape[2:])])
    w, bias = layer.blob(0, "weights"), layer.blob(1, "biases")
    sums = b.map(lambda v, o: v + o, b.matmul(flat, w, transpose_b=True), b.reshape(bias, [w.shape[0]]))
    sums = b.reshape(sums, [steps, rows, w.shape[0]])
    shared = _shared(layer, states)
    if shared is not None:
        row = b.reshape(shared, [rows, product(shared.shape[1:])])
        sums = b.map(lambda v, o: v + o, sums, b.matmul(row, layer.blob(2, "weights"), transpose_b=True))
    if exposed:
        held = [b.reshape(t, [rows, hidden]) for t in layer.inputs[-states:]]
    else:
        held = [b.expand(b.scalar(0, x.dtype), [rows, hidden])] * states
    outputs = []
    for t in range(steps):
        now = b.reshape(b.slice(sums, [t, 0, 0], [1, *sums.shape[1:]], [1] * 3), sums.shape[1:])
        on = b.reshape(b.slice(goes_on, [t, 0], [const(1), rows], [1, 1]), [rows, 1])
        y, held = step(now, held, on)
        outputs.append(b.reshape(y, [1, *y.shape]))
    last = [b.reshape(h, [1, rows, hidden]) for h in held] if exposed else []
    return (b.concat(outputs, 0), *last)
