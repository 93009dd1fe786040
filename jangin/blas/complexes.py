"""Kernels of complex numbers, whose real and imaginary parts lie side by side.

Vectors and matrices count parts: element i has the parts 2 i and 2 i + 1. A product of complex matrices is
one of real matrices with twice the rows and terms. The matrices b and c are taken as they lie. Each element
of `a` stands for a square of four numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from jangin.blas.columns import ROWS, ZERO, each, lanes, summed
from jangin.blas.dense import Pair, Product
from jangin.blas.elements import Around, Elements, Panel, Place, alone
from jangin.blas.kernel import Kernel
from jangin.blas.vectors import TASK
from jangin.ir.expr import Buffer, Expr, Load, Var, const, eq, land, minimum, select
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Number:
    """A complex number."""

    re: Expr
    im: Expr

    def __add__(self, other: Number) -> Number:
        return Number(self.re + other.re, self.im + other.im)

    def __mul__(self, other: Number) -> Number:
        return Number(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def conjugate(self, really: bool = True) -> Number:
        return Number(self.re, -self.im) if really else self

    @property
    def is_zero(self) -> Expr:
        zero = const(0, self.re.dtype)
        return land(eq(self.re, zero), eq(self.im, zero))

    def unless(self, cond: Expr) -> Number:
        """Return this number, or 0 if a condition holds."""
        zero = const(0, self.re.dtype)
        return Number(select(cond, zero, self.re), select(cond, zero, self.im))


def at(buffer: Buffer, *index: Expr) -> Number:
    """Return an element of a buffer of parts. No index means a buffer with one element."""
    *rows, i = index or (const(0),)
    return Number(Load(buffer, (*rows, 2 * i)), Load(buffer, (*rows, 2 * i + 1)))


def stored(buffer: Buffer, index: tuple[Expr, ...], value: Number) -> Stmt:
    """Return the store of an element. Both parts are known before one of them is written."""
    *rows, i = index
    re, im = Var("re", value.re.dtype), Var("im", value.re.dtype)
    parts = block(Store(buffer, (*rows, 2 * i), re), Store(buffer, (*rows, 2 * i + 1), im))
    return Let(re, value.re, Let(im, value.im, parts))


def held(name: str, value: Number, body: Callable[[Number], Stmt]) -> Stmt:
    """Return statements that use a number whose parts are computed once."""
    own = Number(Var(f"{name}_re", value.re.dtype), Var(f"{name}_im", value.re.dtype))
    assert isinstance(own.re, Var) and isinstance(own.im, Var)
    return Let(own.re, value.re, Let(own.im, value.im, body(own)))


def _width(k: Kernel) -> int:
    """Return the elements that fill a vector of the widest processors."""
    return lanes(k.dtype) // 2


# --- level 1


def _updated(k: Kernel, names: str, element: Callable[..., Number]) -> Tensor:
    """Return the written vector. `element` gets the operands `names`, and the vector's old element last."""
    (written,) = k.routine.written
    out, task, n = Buffer("out", k.dtype, k.result(written)), Var("task"), k.size("n")
    operands = [(Buffer(f"x{p}", k.dtype, k[name].shape), name) for p, name in enumerate(names.split())]
    begin = task * TASK

    def one(i: Expr) -> Stmt:
        read = [at(x) if name in k.routine.scalars else at(x, i) for x, name in operands]
        return stored(out, (i,), element(*read, at(out, i)))

    elements = each("e", begin, minimum(const(TASK), n - begin), _width(k), one)
    return k.nest(names, For(task, (n + TASK - 1) // TASK, elements, "parallel"), written)


def axpy(k: Kernel) -> Tensor:
    return _updated(k, "a x", lambda a, x, y: y + a * x)


def scal(k: Kernel) -> Tensor:
    return _updated(k, "a", lambda a, x: a * x)


def rscal(k: Kernel) -> Tensor:
    """x := a x for a real factor."""
    out, task, n = Buffer("out", k.dtype, k.result("x")), Var("task"), 2 * k.size("n")
    factor, begin = Load(Buffer("x0", k.dtype, ()), ()), task * TASK

    def one(i: Expr) -> Stmt:
        return Store(out, (i,), factor * Load(out, (i,)))

    parts = each("e", begin, minimum(const(TASK), n - begin), lanes(k.dtype), one)
    return k.nest("a", For(task, (n + TASK - 1) // TASK, parts, "parallel"), "x")


def dot(k: Kernel) -> Tensor:
    """The sum of products, with the first factors conjugate for `dotc`. Each part is a sum of its own."""
    is_conjugate = k.routine.name == "dotc"

    def term(bufs: list[Buffer], place: tuple[Expr, ...], i: tuple[Expr, ...]) -> Expr:
        product = at(bufs[0], i[0]).conjugate(is_conjugate) * at(bufs[1], i[0])
        return select(eq(place[0], 0), product.re, product.im)

    return k.b.reduction(k.dtype, (const(2),), [k.size("n")], "sum", [k["x"], k["y"]], term)


# --- level 2


def gemv(k: Kernel) -> Tensor:
    """y := alpha op(a) x + beta y. A factor of 0 leaves its operand out."""
    alpha, a, x, beta, y = (Buffer(f"x{p}", k.dtype, k[n].shape) for p, n in enumerate(k.routine.operands))
    out, task = Buffer("out", k.dtype, k.result("y")), Var("task")

    def before(i: Expr) -> Number:
        return (at(beta) * at(y, i)).unless(at(beta).is_zero)

    if k.is_set("trans"):
        body, count = _summed(
            k, a, x, lambda j, total: stored(out, (j,), at(alpha) * total + before(j)), task
        )
        body = If(at(alpha).is_zero, stored(out, (task,), before(task)), body)
    else:
        count = (k.size("m") + ROWS - 1) // ROWS
        begin = task * ROWS
        rows = minimum(const(ROWS), k.size("m") - begin)
        j, width = Var("j"), _width(k)

        def added(factor: Number) -> Stmt:
            return each(
                "a", begin, rows, width, lambda i: stored(out, (i,), at(out, i) + factor * at(a, j, i))
            )

        start = each("s", begin, rows, width, lambda i: stored(out, (i,), before(i)))
        columns = For(j, k.size("n"), held("f", at(alpha) * at(x, j), added))
        body = block(start, If(at(alpha).is_zero, block(), columns))
    return k.nest(" ".join(k.routine.operands), For(task, count, body, "parallel"), "y")


def _summed(
    k: Kernel, a: Buffer, x: Buffer, end: Callable[[Expr, Number], Stmt], j: Expr
) -> tuple[Stmt, Expr]:
    """Return the product of column j with x, which goes to `end`, and the number of columns."""
    totals = [Buffer(f"total_{part}", k.dtype, (const(1),), "register") for part in ("re", "im")]
    is_conjugate = k.options["trans"] == "C"

    def product(i: Expr) -> Number:
        return at(a, j, i).conjugate(is_conjugate) * at(x, i)

    m = k.size("m")
    work = block(
        *(Store(total, ZERO, const(0, k.dtype)) for total in totals),
        summed("r", totals[0], lambda i: product(i).re, const(0), m),
        summed("i", totals[1], lambda i: product(i).im, const(0), m),
        end(j, Number(*(Load(total, ZERO) for total in totals))),
    )
    for total in totals:
        work = Alloc(total, work)
    return work, k.size("n")


def ger(k: Kernel) -> Tensor:
    """a := alpha x y' + a, with y conjugate for `gerc`. A task has a column."""
    alpha, x, y = (Buffer(f"x{p}", k.dtype, k[n].shape) for p, n in enumerate(("alpha", "x", "y")))
    out, j = Buffer("out", k.dtype, k.result("a")), Var("j")

    def column(factor: Number) -> Stmt:
        def one(i: Expr) -> Stmt:
            return stored(out, (j, i), at(out, j, i) + at(x, i) * factor)

        return each("u", const(0), k.size("m"), _width(k), one)

    factor = at(alpha) * at(y, j).conjugate(k.routine.name == "gerc")
    return k.nest("alpha x y", For(j, k.size("n"), held("f", factor, column), "parallel"), "a")


# --- level 3


@dataclass(frozen=True)
class Left(Elements):
    """The real matrix of `factor` times an operand. An element with the parts r and i is r, -i in its even
    row, and i, r in its odd one. `turned` and `is_conjugate` tell how the operand is stored."""

    factor: Number | None = None
    is_conjugate: bool = False

    def copied(
        self, panel: Panel, place: Place, first: Expr, begin: Expr, end: Expr, around: Around = alone
    ) -> Stmt:
        term, row = Var("ct"), Var("cr")
        t, odd, size = (begin + term) // 2, (begin + term) % 2, const(panel.rows // 2)
        r = minimum(first // 2 + row, self.rows // 2 - 1)
        element = at(self.buffer, *self.place(r, t, self.turned)).conjugate(self.is_conjugate)
        assert self.factor is not None
        value = self.factor * element
        is_odd = eq(odd, const(1))
        upper, lower = select(is_odd, -value.im, value.re), select(is_odd, value.re, value.im)
        both = [
            Store(panel.buffer, place(2 * row + n, begin + term), v) for n, v in enumerate((upper, lower))
        ]
        return For(term, end - begin, around(For(row, size, block(*both))))


@dataclass(frozen=True)
class Right(Elements):
    """The columns of a transposed operand, whose terms are the parts of its elements."""

    is_conjugate: bool = False

    def copied(
        self, panel: Panel, place: Place, first: Expr, begin: Expr, end: Expr, around: Around = alone
    ) -> Stmt:
        term, row = Var("ct"), Var("cr")
        t, odd = (begin + term) // 2, (begin + term) % 2
        part = Load(self.buffer, (t, 2 * minimum(first + row, self.rows - 1) + odd))
        value = select(eq(odd, const(1)), -part, part) if self.is_conjugate else part
        store = Store(panel.buffer, place(row, begin + term), value)
        return For(term, end - begin, around(For(row, const(panel.rows), store)))


class _Products(Product):
    """A product of parts. A task scales its part of c before, and `a` has the factor alpha."""

    def _scalar(self, name: str) -> Expr:
        one = const(1, self.dtype)
        alpha = at(Buffer("x0", self.dtype, (const(2),)))
        return select(alpha.is_zero, const(0, self.dtype), one) if name == "alpha" else one

    def _blocks(self, pair: Pair, row: Expr, rows: Expr, column: Expr, columns: Expr, is_first: bool) -> Stmt:
        beta, tile = at(Buffer("x3", self.dtype, (const(2),))), self.tile
        i, j = row * tile.rows // 2, Var("column_of_c")
        count = minimum(rows * tile.rows, self.m - row * tile.rows) // 2
        place = column * tile.columns + j

        def scaled(r: Expr) -> Stmt:
            old = at(self.out, place, r)
            return stored(self.out, (place, r), (beta * old).unless(beta.is_zero))

        across = minimum(columns * tile.columns, self.n - column * tile.columns)
        scale = For(j, across, each("b", i, count, tile.lanes, scaled))
        is_one = land(eq(beta.re, const(1, self.dtype)), eq(beta.im, const(0, self.dtype)))
        blocks = super()._blocks(pair, row, rows, column, columns, is_first)
        return block(If(is_one, block(), scale), blocks)


def gemm(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c."""
    m, n = 2 * k.size("m"), k.size("n")
    p = _Products(k, "alpha a b beta", (m, n), 2 * k.size("k"))
    a, b = (Buffer(x, k.dtype, k[name].shape) for x, name in (("x1", "a"), ("x2", "b")))
    alpha = at(Buffer("x0", k.dtype, (const(2),)))
    transa, transb = k.options["transa"], k.options["transb"]
    rows = Left(a, m, transa != "N", factor=alpha, is_conjugate=transa == "C")
    columns = Elements(b, n, True) if transb == "N" else Right(b, n, False, is_conjugate=transb == "C")
    return p.result(Pair(rows, columns))
