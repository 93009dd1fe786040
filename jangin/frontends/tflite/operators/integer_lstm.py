"""Lower LSTM layers of int8, whose gates and cells have 16 bits.

The fixed-point arithmetic is that of LiteRT's reference kernel `lstm_eval::EvalInteger8x8_16`. The steps are
computed by the same loop nest as for all recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from jangin.frontends.tflite import short
from jangin.frontends.tflite.fixed import Multiplier
from jangin.frontends.tflite.operators.common import (
    Call,
    Factors,
    factor_of,
    mapped,
    operands,
    rescaled,
)
from jangin.ir.dtype import I8, I16, I32, I64
from jangin.ir.expr import Expr, Load, binary, cast, const, maximum, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import Stmt, Store
from jangin.ir.records import dataclass
from jangin.ops.cells import Cell
from jangin.ops.quantized import integer_matmul
from jangin.ops.recurrent import Layer, laid_out, scanned
from jangin.ops.rounds import INNER, Activation, Phase, Scan, Sums
from jangin.ops.unit_blocks import Blocks
from jangin.ops.values import Tensor

GATES = ("input", "forget", "candidate", "output")
"""The gates in the order of the operator's inputs in the schema."""
GATE = 2.0**-12
"""The scale of the gates' arguments, as in TFLite's kernel: 16-bit fixed-point numbers with 3 integer
bits."""
HIDDEN = 4
"""The position, among the layer's intermediate tensors, of the one that the projection multiplies. TFLite's
kernel defines the order."""
ROWS: Mapping[str, int] = {"input": 0, "output": 1, "forget": 2}
"""For each gate with peephole weights, its row in the tensor that `_seen` makes."""
POWERS = -15, -9
"""The lowest and the highest exponent of the cell's scale. The scale must be a power of two."""


@dataclass(frozen=True)
class Arithmetic:
    """The multipliers and bounds of one layer.

    `gates` rescales the products of the state, by gate, and `seen` those of the peephole weights. `hidden`
    rescales the cell's value at the output gate, and `projection` the sums of the projection. `power` is the
    exponent of the cell's scale. `limit` bounds the cell's absolute value, and `bound` that of projected
    values. Both are 0 for no bound."""

    gates: Mapping[str, Multiplier]
    seen: Mapping[str, Multiplier]
    hidden: Multiplier
    projection: Multiplier
    power: int
    hidden_zero: int
    state_zero: int
    limit: int = 0
    bound: int = 0


def _rescaled(v: Expr, m: Multiplier) -> Expr:
    return cast(I32, rescaled(v, *operands(m)))


def _saturated(v: Expr) -> Expr:
    return minimum(maximum(v, -short.MOST), short.ONE)


def _divided(v: Expr, exponent: int) -> Expr:
    """Return the expression for `fixed.divided` of v. The exponent is above 0."""
    return binary("shr", v + (1 << (exponent - 1)) - cast(I32, v < 0), const(exponent, I32))


def _looked_up(scan: Scan, name: str, v: Expr) -> tuple[Expr, Expr]:
    """Return the entry for |v| in a table of `short`, and whether v is negative."""
    place = minimum(maximum(v, -v), short.MOST)
    return cast(I32, scan.inputs[name][(cast(I64, place),)]), v < 0


def _tanh(scan: Scan, name: str, v: Expr) -> Expr:
    entry, below = _looked_up(scan, name, v)
    return select(below, -entry, entry)


def _logistic(scan: Scan, v: Expr) -> Expr:
    entry, below = _looked_up(scan, "sigmoid", v)
    return select(below, short.ONE - entry, entry)


def _byte(v: Expr, zero: int) -> Expr:
    return minimum(maximum(v + zero, -128), 127)


def _within(v: Expr, bound: int) -> Expr:
    return minimum(maximum(v, -bound), bound) if bound else v


def step(scan: Scan, _: Sequence[Activation], by: Arithmetic) -> list[Phase]:
    """Return the phases of a step. The state h is stored without its zero point, which is subtracted."""
    (h, at), (c, _at) = scan.register(0), scan.register(1)
    old, projects = scan.state(1), "r1" in scan.inputs

    def gate(sums: Sums, name: str, cell: Expr) -> Expr:
        total = _saturated(scan.gate(name) + _rescaled(sums[name], by.gates[name]))
        if name in by.seen:
            product = scan.vector("p", ROWS[name]) * cell
            total = _saturated(total + _rescaled(product, by.seen[name]))
        return _tanh(scan, "tanh", total) if name == "candidate" else _logistic(scan, total)

    def finish(sums: Sums) -> list[Stmt]:
        keep, new = gate(sums, "forget", old), gate(sums, "candidate", old)
        enter = gate(sums, "input", old) if "input" in scan.gates else short.ONE - keep
        held = _divided(keep * old, 15) + _divided(enter * new, 30 + by.power)
        cell = Load(c, at)
        shown = _rescaled(gate(sums, "output", cell) * _tanh(scan, "squash", cell), by.hidden)
        if projects:
            value = _byte(shown, -by.hidden_zero) + by.hidden_zero
            last = [scan.keep(0, Load(h, at)), scan.keep(1, cell)]
        else:
            value = _byte(shown, by.hidden_zero) - by.state_zero
            last = scan.advance(Load(h, at), cell)
        first = Store(c, at, _within(_saturated(held), by.limit))
        return [first, Store(h, at, value), *last]

    def projected(sums: Sums) -> list[Stmt]:
        value = _byte(_rescaled(sums["projection"], by.projection), by.state_zero)
        return scan.advance(_within(value, by.bound) - by.state_zero, scan.kept(1))

    starts = dict.fromkeys(scan.gates, const(0, I32))
    first = scan.products(0, scan.state(0, INNER), starts, finish, h, c)
    if not projects:
        return first
    offset = {"projection": scan.vector("offset")}
    return [*first, *scan.products(1, scan.kept(0, INNER), offset, projected)]


def integer_lstm(call: Call, x: Tensor, places: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return y [steps, batch, size], the last h and the last cell, for x [steps, batch, width].

    All are int8, except the cell, which is int16. `places` is `recurrent.LSTM_INPUTS`. The state h has its
    zero point subtracted, modulo 256, before and after the run. It can therefore be 0 at first."""
    b = call.b
    weights, turned, peepholes, biases, projection, factors, (h, c) = places
    there = [n for n, i in enumerate(weights) if call.optional(i) is not None]
    names = tuple(GATES[n] for n in there)
    _refused(call, factors)
    w, r, bias = (b.concat([call.x(group[n]) for n in there], 0) for group in (weights, turned, biases))
    w, r, bias = (b.reshape(t, [1, *t.shape]) for t in (w, r, bias))
    layer = Layer(x, w, r)
    projects = call.optional(projection[0]) is not None
    by = _arithmetic(call, there, places)
    cell = Cell("lstm", names, ("h0", "c0"), (names,), partial(step, by=by), (), kept=2 * projects)
    units, size = static_shape((call.x(c).shape[1], call.x(h).shape[1])) or (0, 0)
    tile, blocks = laid_out(b, layer, cell, units)
    held = b.map(lambda v: _centred(v, by.state_zero), call.x(h))
    states = {"h0": held, "c0": b.cast(call.x(c), I32)}
    tensors = {"x": _entering(call, layer, blocks, there, weights, bias), "r0": blocks.weights(r)}
    tensors |= {n: blocks.padded(b.reshape(t, [1, *t.shape])) for n, t in states.items()}
    tables = {"sigmoid": short.logistic(), "tanh": short.tanh(3), "squash": short.tanh(15 + by.power)}
    tensors |= {n: b.const(t) for n, t in tables.items()}
    if by.seen:
        tensors["p"] = blocks.padded(_seen(call, x, peepholes, units, size))
    if projects:
        p, offset = call.x(projection[0]), call.optional(projection[1])
        offset = offset or b.expand(b.scalar(0, I32), [size])
        tensors["r1"] = replace(blocks, gates=1).weights(b.reshape(p, [1, *p.shape]))
        tensors["offset"] = blocks.padded(b.reshape(offset, [1, size]))
    outputs = scanned(b, tensors, blocks, layer, cell, tile, [size, units])
    y, last, held = (b.reshape(t, t.shape[1:]) for t in outputs)
    y = b.map(lambda v: cast(I8, v + by.state_zero), y)
    return y, b.cast(last, I8), b.cast(held, I16)


def _centred(v: Expr, zero: int) -> Expr:
    """Return a stored state minus its zero point. The result is between -128 - zero and 127 - zero."""
    return cast(I32, cast(I8, cast(I32, v) + zero)) - zero


def _refused(call: Call, factors: Sequence[int]) -> None:
    if len(call.between) == 12:
        raise CompileError("an LSTM layer of int8 whose products are of 8 bits is not supported")
    if len(call.between) != 5:
        raise CompileError(
            f"an LSTM layer of int8 needs 5 tensors between its parts, not {len(call.between)}: convert the "
            "model again"
        )
    if any(call.optional(i) is not None for i in factors):
        raise CompileError("an LSTM layer of int8 with normalized gates is not supported")


def _arithmetic(call: Call, there: Sequence[int], places: Sequence[Sequence[int]]) -> Arithmetic:
    _, turned, peepholes, _, projection, _, (h, c) = places
    inputs, hidden = call.given, call.between[HIDDEN]
    scale = inputs[c].scale
    part, exponent = math.frexp(scale)
    power = exponent - 1
    if part != 0.5 or not POWERS[0] <= power <= POWERS[1]:
        raise CompileError(f"a cell's scale must be a power of two from 2 ** -15 to 2 ** -9, not {scale}")
    seen = {}
    if call.optional(peepholes[2]) is not None:
        visible = {"input": peepholes[0], "forget": peepholes[1], "output": peepholes[2]}
        seen = {
            g: Multiplier.of(float(np.float32(scale * inputs[i].scale / GATE)))
            for g, i in visible.items()
            if call.optional(i) is not None
        }
    projected = 0.0
    if call.optional(projection[0]) is not None:
        projected = factor_of(inputs[projection[0]].scale, hidden.scale, inputs[h].scale)
    clips = (
        (call.options.get("cell_clip", 0.0), scale, (1 << 15) - 1),
        (call.options.get("proj_clip", 0.0), call.out.scale, 127),
    )
    limit, bound = (int(min(float(np.float32(v) / np.float32(s)), most)) for v, s, most in clips)
    return Arithmetic(
        {GATES[n]: Multiplier.of(factor_of(inputs[turned[n]].scale, inputs[h].scale, GATE)) for n in there},
        seen, Multiplier.of(float(np.float32(2.0**-15 / hidden.scale * 2.0**-15))),
        Multiplier.of(projected), power, hidden.zero, inputs[h].zero, limit, bound,
    )  # fmt: skip


def _entering(
    call: Call, layer: Layer, blocks: Blocks, there: Sequence[int], weights: Sequence[int], bias: Tensor
) -> Tensor:
    """Return what the inputs contribute to the gates in all steps, [1, steps, batch, blocks, gates,
    lanes]."""
    b, x = call.b, call.given[0]
    steps, batch, width = layer.x.shape
    columns, offset = blocks.columns(layer.w), blocks.columns(b.reshape(bias, [*bias.shape, 1]))
    rows = b.reshape(layer.x, [steps * batch, width])
    zero = b.const(np.array(x.zero, np.int8))
    sums = integer_matmul(b, rows, b.reshape(columns, columns.shape[1:]), zero)
    sums = b.map(lambda v, o: v + o, sums, b.reshape(offset, offset.shape[1:]))
    sums = b.reshape(sums, [1, steps, batch, blocks.count, blocks.gates, blocks.lanes])
    scales = [factor_of(call.given[weights[n]].scale, x.scale, GATE) for n in there]
    factors = Factors.of(b, scales, 4, 6)
    return mapped(
        b, lambda v, *f: _saturated(cast(I32, rescaled(v, *f))), sums, *factors.operands
    )  # fmt: skip


def _seen(call: Call, x: Tensor, peepholes: Sequence[int], units: int, size: int) -> Tensor:
    """Return the peephole weights of the input, output and forget gates, [1, 3, size].

    If the layer has a projection, LiteRT's gates use only the first `size` cells of a row."""
    b = call.b
    alone = call.options.get("time_major") is False or x.shape[1] == const(1)
    if size != units and not alone:
        raise CompileError("gates that see the cell, a projection and several rows are not supported")
    none = b.expand(b.scalar(0, I16), [units])
    enter, keep, out = (none if (t := call.optional(i)) is None else t for i in peepholes)
    rows = b.reshape(b.concat([enter, out, keep], 0), [1, 3, units])
    return b.slice(rows, [0, 0, 0], [1, 3, size], [1, 1, 1])
