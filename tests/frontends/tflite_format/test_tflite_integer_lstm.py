"""TFLite's recurrent layers with 8-bit weights against LiteRT, over several runs. Layers of int8 give the
same integers, and layers of floats differ by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, Tensor, written
from test_subgraphs import steps

TANH = 4
SEQUENCE = "UNIDIRECTIONAL_SEQUENCE_LSTM"


class Layer:
    """Random tensors of a layer. Its inputs are in the schema's order, and None stands for a missing one."""

    def __init__(self, seed: int, batch: int = 3, steps: int = 5, size: int = 7, units: int = 11) -> None:
        self.random = np.random.default_rng(seed)
        self.batch, self.steps, self.size, self.units = batch, steps, size, units
        self.x, self.h, self.hidden = (
            (self.random.uniform(0.5, 1.5) * s, int(self.random.integers(-40, 40)))
            for s in (0.05, 0.008, 0.007)
        )

    def bytes(self, *shape: int, scale: float = 0.01) -> Tensor:
        data = self.random.integers(-127, 128, shape)
        return Tensor(shape, "int8", [self.random.uniform(0.5, 1.5) * scale], [0], data=data)

    def given(
        self, coupled: bool, peepholes: bool, projected: int = 0, *, power: int = -11, whole: bool = True
    ) -> list[Tensor | None]:
        """Make the inputs of an LSTM. If `whole`, all are integers. If not, weights are integers and
        activations floats."""
        units, out = self.units, projected or self.units

        def each(*shape: int) -> list[Tensor | None]:
            return [None if coupled else self.bytes(*shape), *(self.bytes(*shape) for _ in range(3))]

        def bias(count: int) -> Tensor:
            if not whole:
                return Tensor([count], data=self.random.standard_normal(count) / 2)
            return Tensor([count], "int32", [0.0005], [0], data=self.random.integers(-3000, 3000, count))

        def seen() -> Tensor:
            if not whole:
                return self.bytes(units)
            data = self.random.integers(-32767, 32768, units)
            return Tensor([units], "int16", [self.random.uniform(1, 3) * 1e-5], [0], data=data)

        cell = [None if coupled or not peepholes else seen(), *(seen() if peepholes else None for _ in "fo")]
        biases = [None if coupled else bias(units), *(bias(units) for _ in range(3))]
        projection = [self.bytes(out, units, scale=0.003), bias(out)] if projected else [None, None]
        states = [
            Tensor([self.batch, out], "int8", [self.h[0]], [self.h[1]], variable=True),
            Tensor([self.batch, units], "int16", [2.0**power], [0], variable=True),
        ]
        if not whole:
            states = [Tensor(s.shape, variable=True) for s in states]
        return [*each(units, self.size), *each(units, out), *cell, *biases, *projection, *states]

    def run(
        self, name: str, given: Sequence[Tensor | None], shape: Sequence[int], options: dict[str, Any],
        tolerance: float = 0, sides: int = 1,
    ) -> list[Any]:  # fmt: skip
        """Run the layer three times on inputs of the given shape, and compare the results with LiteRT's."""
        there = [t for t in given if t is not None]
        numbers = iter(range(1, 1 + len(there)))
        inputs = [0, *(-1 if t is None else next(numbers) for t in given)]
        out = given[17 if sides == 1 else 34]
        assert out is not None
        y = [*shape[:-1], sides * out.shape[1]]
        tensors, between = [Tensor(shape), *there, Tensor(y)], []
        if not tolerance:
            tensors[0] = Tensor(shape, "int8", [self.x[0]], [self.x[1]])
            tensors[-1] = Tensor(y, "int8", [self.h[0]], [self.h[1]])
            hidden = self.hidden if given[15] is not None else self.h
            between = [Tensor([], "int16", [2.0**-12], [0])] * 4 + [
                Tensor([], "int8", *([v] for v in hidden))
            ]
        last, kinds = len(tensors) - 1, list(range(len(tensors), len(tensors) + len(between)))
        table = {"LSTM": "LSTM", SEQUENCE: "UnidirectionalSequenceLSTM"}.get(
            name, "BidirectionalSequenceLSTM"
        )
        options = {"FusedActivationFunction": TANH, **options}
        operator = Operator(name, inputs, [last], f"{table}Options", options, 3, between=kinds)
        model = written([*tensors, *between], [operator], [0], [last])
        feeds = [[self.values(shape, not tolerance)] for _ in range(3)]
        return [y for (y,) in steps(model, feeds, tolerance)[1]]

    def values(self, shape: Sequence[int], whole: bool) -> Any:
        if whole:
            return self.random.integers(-128, 128, shape).astype(np.int8)
        return self.random.standard_normal(shape).astype(np.float32)


FORMS = [(coupled, peepholes, seed) for coupled in (0, 1) for peepholes in (0, 1) for seed in range(3)]


@pytest.mark.parametrize(
    ("coupled", "peepholes", "seed"),
    [pytest.param(*f, marks=() if f[2] == sum(f[:2]) else pytest.mark.slow) for f in FORMS],
)
def test_integers(coupled: bool, peepholes: bool, seed: int) -> None:
    layer = Layer(seed)
    given = layer.given(coupled, peepholes, power=-12 + seed)
    ys = layer.run(SEQUENCE, given, [3, 5, 7], {"CellClip": 1.5 if seed == 1 else 0.0})
    assert len(np.unique(ys)) > 60


@pytest.mark.parametrize("projected", [5, 11])
def test_integers_with_a_projection(projected: int) -> None:
    for seed in range(2):
        layer = Layer(10 + seed)
        given = layer.given(bool(seed), True, projected)
        ys = layer.run(SEQUENCE, given, [3, 5, 7], {"ProjClip": 0.3 if seed else 0.0})
        assert len(np.unique(ys)) > 30


def test_integers_with_steps_first_and_single_steps() -> None:
    layer = Layer(20, units=37)
    layer.run(SEQUENCE, layer.given(False, True), [6, 3, 7], {"TimeMajor": True})
    layer.run(SEQUENCE, layer.given(False, False, 9), [6, 3, 7], {"TimeMajor": True})
    layer.run("LSTM", layer.given(False, False), [3, 7], {})


FLOATS = 1e-4
"""The largest difference of a hybrid layer. About once in ten thousand values, rounding in the last bit moves
a state by one level, 1/127 of its largest value."""


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
def test_hybrid(coupled: bool, asymmetric: bool) -> None:
    layer = Layer(30 + coupled)
    options = {"AsymmetricQuantizeInputs": asymmetric, "CellClip": 0.8 if coupled else 0.0}
    given = layer.given(coupled, not coupled, whole=False)
    layer.run(SEQUENCE, given, [3, 5, 7], options, FLOATS)
    if coupled != asymmetric:
        layer.run(SEQUENCE, given, [5, 3, 7], {**options, "TimeMajor": True}, FLOATS)
        layer.run("LSTM", given, [3, 7], options, FLOATS)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_hybrid_projections(asymmetric: bool) -> None:
    layer = Layer(40)
    options = {"AsymmetricQuantizeInputs": asymmetric, "ProjClip": 0.2 if asymmetric else 0.0}
    layer.run(SEQUENCE, layer.given(False, False, 6, whole=False), [3, 5, 7], options, FLOATS)


def test_hybrid_both_ways() -> None:
    layer = Layer(50)
    sides = [layer.given(False, False, whole=False) for _ in range(2)]
    given = [*sides[0][:17], *sides[1][:17], *sides[0][17:], *sides[1][17:], *[None] * 9]
    options = {"MergeOutputs": True, "TimeMajor": True}
    layer.run("BIDIRECTIONAL_SEQUENCE_LSTM", given, [5, 3, 7], options, FLOATS, sides=2)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_hybrid_plain_layers(asymmetric: bool) -> None:
    """Hybrid RNN and SVDF layers."""
    layer = Layer(60)
    options = {"FusedActivationFunction": TANH, "AsymmetricQuantizeInputs": asymmetric}
    bias, state = Tensor([11], data=layer.random.standard_normal(11)), Tensor([3, 11], variable=True)
    tensors = [Tensor([3, 5, 7]), layer.bytes(11, 7), layer.bytes(11, 11), bias, state, Tensor([3, 5, 11])]
    name = "UNIDIRECTIONAL_SEQUENCE_RNN"
    operator = Operator(name, [0, 1, 2, 3, 4], [5], "SequenceRNNOptions", options, 3)
    feeds = [[layer.values([3, 5, 7], False)] for _ in range(3)]
    steps(written(tensors, [operator], [0], [5]), feeds, FLOATS)
    state = Tensor([3, 4 * 12], variable=True)
    tensors = [Tensor([3, 7]), layer.bytes(12, 7), layer.bytes(12, 4), None, state, Tensor([3, 6])]
    options |= {"Rank": 2, "FusedActivationFunction": 1}
    operator = Operator("SVDF", [0, 1, 2, -1, 3], [4], "SVDFOptions", options, 4)
    feeds = [[layer.values([3, 7], False)] for _ in range(6)]
    steps(written([t for t in tensors if t], [operator], [0], [4]), feeds, FLOATS)
