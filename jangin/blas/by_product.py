"""Kernels of level 3 for devices with memory of their own: products of whole matrices, and systems.

Each product is one of the compiler's own matrix products, for which devices have templates. Operands that
aren't stored as the product needs them are made first: both triangles of a symmetric matrix, zeros beside a
triangle. Complex matrices become real ones of their parts.
"""

from __future__ import annotations

from collections.abc import Callable

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

Element = Callable[[Operands, Expr, Expr], Value]


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

    def other(self, hermitian: bool) -> Side:
        """Return the operand transposed, or conjugate and transposed."""
        option = "N" if self.is_turned else "C" if hermitian else "T"
        return Side(self.k, self.name, option, self.is_plain)


def product(k: Kernel, left: Side, right: Side, m: Expr, n: Expr, depth: Expr) -> Tensor:
    """Return left times right, column after column: [n, m]."""
    if k.parts == 1:
        first, second = (
            (k[s.name], s.is_turned)
            if s.is_plain
            else (made(k, shape, s.name, lambda o, j, i, s=s: s.at(o, i, j)), False)
            for s, shape in ((right, (n, depth)), (left, (depth, m)))
        )
        return k.b.matmul(first[0], second[0], transpose_a=first[1], transpose_b=second[1])
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
    """x := the solution y of op(a) y = x for a vector, or of op(a) y = alpha b or y op(a) = alpha b for a
    matrix of right sides.

    Each round takes one unknown out of all other equations, and all right sides at once. A round reads what
    the round before it wrote: two copies of the right sides take turns. They are divided by the diagonal in
    the end."""
    (written,), name = k.routine.written, next(n for n in k.routine.operands if n in ("a", "ap"))
    of_rows = "side" in k.options and k.is_set("side")
    n, shape = k.order, k.result(written)
    size = shape[-1] // k.parts if k.parts > 1 else shape[-1]
    is_turned, names = k.is_transposed, [*k.routine.operands]
    is_ascending = k.is_set("uplo") ^ is_turned
    buffers = {at: Buffer(f"x{place}", k.dtype, k[at].shape) for place, at in enumerate(names)}
    o, out = Operands(k, buffers), Buffer("out", k.dtype, (const(2), *shape))
    turn, task = Var("round"), Var("task")
    line, place = task // size, task % size
    at = (line, place) if len(shape) > 1 else (place,)
    own = line if of_rows else place

    def coefficient(i: Expr, j: Expr) -> Value:
        return conjugate(o.at(name, *((j, i) if is_turned else (i, j))), "C" in k.options.values())

    begun = o(written, *at)
    if "alpha" in names:
        begun = scaled(o.factor("alpha"), begun)
    step = turn - 1
    j = step if is_ascending else n - 1 - step
    unknown = (j, place) if of_rows else (line, j) if len(shape) > 1 else (j,)
    before = (turn + 1) % 2
    left = element(k.parts, out, before, *unknown)
    y = left if k.is_set("diag") else left / coefficient(j, j)
    mine = element(k.parts, out, before, *at)

    def taken(y: Value) -> Stmt:
        less, counts = mine + -(coefficient(own, j) * y), own > j if is_ascending else own < j
        if not is_turned:  # as in the reference, an unknown of 0 leaves its column out
            counts = land(counts, is_some(left))
        elif "alpha" in names:
            counts = land(counts, is_some(o.factor("alpha")))
        return stored(out, (turn % 2, *at), chosen(counts, less, mine))

    start = stored(out, (turn % 2, *at), begun)
    work = If(eq(turn, const(0)), start, held("y", y, taken))
    tasks = size if len(shape) == 1 else size * shape[0]
    loops = For(turn, n + 1, For(task, tasks, work, "parallel"))
    k.operands["left"] = k.b.loop_nest([k[x] for x in names], loops, k.dtype, out.shape)

    def divided(o: Operands, *index: Expr) -> Value:
        left = o("left", n % 2, *index)
        if k.is_set("diag"):
            return left
        i = index[0] if of_rows else index[-1]
        diagonal = conjugate(o.at(name, i, i), "C" in k.options.values())
        whole = left / diagonal
        whole = whole if is_turned else chosen(is_some(left), whole, left)
        if "alpha" not in names:
            return whole
        return chosen(is_zero(o.factor("alpha")), left, whole)

    factors = "alpha " if "alpha" in names else ""
    return made(k, (*shape[:-1], size), f"{factors}{name} left", divided)


__all__ = ["gemm", "gemm_batch", "gemmtr", "of_one_triangle", "solved", "syr2k", "syrk"]
