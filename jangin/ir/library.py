"""A kernel that another maker's library computes, as data: the function and its operands."""

from __future__ import annotations

import math

from jangin.ir.expr import Expr, const
from jangin.ir.loop import Func
from jangin.ir.records import dataclass


@dataclass(frozen=True)
class Matrix:
    """An operand of a library call, in elements.

    `param` is the kernel's parameter that holds it, `start` its offset there, and `lead` the distance of its
    rows. `transposed` says whether it is stored transposed. `outer` is its offset for one step along each
    outer axis.
    """

    param: int
    start: int
    lead: int
    transposed: bool
    outer: tuple[int, ...]


@dataclass(frozen=True)
class Sgemm:
    """Products of f32: sizes of the `outer` axes, then [rows, depth] x [depth, columns]. Each result is
    row-major and dense in the kernel's parameter `result`."""

    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    left: Matrix
    right: Matrix
    result: int


@dataclass(frozen=True)
class LibraryCall:
    """The code of a kernel that calls `library`.

    A task makes `rows` rows of a product; the last task of a product makes the remaining rows. It then runs
    the kernel `rest`, if any, over the same arguments, with these rows, numbered through, as its tasks. If
    `rows` is 0, the library makes the products on its own, and the tasks are those of `rest`.
    """

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
        """Tasks of all products, for kernels whose tasks are shared among threads."""
        return const(math.prod(self.product.outer) * self.pieces)
