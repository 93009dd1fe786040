"""Lower recurrent layers. Arrays are [steps, batch, size, 1, 1] if the network is exact. Otherwise they are
one step, [batch, size, 1, 1]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.coreml.layers.elements import ACTIVATIONS
from jangin.frontends.coreml.layers.network import Layer, Network, Say
from jangin.ir.graph import Array, CompileError

LSTM_GATES = ("inputGate", "forgetGate", "outputGate", "blockInput")
"""The gates of an LSTM in the order of MIL's weights."""
GRU_GATES = ("resetGate", "outputGate", "updateGate")


def _function(net: Network, activation: Any) -> str:
    kind = activation.WhichOneof("NonlinearityType") or ""
    name = ACTIVATIONS.get(kind, "")
    plain = {"sigmoidHard": (0.2, 0.5), "linear": (1.0, 0.0)}.get(kind)
    inner: Any = getattr(activation, kind) if plain else None
    if name == "" or (plain and not np.allclose((inner.alpha, inner.beta), plain)):
        raise CompileError(f"{net.source}: the activation {kind} of a recurrent layer is not supported")
    return name


def _stacked(net: Network, m: Any, gates: Sequence[str], what: str, shape: Sequence[int]) -> Array:
    """Return the weights of all gates, concatenated along the first axis."""
    return np.concatenate([net.weights(getattr(m, f"{g}{what}"), shape, f"{g}{what}") for g in gates])


def _matrices(net: Network, m: Any, gates: Sequence[str], size: int, hidden: int) -> dict[str, Array]:
    return {
        "weight_ih": _stacked(net, m, gates, "WeightMatrix", [hidden, size]),
        "weight_hh": _stacked(net, m, gates, "RecursionMatrix", [hidden, hidden]),
    }


def _recurrence(
    net: Network,
    layer: Layer,
    kind: str,
    given: Mapping[str, Any],
    states: Sequence[str],
    directions: int = 1,
) -> None:
    """Add MIL's recurrent operation, which takes arrays [steps, batch, size] and states [batch, size]. The
    layer's arrays are reshaped to these, and the results back.

    `states` are MIL's names of the initial states. The layer's inputs have all states of the first direction
    before those of the second."""
    out = layer.output[0]
    wanted = 1 + len(states) * directions
    if len(layer.input) not in (1, wanted) or len(layer.output) not in (1, wanted):
        raise CompileError(f"{net.source} needs 1 or {wanted} inputs and outputs")
    flat = {"x": [_rows(net, layer.input[0], f"{out} steps", [3, 4] if net.exact else [2, 3])]}
    if not net.exact:
        flat["x"] = [net.node("mil.expand_dims", {"x": flat["x"]}, [f"{out} step"], {"axes": [0]})]
    for n, name in enumerate(states if len(layer.input) > 1 else ()):
        parts = [
            _rows(net, s, f"{out} {name} {d}", [0, 3, 4] if net.exact else [2, 3])
            for d, s in enumerate(layer.input[1 + n :: len(states)])
        ]
        flat[name] = [net.node("mil.concat", {"values": parts}, [f"{out} {name}"], {"axis": 1})]
    ends = [f"{out} end {name}" for name in states]
    net.node(f"mil.{kind}", flat, [f"{out} sequence", *ends], given)
    _given(net, f"{out} sequence", out, [3, 4] if net.exact else None)
    for n, end in enumerate(ends if len(layer.output) > 1 else ()):
        halves = [f"{end} {d}" for d in range(directions)]
        net.node("mil.split", {"x": [end]}, halves, {"axis": 1, "split_sizes": None})
        for half, name in zip(halves, layer.output[1 + n :: len(states)], strict=True):
            net.node("mil.expand_dims", {"x": [half]}, [name], {"axes": [0, 3, 4] if net.exact else [2, 3]})


def _rows(net: Network, name: str, made: str, axes: Sequence[int]) -> str:
    return net.node("mil.squeeze", {"x": [name]}, [made], {"axes": list(axes)})


def _given(net: Network, sequence: str, out: str, axes: Sequence[int] | None) -> None:
    """Reshape a sequence [steps, batch, size] to the network's array, with the axes `axes` added. If `axes`
    is None, the sequence's first axis is removed first."""
    if axes is None:
        sequence = _rows(net, sequence, f"{out} last", [0])
    net.node("mil.expand_dims", {"x": [sequence]}, [out], {"axes": list(axes or (2, 3))})


def _direction(m: Any) -> str:
    return "reverse" if m.reverseInput else "forward"


def _lstm_weights(net: Network, m: Any, weights: Any, size: int, hidden: int) -> dict[str, Any]:
    """Return the weights of one direction, by MIL's names. 1 is added to the forget gate's bias if the layer
    says so."""
    arrays: dict[str, Any] = _matrices(net, weights, LSTM_GATES, size, hidden)
    bias = np.zeros(4 * hidden, np.float32)
    if m.hasBiasVectors:
        bias = _stacked(net, weights, LSTM_GATES, "BiasVector", [hidden])
    bias[hidden : 2 * hidden] += bool(m.forgetBias)
    arrays["bias"] = bias
    if m.hasPeepholeVectors:
        arrays["peephole"] = _stacked(net, weights, LSTM_GATES[:3], "PeepholeVector", [hidden])
    return arrays


def _lstm(
    net: Network, layer: Layer, m: Any, weights: Sequence[Any], activations: Sequence[Any], direction: str
) -> None:
    size, hidden = int(m.inputVectorSize), int(m.outputVectorSize)
    sides = [_lstm_weights(net, m.params, w, size, hidden) for w in weights]
    args: dict[str, Any] = {
        f"{k}{end}": v for side, end in zip(sides, ("", "_back"), strict=False) for k, v in side.items()
    }
    if len(sides) != 1 + (direction == "bidirectional") or len(activations) != 3:
        raise CompileError(f"{net.source} needs the weights of each direction and three activations")
    names = ("recurrent_activation", "cell_activation", "activation")
    args |= {n: _function(net, a) for n, a in zip(names, activations, strict=True)}
    args |= {"direction": direction, "output_sequence": bool(m.params.sequenceOutput)}
    if m.params.coupledInputAndForgetGate:
        args["coupled"] = True
    args["clip"] = np.float32(m.params.cellClipThreshold or 50.0)
    _recurrence(net, layer, "lstm", args, ("initial_h", "initial_c"), len(sides))


def _both_ways(net: Network, layer: Layer, m: Any) -> None:
    forward, backward = list(m.activationsForwardLSTM), list(m.activationsBackwardLSTM)
    if [_function(net, a) for a in forward] != [_function(net, a) for a in backward]:
        raise CompileError(f"{net.source}: other activations backwards are not supported")
    _lstm(net, layer, m, m.weightParams, forward, "bidirectional")


def _gru(net: Network, layer: Layer, m: Any) -> None:
    size, hidden = int(m.inputVectorSize), int(m.outputVectorSize)
    args: dict[str, Any] = _matrices(net, m, GRU_GATES, size, hidden)
    # the bias beside the state's products; these layers have none
    args["bias"] = np.zeros(3 * hidden, np.float32)
    if m.hasBiasVectors:
        args["input_bias"] = _stacked(net, m, GRU_GATES, "BiasVector", [hidden])
    if len(m.activations) != 2:
        raise CompileError(f"{net.source} needs two activations")
    names = ("recurrent_activation", "activation")
    args |= {n: _function(net, a) for n, a in zip(names, m.activations, strict=True)}
    args |= {"direction": _direction(m), "output_sequence": bool(m.sequenceOutput)}
    _recurrence(net, layer, "gru", args, ("initial_h",))


def _rnn(net: Network, layer: Layer, m: Any) -> None:
    size, hidden = int(m.inputVectorSize), int(m.outputVectorSize)
    args = {
        "weight_ih": net.weights(m.weightMatrix, [hidden, size], "weights"),
        "weight_hh": net.weights(m.recursionMatrix, [hidden, hidden], "weights of the state"),
        "activation": _function(net, m.activation),
        "bias": net.weights(m.biasVector, [hidden], "biases") if m.hasBiasVector else None,
        "direction": _direction(m), "output_sequence": bool(m.sequenceOutput),
    }  # fmt: skip
    _recurrence(net, layer, "rnn", args, ("initial_h",))


LAYERS: Mapping[str, Say] = {
    "biDirectionalLSTM": _both_ways, "gru": _gru, "simpleRecurrent": _rnn,
    "uniDirectionalLSTM": lambda net, layer, m: _lstm(
        net, layer, m, [m.weightParams], list(m.activations), _direction(m)
    ),
}  # fmt: skip
