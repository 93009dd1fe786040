"""What recurrences compute a step: one matrix product for all inputs comes before, then this nest over time.

A step's blocks of hidden units are shared among threads; what one step hands to the next lies in the result,
behind the sequence. Steps and batch may be symbolic. The nest, in the names of its variables:

    for round: parallel for task:                   a phase of a step, for a block jo of the hidden units
      for bo: b = the first row of a tile
        for bi, for ji: sums = the inputs' part     tt: the step's place in the sequence
        for k, for bi, for ji: sums += state[k] * weights
        for bi, for ji: the cell's own work on the sums
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, cast, const, maximum, minimum, select
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.traversal import substitute
from jangin.ops.activation import ACTIVATIONS, clip
from jangin.ops.builder import RegisterTile
from jangin.ops.levels import Levels

Activation = Callable[[Expr], Expr]
Sums = Mapping[str, Expr]
"""What the products of a phase give, by gate."""

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
GROUP = Var("ko")
"""A block of the units of a state whose range is looked for."""
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
    ... [D, blocks, hidden, gates, lanes] (the state's weights of each phase of a step), s0, s1, ...
    [D, blocks, 1, gates, lanes] (their scales, where a state is multiplied as `levels`), and what else
    the cell needs; units are padded to whole blocks. `out` [D, T + rows, B, units] has after the
    sequence two rows for every state, before and after the step at hand by turns, and one for each
    value that a phase hands to the next."""

    gates: tuple[str, ...]
    direction: int
    backward: bool
    tile: Tile
    states: tuple[str, ...]
    inputs: Mapping[str, Buffer]
    out: Buffer
    steps: Expr
    levels: Levels | None = None

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
        return cast(self.out.dtype, self.inputs[name][(self.direction, *index)])

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
        if self.levels is not None:
            return self._leveled(self.levels, phase, state, starts, finish)
        return self._summed(phase, state, starts, finish)

    def _summed(
        self, phase: int, state: Expr, starts: Sums, finish: Callable[[Sums], Sequence[Stmt]]
    ) -> Stmt:
        shape, at = (const(self.tile.rows), const(self.tile.lanes)), (ROW, LANE)
        sums = {g: Buffer(f"acc{n}", self.out.dtype, shape, "register") for n, g in enumerate(starts)}
        begin = [Store(sums[g], at, start) for g, start in starts.items()]
        update = [
            Store(a, at, Load(a, at) + state * self.value(f"r{phase}", BLOCK, INNER, n, LANE))
            for n, a in enumerate(sums.values())
        ]
        rows = For(ROW, const(self.tile.rows), self.lanes(*update), "unroll")
        body = block(
            self.each_row(self.lanes(*begin)),
            For(INNER, self.inputs[f"r{phase}"].shape[2], rows),
            self.each_row(self.lanes(*finish({g: Load(a, at) for g, a in sums.items()}))),
        )
        return holding(sums.values(), body)

    def _leveled(
        self, levels: Levels, phase: int, state: Expr, starts: Sums, finish: Callable[[Sums], Sequence[Stmt]]
    ) -> Stmt:
        """The products of the state's levels, by its range in each row. Their sums are whole numbers, exact
        up to 2 ** 24."""
        rows, lanes = const(self.tile.rows), const(self.tile.lanes)
        ends = [Buffer(name, self.out.dtype, (rows, lanes), "register") for name in ("low", "high")]
        scale = [Buffer(n, self.out.dtype, (rows,), "register") for n in ("step", "inverse", "zero")]
        zero, at = const(0, self.out.dtype), (ROW, LANE)
        there = substitute(state, {INNER: GROUP * lanes + LANE})
        groups = simplify((self.inputs[f"r{phase}"].shape[2] + (lanes - 1)) // lanes)
        wider = [Store(e, at, f(Load(e, at), there)) for e, f in zip(ends, (minimum, maximum), strict=True)]
        folded = [
            Store(e, (ROW, const(0)), f(Load(e, (ROW, const(0))), Load(e, (ROW, const(n)))))
            for e, f in zip(ends, (minimum, maximum), strict=True)
            for n in range(1, self.tile.lanes)
        ]
        found = levels.row(*(Load(e, (ROW, const(0))) for e in ends))
        ranges = block(
            For(ROW, rows, self.lanes(*(Store(e, at, zero) for e in ends)), "unroll"),
            For(GROUP, groups, For(ROW, rows, self.lanes(*wider), "unroll")),
            For(ROW, rows, block(*folded, *map(_stored_at_row, scale, found)), "unroll"),
        )
        step, inverse, origin = (Load(s, (ROW,)) for s in scale)

        def whole(sums: Sums) -> Sequence[Stmt]:
            factors = (step * self.value(f"s{phase}", BLOCK, 0, n, LANE) for n in range(len(sums)))
            return finish({g: starts[g] + v * f for (g, v), f in zip(sums.items(), factors, strict=True)})

        leveled = levels.level(state, inverse, origin) - origin
        body = self._summed(phase, leveled, dict.fromkeys(starts, zero), whole)
        return holding([*ends, *scale], block(ranges, body))

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


def _stored_at_row(buffer: Buffer, value: Expr) -> Stmt:
    return Store(buffer, (ROW,), value)


def holding(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
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


def rnn_step(scan: Scan, fns: Sequence[Activation]) -> list[Stmt]:
    new, at = scan.register(0)

    def finish(sums: Sums) -> list[Stmt]:
        return [Store(new, at, fns[0](sums["hidden"])), *scan.advance(Load(new, at))]

    starts = {"hidden": scan.gate("hidden")}
    return [holding([new], scan.products(0, scan.state(0, INNER), starts, finish))]


def gru_step(scan: Scan, fns: Sequence[Activation], reset_after: bool) -> list[Stmt]:
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
        return [holding([new], scan.products(0, h, starts, after))]
    last = {"candidate": scan.gate("candidate")}
    second = scan.products(
        1, scan.kept(1, INNER), last, lambda sums: mixed(scan.kept(0), g(sums["candidate"]))
    )
    return [scan.products(0, h, starts, before), holding([new], second)]


def lstm_step(
    scan: Scan, fns: Sequence[Activation], coupled: bool, limit: float, bound: float = 0.0
) -> list[Stmt]:
    """A second phase, where there are weights for one, projects h, within `bound` where that isn't 0."""
    f, g, squash = fns
    (h, at), (c, _) = scan.register(0), scan.register(1)
    old, projects = scan.state(1), "r1" in scan.inputs

    def peeped(total: Expr, row: int, cell: Expr) -> Expr:
        return total + scan.vector("p", row) * cell if "p" in scan.inputs else total

    def finish(sums: Sums) -> list[Stmt]:
        enter = f(peeped(sums["input"], 0, old))
        keep = 1.0 - enter if coupled else f(peeped(sums["forget"], 2, old))
        held = keep * old + enter * g(sums["candidate"])
        new = Load(h, at), Load(c, at)
        return [
            Store(c, at, clip(held, -limit, limit) if limit else held),
            Store(h, at, f(peeped(sums["output"], 1, Load(c, at))) * squash(Load(c, at))),
            *([scan.keep(n, v) for n, v in enumerate(new)] if projects else scan.advance(*new)),
        ]

    def projected(sums: Sums) -> list[Stmt]:
        total = sums["projection"]
        return scan.advance(clip(total, -bound, bound) if bound else total, scan.kept(1))

    starts = {n: scan.gate(n) for n in scan.gates}
    first = holding([h, c], scan.products(0, scan.state(0, INNER), starts, finish))
    if not projects:
        return [first]
    return [
        first, scan.products(1, scan.kept(0, INNER), {"projection": scan.vector("offset")}, projected)
    ]  # fmt: skip
