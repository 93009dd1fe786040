"""TFLite's recurrent layers against LiteRT over several runs, because they keep their states between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, Tensor, written
from test_subgraphs import steps

RANDOM = np.random.default_rng(4)
BATCH, STEPS, SIZE, UNITS = 2, 5, 4, 6
TANH, RELU6 = 4, 3


def weights(*shape: int) -> Tensor:
    return Tensor(shape, data=RANDOM.standard_normal(shape) / 2)


def state(width: int = UNITS) -> Tensor:
    return Tensor([BATCH, width], variable=True)


def layer(
    name: str, given: Sequence[Tensor | None], x: Sequence[int], outputs: Sequence[Sequence[int]], table: str,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Compare three runs of a layer with LiteRT. Its inputs are a tensor of shape `x` and the tensors in
    `given`."""
    there = [t for t in given if t is not None]
    numbers = iter(range(1, 1 + len(there)))
    inputs = [0, *(-1 if t is None else next(numbers) for t in given)]
    tensors = [Tensor(x), *there, *(Tensor(s) for s in outputs)]
    results = list(range(len(tensors) - len(outputs), len(tensors)))
    model = written(tensors, [Operator(name, inputs, results, table, options, 1)], [0], results)
    steps(model, [[RANDOM.standard_normal(x).astype(np.float32)] for _ in range(3)], 2e-5)


def cell() -> list[Tensor]:
    return [weights(UNITS, SIZE), weights(UNITS, UNITS), weights(UNITS), state()]


def test_plain() -> None:
    options = {"FusedActivationFunction": TANH}
    layer("RNN", cell(), [BATCH, SIZE], [[BATCH, UNITS]], "RNNOptions", options)


@pytest.mark.parametrize("major", [False, True])
def test_sequences(major: bool) -> None:
    first = [STEPS, BATCH] if major else [BATCH, STEPS]
    options = {"FusedActivationFunction": RELU6, "TimeMajor": major}
    name, x, y = "UNIDIRECTIONAL_SEQUENCE_RNN", [*first, SIZE], [*first, UNITS]
    layer(name, cell(), x, [y], "SequenceRNNOptions", options)
    for merged in (False, True):
        ys = [[*first, 2 * UNITS]] if merged else [y, y]
        given = [*cell(), *cell(), None, None, None]
        both = {**options, "MergeOutputs": merged}
        layer("BIDIRECTIONAL_SEQUENCE_RNN", given, x, ys, "BidirectionalSequenceRNNOptions", both)


def gates(coupled: bool, peepholes: bool, out: int = UNITS) -> list[Tensor | None]:
    """Return weights, peepholes and biases in the schema's order, without projection and states."""

    def each(*shape: int) -> list[Tensor | None]:
        return [None if coupled else weights(*shape), *(weights(*shape) for _ in range(3))]

    seen = [None if coupled or not peepholes else weights(UNITS)]
    seen += [weights(UNITS) if peepholes else None for _ in range(2)]
    return [*each(UNITS, SIZE), *each(UNITS, out), *seen, *each(UNITS)]


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
def test_lstm(coupled: bool, peepholes: bool) -> None:
    options = {"FusedActivationFunction": TANH, "CellClip": 0.8 if peepholes else 0.0}
    given = [*gates(coupled, peepholes), None, None, state(), state()]
    layer("LSTM", given, [BATCH, SIZE], [[BATCH, UNITS]], "LSTMOptions", options)
    x, y = [BATCH, STEPS, SIZE], [BATCH, STEPS, UNITS]
    table = "UnidirectionalSequenceLSTMOptions"
    layer("UNIDIRECTIONAL_SEQUENCE_LSTM", given, x, [y], table, options)


def test_lstm_both_ways() -> None:
    sides = [t for _ in range(2) for t in [*gates(False, False), None, None]]
    given = [*sides, *(state() for _ in range(4)), *[None] * 9]
    options = {"FusedActivationFunction": TANH, "MergeOutputs": True, "TimeMajor": True}
    x, y = [STEPS, BATCH, SIZE], [STEPS, BATCH, 2 * UNITS]
    layer("BIDIRECTIONAL_SEQUENCE_LSTM", given, x, [y], "BidirectionalSequenceLSTMOptions", options)


@pytest.mark.parametrize("rank", [1, 2])
def test_svdf(rank: int) -> None:
    memory, filters = 7, 3 * rank
    given = [weights(filters, SIZE), weights(filters, memory), weights(3), state(memory * filters)]
    options = {"Rank": rank, "FusedActivationFunction": 1}
    layer("SVDF", given, [BATCH, SIZE], [[BATCH, 3]], "SVDFOptions", options)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
def test_lstm_with_a_projection(coupled: bool, offset: bool) -> None:
    """A layer with a projection to fewer numbers than units, and with peepholes, which read the cell
    state."""
    given = [*gates(coupled, True, 3), weights(3, UNITS), weights(3) if offset else None, state(3), state()]
    options = {"FusedActivationFunction": TANH}
    layer("LSTM", given, [BATCH, SIZE], [[BATCH, 3]], "LSTMOptions", options)
    x, table = [BATCH, STEPS, SIZE], "UnidirectionalSequenceLSTMOptions"
    layer("UNIDIRECTIONAL_SEQUENCE_LSTM", given, x, [[BATCH, STEPS, 3]], table, options)


def test_projections_both_ways() -> None:
    sides = [t for _ in range(2) for t in [*gates(False, False, 3), weights(3, UNITS), weights(3)]]
    given = [*sides, state(3), state(), state(3), state(), *[None] * 9]
    options = {"FusedActivationFunction": TANH, "MergeOutputs": True, "TimeMajor": True}
    x, y = [STEPS, BATCH, SIZE], [STEPS, BATCH, 6]
    layer("BIDIRECTIONAL_SEQUENCE_LSTM", given, x, [y], "BidirectionalSequenceLSTMOptions", options)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_svdf_of_integers(rank: int, seed: int) -> None:
    """The results are LiteRT's integers, also where the state saturates."""
    random = np.random.default_rng(seed)
    units, memory, size = 5, 7, 11
    filters = units * rank
    scale = random.uniform(0.5, 1.5, 5) * [
        0.05,
        0.02,
        0.0004 if seed else 0.00001,
        0.0003,
        0.08 if seed else 0.01,
    ]
    zeros = [int(z) for z in random.integers(-20, 20, 2)]

    def integers(dtype: str, size: Sequence[int], most: int, scale: float) -> Tensor:
        return Tensor(size, dtype, [scale], [0], data=random.integers(-most, most + 1, size))

    tensors = [
        Tensor([BATCH, size], "int8", [scale[0]], [zeros[0]]),
        integers("int8", [filters, size], 127, scale[1]),
        integers("int16", [filters, memory], 2000, scale[3]),
        integers("int32", [units], 3000, scale[2] * scale[3]),
        Tensor([BATCH, memory * filters], "int16", [scale[2]], [0], variable=True),
        Tensor([BATCH, units], "int8", [scale[4]], [zeros[1]]),
    ]
    options = {"Rank": rank, "FusedActivationFunction": 1}
    model = written(tensors, [Operator("SVDF", [0, 1, 2, 3, 4], [5], "SVDFOptions", options, 3)], [0], [5])
    feeds = [[random.integers(-128, 128, (BATCH, size)).astype(np.int8)] for _ in range(9)]
    _, found = steps(model, feeds, 0)
    assert len(np.unique([y for (y,) in found])) > 10


def test_a_clipped_projection() -> None:
    given = [*gates(False, True, 3), weights(3, UNITS), None, state(3), state()]
    options = {"FusedActivationFunction": TANH, "ProjClip": 0.2}
    layer("LSTM", given, [BATCH, SIZE], [[BATCH, 3]], "LSTMOptions", options)
    x, table = [BATCH, STEPS, SIZE], "UnidirectionalSequenceLSTMOptions"
    layer("UNIDIRECTIONAL_SEQUENCE_LSTM", given, x, [[BATCH, STEPS, 3]], table, options)


def test_what_is_left_out() -> None:
    """A layer with layer normalization of its gates is refused by name."""
    given = [*gates(False, False), None, None, state(), state(), *(weights(UNITS) for _ in range(4))]
    options = {"FusedActivationFunction": TANH}
    with pytest.raises(jangin.CompileError, match=r"(?s)LSTM 't\d+'.*normalized gates"):
        layer("LSTM", given, [BATCH, SIZE], [[BATCH, UNITS]], "LSTMOptions", options)
