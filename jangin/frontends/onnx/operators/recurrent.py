"""ONNX LSTM, GRU and RNN: one matrix product for all inputs, then a nest over time.

The weights of the state are read once a step, all of them: that is what a step costs at small
batches. So they are constants in the order of reading: for each block of hidden units, row by row,
all gates side by side. A step's blocks are shared among threads; what one step hands to the next
lies in the result, behind the sequence. Lengths and batches may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, call, cast, const, maximum, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.simplify import simplify
from jangin.ops.builder import Builder, Tensor
from jangin.ops.operands import wide

ACCUMULATORS, VECTOR_BYTES, MAX_ROWS = 12, 32, 6
"""Of the register tile. Fewer than 8 accumulators would wait for each other's multiply-adds, and of
AVX2's 16 registers the others are for the weights and the state; where vectors are wider, one
counts for two."""
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

ROUND, TASK, BLOCK = Var("round"), Var("task"), Var("jo")
TIME, PLACE, TILE, FIRST, ROW = Var("t"), Var("tt"), Var("bo"), Var("b"), Var("bi")
INNER, LANE = Var("k"), Var("ji")
BATCH = FIRST + ROW
Sums = Mapping[int, Expr]


@dataclass(frozen=True)
class Tile:
    """What accumulates in registers: `rows` of the batch by `lanes` hidden units of every gate."""

    rows: int
    lanes: int

    @staticmethod
    def fit(hidden: int, gates: int, batch: Expr, element: int) -> Tile:
        """The tile that keeps `ACCUMULATORS` vectors busy, or nearly. Where the batch is symbolic its
        rows go one by one."""
        count = int(batch.value) if isinstance(batch, Const) else 1
        most = max(1, min(ACCUMULATORS // gates, MAX_ROWS))
        rows = max(1, -(-count // -(-max(count, 1) // most)))
        lanes = VECTOR_BYTES // element
        vectors = 1
        while 2 * vectors * gates * rows <= ACCUMULATORS and vectors * lanes < hidden:
            vectors *= 2
        return Tile(rows, vectors * lanes)


@dataclass(frozen=True)
class Scan:
    """One direction of a recurrence: its buffers, and the statements that all cells are made of.

    `inputs`: x [D, T, B, blocks, gates, lanes] (the inputs' part of every gate, with biases), r0, r1,
    ... [D, blocks, hidden, gates, lanes] (the state's weights of each phase of a step), and what else
    the cell needs; units are padded to whole blocks. `out` [D, T + rows, B, units] has after the
    sequence two rows for every state, before and after the step at hand by turns, and one for each
    value that a phase hands to the next."""

    hidden: int
    direction: int
    reverse: bool
    tile: Tile
    states: tuple[str, ...]
    inputs: Mapping[str, Buffer]
    out: Buffer
    steps: Expr

    def lanes(self, *body: Stmt) -> Stmt:
        return For(LANE, const(self.tile.lanes), block(*body), "vector")

    def each_row(self, *body: Stmt) -> Stmt:
        """`body` for every row of the tile, at the row's place in the sequence."""
        step: Expr = TIME
        if self.reverse:
            step = self.length - 1 - TIME
            if "lengths" in self.inputs:
                step = select(self.live, step, TIME)
        return For(ROW, const(self.tile.rows), Let(PLACE, step, block(*body)), "unroll")

    @property
    def length(self) -> Expr:
        lengths = self.inputs.get("lengths")
        return self.steps if lengths is None else minimum(cast(I64, lengths[BATCH]), self.steps)

    @property
    def live(self) -> Expr:
        """Whether the row's sequence has this step."""
        return self.length > TIME

    @property
    def unit(self) -> Expr:
        return BLOCK * self.tile.lanes + LANE

    def value(self, name: str, *index: Expr | int) -> Expr:
        return wide(self.inputs[name][(self.direction, *index)])

    def vector(self, name: str, *index: Expr | int) -> Expr:
        """An input [D, ..., units] at the unit in hand."""
        return self.value(name, *index, self.unit)

    def gate(self, g: int) -> Expr:
        """The input's part of gate `g` at this step and unit."""
        return self.value("x", PLACE, BATCH, BLOCK, g, LANE)

    def _row(self, row: Expr | int, unit: Expr) -> tuple[Expr, ...]:
        return const(self.direction), self.steps + row, BATCH, unit

    def _state(self, n: int, later: int) -> Expr:
        return (TIME + later) % 2 + 2 * n

    def state(self, n: int, unit: Expr | None = None) -> Expr:
        """State `n` before the step."""
        return Load(self.out, self._row(self._state(n, 0), self.unit if unit is None else unit))

    def kept(self, n: int, unit: Expr | None = None) -> Expr:
        """Value `n` that an earlier phase of the step kept."""
        return Load(self.out, self._row(2 * len(self.states) + n, self.unit if unit is None else unit))

    def keep(self, n: int, value: Expr) -> Stmt:
        return Store(self.out, self._row(2 * len(self.states) + n, self.unit), value)

    def advance(self, *new: Expr) -> list[Stmt]:
        """Store the states after the step, the first as the step's output too. A sequence that has
        ended gives 0 and changes nothing."""
        stores = []
        for n, value in enumerate(new):
            after = select(self.live, value, self.state(n)) if "lengths" in self.inputs else value
            stores.append(Store(self.out, self._row(self._state(n, 1), self.unit), after))
        if "lengths" in self.inputs:
            new = (select(self.live, new[0], const(0, self.out.dtype)),)
        return [*stores, Store(self.out, (const(self.direction), PLACE, BATCH, self.unit), new[0])]

    def products(
        self, phase: int, state: Expr, starts: Sums, finish: Callable[[Sums], Sequence[Stmt]]
    ) -> Stmt:
        """For the tile: `finish` of each gate's start value + the state (at INNER) times its weights."""
        shape, at = (const(self.tile.rows), const(self.tile.lanes)), (ROW, LANE)
        accs = {g: Buffer(f"acc{g}", self.out.dtype, shape, "register") for g in starts}
        begin = [Store(accs[g], at, start) for g, start in starts.items()]
        update = [
            Store(a, at, Load(a, at) + state * self.value(f"r{phase}", BLOCK, INNER, n, LANE))
            for n, a in enumerate(accs.values())
        ]
        rows = For(ROW, const(self.tile.rows), self.lanes(*update), "unroll")
        body: Stmt = block(
            self.each_row(self.lanes(*begin)),
            For(INNER, const(self.hidden), rows),
            self.each_row(self.lanes(*finish({g: Load(a, at) for g, a in accs.items()}))),
        )
        for a in accs.values():
            body = Alloc(a, body)
        return body

    def task(self, phases: Sequence[Stmt], batch: Expr) -> Stmt:
        """What a task does in a round: the first sets the states, each of the others is a phase."""
        begin = [
            Store(self.out, self._row(2 * n, self.unit), self.vector(name, BATCH))
            for n, name in enumerate(self.states)
        ]
        start = For(ROW, const(self.tile.rows), self.lanes(*begin), "unroll")
        count = len(phases)
        step = phases[-1]
        for n, phase in reversed(list(enumerate(phases[:-1]))):
            step = If((ROUND - 1) % count < n + 1, phase, step)
        round_ = If(ROUND < 1, start, Let(TIME, simplify((ROUND - 1) // count), step))
        rows = self.tile.rows
        last = simplify(batch - rows)
        tiles = For(
            TILE, simplify((batch + (rows - 1)) // rows), Let(FIRST, minimum(TILE * rows, last), round_)
        )
        blocks = self.inputs["r0"].shape[1]
        return Let(BLOCK, simplify(TASK - blocks * self.direction), tiles)


# -- cells: the phases of one step ----------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """`states` by the inputs they begin with; `phases`: the gates whose products with the state each
    phase of a step sums; `kept`: values that a phase keeps for the next; `apart`: gates whose recurrent
    bias is an input "bias" of its own, not a part of x."""

    states: tuple[str, ...]
    phases: tuple[tuple[int, ...], ...]
    step: Callable[[Scan, Sequence[Activation]], Sequence[Stmt]]
    defaults: tuple[str, ...]
    kept: int = 0
    apart: tuple[int, ...] = ()


def _named(scan: Scan, n: int) -> tuple[Buffer, tuple[Expr, ...]]:
    """A vector in registers."""
    return Buffer(f"new{n}", scan.out.dtype, (const(scan.tile.lanes),), "register"), (LANE,)


def _let(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for buffer in buffers:
        body = Alloc(buffer, body)
    return body


def rnn_step(scan: Scan, fns: Sequence[Activation]) -> list[Stmt]:
    new, at = _named(scan, 0)

    def finish(sums: Sums) -> list[Stmt]:
        return [Store(new, at, fns[0](sums[0])), *scan.advance(Load(new, at))]

    return [_let([new], scan.products(0, scan.state(0, INNER), {0: scan.gate(0)}, finish))]


def gru_step(scan: Scan, fns: Sequence[Activation], reset_after: bool) -> list[Stmt]:
    """Gates z, r, h; `reset_after`: the reset gate scales the state's product, not the state."""
    f, g = fns
    new, at = _named(scan, 0)

    def mixed(update: Expr, candidate: Expr) -> list[Stmt]:
        blend = Load(new, at) + update * (scan.state(0) - Load(new, at))
        return [Store(new, at, candidate), Store(new, at, blend), *scan.advance(Load(new, at))]

    def after(sums: Sums) -> list[Stmt]:
        return mixed(f(sums[0]), g(scan.gate(2) + f(sums[1]) * sums[2]))

    def before(sums: Sums) -> list[Stmt]:
        return [scan.keep(0, f(sums[0])), scan.keep(1, f(sums[1]) * scan.state(0))]

    starts = {0: scan.gate(0), 1: scan.gate(1)}
    h = scan.state(0, INNER)
    if reset_after:
        return [_let([new], scan.products(0, h, {**starts, 2: scan.vector("bias", 2)}, after))]
    second = scan.products(
        1, scan.kept(1, INNER), {2: scan.gate(2)}, lambda sums: mixed(scan.kept(0), g(sums[2]))
    )
    return [scan.products(0, h, starts, before), _let([new], second)]


def lstm_step(scan: Scan, fns: Sequence[Activation], input_forget: bool) -> list[Stmt]:
    """Gates i, o, f, c; peepholes (rows of input "p") i, o, f."""
    f, g, squash = fns
    (h, at), (c, _) = _named(scan, 0), _named(scan, 1)
    old = scan.state(1)

    def peeped(total: Expr, row: int, cell: Expr) -> Expr:
        return total + scan.vector("p", row) * cell if "p" in scan.inputs else total

    def finish(sums: Sums) -> list[Stmt]:
        enter = f(peeped(sums[0], 0, old))
        keep = 1.0 - enter if input_forget else f(peeped(sums[2], 2, old))
        return [
            Store(c, at, keep * old + enter * g(sums[3])),
            Store(h, at, f(peeped(sums[1], 1, Load(c, at))) * squash(Load(c, at))),
            *scan.advance(Load(h, at), Load(c, at)),
        ]

    return [_let([h, c], scan.products(0, scan.state(0, INNER), {n: scan.gate(n) for n in range(4)}, finish))]


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


@dataclass(frozen=True)
class Blocks:
    """How tensors over hidden units are laid out for the nest: units padded to `count` blocks of
    `lanes`."""

    b: Builder
    directions: int
    gates: int
    hidden: int
    lanes: int

    @property
    def count(self) -> int:
        return -(-self.hidden // self.lanes)

    def padded(self, t: Tensor) -> Tensor:
        """[..., hidden] -> [..., units]."""
        return self.b.pad(t, [0] * (2 * t.rank - 1) + [self.count * self.lanes - self.hidden])

    def weights(self, t: Tensor) -> Tensor:
        """[D, gates * hidden, N] -> [D, blocks, N, gates, lanes]."""
        count = t.shape[2]
        rows = self.b.transpose(t, [0, 2, 1])
        units = self.padded(self.b.reshape(rows, [self.directions, count, self.gates, self.hidden]))
        apart = self.b.reshape(units, [self.directions, count, self.gates, self.count, self.lanes])
        return self.b.transpose(apart, [0, 3, 1, 2, 4])

    def columns(self, t: Tensor) -> Tensor:
        """[D, gates * hidden, N] -> [D, N, blocks * gates * lanes]."""
        parts = self.b.transpose(self.weights(t), [0, 2, 1, 3, 4])
        return self.b.reshape(parts, [self.directions, t.shape[2], self.count * self.gates * self.lanes])


def recurrent(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, lengths: Tensor | None,
    initial: Sequence[Tensor | None], extra: Mapping[str, Tensor], settings: Settings, cell: Cell,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(Y, each state's last value)."""
    first = bool(settings.layout)
    seq = _swapped(b, x, first)
    sizes = static_shape((*r.shape, w.shape[1]))
    if seq is None or x.rank != 3 or sizes is None:
        raise CompileError(f"inputs {x} with weights {w} and {r}: ranks must be 3, the weights' shapes known")
    directions, rows, hidden, _ = sizes
    if directions != (2 if settings.direction == "bidirectional" else 1):
        raise CompileError(f"direction {settings.direction!r} does not fit weights {r}")
    steps, batch = seq.shape[:2]
    tile = Tile.fit(hidden, max(map(len, cell.phases)), batch, wide(const(0, x.dtype)).dtype.bytes)
    blocks = Blocks(b, directions, rows // hidden, hidden, tile.lanes)
    tensors = _inputs(b, seq, w, r, bias, blocks, cell)
    if lengths is not None:
        tensors["lengths"] = lengths
    for name, state in zip(cell.states, initial, strict=True):
        given = _swapped(b, state, first)
        if given is None:
            given = b.expand(b.scalar(0, x.dtype), [directions, batch, hidden])
        tensors[name] = blocks.padded(given)
    tensors |= {name: blocks.padded(t) for name, t in extra.items()}
    nest = _nest(b, tensors, blocks, settings, cell, tile, steps, batch)
    return _results(b, b.cast(nest, x.dtype), hidden, steps, len(initial), first)


def _inputs(
    b: Builder, seq: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, blocks: Blocks, cell: Cell
) -> dict[str, Tensor]:
    """The nest's inputs that are made of the sequence and of the weights."""
    directions, gates, hidden, lanes = blocks.directions, blocks.gates, blocks.hidden, blocks.lanes
    steps, batch, width = seq.shape
    rows = gates * hidden
    if bias is None:
        bias = b.expand(b.scalar(0, seq.dtype), [directions, 2 * rows])
    split = b.reshape(bias, [directions, 2, gates, hidden])
    own = np.array([[g not in cell.apart] for g in range(gates)]).astype(seq.dtype.numpy)
    kept = b.reduce("sum", b.map(lambda v, k: v * k, split, b.const(np.stack([np.ones_like(own), own]))), [1])
    product = b.matmul(b.reshape(seq, [1, steps * batch, width]), blocks.columns(w))
    offset = blocks.columns(b.reshape(kept, [directions, rows, 1]))
    x = b.map(lambda v, c: v + c, product, offset)
    tensors = {"x": b.reshape(x, [directions, steps, batch, blocks.count, gates, lanes])}
    weights = blocks.weights(r)
    for n, chosen in enumerate(cell.phases):
        starts, shape = [0, 0, 0, chosen[0], 0], [directions, blocks.count, hidden, len(chosen), lanes]
        tensors[f"r{n}"] = b.slice(weights, starts, shape, [1] * 5)
    if cell.apart:
        recurrent_bias = b.slice(split, [0, 1, 0, 0], [directions, 1, gates, hidden], [1] * 4)
        tensors["bias"] = blocks.padded(b.reshape(recurrent_bias, [directions, gates, hidden]))
    return tensors


def _nest(
    b: Builder, tensors: Mapping[str, Tensor], blocks: Blocks, settings: Settings, cell: Cell, tile: Tile,
    steps: Expr, batch: Expr,
) -> Tensor:  # fmt: skip
    """The recurrence itself: `Scan.out`."""
    dtype = wide(const(0, tensors["x"].dtype)).dtype
    buffers = {n: Buffer(f"x{i}", t.dtype, t.shape) for i, (n, t) in enumerate(tensors.items())}
    directions, behind = blocks.directions, 2 * len(cell.states) + cell.kept
    rows = (const(directions), simplify(steps + behind), batch, const(blocks.count * blocks.lanes))
    out = Buffer("out", dtype, rows)
    names = list(settings.activations or [*cell.defaults] * directions)
    fns = activations(names, settings.activation_alpha, settings.activation_beta, settings.clip)
    each = len(cell.defaults)
    bodies = []
    for d in range(directions):
        reverse = settings.direction == "reverse" or d == 1
        scan = Scan(blocks.hidden, d, reverse, tile, cell.states, buffers, out, steps)
        bodies.append(scan.task(cell.step(scan, fns[d * each : (d + 1) * each]), batch))
    body = bodies[0] if directions == 1 else If(blocks.count > TASK, *bodies)
    tasks = For(TASK, const(blocks.count * directions), body, "parallel")
    rounds = For(ROUND, simplify(steps * len(cell.phases) + 1), tasks)
    return b.loop_nest(list(tensors.values()), rounds, dtype, rows)


def _results(
    b: Builder, found: Tensor, hidden: int, steps: Expr, states: int, batch_first: bool
) -> tuple[Tensor, ...]:
    directions, _, batch = found.shape[:3]

    def part(start: Expr, count: Expr) -> Tensor:
        return b.slice(found, [0, start, 0, 0], [directions, count, batch, const(hidden)], [1] * 4)

    y = b.transpose(part(const(0), steps), [2, 1, 0, 3] if batch_first else [1, 0, 2, 3])
    last = [
        b.reshape(part(steps + steps % 2 + 2 * n, const(1)), [directions, batch, hidden])
        for n in range(states)
    ]
    return y, *(b.transpose(t, [1, 0, 2]) if batch_first else t for t in last)


@op("RNN")
def rnn(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    cell = Cell(("h0",), ((0,),), rnn_step, ("Tanh",))
    return recurrent(b, x, w, r, bias, lengths, [initial_h], {}, Settings(**settings), cell)


@op("GRU")
def gru(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, *,
    linear_before_reset: int = 0, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    step = partial(gru_step, reset_after=bool(linear_before_reset))
    names = ("Sigmoid", "Tanh")
    if linear_before_reset:
        cell = Cell(("h0",), ((0, 1, 2),), step, names, apart=(2,))
    else:
        cell = Cell(("h0",), ((0, 1), (2,)), step, names, kept=2)
    return recurrent(b, x, w, r, bias, lengths, [initial_h], {}, Settings(**settings), cell)


@op("LSTM")
def lstm(
    b: Builder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, initial_h: Tensor | None = None, initial_c: Tensor | None = None,
    peepholes: Tensor | None = None, *, input_forget: int = 0, **settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    extra = {}
    if peepholes is not None:
        extra["p"] = b.reshape(peepholes, [peepholes.shape[0], 3, peepholes.shape[1] // 3])
    step = partial(lstm_step, input_forget=bool(input_forget))
    cell = Cell(("h0", "c0"), ((0, 1, 2, 3),), step, ("Sigmoid", "Tanh", "Tanh"))
    given = Settings(**settings)
    return recurrent(b, x, w, r, bias, lengths, [initial_h, initial_c], extra, given, cell)
