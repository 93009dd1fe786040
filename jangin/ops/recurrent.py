"""ONNX LSTM, GRU and RNN: one matrix product for all inputs, then an imperative nest over time.

Hidden units are padded to a multiple of LANES, so that the recurrence runs in whole vectors; the
batch is shared among threads. Sequences may be of any length, known or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.dtype import I64, DType
from jangin.ir.expr import Buffer, Expr, Load, Var, call, cast, const, maximum, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.builder import Builder, Tensor
from jangin.ops.core import wide
from jangin.ops.registry import op

LANES = 16
Activation = Callable[[Expr], Expr]


def _elu(x: Expr, alpha: float) -> Expr:
    return select(x < 0.0, (call("exp", x) - 1.0) * alpha, x)


ACTIVATIONS: Mapping[str, tuple[tuple[float, ...], Callable[..., Expr]]] = {
    "sigmoid": ((), lambda x: call("sigmoid", x)),
    "tanh": ((), lambda x: call("tanh", x)),
    "relu": ((), lambda x: maximum(x, 0.0)),
    "softsign": ((), lambda x: x / (call("abs", x) + 1.0)),
    "softplus": ((), lambda x: maximum(x, 0.0) + call("log1p", call("exp", -call("abs", x)))),
    "elu": ((1.0,), _elu),
    "leakyrelu": ((0.01,), lambda x, a: select(x < 0.0, x * a, x)),
    "thresholdedrelu": ((1.0,), lambda x, a: select(x > a, x, const(0, x.dtype))),
    "affine": ((1.0, 0.0), lambda x, a, b: x * a + b),
    "scaledtanh": ((1.0, 1.0), lambda x, a, b: call("tanh", x * b) * a),
    "hardsigmoid": ((0.2, 0.5), lambda x, a, b: minimum(maximum(x * a + b, 0.0), 1.0)),
}
"""Each function and the defaults of its alpha and beta, as far as it takes them."""


def activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[Activation]:
    """The functions named, with given parameters handed out in order to those that take them."""
    given = iter(alphas), iter(betas)
    found: list[Activation] = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise CompileError(f"activation {name!r} is not supported")
        defaults, fn = ACTIVATIONS[name.lower()]
        values = [next(source, d) for source, d in zip(given, defaults, strict=False)]
        found.append(partial(_clipped, fn, values, clip))
    return found


def _clipped(fn: Callable[..., Expr], values: Sequence[float], clip: float | None, x: Expr) -> Expr:
    return fn(x if clip is None else minimum(maximum(x, -clip), clip), *values)


# -- one direction -------------------------------------------------------------------------------

BATCH, TIME, PLACE = Var("b"), Var("t"), Var("tt")
TILE, LANE, INNER = Var("jo"), Var("ji"), Var("k")
UNIT = TILE * LANES + LANE
Finish = Callable[[Mapping[int, Expr]], Sequence[Stmt]]


def lanes(*body: Stmt) -> Stmt:
    return For(LANE, const(LANES), block(*body), "vector")


@dataclass(frozen=True)
class Scan:
    """One direction of a recurrence: its buffers, and the statements that all cells are made of.

    `inputs`: x [D, T, B, gates, width] (the inputs' part of every gate, with biases), r [D, gates,
    hidden, width] (weights of the state), lengths [B], h0 [D, B, width] and what the cell needs."""

    dtype: DType
    hidden: int
    direction: int
    reverse: bool
    inputs: Mapping[str, Buffer]

    def scratch(self, name: str) -> Buffer:
        width = -(-self.hidden // LANES) * LANES
        return Buffer(f"{name}{self.direction}", self.dtype, (const(width),), "scratch")

    def tiles(self, body: Stmt) -> Stmt:
        """`body` for every vector of hidden units."""
        return For(TILE, const(-(-self.hidden // LANES)), body)

    def value(self, name: str, *index: Expr | int) -> Expr:
        return wide(self.inputs[name][(self.direction, *index)])

    def gate(self, g: int) -> Expr:
        """The input's part of gate `g` at this step and unit."""
        return self.value("x", PLACE, BATCH, g, UNIT)

    def products(self, state: Buffer, gates: Mapping[int, Expr], finish: Finish) -> Stmt:
        """For all units: `finish` of each gate's start value + the state times its weights."""
        name, at = f"acc{self.direction}", (LANE,)
        accs = {g: Buffer(f"{name}{g}", self.dtype, (const(LANES),), "register") for g in gates}
        begin = [Store(accs[g], at, start) for g, start in gates.items()]
        update = [
            Store(a, at, Load(a, at) + Load(state, (INNER,)) * self.value("r", g, INNER, UNIT))
            for g, a in accs.items()
        ]
        body: Stmt = block(
            lanes(*begin),
            For(INNER, const(self.hidden), lanes(*update)),
            lanes(*finish({g: Load(a, at) for g, a in accs.items()})),
        )
        for a in accs.values():
            body = Alloc(a, body)
        return self.tiles(body)

    def run(self, states: Mapping[str, Buffer], out: Buffer, steps: Expr, step: Stmt) -> Stmt:
        """All steps. `states` by the inputs they begin with; their values are written to `out`
        [D, T + 1, B, states, width] after each step, and once more behind the last. Steps beyond a
        sequence's length give 0 and change nothing."""
        length = minimum(cast(I64, self.inputs["lengths"][BATCH]), steps)
        live = length > TIME
        place = select(live, length - 1 - TIME, TIME) if self.reverse else TIME
        begin = [Store(s, (UNIT,), self.value(name, BATCH, UNIT)) for name, s in states.items()]

        def written(at: Expr, blank: bool = False) -> Stmt:
            stores = []
            for n, s in enumerate(states.values()):
                value = const(0, out.dtype) if blank else cast(out.dtype, Load(s, (UNIT,)))
                stores.append(Store(out, (const(self.direction), at, BATCH, const(n), UNIT), value))
            return self.tiles(lanes(*stores))

        each = Let(PLACE, place, If(live, block(step, written(PLACE)), written(PLACE, blank=True)))
        return block(self.tiles(lanes(*begin)), For(TIME, steps, each), written(steps))


# -- cells: (states by their initial input, scratch, one step) ------------------------------------

Parts = tuple[dict[str, Buffer], list[Buffer], Stmt]


def _copied(scan: Scan, source: Buffer, target: Buffer) -> Stmt:
    return scan.tiles(lanes(Store(target, (UNIT,), Load(source, (UNIT,)))))


def rnn_cell(scan: Scan, fns: Sequence[Activation]) -> Parts:
    h, new = scan.scratch("h"), scan.scratch("new")
    step = scan.products(h, {0: scan.gate(0)}, lambda acc: [Store(new, (UNIT,), fns[0](acc[0]))])
    return {"h0": h}, [new], block(step, _copied(scan, new, h))


def gru_cell(scan: Scan, fns: Sequence[Activation], reset_after: bool) -> Parts:
    """Gates z, r, h; `reset_after`: the reset gate scales the state's product, not the state."""
    h, new, z, reset = (scan.scratch(n) for n in ("h", "new", "z", "reset"))
    f, g = fns
    at = (UNIT,)

    def mixed(candidate: Expr) -> list[Stmt]:
        blend = Load(new, at) + Load(z, at) * (Load(h, at) - Load(new, at))
        return [Store(new, at, candidate), Store(new, at, blend)]

    def after(acc: Mapping[int, Expr]) -> list[Stmt]:
        return [Store(z, at, f(acc[0])), *mixed(g(scan.gate(2) + f(acc[1]) * acc[2]))]

    def before(acc: Mapping[int, Expr]) -> list[Stmt]:
        return [Store(z, at, f(acc[0])), Store(reset, at, f(acc[1]) * Load(h, at))]

    starts = {0: scan.gate(0), 1: scan.gate(1)}
    if reset_after:
        step = scan.products(h, {**starts, 2: scan.value("bias", 2, UNIT)}, after)
    else:
        second = scan.products(reset, {2: scan.gate(2)}, lambda acc: mixed(g(acc[2])))
        step = block(scan.products(h, starts, before), second)
    return {"h0": h}, [new, z, reset], block(step, _copied(scan, new, h))


def lstm_cell(scan: Scan, fns: Sequence[Activation], input_forget: bool) -> Parts:
    """Gates i, o, f, c; peepholes (rows of input "p") i, o, f."""
    h, c, new = (scan.scratch(n) for n in ("h", "c", "new"))
    f, g, squash = fns
    at = (UNIT,)

    def peep(row: int) -> Expr:
        return scan.value("p", row, UNIT) * Load(c, at) if "p" in scan.inputs else const(0, scan.dtype)

    def finish(acc: Mapping[int, Expr]) -> list[Stmt]:
        enter = f(acc[0] + peep(0))
        keep = 1.0 - enter if input_forget else f(acc[2] + peep(2))
        cell = keep * Load(c, at) + enter * g(acc[3])
        return [
            Store(c, at, cell),
            Store(new, at, f(acc[1] + peep(1)) * squash(Load(c, at))),
        ]

    step = scan.products(h, {n: scan.gate(n) for n in range(4)}, finish)
    return {"h0": h, "c0": c}, [new], block(step, _copied(scan, new, h))


# -- operators -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The attributes that all three operators share."""

    hidden_size: int | None = None
    direction: str = "forward"
    activations: Sequence[str] | None = None
    activation_alpha: Sequence[float] = ()
    activation_beta: Sequence[float] = ()
    clip: float | None = None
    layout: int = 0
    output_sequence: int = 1
    """Before opset 7: whether Y is wanted (an output that isn't is left out anyway)."""


def _swapped(b: Builder, t: Tensor | None, wanted: bool) -> Tensor | None:
    """A tensor with its first two axes exchanged (`layout` 1 has the batch first)."""
    return t if t is None or not wanted else b.transpose(t, [1, 0, *range(2, t.rank)])


def recurrent(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, lengths: Tensor | None,
    initial: Mapping[str, Tensor | None], extra: Mapping[str, Tensor], settings: Settings,
    defaults: Sequence[str], cell: Callable[[Scan, Sequence[Activation]], Parts],
    apart: Sequence[int] = (),
) -> tuple[Tensor, ...]:  # fmt: skip
    """(Y, each state's last value). The recurrent bias of the gates in `apart` is an input "bias" of
    the cell, not a part of x."""
    first = bool(settings.layout)
    seq = _swapped(b, x, first)
    sizes = static_shape((*r.shape, w.shape[1]))
    if seq is None or x.rank != 3 or sizes is None:
        raise CompileError(f"inputs {x} with weights {w} and {r}: ranks must be 3, the weights' shapes known")
    directions, rows, hidden, _ = sizes
    gates = rows // hidden
    if directions != (2 if settings.direction == "bidirectional" else 1):
        raise CompileError(f"direction {settings.direction!r} does not fit weights {r}")
    steps, batch = seq.shape[:2]
    pad = -hidden % LANES
    width = hidden + pad

    def padded(t: Tensor) -> Tensor:
        return b.pad(t, [0] * (2 * t.rank - 1) + [pad])

    def zeros(*shape: Expr | int) -> Tensor:
        return b.expand(b.scalar(0, x.dtype), shape)

    split = b.reshape(
        bias if bias is not None else zeros(directions, 2 * rows), [directions, 2, gates, hidden]
    )
    own = np.array([[g not in apart] for g in range(gates)]).astype(x.dtype.numpy)
    kept = b.reduce("sum", b.map(lambda v, k: v * k, split, b.const(np.stack([np.ones_like(own), own]))), [1])
    flat = b.reshape(seq, [1, steps * batch, x.shape[2]])
    projected = b.reshape(b.matmul(flat, w, transpose_b=True), [directions, steps, batch, gates, hidden])
    shaped = b.reshape(kept, [directions, 1, 1, gates, hidden])
    weights = b.transpose(b.reshape(r, [directions, gates, hidden, hidden]), [0, 1, 3, 2])
    tensors = {
        "x": padded(b.map(lambda v, c: v + c, projected, shaped)),
        "r": padded(weights),
        "lengths": lengths if lengths is not None else b.expand(b.sizes([steps]), [batch]),
    }
    for name, state in initial.items():
        given = _swapped(b, state, first)
        tensors[name] = padded(given if given is not None else zeros(directions, batch, hidden))
    if apart:
        tensors["bias"] = padded(
            b.reshape(
                b.slice(split, [0, 1, 0, 0], [directions, 1, gates, hidden], [1] * 4),
                [directions, gates, hidden],
            )
        )
    tensors |= {name: padded(t) for name, t in extra.items()}
    shape = (const(directions), simplify(steps + 1), batch, const(len(initial)), const(width))
    nest = _nest(b, tensors, shape, hidden, settings, defaults, cell, steps)
    return _results(b, nest, hidden, steps, len(initial), first)


def _nest(
    b: Builder, tensors: Mapping[str, Tensor], shape: tuple[Expr, ...], hidden: int, settings: Settings,
    defaults: Sequence[str], cell: Callable[[Scan, Sequence[Activation]], Parts], steps: Expr,
) -> Tensor:  # fmt: skip
    """The recurrence itself: [D, T + 1, B, states, width]."""
    dtype = tensors["x"].dtype
    buffers = {n: Buffer(f"x{i}", t.dtype, t.shape) for i, (n, t) in enumerate(tensors.items())}
    out = Buffer("out", dtype, shape)
    directions = 2 if settings.direction == "bidirectional" else 1
    names = list(settings.activations or [*defaults] * directions)
    fns = activations(names, settings.activation_alpha, settings.activation_beta, settings.clip)
    each = len(defaults)
    bodies: list[Stmt] = []
    for d in range(directions):
        reverse = settings.direction == "reverse" or d == 1
        scan = Scan(wide(const(0, dtype)).dtype, hidden, d, reverse, buffers)
        states, scratch, step = cell(scan, fns[d * each : (d + 1) * each])
        body = scan.run(states, out, steps, step)
        for buffer in (*states.values(), *scratch):
            body = Alloc(buffer, body)
        bodies.append(body)
    loops = For(BATCH, shape[2], block(*bodies), "parallel")
    return b.node("loop_nest", list(tensors.values()), {"body": loops, "dtype": dtype, "shape": shape})


def _results(
    b: Builder, found: Tensor, hidden: int, steps: Expr, states: int, batch_first: bool
) -> tuple[Tensor, ...]:
    directions, _, batch = found.shape[:3]

    def part(start: Expr, count: Expr, state: int) -> Tensor:
        dims = [directions, count, batch, const(1), const(hidden)]
        return b.slice(found, [0, start, 0, state, 0], dims, [1] * 5)

    y = b.reshape(part(const(0), steps, 0), [directions, steps, batch, hidden])
    y = b.transpose(y, [2, 1, 0, 3] if batch_first else [1, 0, 2, 3])
    last = [b.reshape(part(steps, const(1), s), [directions, batch, hidden]) for s in range(states)]
    return y, *(b.transpose(t, [1, 0, 2]) if batch_first else t for t in last)


@op("RNN")
def rnn(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return recurrent(
        b, x, w, r, bias, lengths, {"h0": initial_h}, {}, Settings(**settings), ("Tanh",), rnn_cell
    )


@op("GRU")
def gru(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, *,
    linear_before_reset: int = 0, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    after = bool(linear_before_reset)
    return recurrent(
        b, x, w, r, bias, lengths, {"h0": initial_h}, {}, Settings(**settings), ("Sigmoid", "Tanh"),
        lambda scan, fns: gru_cell(scan, fns, after), (2,) if after else (),
    )  # fmt: skip


@op("LSTM")
def lstm(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, initial_c: Tensor | None = None,
    peepholes: Tensor | None = None, *, input_forget: int = 0, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    extra = {}
    if peepholes is not None:
        extra["p"] = b.reshape(peepholes, [peepholes.shape[0], 3, peepholes.shape[1] // 3])
    return recurrent(
        b, x, w, r, bias, lengths, {"h0": initial_h, "c0": initial_c}, extra, Settings(**settings),
        ("Sigmoid", "Tanh", "Tanh"), lambda scan, fns: lstm_cell(scan, fns, bool(input_forget)),
    )  # fmt: skip
