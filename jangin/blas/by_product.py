"""Kernels of level 3 for devices with memory of their own: products of whole matrices, and systems.

Each product is one of the compiler's own matrix products, for which devices have templates. Operands that
aren't stored as the product needs them are made first: both triangles of a symmetric matrix, zeros beside a
triangle. Complex matrices become real ones of their parts.
"""

from __future__ import annotations

from jangin.blas.by_element import Operands, chosen, made
from jangin.blas.kernel import Kernel
from jangin.blas.numbers import (
    Value,
    conjugate,
    element,
    held,
    is_some,
    is_zero,
    number,
    scaled,
    stored,
)
from jangin.ir.expr import Buffer, Expr, Var, const, eq, land, lor, select
from jangin.ir.loop import For, If, Stmt
from jangin.ops.values import Tensor


class Side:
    """An operand of a product: op of a matrix that is stored as it is, or of one of another kind."""

    def __init__(self, k: Kernel, name: str, option: str = "N", is_plain: bool = True) -> None:
        self.k, self.name, self.option, self.is_plain = k, name, option, is_plain

    @property
    def is_turned(self) -> bool:
        return self.option != "N"

    def at(self, o: Operands, i: Expr, j: Expr) -> Value:
        row, column = (j, i) if self.is_turned else (i, j)
        return conjugate(o.at(self.name, row, column), self.option == "C")

    def columns(self, shape: tuple[Expr, Expr]) -> Tensor:
        """Return the columns of a real operand. A plain one is as it is stored, which may be transposed."""
        if self.is_plain:
            return self.k[self.name]
        return made(self.k, shape, self.name, lambda o, j, i: self.at(o, i, j))

    def other(self, hermitian: bool) -> Side:
        """Return the operand transposed, or conjugate and transposed."""
        option = "N" if self.is_turned else "C" if hermitian else "T"
        return Side(self.k, self.name, option, self.is_plain)


def product(k: Kernel, left: Side, right: Side, m: Expr, n: Expr, depth: Expr) -> Tensor:
    """Return left times right, column after column: [n, m]."""
    if k.parts == 1:
        first, second = right.columns((n, depth)), left.columns((depth, m))
        turned = right.is_turned and right.is_plain, left.is_turned and left.is_plain
        return k.b.matmul(first, second, transpose_a=turned[0], transpose_b=turned[1])
    parts = made(k, (n, depth), right.name, lambda o, j, t: right.at(o, t, j))

    def square(buffer: Buffer, row: Expr, column: Expr) -> Expr:
        """Return an element of the square of four numbers that stands for a complex one."""
        value = number(left.at(Operands(k, {left.name: buffer}), column // 2, row // 2))
        is_odd = eq(row % 2, const(1))
        return select(
            eq(column % 2, const(0)), select(is_odd, -value.im, value.re), select(is_odd, value.re, value.im)
        )

    return k.b.matmul(parts, k.elements((2 * depth, 2 * m), left.name, square))


def _whole(k: Kernel, *sides: tuple[Side, Side], m: Expr, n: Expr, depth: Expr) -> Tensor:
    """Return the written matrix: alpha times the sum of products, and beta times what was there.

    The second of two products has the conjugate of alpha if the result is Hermitian. A triangle is written if
    the routine says so."""
    (written,) = k.routine.written
    names = []
    for place, (left, right) in enumerate(sides):
        names.append(f"product{place}")
        k.operands[names[-1]] = product(k, left, right, m, n, depth)
    hermitian, has_beta = k.routine.name[:2] == "he", "beta" in k.routine.scalars
    if k.parts == 1 and len(sides) == 1 and not k.routine.of_a_triangle and has_beta:
        return k.updated(k[names[0]], k[written])
    factors = "alpha beta" if has_beta else "alpha"

    def one(o: Operands, j: Expr, i: Expr) -> Value:
        alpha = o.factor("alpha")
        value = scaled(alpha, o(names[0], j, i))
        for name in names[1:]:
            value = value + scaled(conjugate(alpha, hermitian), o(name, j, i))
        if has_beta:
            value = value + scaled(o.factor("beta"), o(written, j, i))
        if not k.routine.of_a_triangle:
            return value
        before = o(written, j, i)
        if hermitian and k.routine.name != "hemm":
            value = chosen(eq(i, j), number(value.re), value)
            beta = o.factor("beta")
            nothing = lor(is_zero(alpha), eq(depth, const(0)))
            value = chosen(land(nothing, eq(beta, const(1, beta.dtype))), before, value)
        return chosen(i >= j if k.is_set("uplo") else i <= j, value, before)

    return made(k, (n, m), " ".join([factors, *names, written] if has_beta else [factors, *names]), one)


def gemm(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c."""
    sides = Side(k, "a", k.options["transa"]), Side(k, "b", k.options["transb"])
    return _whole(k, sides, m=k.size("m"), n=k.size("n"), depth=k.size("k"))


def gemmtr(k: Kernel) -> Tensor:
    """The triangle of c := alpha op(a) op(b) + beta c."""
    sides = Side(k, "a", k.options["transa"]), Side(k, "b", k.options["transb"])
    return _whole(k, sides, m=k.size("n"), n=k.size("n"), depth=k.size("k"))


def gemm_batch(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c for each product of a batch."""
    b_turned, a_turned = k.is_set("transb"), k.is_set("transa")
    product = k.b.matmul(k["b"], k["a"], transpose_a=b_turned, transpose_b=a_turned)
    return k.updated(product, k["c"])


def of_one_triangle(k: Kernel) -> Tensor:
    """symm, hemm: c := alpha a b + beta c, or alpha b a + beta c. trmm: b := alpha op(a) b, or
    alpha b op(a)."""
    own = Side(k, "a", k.options.get("transa", "N"), is_plain=False)
    sides = (Side(k, "b"), own) if k.is_set("side") else (own, Side(k, "b"))
    return _whole(k, sides, m=k.size("m"), n=k.size("n"), depth=k.order)


def syrk(k: Kernel) -> Tensor:
    """The triangle of c := alpha op(a) op(a)' + beta c."""
    hermitian, n = k.routine.name == "herk", k.size("n")
    a = Side(k, "a", k.options["trans"])
    return _whole(k, (a, a.other(hermitian)), m=n, n=n, depth=k.size("k"))


def syr2k(k: Kernel) -> Tensor:
    """The triangle of c := alpha (op(a) op(b)' + op(b) op(a)') + beta c."""
    hermitian, n = k.routine.name == "her2k", k.size("n")
    a, b = (Side(k, name, k.options["trans"]) for name in "ab")
    return _whole(k, (a, b.other(hermitian)), (b, a.other(hermitian)), m=n, n=n, depth=k.size("k"))


def solved(k: Kernel) -> Tensor:
    """Return the solution y of op(a) y = x for a vector. For a matrix of right sides, it is that of
    op(a) y = alpha b or y op(a) = alpha b."""
    return _System(k).solution()


class _System:
    """A triangular system. From the right it is transposed, and each row of b is a right side.

    Each round takes one unknown out of all other equations, for all right sides at once. A round reads what
    the round before it wrote: two copies of the right sides take turns. They are divided by the diagonal in
    the end."""

    def __init__(self, k: Kernel) -> None:
        self.k, self.names, self.n = k, [*k.routine.operands], k.order
        (self.written,), self.name = k.routine.written, "a" if "a" in self.names else "ap"
        self.of_rows = "side" in k.options and k.is_set("side")
        *self.lines, size = k.result(self.written)
        self.size = size // k.parts if k.parts > 1 else size
        self.is_unit, self.is_turned = k.is_set("diag"), k.is_transposed
        self.out = Buffer("out", k.dtype, (const(2), *k.result(self.written)))

    def coefficient(self, o: Operands, i: Expr, j: Expr) -> Value:
        value = o.at(self.name, *((j, i) if self.is_turned else (i, j)))
        return conjugate(value, "C" in self.k.options.values())

    def solution(self) -> Tensor:
        turn, task = Var("round"), Var("task")
        buffers = {n: Buffer(f"x{at}", self.k.dtype, self.k[n].shape) for at, n in enumerate(self.names)}
        index = (task // self.size, task % self.size) if self.lines else (task,)
        work = self._round(Operands(self.k, buffers), turn, index)
        tasks = self.size * self.lines[0] if self.lines else self.size
        loops = For(turn, self.n + 1, For(task, tasks, work, "parallel"))
        operands = [self.k[n] for n in self.names]
        self.k.operands["left"] = self.k.b.loop_nest(operands, loops, self.k.dtype, self.out.shape)
        names = f"{self.name} left" if "alpha" not in self.names else f"alpha {self.name} left"
        return made(self.k, (*self.lines, self.size), names, self._divided)

    def _round(self, o: Operands, turn: Var, index: tuple[Expr, ...]) -> Stmt:
        """Return a round's work on one element of the right sides. The first round copies it."""
        begun = o(self.written, *index)
        begun = scaled(o.factor("alpha"), begun) if "alpha" in self.names else begun
        is_ascending = self.k.is_set("uplo") ^ self.is_turned
        j = turn - 1 if is_ascending else self.n - turn
        unknown = (j, index[1]) if self.of_rows else (*index[:-1], j)
        own = index[0] if self.of_rows else index[-1]
        mine, left = (element(self.k.parts, self.out, (turn + 1) % 2, *at) for at in (index, unknown))

        def taken(y: Value) -> Stmt:
            less, counts = mine + -(self.coefficient(o, own, j) * y), own > j if is_ascending else own < j
            if not self.is_turned:  # as in the reference, an unknown of 0 leaves its column out
                counts = land(counts, is_some(left))
            elif "alpha" in self.names:
                counts = land(counts, is_some(o.factor("alpha")))
            return stored(self.out, (turn % 2, *index), chosen(counts, less, mine))

        y = left if self.is_unit else left / self.coefficient(o, j, j)
        return If(eq(turn, const(0)), stored(self.out, (turn % 2, *index), begun), held("y", y, taken))

    def _divided(self, o: Operands, *index: Expr) -> Value:
        """Return an unknown. As in the reference, 0 isn't divided if the system isn't transposed."""
        left, i = o("left", self.n % 2, *index), index[0] if self.of_rows else index[-1]
        if self.is_unit:
            return left
        whole = left / self.coefficient(o, i, i)
        whole = whole if self.is_turned else chosen(is_some(left), whole, left)
        return whole if "alpha" not in self.names else chosen(is_zero(o.factor("alpha")), left, whole)


__all__ = ["gemm", "gemm_batch", "gemmtr", "of_one_triangle", "solved", "syr2k", "syrk"]
