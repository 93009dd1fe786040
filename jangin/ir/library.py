"""A kernel that another maker's library computes, described by the function and its operands."""

from __future__ import annotations

import math

from jangin.ir.expr import Expr, const
from jangin.ir.loop import Func
from jangin.ir.records import dataclass


@dataclass(frozen=True)
class Matrix:
    """An operand of a library call. Numbers are in elements.

    `param` is the kernel's parameter that contains it, `start` its offset there, and `lead` the distance of
    its rows. `transposed` tells whether it is stored transposed. `outer` has its offset for one step along
    each outer axis."""

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

    A task computes `rows` rows of a product; the last task of a product computes the remaining rows. It then
    runs the kernel `rest`, if there is one, on the same arguments. The tasks of `rest` are these rows,
    numbered over all products. If `rows` is 0, the library computes the products by itself, and the tasks are
    those of `rest`."""

    library: str
    product: Sgemm
    rows: int
    rest: Func | None

    @property
    def pieces(self) -> int:
        """The number of tasks of one product."""
        return -(-self.product.rows // self.rows)

    @property
    def tasks(self) -> Expr:
        """The number of tasks of all products, for kernels whose tasks are shared by threads."""
        return const(math.prod(self.product.outer) * self.pieces)
