"""Kernels of products of complex matrices, as products of real ones with twice the rows and terms.

The right operand and the result are taken as they lie, part beside part. Each element of the left operand
stands for a square of four numbers.
"""

from __future__ import annotations

from jangin.blas.columns import each, factor
from jangin.blas.dense import Pair, Product
from jangin.blas.elements import Around, Elements, Panel, Place, alone
from jangin.blas.kernel import Kernel
from jangin.blas.numbers import Number, Value, at, conjugate, is_zero, number, scaled, stored, times
from jangin.ir.expr import Buffer, Expr, Var, const, eq, land, maximum, minimum, select
from jangin.ir.loop import For, If, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Complex(Elements):
    """Complex elements, of which `rows` counts parts for a left operand.

    A "hermitian" operand is stored as a symmetric one. `is_conjugate` tells how the operand is stored."""

    is_conjugate: bool = False

    @property
    def is_plain(self) -> bool:
        return False

    def stored_at(self, row: Expr, term: Expr, turned: bool) -> Number:
        return at(self.buffer, *self.place(row, term, turned)).conjugate(self.is_conjugate)

    def element(self, row: Expr, term: Expr) -> Number:
        """Return an element, which may be of the other triangle."""
        if self.kind == "whole":
            return self.stored_at(row, term, self.turned)
        inside = row >= term if self.lower else row <= term
        zero, one = (const(n, self.buffer.dtype) for n in (0, 1))
        if self.kind == "triangular":
            own = self.stored_at(row, term, self.turned).unless(eq(inside, const(False, inside.dtype)))
            is_one = land(eq(row, term), const(self.unit, inside.dtype))
            return Number(select(is_one, one, own.re), select(is_one, zero, own.im))
        direct, across = (self.stored_at(row, term, turned) for turned in (False, True))
        if self.kind == "hermitian":
            direct = Number(direct.re, select(eq(row, term), zero, direct.im))
            across = across.conjugate()
        return Number(select(inside, direct.re, across.re), select(inside, direct.im, across.im))


@dataclass(frozen=True)
class Left(Complex):
    """The real matrix of `factor` times an operand. An element with the parts r and i is r, -i in its even
    row, and i, r in its odd one."""

    factor: Value = None

    def copied(
        self, panel: Panel, place: Place, first: Expr, begin: Expr, end: Expr, around: Around = alone
    ) -> Stmt:
        term, row = Var("ct"), Var("cr")
        t, is_odd = (begin + term) // 2, eq((begin + term) % 2, const(1))
        assert self.factor is not None
        value = times(self.factor, self.element(minimum(first // 2 + row, self.rows // 2 - 1), t))
        squares = Number(select(is_odd, -value.im, value.re), select(is_odd, value.re, value.im))
        index = place(row, begin + term)
        copy = stored(panel.buffer, index, squares)
        return For(term, end - begin, around(For(row, const(panel.rows // 2), copy)))


@dataclass(frozen=True)
class Right(Complex):
    """The columns of an operand, whose terms are the parts of its elements."""

    def terms(self, first: Expr, count: int, depth: Expr) -> tuple[Expr, Expr]:
        low, high = super().terms(first, count, (depth + 1) // 2)
        return minimum(2 * low, depth), minimum(2 * high, depth)

    def copied(
        self, panel: Panel, place: Place, first: Expr, begin: Expr, end: Expr, around: Around = alone
    ) -> Stmt:
        term, row = Var("ct"), Var("cr")
        value = self.element(minimum(first + row, self.rows - 1), (begin + term) // 2)
        part = select(eq((begin + term) % 2, const(1)), value.im, value.re)
        store = Store(panel.buffer, place(row, begin + term), part)
        return For(term, end - begin, around(For(row, const(panel.rows), store)))


class Products(Product):
    """A product of parts. A task scales its part of c before, and left operands have the factor alpha.

    The diagonal of a `hermitian` result is real."""

    def __init__(
        self,
        k: Kernel,
        names: str,
        m: Expr,
        n: Expr,
        depth: Expr,
        triangle: str = "",
        hermitian: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(k, names, (2 * m, n), 2 * depth, triangle)
        self.hermitian, self.alpha = hermitian, factor(k, "alpha")

    def buffer(self, name: str) -> Buffer:
        return Buffer(f"x{self.names.split().index(name)}", self.dtype, self.k[name].shape)

    def left(
        self, name: str, rows: Expr, turned: bool, is_conjugate: bool,
        kind: str = "whole", lower: bool = False, other: Value = None,
    ) -> Left:  # fmt: skip
        """Return a left operand, with the factor alpha unless an `other` one is given."""
        unit = kind == "triangular" and self.k.is_set("diag")
        own = self.alpha if other is None else other
        return Left(self.buffer(name), 2 * rows, turned, kind, lower, unit, is_conjugate, own)

    def right(
        self,
        name: str,
        columns: Expr,
        turned: bool,
        is_conjugate: bool,
        kind: str = "whole",
        lower: bool = False,
    ) -> Elements:
        """Return a right operand, which is read where it lies if its terms lie side by side."""
        unit = kind == "triangular" and self.k.is_set("diag")
        if kind == "whole" and turned and not is_conjugate:
            return Elements(self.buffer(name), columns, True)
        return Right(self.buffer(name), columns, turned, kind, lower, unit, is_conjugate)

    def _scalar(self, name: str) -> Expr:
        zero, one = (const(n, self.dtype) for n in (0, 1))
        if name == "alpha":
            return select(is_zero(self.alpha), zero, one)
        return one if name in self.names.split() else zero

    def _blocks(self, pair: Pair, row: Expr, rows: Expr, column: Expr, columns: Expr, is_first: bool) -> Stmt:
        work = super()._blocks(pair, row, rows, column, columns, is_first)
        first, place, j = self.start(row) // 2, column * self.tile.columns, Var("column_of_c")
        beyond = self.start(row + rows) // 2
        across = minimum(columns * self.tile.columns, self.n - place)
        j_th = place + j
        beta = factor(self.k, "beta") if "beta" in self.names.split() else None
        one, zero = const(1, self.dtype), const(0, self.dtype)
        if isinstance(beta, Expr):
            keeps = eq(beta, one)
        elif beta is not None:
            keeps = land(eq(beta.re, one), eq(beta.im, zero))
        if self.hermitian:
            inside = land(j_th >= first, j_th < beyond)
            own = stored(self.out, (j_th, j_th), number(at(self.out, j_th, j_th).re))
            real = For(j, across, If(inside, own))
            work = block(work, If(land(is_zero(self.alpha), keeps), block(), real))
        if beta is None or not is_first:
            return work
        if self.triangle:
            low, high = (
                (maximum(first, j_th), beyond) if self.triangle == "L" else (first, minimum(beyond, j_th + 1))
            )
        else:
            low, high = first, beyond

        def scale(r: Expr) -> Stmt:
            return stored(self.out, (j_th, r), scaled(beta, at(self.out, j_th, r)))

        loop = For(j, across, each("b", low, maximum(high - low, const(0)), self.tile.lanes, scale))
        return block(If(keeps, block(), loop), work)


def gemm(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c."""
    return _general(k, k.size("m"))


def gemmtr(k: Kernel) -> Tensor:
    """The triangle of c := alpha op(a) op(b) + beta c."""
    return _general(k, k.size("n"), k.options["uplo"])


def _general(k: Kernel, m: Expr, triangle: str = "") -> Tensor:
    n = k.size("n")
    p = Products(k, "alpha a b beta", m, n, k.size("k"), triangle)
    transa, transb = k.options["transa"], k.options["transb"]
    left = p.left("a", m, transa != "N", transa == "C")
    return p.result(Pair(left, p.right("b", n, transb == "N", transb == "C")))


def symm(k: Kernel) -> Tensor:
    """c := alpha a b + beta c, or alpha b a + beta c, with a symmetric or Hermitian `a`."""
    m, n, lower = k.size("m"), k.size("n"), k.is_set("uplo")
    kind = "hermitian" if k.routine.name == "hemm" else "symmetric"
    p = Products(k, "alpha a b beta", m, n, k.order)
    if k.is_set("side"):
        # The columns of a Hermitian matrix are its rows, conjugate.
        right = p.right("a", n, False, kind == "hermitian", kind, lower)
        return p.result(Pair(p.left("b", m, False, False), right))
    return p.result(Pair(p.left("a", m, False, False, kind, lower), p.right("b", n, True, False)))


def trmm(k: Kernel) -> Tensor:
    """Return b := alpha op(a) b, or alpha b op(a), with a triangular `a`. On the right side `a` gives the
    product's columns, and is read as transposed."""
    m, n, turned, right = k.size("m"), k.size("n"), k.is_set("transa"), k.is_set("side")
    p, is_conjugate = Products(k, "alpha a b", m, n, k.order), k.options["transa"] == "C"
    lower = k.is_set("uplo") ^ turned ^ right
    if right:
        a = p.right("a", n, not turned, is_conjugate, "triangular", lower)
        return p.result(Pair(p.left("b", m, False, False), a))
    return p.result(
        Pair(p.left("a", m, turned, is_conjugate, "triangular", lower), p.right("b", n, True, False))
    )


def syrk(k: Kernel) -> Tensor:
    """The triangle of c := alpha a a' + beta c, or alpha a' a + beta c."""
    n, turned, hermitian = k.size("n"), k.is_set("trans"), k.routine.name == "herk"
    p = Products(k, "alpha a beta", n, n, k.size("k"), k.options["uplo"], hermitian)
    left = p.left("a", n, turned, hermitian and turned)
    return p.result(Pair(left, p.right("a", n, turned, hermitian and not turned)))


def syr2k(k: Kernel) -> Tensor:
    """The triangle of c := alpha (a b' + b a') + beta c, or alpha (a' b + b' a) + beta c.

    The second factor of a Hermitian result is alpha's conjugate."""
    n, turned, hermitian = k.size("n"), k.is_set("trans"), k.routine.name == "her2k"
    p = Products(k, "alpha a b beta", n, n, k.size("k"), k.options["uplo"], hermitian)
    pairs = []
    for one, other, own in (("a", "b", p.alpha), ("b", "a", conjugate(p.alpha, hermitian))):
        left = p.left(one, n, turned, hermitian and turned, other=own)
        pairs.append(Pair(left, p.right(other, n, turned, hermitian and not turned)))
    return p.result(*pairs)
