"""Fragments: the parts of a small matrix that the work-items of a warp hold in their registers.

A *warp* is the work-items that an instruction runs at one time. An instruction may multiply whole matrices.
Each work-item, or *lane*, then holds some elements of every matrix, and the machine's manual says which.
"""

from __future__ import annotations

import math

from jangin.ir.expr import Expr, const
from jangin.ir.records import dataclass

WARP = 32
"""Work-items of a warp, on all of NVIDIA's GPUs (CUDA C++ Programming Guide)."""
LINES = 8
"""Rows of the matrices that one instruction loads from shared memory, and lanes that say where they are (PTX
ISA, `ldmatrix`)."""
LINE_BYTES = 16
"""Bytes of each of these rows (PTX ISA, `ldmatrix`)."""
MOST = 4
"""Most matrices that one instruction loads (PTX ISA, `ldmatrix.x4`)."""
HALF = 2
"""Bytes of the elements whose matrices it can also transpose (PTX ISA, `ldmatrix.trans`)."""

Digit = tuple[int, int, int]
"""A digit of a number: how many values it has, and the rows and the columns that each unit moves by."""


@dataclass(frozen=True)
class Fragment:
    """The map from a lane's elements to the rows and columns of a matrix.

    A lane's number is written in the digits `lanes`, and an element's number in the digits `elements`. The
    least significant digit comes first. An element's row and column are the sums of what all digits move by.

    Example: ((4, 0, 2), (8, 1, 0)) and ((2, 0, 1), (2, 8, 0)) share 16 rows by 8 columns. Lane 6 is digit 2,
    then digit 1: its elements 0 and 1 are in row 1, columns 4 and 5. Its elements 2 and 3 are in row 9.
    """

    lanes: tuple[Digit, ...]
    elements: tuple[Digit, ...]

    @property
    def count(self) -> int:
        """The number of elements of each lane."""
        return math.prod(count for count, _, _ in self.elements)

    def place(self, lane: Expr, element: Expr) -> tuple[Expr, Expr]:
        """Return the row and the column of a lane's element."""
        (row, column), (down, across) = moved(self.lanes, lane), moved(self.elements, element)
        return row + down, column + across

    @property
    def along(self) -> int:
        """The axis, 0 or 1, along which neighbours lie in one lane or in the next lane."""
        return 0 if self.lanes[0][1] else 1

    def matrices(self, element: int) -> tuple[Digit, ...] | None:
        """Return the digits that number matrices whose rows have 16 bytes, and which one instruction loads
        from rows of shared memory. `element`: bytes of an element. Return None if the map isn't made of such
        matrices.

        In each matrix, groups of 4 lanes hold a row, 4 bytes of it in each lane.
        """
        unit = (1, 0) if self.along == 0 else (0, 1)
        together = LINE_BYTES // 4 // element
        rest = self.elements
        if together > 1:
            if rest[0] != (together, *unit):
                return None
            rest = rest[1:]
        fits = self.lanes == ((4, together * unit[0], together * unit[1]), (LINES, *unit[::-1]))
        return rest if fits and math.prod(n for n, _, _ in rest) in (1, 2, MOST) else None


def moved(digits: tuple[Digit, ...], number: Expr) -> tuple[Expr, Expr]:
    """Return the rows and the columns by which a number's digits move in all."""
    row: Expr = const(0)
    column: Expr = const(0)
    below = 1
    for position, (count, down, across) in enumerate(digits):
        digit = number // below
        if position < len(digits) - 1:
            digit = digit % count
        row, column, below = row + digit * down, column + digit * across, below * count
    return row, column
