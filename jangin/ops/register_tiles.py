"""The registers of a machine that accumulate products, for operators that lay out weights by tile."""

from __future__ import annotations

from dataclasses import field

from jangin.ir.expr import Const, Expr
from jangin.ir.products import DOT4, DOT4U, Product
from jangin.ir.records import dataclass

OF_BYTES = DOT4U, DOT4
"""Products of words of four bytes that never clamp."""

OF_SCALE = 2
"""Rows that describe levels: the scale and the zero point. Each block of units has its own copy."""
BATCHED = 8
"""Fewest rows of a batch whose multiply-adds take longer than the weights' way from the L3 cache."""
FROM_L2 = 4
"""Multiply-adds in the time in which a vector of weights comes from the L2 cache. A vector takes some two
cycles, and two multiply-adds begin each cycle. Each tile reads the weights."""
LEAST = 8
"""Multiply-adds that a core begins before the first one's result can be added to: four cycles of latency, and
two begin each cycle."""
PER_TERM = 2
"""Multiply-adds in the time that a term's loop takes beside its own work: its counter and branch take about a
cycle, in which two begin."""
FEWEST_BLOCKS = 8
"""Fewest blocks of units, which threads share: two for each of four threads."""


@dataclass(frozen=True)
class WordTile:
    """The registers that accumulate products of bytes: at most `accumulators` vectors of `bytes` bytes each.
    The Product `dot`, one of `OF_BYTES`, makes the products. If `dot` is None, the products are made one by
    one."""

    dot: Product | None = OF_BYTES[0]
    accumulators: int = 12
    bytes: int = 32

    @property
    def each(self) -> int:
        """Terms of one word: the products that one instruction sums in a lane."""
        return self.dot.terms_of_word if self.dot else 1


@dataclass(frozen=True)
class RegisterTile:
    """The register tile of the target machine. An operator that lays out weights by tile must know it: at
    most `accumulators` vectors of `bytes` bytes each, and at most `rows` rows.

    `batches` is the tile for many rows, whose multiply-adds take longer than the weights' way to the core.
    None means that they take the same tile as a few rows."""

    accumulators: int = 12
    bytes: int = 32
    rows: int = 6
    words: WordTile = field(default_factory=WordTile)
    batches: RegisterTile | None = None

    def lanes(self, element: int) -> int:
        """Return the number of elements of this size in a vector. A processor whose vectors are words takes
        larger elements one by one."""
        return max(1, self.bytes // element)


ANY_MACHINE = RegisterTile()
"""The register tile for graphs that are built for no machine; it suits AVX2."""


@dataclass(frozen=True)
class Tile:
    """The register tile: `rows` of the batch by `lanes` hidden units of every gate."""

    rows: int
    lanes: int

    @staticmethod
    def fit(
        hidden: int, gates: int, batch: Expr, element: int, most: RegisterTile, of_words: bool = False
    ) -> Tile:
        """Return the register tile that keeps nearly all accumulators busy. With a symbolic batch a tile has
        one row. `of_words`: the products are of words, one vector for each instruction."""
        count = int(batch.value) if isinstance(batch, Const) else 1
        if count >= BATCHED and most.batches is not None and not of_words:
            return Tile.quickest(hidden, gates, count, element, most.batches)
        accumulators = most.words.accumulators if of_words else most.accumulators
        fitting = max(1, min(accumulators // gates, most.rows))
        rows = max(1, -(-count // -(-max(count, 1) // fitting)))
        if of_words:
            return Tile(rows, max(most.words.bytes // element, most.words.each, OF_SCALE))
        lanes = most.lanes(element)
        vectors = 1
        while 2 * vectors * gates * rows <= most.accumulators and vectors * lanes < hidden:
            vectors *= 2
        return Tile(rows, vectors * lanes)

    @staticmethod
    def quickest(hidden: int, gates: int, batch: int, element: int, most: RegisterTile) -> Tile:
        """Return the register tile with the least time for a whole batch. Its time for each term of the sums
        is counted in multiply-adds, of which two go with two loads."""
        lanes, timed = most.lanes(element), list[tuple[int, int, int]]()
        vectors = 1
        while vectors == 1 or vectors * lanes * FEWEST_BLOCKS <= hidden:
            for tiles in range(1, batch + 1):
                rows, across = -(-batch // tiles), gates * vectors
                if rows * across <= most.accumulators or rows == 1:
                    term = PER_TERM + max(rows * across, rows + across, FROM_L2 * across, LEAST)
                    timed.append((tiles * -(-hidden // (vectors * lanes)) * term, vectors * lanes, rows))
            vectors *= 2
        _, width, rows = min(timed)
        return Tile(rows, width)
