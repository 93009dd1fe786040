"""A kernel that another maker's library computes, as data: what is called, with which operands."""

from __future__ import annotations

import math

from jangin.ir.expr import Expr, const
from jangin.ir.loop import Func
from jangin.ir.records import dataclass


@dataclass(frozen=True)
class Matrix:
    """An operand: which of the kernel's parameters it lies in, where it begins there, how far apart its rows
    are, whether it is stored transposed, and how far each outer axis moves it; in elements."""

    param: int
    start: int
    lead: int
    transposed: bool
    outer: tuple[int, ...]


@dataclass(frozen=True)
class Sgemm:
    """Products of f32: `outer` axes' sizes, then [rows, depth] x [depth, columns], each row-major and dense
    in the kernel's parameter `result`."""

    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    left: Matrix
    right: Matrix
    result: int


@dataclass(frozen=True)
class LibraryCall:
    """The code of a kernel that calls `library`: a task makes `rows` rows of a product (the last task of a
    product the rows that are left), then runs the kernel `rest`, if any, over the same arguments with these
    rows, numbered through, as its tasks. With `rows` 0 the library makes the products on its own, and the
    tasks are those of `rest`."""

    library: str
    product: Sgemm
    rows: int
    rest: Func | None

    @property
    def pieces(self) -> int:
        """Tasks of one product."""
        return -(-self.product.rows // self.rows)

    @property
    def tasks(self) -> Expr:
        """Where they are shared out."""
        return const(math.prod(self.product.outer) * self.pieces)
