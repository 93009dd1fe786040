"""The loop nest over time of recurrent layers.

One matrix product for all steps' inputs comes first; this nest does the rest. A step's blocks of hidden units
are shared among threads. The result's rows behind the sequence pass values from one step to the next. The
numbers of steps and of batch items may be symbolic. The nest, with the names of its variables:

```
for round: parallel for task:                   a phase of a step, for a block jo of the hidden units
  for bo: b = the first row of a tile
    for bi, for ji: sums = the inputs' part     tt: the step's place in the sequence
    for k, for bi, for ji: sums += state[k] * weights
    for bi, for ji: the cell's own work on the sums
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from jangin.ir.dtype import I8, I32, I64
from jangin.ir.expr import (
    Buffer,
    Expr,
    Load,
    Var,
    binary,
    call,
    cast,
    const,
    maximum,
    minimum,
    select,
)
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block, substitute_stmt
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.traversal import substitute
from jangin.ops.levels import Levels
from jangin.ops.register_tiles import Tile, WordTile

Activation = Callable[[Expr], Expr]
Sums = Mapping[str, Expr]
"""The sums of products of a phase, by gate."""

# -- the nest's variables ------------------------------------------------------------------------

ROUND = Var("round")
"""Rounds run one after another. The first sets the initial states; each other is one phase of a step."""
TASK = Var("task")
"""One block of units of one direction. Threads share the tasks of a round."""
BLOCK = Var("jo")
"""The block of hidden units."""
TIME = Var("t")
"""The step, counted in the direction's order."""
PLACE = Var("tt")
"""The step's position in the sequence."""
TILE = Var("bo")
"""The tile of rows of the batch."""
FIRST = Var("b")
"""The tile's first row. The last tile is moved back so that it is whole."""
ROW = Var("bi")
"""The row within the tile."""
INNER = Var("k")
"""The unit of the state whose products are summed."""
LANE = Var("ji")
"""The unit within the block."""
GROUP = Var("ko")
"""A block of units of a state, in the search for the state's range."""
BATCH = FIRST + ROW

ONES = 0x01010101
"""A word whose four bytes are 1. A product of bytes with it gives the sum of the other word's bytes."""
LEVEL_ROWS = 4
"""Rows that hold a state's levels: words, scales and zero points, and the least and the largest number of
each unit."""
_LEVELS = "levels"
"""The name of the sum of levels, beside the names of the gates' sums."""


# -- one direction -------------------------------------------------------------------------------


class Phase(NamedTuple):
    """The work of a task in one round. `before` runs at the end of the previous round, which made the state
    that the phase reads; it uses only the task's own units."""

    body: Stmt
    before: Stmt | None = None


@dataclass(frozen=True)
class Scan:
    """One direction of a recurrence: its buffers, and the statements that all cells share.

    `inputs` holds x [D, T, B, blocks, gates, lanes] (the inputs' part of every gate, with biases), the
    state's weights r0, r1, ... [D, blocks, hidden, gates, lanes] for each phase of a step, and the cell's
    other inputs. Units are padded to whole blocks.

    With `levels`, r0, r1, ... are `words` of weights of several units. Their scales are s0, s1, ... [D,
    blocks, 1, gates, lanes], their column sums columns0, ..., and their zero points, if any, z0, z1, ....
    `sizes` are the lengths of the states that they multiply.

    `out` [D, T + rows, B, units] has further rows after the sequence. Each state has two rows, which hold it
    before and after the current step by turns. Each of the `between` values that a phase keeps for the next
    has one row. Levels add `LEVEL_ROWS`. Values that are saved for a gradient have a row for each step.
    """

    gates: tuple[str, ...]
    direction: int
    backward: bool
    tile: Tile
    states: tuple[str, ...]
    inputs: Mapping[str, Buffer]
    out: Buffer
    steps: Expr
    between: int = 0
    levels: Levels | None = None
    words: WordTile = field(default_factory=WordTile)
    sizes: Sequence[int] = ()

    def lanes(self, *body: Stmt) -> Stmt:
        return For(LANE, const(self.tile.lanes), block(*body), "vector")

    def each_row(self, *body: Stmt) -> Stmt:
        """Return the unrolled loop that runs `body` for each row of the register tile. Each row is a sequence
        of the batch. In a backward direction, `body` runs at the sequence's step counted from its end."""
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
        """Whether the row's sequence is long enough to have the current step."""
        return self.length > TIME

    @property
    def unit(self) -> Expr:
        return BLOCK * self.tile.lanes + LANE

    def number(self, name: str, *index: Expr | int) -> Expr:
        """Return an element of an input, for this direction."""
        return self.inputs[name][(self.direction, *index)]

    def value(self, name: str, *index: Expr | int) -> Expr:
        return cast(self.out.dtype, self.number(name, *index))

    def vector(self, name: str, *index: Expr | int) -> Expr:
        """Return an element of an input [D, ..., units], at the current unit."""
        return self.value(name, *index, self.unit)

    def gate(self, name: str) -> Expr:
        """Return the input's part of a gate at this step and unit."""
        return self.value("x", PLACE, BATCH, BLOCK, self.gates.index(name), LANE)

    @property
    def _words(self) -> int:
        """The row that holds the words of a state's levels."""
        return 2 * len(self.states) + self.between

    def _row(self, row: Expr | int, unit: Expr) -> tuple[Expr, ...]:
        return const(self.direction), self.steps + row, BATCH, unit

    def _state(self, n: int, later: int) -> Expr:
        return (TIME + later) % 2 + 2 * n

    def state(self, n: int, unit: Expr | None = None) -> Expr:
        """Return state `n` before the step, at the current unit or at `unit`."""
        return Load(self.out, self._row(self._state(n, 0), self.unit if unit is None else unit))

    def kept(self, n: int, unit: Expr | None = None) -> Expr:
        """Return value `n` that an earlier phase of the step kept, at the current unit or at `unit`."""
        return Load(self.out, self._row(2 * len(self.states) + n, self.unit if unit is None else unit))

    def keep(self, n: int, value: Expr) -> Stmt:
        return Store(self.out, self._row(2 * len(self.states) + n, self.unit), value)

    def save(self, n: int, value: Expr) -> Stmt:
        """Return the statement that saves value `n` of this step, for all time."""
        return Store(self.out, self._row(PLACE + self.steps * n + self.behind, self.unit), value)

    @property
    def behind(self) -> int:
        """The rows behind the sequence, without saved values."""
        return 2 * len(self.states) + self.between + LEVEL_ROWS * (self.levels is not None)

    def saved(self, n: int) -> Expr:
        """Return the first row of saved value `n`."""
        return simplify(self.steps * (n + 1) + self.behind)

    def advance(self, *new: Expr) -> list[Stmt]:
        """Return statements that store the states after the step; the first is also the step's output. A
        sequence that has ended outputs 0 and keeps its states."""
        stores = []
        for n, value in enumerate(new):
            after = select(self.live, value, self.state(n)) if "lengths" in self.inputs else value
            stores.append(Store(self.out, self._row(self._state(n, 1), self.unit), after))
        if "lengths" in self.inputs:
            new = (select(self.live, new[0], const(0, self.out.dtype)),)
        return [*stores, Store(self.out, (const(self.direction), PLACE, BATCH, self.unit), new[0])]

    def products(
        self, phase: int, state: Expr, starts: Sums, finish: Callable[[Sums], Sequence[Stmt]], *new: Buffer
    ) -> list[Phase]:
        """Return the phases that compute each gate's start value + the state (at INNER) times its weights,
        and pass these sums to `finish`. `finish` uses the registers `new`; gates are in the order of the
        weights."""
        if self.levels is not None:
            sums = self._of_levels(phase, starts, finish)
            return [self._quantized(self.levels, phase, state), Phase(self.tiled(holding(new, sums)))]
        terms = {g: (start, [self._term(phase, n, state)]) for n, (g, start) in enumerate(starts.items())}
        return [Phase(self.tiled(holding(new, self._summed(phase, terms, finish))))]

    def total(
        self, phase: int, states: Sequence[Expr], start: Expr, finish: Callable[[Expr], Sequence[Stmt]],
        *new: Buffer,
    ) -> Phase:  # fmt: skip
        """Return the phase that computes `start` + the sum of all gates' states (at INNER) times their
        weights, and passes it to `finish`. The weights r0, r1, ... are [D, blocks, gates * hidden, 1, lanes]
        here, so each loop reads them one after the other."""
        units = simplify(self.inputs[f"r{phase}"].shape[2] // len(states))
        products = [
            state * self.value(f"r{phase}", BLOCK, INNER + units * n, 0, LANE)
            for n, state in enumerate(states)
        ]
        terms = {"total": (start, products)}
        sums = self._summed(phase, terms, lambda of: finish(of["total"]))
        return Phase(self.tiled(holding(new, sums)))

    def _term(self, phase: int, gate: int, state: Expr) -> Expr:
        """Return the product of a state (at INNER) and a gate's weight."""
        return state * self.value(f"r{phase}", BLOCK, INNER, gate, LANE)

    def _summed(
        self, phase: int, terms: Mapping[str, tuple[Expr, Sequence[Expr]]],
        finish: Callable[[Sums], Sequence[Stmt]],
    ) -> Stmt:  # fmt: skip
        """Return statements that accumulate sums of one tile by name, and pass the sums to `finish`.

        A sum has a start value, and terms for every row (at INNER) of the weights. Several terms have a loop
        each, because rows of many states lie in the same sets of the L1 cache.
        """
        shape, at = (const(self.tile.rows), const(self.tile.lanes)), (ROW, LANE)
        sums = {
            g: Buffer(f"acc{n}", start.dtype, shape, "register")
            for n, (g, (start, _)) in enumerate(terms.items())
        }
        begin = [Store(sums[g], at, start) for g, (start, _) in terms.items()]
        turns = len(next(iter(terms.values()))[1])
        rows, units = const(self.tile.rows), simplify(self.inputs[f"r{phase}"].shape[2] // turns)
        products = []
        for turn in zip(*(of for _, of in terms.values()), strict=True):
            added = (Store(a, at, Load(a, at) + e) for a, e in zip(sums.values(), turn, strict=True))
            products.append(For(INNER, units, For(ROW, rows, self.lanes(*added), "unroll")))
        body = block(
            self.each_row(self.lanes(*begin)),
            *products,
            self.each_row(self.lanes(*finish({g: Load(a, at) for g, a in sums.items()}))),
        )
        return holding(sums.values(), body)

    # -- a state's levels ------------------------------------------------------------------------

    def _quantized(self, levels: Levels, phase: int, state: Expr) -> Phase:
        """Return the phase that quantizes a state: each task finds the range and packs the levels of its own
        units into words.

        If each row has its own range, the task searches all units. If all rows share one range, each task has
        found the range of its own units in `before`, as soon as they were computed.
        """
        size, lanes, none = self.sizes[phase], self.tile.lanes, const(0, self.out.dtype)
        number = substitute(state, {INNER: GROUP * lanes + LANE})
        if size % lanes:
            number = select(GROUP * lanes + LANE < size, number, none)
        if not levels.together:
            return Phase(self.tiled(self._leveled(levels, phase, state, (number, number))))
        if "lengths" in self.inputs:  # a sequence that ended before this step counts as 0
            number = select(self.length >= TIME, number, none)
        own, first = substitute(number, {GROUP: BLOCK}), self.steps + self._words + 2
        places = [(const(self.direction), first + n, const(0), self.unit) for n in range(2)]
        ends = self._registers(("lows", "highs"), lanes)
        search = self.lanes(*_widened(ends, (LANE,), (own, own)))
        before = block(
            self.lanes(*(Store(e, (LANE,), none) for e in ends)),
            self.tiled(For(ROW, const(self.tile.rows), search, "unroll")),
            self.lanes(*(Store(self.out, at, Load(e, (LANE,))) for at, e in zip(places, ends, strict=True))),
        )
        states = [substitute(Load(self.out, at), {BLOCK: GROUP}) for at in places]
        return Phase(self._leveled(levels, phase, state, states), holding(ends, before))

    def _leveled(self, levels: Levels, phase: int, state: Expr, found: Sequence[Expr]) -> Stmt:
        """Return statements that find the range of each row of a tile, or of all rows together, and then run
        `_stored_words`. `found` are the numbers (at a group's lane) among which the least and the largest are
        sought."""
        count, none, at = 1 if levels.together else self.tile.rows, const(0, self.out.dtype), (ROW, LANE)
        ends = self._registers(("lows", "highs"), count, self.tile.lanes)
        bounds = self._registers(("low", "high"), count)
        scale = self._registers(("step", "divisor", "zero"), count)

        def rows(*body: Stmt) -> Stmt:
            return For(ROW, const(count), block(*body), "unroll")

        joined = [
            Store(e, (ROW,), f(Load(e, (ROW,)), Load(of, at)))
            for e, of, f in zip(bounds, ends, (minimum, maximum), strict=True)
        ]
        values = levels.row(*(Load(e, (ROW,)) for e in bounds))
        groups = -(-self.sizes[phase] // self.tile.lanes)
        ranges = block(
            rows(self.lanes(*(Store(e, at, none) for e in ends)), *(Store(e, (ROW,), none) for e in bounds)),
            For(GROUP, const(groups), rows(self.lanes(*_widened(ends, at, found)))),
            rows(self.lanes(*joined), *(Store(s, (ROW,), v) for s, v in zip(scale, values, strict=True))),
        )
        row = const(0) if levels.together else ROW
        words = self._stored_words(levels, phase, state, [Load(s, (row,)) for s in scale])
        words = self.tiled(words) if levels.together else words
        return holding([*ends, *bounds, *scale], block(ranges, words))

    def _registers(self, names: Sequence[str], *shape: int) -> list[Buffer]:
        return [Buffer(n, self.out.dtype, tuple(map(const, shape)), "register") for n in names]

    def _stored_words(self, levels: Levels, phase: int, state: Expr, scale: Sequence[Expr]) -> Stmt:
        """Return statements that pack the levels of a tile's units into words, and store the rows' scale and
        zero point.

        A word has one unit from each part of the block.
        """
        step, divisor, zero = scale
        each = self.words.each
        part = self.tile.lanes // each
        signed = self.words.dot is not None and self.words.dot.left is I8
        less = levels.least + 128 * signed
        word: Expr = const(0, I32)
        for n in range(each):
            unit = BLOCK * self.tile.lanes + n * part + LANE
            byte = cast(I32, levels.level(substitute(state, {INNER: unit}), divisor, zero)) - less
            if self.sizes[phase] % self.tile.lanes:
                byte = select(unit < self.sizes[phase], byte, const(0, I32))
            byte = binary("and", byte, const(255, I32)) if signed else byte
            word = binary("or", word, binary("shl", byte, const(8 * n, I32))) if n else byte
        stored = Store(
            self.out, self._row(self._words, BLOCK * part + LANE), call(f"bitcast_{self.out.dtype}", word)
        )
        first = BLOCK * self.tile.lanes
        more = [
            Store(self.out, self._row(self._words + 1, first + n), v)
            for n, v in enumerate((step, zero - less))
        ]
        return For(
            ROW, const(self.tile.rows), block(For(LANE, const(part), stored, "vector"), *more), "unroll"
        )

    def _of_levels(self, phase: int, starts: Sums, finish: Callable[[Sums], Sequence[Stmt]]) -> Stmt:
        """Return statements that compute the exact integer products of the state's levels and the weights for
        one tile.

        The contributions of both zero points are subtracted.
        """
        first = BLOCK * self.tile.lanes
        word = call("bitcast_i32", Load(self.out, self._row(self._words, INNER)))
        step, zero = (Load(self.out, self._row(self._words + 1, first + n)) for n in range(2))
        none, origin = const(0, I32), cast(I32, zero)

        def product(other: Expr) -> Expr:
            return call(self.words.dot.name, word, other) if self.words.dot else word * cast(I32, other)

        terms = {
            g: (none, [product(self.number(f"r{phase}", BLOCK, INNER, n, LANE))])
            for n, g in enumerate(starts)
        }
        moved = f"z{phase}" in self.inputs
        if moved:
            terms[_LEVELS] = none, [product(const(ONES if self.words.dot else 1, I32))]

        def whole(sums: Sums) -> Sequence[Stmt]:
            def real(n: int, total: Expr) -> Expr:
                def of(name: str) -> Expr:
                    return self.number(f"{name}{phase}", BLOCK, 0, n, LANE)

                total = total - origin * of("columns")
                if moved:
                    total = total - of("z") * (sums[_LEVELS] - origin * self.sizes[phase])
                return cast(self.out.dtype, total) * (step * of("s"))

            return finish({g: start + real(n, sums[g]) for n, (g, start) in enumerate(starts.items())})

        return self._summed(phase, terms, whole)

    # -- a direction's rounds --------------------------------------------------------------------

    def tiled(self, body: Stmt) -> Stmt:
        """Return the loop that runs a statement for each tile of the batch. The last tile overlaps the one
        before it if the rows don't fill it."""
        batch, rows = self.out.shape[2], self.tile.rows
        last = simplify(batch - rows)
        tiles = simplify((batch + (rows - 1)) // rows)
        return For(TILE, tiles, Let(FIRST, minimum(TILE * rows, last), body))

    def task(self, phases: Sequence[Phase]) -> Stmt:
        """Return the work of a task in every round: the first round sets the states, each other is a
        phase."""
        begin = [
            Store(self.out, self._row(2 * n, self.unit), self.vector(name, BATCH))
            for n, name in enumerate(self.states)
        ]
        start = self.tiled(For(ROW, const(self.tile.rows), self.lanes(*begin), "unroll"))
        bodies, count = [p.body for p in phases], len(phases)
        for n, before in [(n, p.before) for n, p in enumerate(phases) if p.before is not None]:
            if n == 0:
                start = block(start, substitute_stmt(before, {TIME: const(0)}))
                before = substitute_stmt(before, {TIME: TIME + 1})
            bodies[n - 1] = block(bodies[n - 1], before)
        step = bodies[-1]
        for n, body in reversed(list(enumerate(bodies[:-1]))):
            step = If((ROUND - 1) % count < n + 1, body, step)
        round_ = If(ROUND < 1, start, Let(TIME, simplify((ROUND - 1) // count), step))
        blocks = self.inputs["r0"].shape[1]
        return Let(BLOCK, simplify(TASK - blocks * self.direction), round_)

    def register(self, n: int) -> tuple[Buffer, tuple[Expr, ...]]:
        """Return a vector of units in registers, and the index of the current unit in it."""
        return Buffer(f"new{n}", self.out.dtype, (const(self.tile.lanes),), "register"), (LANE,)


def _widened(ends: Sequence[Buffer], at: Sequence[Expr], numbers: Sequence[Expr]) -> list[Store]:
    """Return statements that widen two ends of a range to include two numbers; NaN widens nothing."""
    low, high = (Load(e, tuple(at)) for e in ends)
    wide = select(numbers[0] < low, numbers[0], low), select(numbers[1] > high, numbers[1], high)
    return [Store(e, tuple(at), v) for e, v in zip(ends, wide, strict=True)]


def holding(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
    for buffer in buffers:
        body = Alloc(buffer, body)
    return body
