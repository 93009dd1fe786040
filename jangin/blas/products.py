"""Kernels whose matrix is dense: products, and updates by products of vectors."""

from __future__ import annotations

from jangin.blas.columns import combined
from jangin.blas.kernel import Kernel, scaled
from jangin.ir.expr import Buffer, Expr, select
from jangin.ops.values import Tensor


def gemv(k: Kernel) -> Tensor:
    """y := alpha op(a) x + beta y."""
    if not k.is_set("trans"):
        return combined(k)
    column = k.b.reshape(k["x"], (k.size("m"), 1))
    return k.updated(k.b.reshape(k.b.matmul(k.matrix("a"), column), k["y"].shape), k["y"])


def ger(k: Kernel) -> Tensor:
    """a := alpha x y' + a."""
    n, m = k.matrix("a").shape
    return k.elements(
        (n, m), "alpha x y a", lambda alpha, x, y, a, j, i: a[j, i] + x[i] * scaled(alpha[()], y[j])
    )


def syr(k: Kernel) -> Tensor:
    """The triangle of a := alpha x x' + a."""
    n = k.size("n")

    def element(alpha: Buffer, x: Buffer, a: Buffer, j: Expr, i: Expr) -> Expr:
        return select(_inside(k, i, j), a[j, i] + x[i] * scaled(alpha[()], x[j]), a[j, i])

    return k.elements((n, n), "alpha x a", element)


def syr2(k: Kernel) -> Tensor:
    """The triangle of a := alpha (x y' + y x') + a."""
    n = k.size("n")

    def element(alpha: Buffer, x: Buffer, y: Buffer, a: Buffer, j: Expr, i: Expr) -> Expr:
        more = x[i] * scaled(alpha[()], y[j]) + y[i] * scaled(alpha[()], x[j])
        return select(_inside(k, i, j), a[j, i] + more, a[j, i])

    return k.elements((n, n), "alpha x y a", element)


def gemm(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c. Everything is stored transposed, so b is the left operand."""
    return k.updated(_product(k), k.matrix("c"))


def _product(k: Kernel) -> Tensor:
    return k.b.matmul(
        k.matrix("b"), k.matrix("a"), transpose_a=k.is_set("transb"), transpose_b=k.is_set("transa")
    )


def symm(k: Kernel) -> Tensor:
    """c := alpha a b + beta c, or alpha b a + beta c, with a symmetric `a` of which a triangle is read."""
    n = k.matrix("a").shape[0]
    whole = k.elements((n, n), "a", lambda a, j, i: select(_inside(k, i, j), a[j, i], a[i, j]))
    b = k.matrix("b")
    return k.updated(k.b.matmul(whole, b) if k.is_set("side") else k.b.matmul(b, whole), k.matrix("c"))


def _inside(k: Kernel, i: Expr, j: Expr) -> Expr:
    """Return whether row i and column j are of the triangle that a routine reads or writes."""
    return i >= j if k.is_set("uplo") else i <= j


def _triangle(k: Kernel, product: Tensor) -> Tensor:
    """Return the updated triangle of c. The other one keeps its elements."""
    new, c = k.updated(product, k.matrix("c")), k.matrix("c")
    real = [k.b.materialize(new), c]
    return k.b.compute(
        k.dtype, c.shape, real, lambda bufs, j, i: select(_inside(k, i, j), bufs[0][j, i], bufs[1][j, i])
    )


def gemmtr(k: Kernel) -> Tensor:
    """The triangle of c := alpha op(a) op(b) + beta c."""
    return _triangle(k, _product(k))


def syrk(k: Kernel) -> Tensor:
    """The triangle of c := alpha a a' + beta c, or alpha a' a + beta c."""
    a, trans = k.matrix("a"), k.is_set("trans")
    return _triangle(k, k.b.matmul(a, k.again("a"), transpose_a=not trans, transpose_b=trans))


def syr2k(k: Kernel) -> Tensor:
    """The triangle of c := alpha (a b' + b a') + beta c, or alpha (a' b + b' a) + beta c."""
    a, b, trans = k.matrix("a"), k.matrix("b"), k.is_set("trans")
    one, other = (k.b.matmul(*pair, transpose_a=not trans, transpose_b=trans) for pair in ((b, a), (a, b)))
    return _triangle(k, k.b.map(lambda p, q: p + q, one, other))
