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

    @property
    def params(self) -> tuple[int, int, int]:
        """The kernel's parameters: both operands and the result."""
        return self.left.param, self.right.param, self.result

    @property
    def steps(self) -> int:
        """The number of multiply-adds."""
        return math.prod(self.outer) * self.rows * self.columns * self.depth


@dataclass(frozen=True)
class Convolution:
    """A convolution of images of f32, channels last and dense. Pairs are down and across.

    `size` and `outputs` are the sizes of an image and of its result. `pads` are the zeros before it. Behind
    it are as many, or as few as the windows need. `channels` are the image's and the result's. `params` are
    the kernel's parameters: image, weights [result's channels, window, channels of a group], result."""

    images: int
    groups: int
    channels: tuple[int, int]
    size: tuple[int, int]
    outputs: tuple[int, int]
    window: tuple[int, int]
    pads: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    params: tuple[int, int, int]

    @property
    def steps(self) -> int:
        """The number of multiply-adds."""
        sizes = math.prod(self.channels) // self.groups, *self.outputs, *self.window
        return self.images * math.prod(sizes)


@dataclass(frozen=True)
class LibraryCall:
    """The code of a kernel that calls `library`.

    A task computes `rows` rows of a product; the last task of a product computes the remaining rows. It then
    runs the kernel `rest`, if there is one, on the same arguments. The tasks of `rest` are these rows,
    numbered over all products. If `rows` is 0, the library computes the products by itself, and the tasks are
    those of `rest`, as for a convolution."""

    library: str
    product: Sgemm | Convolution
    rows: int
    rest: Func | None

    @property
    def pieces(self) -> int:
        """The number of tasks of one product."""
        assert isinstance(self.product, Sgemm)
        return -(-self.product.rows // self.rows)

    @property
    def tasks(self) -> Expr:
        """The number of tasks of all products, for kernels whose tasks are shared by threads."""
        assert isinstance(self.product, Sgemm)
        return const(math.prod(self.product.outer) * self.pieces)
