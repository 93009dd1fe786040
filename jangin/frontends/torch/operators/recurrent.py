"""Lower ATen's recurrent layers (LSTM, GRU and Elman's), with several layers and in one or both directions.
The operators that replace them in an export (see `torch.recurrent`) are lowered in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jangin.frontends.registry import lowers
from jangin.frontends.torch.operators.common import Result
from jangin.ir.graph import CompileError
from jangin.ops import recurrent as neutral
from jangin.ops.activation import relu
from jangin.ops.builder import Builder
from jangin.ops.dropout import dropout as drop
from jangin.ops.values import Tensor

LSTM_GATES = ("input", "forget", "candidate", "output")
GRU_GATES = ("reset", "update", "candidate")
"""The gates of a GRU in the order of PyTorch's weights."""
Run = Callable[..., tuple[Tensor, ...]]


def _stacked(
    b: Builder, out: Result, run: Run, states: dict[str, Tensor], gates: int, *, input: Tensor,
    params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the last layer's sequence of results, and the last states of all layers.

    `params` has the weights [gates * hidden, inputs] and [gates * hidden, hidden] of each layer and
    direction, and two biases [gates * hidden]. An LSTM may add a projection [size, hidden]. The second
    weights then have `size` columns. `states` are the first states, [layers * directions, batch, hidden or
    size]."""
    dropped = dropout if train and num_layers > 1 else 0.0
    if dropped and not b.trained:
        raise CompileError(f"dropout={dropout} between layers: export the model in eval mode")
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    projected = len(params) > num_layers * directions * each
    each += projected
    x = b.transpose(input, [1, 0, 2]) if batch_first else input
    last: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        weights = [params[n * each :][:each] for n in range(layer * directions, (layer + 1) * directions)]
        w, r = (_joined(b, [g[k] for g in weights]) for k in (0, 1))
        bias = None
        if has_biases:
            flat = _joined(b, [t for g in weights for t in g[2:4]])
            bias = b.reshape(flat, [directions, 2, gates, w.shape[1] // gates])
        backward = (False, True)[:directions]
        first = {name: _rows(b, t, layer * directions, directions) for name, t in states.items()}
        if projected:
            first["projection"] = _joined(b, [g[-1] for g in weights])
        y, *ends = run(b, neutral.Layer(x, w, r, bias, backward=backward), **first)
        y = b.transpose(y, [1, 2, 0, 3])
        x = b.reshape(y, [x.shape[0], x.shape[1], directions * r.shape[2]])
        if dropped and layer < num_layers - 1:
            x, _ = drop(b, x, dropped)
        last.append(tuple(ends))
    result = b.transpose(x, [1, 0, 2]) if batch_first else x
    return (result, *(b.concat(list(t), 0) if num_layers > 1 else t[0] for t in zip(*last, strict=True)))


def _joined(b: Builder, parts: Sequence[Tensor]) -> Tensor:
    """Return tensors of the same shape, stacked along a new first axis."""
    rows = [b.reshape(p, [1, *p.shape]) for p in parts]
    return rows[0] if len(rows) == 1 else b.concat(rows, 0)


def _rows(b: Builder, x: Tensor, first: int, count: int) -> Tensor:
    rest = [0] * (x.rank - 1)
    return b.slice(x, [first, *rest], [count, *x.shape[1:]], [1] * x.rank)


@lowers("lstm.input", "jangin.lstm")
def lstm(b: Builder, out: Result, hx: Sequence[Tensor], **given: Any) -> tuple[Tensor, ...]:
    def run(b: Builder, layer: neutral.Layer, **more: Any) -> tuple[Tensor, ...]:
        kind = neutral.projected_lstm if "projection" in more else neutral.lstm
        return kind(b, layer, gates=LSTM_GATES, **more)

    return _stacked(b, out, run, {"h": hx[0], "c": hx[1]}, 4, **given)


@lowers("gru.input", "jangin.gru")
def gru(b: Builder, out: Result, hx: Tensor, **given: Any) -> tuple[Tensor, ...]:
    run = partial(neutral.gru, gates=GRU_GATES, reset_after=True)
    return _stacked(b, out, run, {"h": hx}, 3, **given)


@lowers("rnn_tanh.input", "jangin.rnn_tanh")
def rnn_tanh(b: Builder, out: Result, hx: Tensor, **given: Any) -> tuple[Tensor, ...]:
    return _stacked(b, out, neutral.rnn, {"h": hx}, 1, **given)


@lowers("rnn_relu.input", "jangin.rnn_relu")
def rnn_relu(b: Builder, out: Result, hx: Tensor, **given: Any) -> tuple[Tensor, ...]:
    def run(b: Builder, layer: neutral.Layer, **states: Tensor) -> tuple[Tensor, ...]:
        functions = [[relu]] * len(layer.backward)
        whole = neutral.Layer(
            layer.x, layer.w, layer.r, layer.bias, backward=layer.backward, activations=functions
        )
        return neutral.rnn(b, whole, **states)

    return _stacked(b, out, run, {"h": hx}, 1, **given)
