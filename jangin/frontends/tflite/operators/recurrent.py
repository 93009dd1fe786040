"""Lower recurrent layers. Their states are variables: inputs whose next values are additional results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import mul
from typing import Any

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators import hybrid
from jangin.frontends.tflite.operators.common import (
    NONE,
    Call,
    Factors,
    activated,
    factor_of,
    mapped,
    real,
    requantized,
    rescaled,
    stored,
)
from jangin.frontends.tflite.operators.integer_lstm import GATES, integer_lstm
from jangin.ir.dtype import I8, I16, I32
from jangin.ir.expr import Expr, cast
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ops import recurrent
from jangin.ops.activation import clip, relu, sigmoid, tanh
from jangin.ops.builder import Builder
from jangin.ops.levels import RowLevels
from jangin.ops.quantized import integer_matmul
from jangin.ops.recurrent import Layer, Projection
from jangin.ops.values import Tensor

FUNCTIONS: tuple[Callable[[Expr], Expr], ...] = (
    lambda v: v, relu, partial(clip, low=-1.0, high=1.0), partial(clip, low=0.0, high=6.0), tanh,
)  # fmt: skip
"""The activations of a layer, in the order of the schema's numbers."""
LSTM_INPUTS = (range(1, 5), range(5, 9), range(9, 12), range(12, 16), (16, 17), range(20, 24), (18, 19))
"""The positions of an LSTM layer's inputs.

The first four groups are the weights of the input, those of the state, the peephole weights and the biases.
Each has one position for each gate, and the peephole weights are those of the input, forget and output gates.
The other groups are the projection's weights and bias, the factors of normalized gates, and the states."""
BOTH_INPUTS = (
    (range(1, 5), range(5, 9), range(9, 12), range(12, 16), (16, 17), (), (35, 36)),
    (range(18, 22), range(22, 26), range(26, 29), range(29, 33), (33, 34), (), (37, 38)),
)
"""`LSTM_INPUTS` for each direction of a bidirectional layer."""


def _function(call: Call) -> Callable[[Expr], Expr]:
    kind = int(call.options.get("fused_activation_function", 0))
    if kind >= len(FUNCTIONS):
        raise CompileError(f"the activation {kind} is not supported")
    return FUNCTIONS[kind]


def _floats(call: Call) -> None:
    """Raise CompileError for integers, which LiteRT's kernels round in their own ways. 8-bit weights are
    allowed."""
    for i, (t, q) in enumerate(zip(call.inputs, call.given, strict=True)):
        leveled = i > 0 and q.dtype is I8 and q.scales is not None
        if isinstance(t, Tensor) and not t.dtype.is_float and not leveled:
            raise CompileError(f"a recurrent layer of these integers is not supported: its input {i} is {t}")


def _leveled(call: Call, w: Sequence[int], r: Sequence[int], negative: bool = False) -> dict[str, Any]:
    """Return the additional arguments of a `Layer` with 8-bit weights, or none for other weights. `w` and `r`
    are the positions of the weights of the input and of the state.

    With `negative`, the scales of the first gate's weights are negated."""
    if call.given[w[-1]].dtype is not I8:
        return {}
    scales = [_scales(call, group) for group in (w, r)]
    if negative:
        rows = static_shape(call.x(w[0]).shape)
        assert rows is not None
        for s in scales:
            s[:, : rows[0]] *= -1
    return {"levels": _levels(call), "scales": tuple(map(call.b.const, scales))}


def _levels(call: Call) -> RowLevels:
    return RowLevels(asymmetric=bool(call.options.get("asymmetric_quantize_inputs")))


def _scales(call: Call, places: Sequence[int]) -> Array:
    """Return the scales of all rows of the weights at these positions, [1, rows]."""
    scales = []
    for i in places:
        rows = static_shape(call.x(i).shape)
        if rows is None:
            raise CompileError(f"the shape of the weights {call.x(i)} must be known")
        scales.append(np.broadcast_to(hybrid.scales_of(call.given[i]), rows[:1]))
    return np.concatenate(scales)[None]


def _steps_first(call: Call, x: Tensor) -> Tensor:
    """Return x [batch, steps, ...] as [steps, batch, ...], or unchanged if the layer's steps are first. The
    same function converts back."""
    return x if call.options.get("time_major") else call.b.transpose(x, [1, 0, 2])


def _tupled(b: Builder, t: Tensor) -> Tensor:
    return b.reshape(t, [1, *t.shape])


def _rnn(call: Call, x: Tensor, places: Sequence[int], backward: bool) -> tuple[Tensor, Tensor]:
    """Return y [steps, batch, units] and the last state [batch, units]. `places` are the positions of the
    input's weights, the state's weights, the bias and the state."""
    b = call.b
    w, r, bias, state = (call.x(i) for i in places)
    units = bias.shape[0]
    zeros = b.expand(b.scalar(0, bias.dtype), [units])
    both = b.reshape(b.concat([bias, zeros], 0), [1, 2, 1, units])
    more = _leveled(call, places[:1], places[1:2])
    layer = Layer(x, _tupled(b, w), _tupled(b, r), both, None, (backward,), [[_function(call)]], **more)
    y, last = recurrent.rnn(b, layer, h=_tupled(b, state))
    return b.reshape(y, y.shape[1:]), b.reshape(last, last.shape[1:])


@lowers("RNN")
def rnn(call: Call) -> tuple[Tensor, Tensor]:
    """Return the result of one step and the next state. The inputs are x [batch, size], its weights, the
    state's weights, a bias and the state [batch, units]."""
    _floats(call)
    y, last = _rnn(call, _tupled(call.b, call.x()), (1, 2, 3, 4), False)
    return call.b.reshape(y, y.shape[1:]), last


@lowers("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(call: Call) -> tuple[Tensor, Tensor]:
    _floats(call)
    y, last = _rnn(call, _steps_first(call, call.x()), (1, 2, 3, 4), False)
    return _steps_first(call, y), last


@lowers("BIDIRECTIONAL_SEQUENCE_RNN")
def both_ways_rnn(call: Call) -> tuple[Tensor, ...]:
    """Return the results of both directions, and the last states. The inputs are x, then the other inputs of
    `rnn` for each direction."""
    _floats(call)
    _no_auxiliary(call, range(9, 12))
    x = _steps_first(call, call.x())
    directions = [_rnn(call, x, places, bool(n)) for n, places in enumerate((range(1, 5), range(5, 9)))]
    return *_merged(call, [y for y, _ in directions]), *(last for _, last in directions)


def _no_auxiliary(call: Call, places: Sequence[int]) -> None:
    if any(call.optional(i) is not None for i in places):
        raise CompileError("a layer that goes both ways with auxiliary inputs is not supported")


def _merged(call: Call, ys: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of both directions, concatenated if the layer's options say so."""
    if call.options.get("merge_outputs"):
        ys = [call.b.concat(ys, 2)]
    return [_steps_first(call, y) for y in ys]


# -- LSTM ----------------------------------------------------------------------------------------


@lowers("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(call: Call) -> tuple[Tensor, ...]:
    """Return the results of an LSTM for x [steps, batch, size] or [batch, steps, size], and its last states.
    `LSTM_INPUTS` describes the other inputs."""
    y, *states = _lstm(call, _steps_first(call, call.x()), LSTM_INPUTS, False)
    return _steps_first(call, y), *states


@lowers("BIDIRECTIONAL_SEQUENCE_LSTM")
def both_ways_lstm(call: Call) -> tuple[Tensor, ...]:
    _floats(call)
    _no_auxiliary(call, range(39, 48))
    x = _steps_first(call, call.x())
    directions = [_lstm(call, x, places, bool(n)) for n, places in enumerate(BOTH_INPUTS)]
    states = [state for _, *states in directions for state in states]
    return *_merged(call, [y for y, *_ in directions]), *states


@lowers("LSTM")
def lstm(call: Call) -> tuple[Tensor, ...]:
    """Return the results of one step of an LSTM. Its inputs are described by `LSTM_INPUTS`, or by
    `_joined_lstm` for the other kind."""
    if call.options.get("kernel_type"):
        _floats(call)
        return _joined_lstm(call)
    b = call.b
    y, *states = _lstm(call, _tupled(b, call.x()), LSTM_INPUTS, False)
    return b.reshape(y, y.shape[1:]), *states


def _joined_lstm(call: Call) -> tuple[Tensor, ...]:
    """Return h, the cell, x concatenated to h, and the gates' sums.

    The inputs are x [batch, size], h [batch, units], weights [4 * units, size + units], a bias and the
    cell."""
    b, (x, h, w, bias, c) = call.b, (call.x(i) for i in range(5))
    both = b.concat([x, h], 1)
    sums = b.map(lambda v, o: v + o, b.matmul(both, w, transpose_b=True), bias)
    enter, candidate, keep, out = _columns(b, sums, 4)
    held = b.map(lambda i, g, f, c: sigmoid(i) * tanh(g) + sigmoid(f) * c, enter, candidate, keep, c)
    return b.map(lambda o, v: sigmoid(o) * tanh(v), out, held), held, both, sums


def _columns(b: Builder, x: Tensor, count: int) -> list[Tensor]:
    """Return [rows, columns] split into `count` equal parts along the columns."""
    rows, columns = x.shape[0], static_shape(x.shape[1:])
    if columns is None:
        raise CompileError(f"the columns of {x} must be known")
    n = columns[0] // count
    return [b.slice(x, [0, i * n], [rows, n], [1, 1]) for i in range(count)]


def _lstm(
    call: Call, x: Tensor, places: Sequence[Sequence[int]], backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y [steps, batch, size], the last h and the last cell [batch, units].

    `size` is the width of the projection, or the number of units if there is none. If the input gate has no
    weights, its value is 1 minus the forget gate's."""
    b = call.b
    w, r, peepholes, biases, _, factors, states = ([call.optional(i) for i in p] for p in places)
    h, c = states
    if h is None or c is None:
        raise CompileError("an LSTM layer needs the states that it begins with")
    if x.dtype is I8 and not backward:
        return integer_lstm(call, x, places)
    _floats(call)
    if any(t is not None for t in factors):
        raise CompileError("an LSTM layer with normalized gates is not supported")
    peepholes = [None if t is None else real(call, i) for t, i in zip(peepholes, places[2], strict=True)]
    coupled, leveled = w[0] is None, w[1] is not None and w[1].dtype is I8
    if coupled:  # 1 - sigmoid(v) is sigmoid(-v); for 8-bit weights the scales are negated
        w, r = ([t[1] if leveled else _negative(b, t[1]), *t[1:]] for t in (w, r))
        peepholes, biases = ([_negative(b, t[1]), *t[1:]] for t in (peepholes, biases))
    rows = [[p[1], *p[1:]] if coupled else p for p in places[:2]]
    more = _leveled(call, rows[0], rows[1], negative=coupled)
    units = c.shape[1]
    bias = b.concat([t for t in biases if t is not None], 0)
    both = b.concat([b.reshape(bias, [1, 1, 4, units]), b.expand(b.scalar(0, x.dtype), [1, 1, 4, units])], 1)
    zeros = b.expand(b.scalar(0, x.dtype), [units])
    seen = None
    if any(t is not None for t in peepholes):
        enter, keep, out = (zeros if t is None else t for t in peepholes)
        seen = b.reshape(b.concat([enter, out, keep], 0), [1, 3, units])
    squash = _function(call)
    whole = [_tupled(b, b.concat([t for t in group if t is not None], 0)) for group in (w, r)]
    layer = Layer(x, whole[0], whole[1], both, None, (backward,), [[sigmoid, squash, squash]], **more)
    settings: dict[str, Any] = {
        "gates": GATES,
        "peepholes": seen,
        "limit": call.options.get("cell_clip", 0.0),
    }
    settings |= {"h": _tupled(b, h), "c": _tupled(b, c)}
    y, *last = _run(call, layer, places[4], settings)
    return tuple(b.reshape(t, t.shape[1:]) for t in (y, *last))  # type: ignore[return-value]


def _run(call: Call, layer: Layer, places: Sequence[int], given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the results of an LSTM. It has a projection if there are weights at the positions `places`,
    which are those of its weights and bias."""
    b, (weight, offset) = call.b, (call.optional(i) for i in places)
    if weight is None:
        return recurrent.lstm(b, layer, **given)
    offset, bound = offset and _tupled(b, offset), call.options.get("proj_clip", 0.0)
    if layer.levels is None and not bound:
        return recurrent.projected_lstm(b, layer, _tupled(b, weight), offset, **given)
    offset = offset or b.expand(b.scalar(0, layer.x.dtype), [1, weight.shape[0]])
    scales = None if layer.levels is None else b.const(_scales(call, places[:1]))
    return recurrent.lstm(b, layer, projection=Projection(_tupled(b, weight), offset, bound, scales), **given)


def _negative(b: Builder, t: Tensor | None) -> Tensor | None:
    return t and b.map(lambda v: -v, t)


# -- SVDF ----------------------------------------------------------------------------------------


@lowers("SVDF")
def svdf(call: Call) -> tuple[Tensor, Tensor]:
    """Return the results of SVDF and the next state. Its filters are products of factors for features and for
    time (Nakkiran et al. 2015).

    The inputs are x [batch, size] and the weights of features [filters, size] and of time [filters, memory].
    A bias [filters / rank] and the state [batch, memory * filters] follow. Quantized inputs have 8 bits,
    except the weights of time and the state, which have 16."""
    if not call.is_integer:
        _floats(call)
    b, (x, features, times, state) = call.b, (call.x(i) for i in (0, 1, 2, 4))
    times = times if call.is_integer else real(call, 2)
    filters, memory = times.shape
    rank, batch = call.options["rank"], x.shape[0]
    before = b.reshape(state, [batch, filters, memory])
    later = b.slice(before, [0, 0, 1], [batch, filters, memory - 1], [1, 1, 1])
    projection = _features(call, features)
    now = b.concat([later, b.reshape(projection, [batch, filters, 1])], 2)
    sums = b.reduce("sum", b.map(_product if call.is_integer else mul, now, times), [2])
    units = b.reduce("sum", b.reshape(sums, [batch, filters // rank, rank]), [2])
    bias = call.optional(3)
    y = units if bias is None else b.map(lambda v, o: v + o, units, bias)
    y = _rescaled_units(call, y) if call.is_integer else activated(call, y)
    return y, b.reshape(now, state.shape)


def _features(call: Call, features: Tensor) -> Tensor:
    """Return the results of the filters for features. Quantized ones have the state's quantization."""
    b, (x, weights, state) = call.b, (call.given[i] for i in (0, 1, 4))
    turned = b.transpose(features, [1, 0])
    if hybrid.is_hybrid(call, call.x(), features):
        zeros = _levels(call).asymmetric
        return hybrid.multiplied(call, call.x(), [1], zeros, lambda q, z: integer_matmul(b, q, turned, z))
    if not call.is_integer:
        return b.matmul(call.x(), features, transpose_b=True)
    sums = integer_matmul(b, call.x(), turned, b.const(np.array(x.zero, np.int8)), None)
    factors = Factors.of(b, [factor_of(x.scale, weights.scale, state.scale)])
    low, high = I16.limits
    return mapped(b, lambda v, *f: stored(rescaled(v, *f), 0, low, high, I16), sums, *factors.operands)


def _product(v: Expr, w: Expr) -> Expr:
    return cast(I32, v) * cast(I32, w)


def _rescaled_units(call: Call, sums: Tensor) -> Tensor:
    """Return the layer's results in their quantization. They are only clamped to their type, even if the
    layer has an activation."""
    factor = factor_of(call.given[4].scale, call.given[2].scale, call.out.scale)
    return requantized(call, sums, Factors.of(call.b, [factor]), NONE)
