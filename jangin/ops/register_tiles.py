"""The registers of a machine that accumulate products, for operators that lay out weights by tile."""

from __future__ import annotations

from dataclasses import field

from jangin.ir.products import DOT4, DOT4U, Product
from jangin.ir.records import dataclass

OF_BYTES = DOT4U, DOT4
"""Products of words of four bytes that never clamp."""


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
