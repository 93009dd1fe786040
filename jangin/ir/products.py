"""Products of small numbers that an instruction adds up: one record for each form that some machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from jangin.ir.dtype import BF16, F16, F32, I8, I16, I32, I64, U8, DType
from jangin.ir.records import dataclass

_WORDS = {8: I8, 16: I16, 32: I32, 64: I64}
"""The type of a word that holds several numbers, by its bits."""
_REGISTER_WORD = 32
"""Bits of a word in matrix registers. A word holds neighbouring terms (VNNI layout)."""


@dataclass(frozen=True)
class Product:
    """A sum of products of small numbers, as one instruction makes it.

    - `name`: the function of Loop IR that multiplies two words and adds up their products. The text forms of
      graphs use the same name.
    - `left`, `right`: the types of the numbers in the two operands.
    - `total`: the type of the sum.
    - `rows`, `columns`, `terms`: the matrices that the instruction multiplies, [rows, terms] by [terms,
      columns]. With 0 columns it makes one sum in each lane of a vector register.
    - `rounds`: the function of Loop IR that rounds both numbers to tf32 first, or "". Each product is then
      exact.
    - `ready`: the left number isn't rounded, because the kernel that stored it did so.
    - `clamps`: the sums of two neighbouring products saturate to int16, so the product is exact only for
      small numbers (x86's vpmaddubsw).
    - `right_least`: the least number that the right operand may have; None allows its type's least.
    - `held`: the operands are in vector registers, in matrix registers, or in fragments that the lanes of a
      warp share (`ir.fragments`).

    Raises ValueError for a record whose fields don't fit each other.
    """

    name: str
    left: DType
    right: DType
    total: DType
    rows: int = 1
    columns: int = 0
    terms: int = 1
    clamps: bool = False
    rounds: str = ""
    ready: bool = False
    right_least: int | None = None
    held: Literal["vector", "matrix register", "fragment"] = "vector"

    def __post_init__(self) -> None:
        types, least = (self.left, self.right, self.total), self.right_least
        word = self.terms_of_word * self.left.bits
        for holds, rule in (
            (self.left.bits == self.right.bits, "numbers of one size"),
            (self.left.bits < self.total.bits or bool(self.rounds), "a sum that is wider than its numbers"),
            (not self.rounds or self.left is self.right is F32, "numbers of float32 that it rounds"),
            (len({t.is_float for t in types}) == 1, "integers alone or floats alone"),
            (self.rows >= 1 <= self.terms, "a row and a term"),
            (self.columns >= 1 or (self.rows == 1 and self.held == "vector"), "columns if it has matrices"),
            (word in _WORDS, f"words of 8, 16, 32 or 64 bits, not of {word}"),
            (self.terms % max(1, self.terms_of_word) == 0, "terms in whole words"),
            (not self.clamps or (self.left.is_int and self.terms % 2 == 0), "pairs of integers that clamp"),
            (least is None or (self.right.is_int and self.right.has_whole(least)), "a least it can have"),
        ):
            if not holds:
                raise ValueError(f"{self}: a product needs {rule}")

    def __str__(self) -> str:
        shape = f"({self.rows}, {self.columns or 'lanes'}, {self.terms})"
        return f"{self.name} {shape} of {self.left} and {self.right} in {self.total}"

    @property
    def terms_of_word(self) -> int:
        """The number of terms in one word. In a vector register, a word has all terms of a sum. In fragments
        a word is one number, because their maps place each number, or four bytes."""
        if self.held == "matrix register" or (self.held == "fragment" and self.of_bytes):
            return _REGISTER_WORD // self.left.bits
        return self.terms if self.held == "vector" else 1

    @property
    def word(self) -> DType:
        """The type of a word: the numbers' own type if a word is one number."""
        return self.left if self.terms_of_word == 1 else _WORDS[self.terms_of_word * self.left.bits]

    @property
    def words(self) -> int:
        """The number of words of each operand for one sum."""
        return self.terms // self.terms_of_word

    @property
    def row_type(self) -> DType:
        """The element type of a target's row for the product: the sum's type for floats, the words' type for
        integers."""
        return self.total if self.total.is_float else self.word

    @property
    def of_bytes(self) -> bool:
        """Whether it multiplies 8-bit numbers."""
        return self.left.bits == 8

    @property
    def of_matrices(self) -> bool:
        """Whether it multiplies small matrices in vector registers (Arm's i8mm)."""
        return self.held == "vector" and self.columns > 0

    @property
    def right_limits(self) -> tuple[int, int]:
        """The least and the greatest integer that the right operand may have."""
        low, high = self.right.limits
        return (low if self.right_least is None else self.right_least), high

    @property
    def by_lanes(self) -> Product:
        """The product with one sum a lane, of one word each. This is what the function with the product's
        name computes."""
        return replace(self, rows=1, columns=0, terms=self.terms_of_word, held="vector")


DOT1 = Product("dot1", I16, I16, I32)
DOT1B = Product("dot1b", I8, I8, I32)
DOT2 = Product("dot2", I16, I16, I32, terms=2)
DOT4 = Product("dot4", I8, I8, I32, terms=4)
DOT4U = Product("dot4u", U8, I8, I32, terms=4)
DOT4S = Product("dot4s", U8, I8, I32, terms=4, clamps=True)
DOT2B = Product("dot2b", I8, I8, I32, terms=2, right_least=-127)
DOT8 = Product("dot8", I8, I8, I32, rows=2, columns=2, terms=8)
DOT8U = Product("dot8u", U8, I8, I32, rows=2, columns=2, terms=8)
DOT2BF = Product("dot2bf", BF16, BF16, F32, terms=2)
"""For bfloat16, machines may take subnormal numbers for 0, and round each sum in their own way. DOT4BF allows
the same."""
DOT4BF = Product("dot4bf", BF16, BF16, F32, rows=2, columns=2, terms=4)
DOT1H = Product("dot1h", F16, F16, F32)
DOT1BF = Product("dot1bf", BF16, BF16, F32)
DOT1T = Product("dot1t", F32, F32, F32, rounds="tf32")
DOT1TE = Product("dot1te", F32, F32, F32, rounds="tf32_even")
DOT1TR = Product("dot1tr", F32, F32, F32, rounds="tf32", ready=True)
DOT1TER = Product("dot1ter", F32, F32, F32, rounds="tf32_even", ready=True)
READY: Mapping[Product, Product] = MappingProxyType({DOT1T: DOT1TR, DOT1TE: DOT1TER})
"""The products that take their left number rounded, by those that round it."""

PRODUCTS: Mapping[str, Product] = {
    p.name: p
    for p in (
        DOT1, DOT2, DOT1B, DOT4, DOT4U, DOT4S, DOT2B, DOT8, DOT8U, DOT2BF, DOT4BF, DOT1H, DOT1BF, DOT1T,
        DOT1TE, DOT1TR, DOT1TER,
    )
}  # fmt: skip
"""Every Product for which Loop IR has a function, by the function's name. Other shapes of the same functions
are in the rows of machines."""
