"""LSTM, GRU and plain recurrences: one matrix product for all inputs, then a nest over time.

The weights of the state are read once a step, all of them: that is what a step costs at small batches. So
they are constants in the order of reading: for each block of hidden units, row by row, all gates side by
side. A step's blocks are shared among threads; what one step hands to the next lies in the result, behind
the sequence. Steps and batch may be symbolic. The nest, in the names of its variables:

    for round: parallel for task:                   a phase of a step, for a block jo of the hidden units
      for bo: b = the first row of a tile
        for bi, for ji: sums = the inputs' part     tt: the step's place in the sequence
        for k, for bi, for ji: sums += state[k] * weights
        for bi, for ji: the cell's own work on the sums
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.dtype import F32, I32, I64
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, cast, const, minimum, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.types import tensor_type
from jangin.ops.activation import ACTIVATIONS, clip
from jangin.ops.builder import Builder, RegisterTile
from jangin.ops.index import in_range
from jangin.ops.nontensor import host
from jangin.ops.operands import wide
from jangin.ops.values import Tensor

Activation = Callable[[Expr], Expr]
Sums = Mapping[str, Expr]
"""What the products of a phase give, by gate."""
LSTM_GATES = ("input", "output", "forget", "candidate")
GRU_GATES = ("update", "reset", "candidate")


@dataclass(frozen=True)
class Layer:
    """What every recurrent layer is given, in each of D directions.

    x [steps, batch, size]; w [D, gates * hidden, size] the inputs' weights and r [D, gates * hidden, hidden]
    the state's, of known shapes; bias [D, 2, gates, hidden], the inputs' and the state's; lengths [batch]
    (integers) of sequences shorter than x, whose further results are 0; `backward`: for each direction,
    whether it goes from the last step to the first; `activations`: for each direction, a cell's functions.
    """

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None = None
    lengths: Tensor | None = None
    backward: tuple[bool, ...] = (False,)
    activations: Sequence[Sequence[Activation]] | None = None


def rnn(b: Builder, layer: Layer, *, h: Tensor | None = None) -> tuple[Tensor, ...]:
    """h' = f(W x + R h + bias), f tanh if not given (Elman 1990): (y [D, steps, batch, hidden], the last
    h [D, batch, hidden]), from `h` or 0 on."""
    return _recurrent(
        b, layer, Cell("rnn", ("hidden",), ("h0",), (("hidden",),), _rnn_step, (TANH,)), [h], {}
    )


def gru(
    b: Builder, layer: Layer, *, h: Tensor | None = None, gates: Sequence[str] = GRU_GATES,
    reset_after: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """h' = (1 - z) g(candidate) + z h with gates z ("update") and r ("reset") by f; f sigmoid and g tanh if
    not given (Cho et al. 2014). `gates`: the order in which they stand in the weights, the candidate first or
    last; `reset_after`: the reset gate scales the state's product, not the state. Results as of `rnn`."""
    rest = tuple(g for g in gates if g != "candidate")
    step = partial(_gru_step, reset_after=reset_after)
    usual, settings = (SIGMOID, TANH), {"reset_after": reset_after}
    if reset_after:
        cell = Cell("gru", tuple(gates), ("h0",), (tuple(gates),), step, usual, settings, apart="candidate")
    else:
        cell = Cell("gru", tuple(gates), ("h0",), (rest, ("candidate",)), step, usual, settings, kept=2)
    return _recurrent(b, layer, cell, [h], {})


def lstm(
    b: Builder, layer: Layer, *, h: Tensor | None = None, c: Tensor | None = None,
    gates: Sequence[str] = LSTM_GATES, peepholes: Tensor | None = None, coupled: bool = False,
    limit: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """c' = f(forget) c + f(input) g(candidate), h' = f(output) e(c'); f sigmoid, g and e tanh if not given
    (Hochreiter & Schmidhuber 1997). `gates`: the order in which they stand in the weights; `peepholes`
    [D, 3, hidden]: weights by which the input, output and forget gates see the cell (Gers & Schmidhuber
    2000); `coupled`: what is forgotten is what enters; `limit`: the largest value
    of a cell, and its negative the least, unless it is 0. (y, the last h, the last c), as of `rnn`."""
    step = partial(_lstm_step, coupled=coupled, limit=limit)
    settings = {"coupled": coupled, "limit": limit}
    cell = Cell("lstm", tuple(gates), ("h0", "c0"), (tuple(gates),), step, (SIGMOID, TANH, TANH), settings)
    return _recurrent(b, layer, cell, [h, c], {} if peepholes is None else {"p": peepholes})


# -- the nest's variables ------------------------------------------------------------------------

ROUND = Var("round")
"""Rounds go one by one: the first sets the states, each other is a phase of a step."""
TASK = Var("task")
"""A block of units of a direction; the tasks of a round are shared among threads."""
BLOCK = Var("jo")
"""The block of hidden units."""
TIME = Var("t")
"""The step, counted in the direction's order."""
PLACE = Var("tt")
"""Where the step stands in the sequence."""
TILE = Var("bo")
"""The tile of rows of the batch."""
FIRST = Var("b")
"""The tile's first row: the last tile is moved back so that it is whole."""
ROW = Var("bi")
"""The row within the tile."""
INNER = Var("k")
"""The unit of the state whose products are summed."""
LANE = Var("ji")
"""The unit within the block."""
BATCH = FIRST + ROW


@dataclass(frozen=True)
class Tile:
    """What accumulates in registers: `rows` of the batch by `lanes` hidden units of every gate."""

    rows: int
    lanes: int

    @staticmethod
    def fit(hidden: int, gates: int, batch: Expr, element: int, most: RegisterTile) -> Tile:
        """The tile that keeps the accumulators busy, or nearly. Where the batch is symbolic its rows go one
        by one."""
        count = int(batch.value) if isinstance(batch, Const) else 1
        fitting = max(1, min(most.accumulators // gates, most.rows))
        rows = max(1, -(-count // -(-max(count, 1) // fitting)))
        lanes = most.bytes // element
        vectors = 1
        while 2 * vectors * gates * rows <= most.accumulators and vectors * lanes < hidden:
            vectors *= 2
        return Tile(rows, vectors * lanes)


# -- one direction -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """One direction of a recurrence: its buffers, and the statements that all cells are made of.

    `inputs`: x [D, T, B, blocks, gates, lanes] (the inputs' part of every gate, with biases), r0, r1,
    ... [D, blocks, hidden, gates, lanes] (the state's weights of each phase of a step), and what else
    the cell needs; units are padded to whole blocks. `out` [D, T + rows, B, units] has after the
    sequence two rows for every state, before and after the step at hand by turns, and one for each
    value that a phase hands to the next."""

    gates: tuple[str, ...]
    hidden: int
    direction: int
    backward: bool
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
        if self.backward:
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

    def gate(self, name: str) -> Expr:
        """The input's part of a gate at this step and unit."""
        return self.value("x", PLACE, BATCH, BLOCK, self.gates.index(name), LANE)

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
        """For the tile: `finish` of each gate's start value + the state (at INNER) times its weights; the
        gates in the order of the weights."""
        shape, at = (const(self.tile.rows), const(self.tile.lanes)), (ROW, LANE)
        sums = {g: Buffer(f"acc{self.gates.index(g)}", self.out.dtype, shape, "register") for g in starts}
        begin = [Store(sums[g], at, start) for g, start in starts.items()]
        update = [
            Store(a, at, Load(a, at) + state * self.value(f"r{phase}", BLOCK, INNER, n, LANE))
            for n, a in enumerate(sums.values())
        ]
        rows = For(ROW, const(self.tile.rows), self.lanes(*update), "unroll")
        body = block(
            self.each_row(self.lanes(*begin)),
            For(INNER, const(self.hidden), rows),
            self.each_row(self.lanes(*finish({g: Load(a, at) for g, a in sums.items()}))),
        )
        return _holding(sums.values(), body)

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

    def register(self, n: int) -> tuple[Buffer, tuple[Expr, ...]]:
        """A vector of units in registers, and where in it the unit in hand is."""
        return Buffer(f"new{n}", self.out.dtype, (const(self.tile.lanes),), "register"), (LANE,)


def _holding(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
    for buffer in buffers:
        body = Alloc(buffer, body)
    return body


# -- cells: the phases of one step ----------------------------------------------------------------

SIGMOID, TANH = ACTIVATIONS["sigmoid"], ACTIVATIONS["tanh"]


@dataclass(frozen=True)
class Cell:
    """`function`: the name of that which makes a layer of it, and its `settings`; `gates` in the order of the
    weights; `states` by the inputs they begin with; `phases`: the gates whose products with the state each
    phase of a step sums, neighbours in the weights; `usual`: its activations where none are given; `kept`:
    values that a phase keeps for the next; `apart`: the gate whose state's bias is an input "bias" of its
    own, not a part of x."""

    function: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    phases: tuple[tuple[str, ...], ...]
    step: Callable[[Scan, Sequence[Activation]], Sequence[Stmt]]
    usual: tuple[Activation, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kept: int = 0
    apart: str = ""


def _rnn_step(scan: Scan, fns: Sequence[Activation]) -> list[Stmt]:
    new, at = scan.register(0)

    def finish(sums: Sums) -> list[Stmt]:
        return [Store(new, at, fns[0](sums["hidden"])), *scan.advance(Load(new, at))]

    starts = {"hidden": scan.gate("hidden")}
    return [_holding([new], scan.products(0, scan.state(0, INNER), starts, finish))]


def _gru_step(scan: Scan, fns: Sequence[Activation], reset_after: bool) -> list[Stmt]:
    f, g = fns
    new, at = scan.register(0)

    def mixed(update: Expr, candidate: Expr) -> list[Stmt]:
        blend = Load(new, at) + update * (scan.state(0) - Load(new, at))
        return [Store(new, at, candidate), Store(new, at, blend), *scan.advance(Load(new, at))]

    def after(sums: Sums) -> list[Stmt]:
        candidate = g(scan.gate("candidate") + f(sums["reset"]) * sums["candidate"])
        return mixed(f(sums["update"]), candidate)

    def before(sums: Sums) -> list[Stmt]:
        return [scan.keep(0, f(sums["update"])), scan.keep(1, f(sums["reset"]) * scan.state(0))]

    starts = {n: scan.gate(n) for n in scan.gates if reset_after or n != "candidate"}
    h = scan.state(0, INNER)
    if reset_after:
        starts["candidate"] = scan.vector("bias", scan.gates.index("candidate"))
        return [_holding([new], scan.products(0, h, starts, after))]
    last = {"candidate": scan.gate("candidate")}
    second = scan.products(
        1, scan.kept(1, INNER), last, lambda sums: mixed(scan.kept(0), g(sums["candidate"]))
    )
    return [scan.products(0, h, starts, before), _holding([new], second)]


def _lstm_step(scan: Scan, fns: Sequence[Activation], coupled: bool, limit: float) -> list[Stmt]:
    f, g, squash = fns
    (h, at), (c, _) = scan.register(0), scan.register(1)
    old = scan.state(1)

    def peeped(total: Expr, row: int, cell: Expr) -> Expr:
        return total + scan.vector("p", row) * cell if "p" in scan.inputs else total

    def finish(sums: Sums) -> list[Stmt]:
        enter = f(peeped(sums["input"], 0, old))
        keep = 1.0 - enter if coupled else f(peeped(sums["forget"], 2, old))
        held = keep * old + enter * g(sums["candidate"])
        return [
            Store(c, at, clip(held, -limit, limit) if limit else held),
            Store(h, at, f(peeped(sums["output"], 1, Load(c, at))) * squash(Load(c, at))),
            *scan.advance(Load(h, at), Load(c, at)),
        ]

    starts = {n: scan.gate(n) for n in scan.gates}
    return [_holding([h, c], scan.products(0, scan.state(0, INNER), starts, finish))]


# -- a layer -------------------------------------------------------------------------------------


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


def _recurrent(
    b: Builder, layer: Layer, cell: Cell, initial: Sequence[Tensor | None], extra: Mapping[str, Tensor]
) -> tuple[Tensor, ...]:
    """(y, each state's last value)."""
    x, r = layer.x, layer.r
    sizes = static_shape((*r.shape, layer.w.shape[1]))
    if x.rank != 3 or sizes is None:
        raise CompileError(
            f"inputs {x} with weights {layer.w} and {r}: ranks must be 3, the weights' shapes known"
        )
    directions, rows, hidden, _ = sizes
    if directions != len(layer.backward) or rows != len(cell.gates) * hidden:
        raise CompileError(
            f"{len(layer.backward)} directions of {len(cell.gates)} gates don't fit weights {r}"
        )
    if b.whole:
        return _whole(b, layer, cell, initial, extra)
    steps, batch = x.shape[:2]
    element = wide(const(0, x.dtype)).dtype.bytes
    tile = Tile.fit(hidden, max(map(len, cell.phases)), batch, element, b.tile)
    blocks = Blocks(b, directions, len(cell.gates), hidden, tile.lanes)
    tensors = _inputs(b, layer, blocks, cell)
    if layer.lengths is not None:
        tensors["lengths"] = in_range(b, layer.lengths, steps + 1, from_end=False)
    for name, state in zip(cell.states, initial, strict=True):
        given = state or b.expand(b.scalar(0, x.dtype), [directions, batch, hidden])
        tensors[name] = blocks.padded(given)
    tensors |= {name: blocks.padded(t) for name, t in extra.items()}
    found = b.cast(_nest(b, tensors, blocks, layer, cell, tile), x.dtype)

    def part(start: Expr, count: Expr) -> Tensor:
        return b.slice(found, [0, start, 0, 0], [directions, count, batch, const(hidden)], [1] * 4)

    y = part(const(0), steps)
    last = (part(steps + steps % 2 + 2 * n, const(1)) for n in range(len(initial)))
    return y, *(b.reshape(t, [directions, batch, hidden]) for t in last)


USUAL_GATES: Mapping[str, tuple[str, ...]] = {"rnn": ("hidden",), "gru": GRU_GATES, "lstm": LSTM_GATES}


def _whole(
    b: Builder, layer: Layer, cell: Cell, initial: Sequence[Tensor | None], extra: Mapping[str, Tensor]
) -> tuple[Tensor, ...]:
    """A layer as one node: a call on x, w, r, bias [D, 2 * gates * hidden], lengths, the states and peepholes
    [D, 3 * hidden], gates in the order of `USUAL_GATES`, for y [steps, D, batch, hidden] and the last states;
    `backward`, `activations` (expressions of x0 for each direction) and the cell's settings are named."""
    x, count = layer.x, len(cell.gates)
    directions, hidden = layer.r.shape[0], int(static_shape(layer.r.shape[2:])[0])  # type: ignore[index]
    order = [cell.gates.index(g) for g in USUAL_GATES[cell.function]]
    rows = b.const(np.concatenate([np.arange(hidden) + i * hidden for i in order]))
    usual = order == list(range(count))
    w, r = (t if usual else b.gather(t, rows, 1) for t in (layer.w, layer.r))
    bias = layer.bias
    if bias is not None:
        bias = bias if usual else b.gather(bias, b.const(np.array(order)), 2)
        bias = b.reshape(bias, [directions, 2 * count * hidden])
    lengths = layer.lengths and b.cast(layer.lengths, I32)
    more = [b.reshape(t, [directions, 3 * hidden]) for t in extra.values()]
    fns = layer.activations or [cell.usual] * len(layer.backward)
    element = Var("x0", F32)
    spoken = tuple(tuple(fn(element) for fn in of) for of in fns)
    state = tensor_type(x.dtype, (directions, x.shape[1], const(hidden)))
    y = tensor_type(x.dtype, (x.shape[0], directions, x.shape[1], const(hidden)))
    settings = {"hidden": hidden, "backward": layer.backward, "activations": spoken, **cell.settings}
    inputs = [x, w, r, bias, lengths, *initial, *more]
    found, *last = host(b, cell.function, inputs, [y, *[state] * len(initial)], settings)
    return b.transpose(found, [1, 0, 2, 3]), *last


def _inputs(b: Builder, layer: Layer, blocks: Blocks, cell: Cell) -> dict[str, Tensor]:
    """The nest's inputs that are made of the sequence and of the weights."""
    directions, gates, hidden, lanes = blocks.directions, blocks.gates, blocks.hidden, blocks.lanes
    seq, rows = layer.x, gates * hidden
    steps, batch, width = seq.shape
    split = layer.bias or b.expand(b.scalar(0, seq.dtype), [directions, 2, gates, hidden])
    own = np.array([[g != cell.apart] for g in cell.gates]).astype(seq.dtype.numpy)
    kept = b.reduce("sum", b.map(lambda v, k: v * k, split, b.const(np.stack([np.ones_like(own), own]))), [1])
    product = b.matmul(b.reshape(seq, [1, steps * batch, width]), blocks.columns(layer.w))
    offset = blocks.columns(b.reshape(kept, [directions, rows, 1]))
    x = b.map(lambda v, c: v + c, product, offset)
    tensors = {"x": b.reshape(x, [directions, steps, batch, blocks.count, gates, lanes])}
    weights = blocks.weights(layer.r)
    for n, phase in enumerate(cell.phases):
        starts = [0, 0, 0, cell.gates.index(phase[0]), 0]
        shape = [directions, blocks.count, hidden, len(phase), lanes]
        tensors[f"r{n}"] = b.slice(weights, starts, shape, [1] * 5)
    if cell.apart:
        states = b.slice(split, [0, 1, 0, 0], [directions, 1, gates, hidden], [1] * 4)
        tensors["bias"] = blocks.padded(b.reshape(states, [directions, gates, hidden]))
    return tensors


def _nest(
    b: Builder, tensors: Mapping[str, Tensor], blocks: Blocks, layer: Layer, cell: Cell, tile: Tile
) -> Tensor:
    """The recurrence itself: `Scan.out`."""
    steps, batch = layer.x.shape[:2]
    dtype = wide(const(0, tensors["x"].dtype)).dtype
    buffers = {n: Buffer(f"x{i}", t.dtype, t.shape) for i, (n, t) in enumerate(tensors.items())}
    directions, behind = blocks.directions, 2 * len(cell.states) + cell.kept
    rows = (const(directions), simplify(steps + behind), batch, const(blocks.count * blocks.lanes))
    out = Buffer("out", dtype, rows)
    fns = layer.activations or [cell.usual] * directions
    bodies = []
    for d, backward in enumerate(layer.backward):
        scan = Scan(cell.gates, blocks.hidden, d, backward, tile, cell.states, buffers, out, steps)
        bodies.append(scan.task(cell.step(scan, fns[d]), batch))
    body = bodies[0] if directions == 1 else If(blocks.count > TASK, *bodies)
    tasks = For(TASK, const(blocks.count * directions), body, "parallel")
    rounds = For(ROUND, simplify(steps * len(cell.phases) + 1), tasks)
    return b.loop_nest(list(tensors.values()), rounds, dtype, rows)
