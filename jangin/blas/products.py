"""Kernels of level 3 with real elements: products of matrices."""

from __future__ import annotations

from functools import partial

from jangin.blas.dense import Pair, Product
from jangin.blas.kernel import Kernel
from jangin.blas.routine import PLACES
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Expr, Load, Var, const, maximum
from jangin.ir.loop import For, Let, replace_buffer
from jangin.ops.values import Tensor


def gemm(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c. Small floats have everything transposed, so b is the left operand."""
    if k.in_place:
        return _general(k, k.size("m"))
    product = k.b.matmul(
        k.matrix("b"), k.matrix("a"), transpose_a=k.is_set("transb"), transpose_b=k.is_set("transa")
    )
    return k.updated(product, k.matrix("c"))


def gemmtr(k: Kernel) -> Tensor:
    """The triangle of c := alpha op(a) op(b) + beta c."""
    return _general(k, k.size("n"), k.options["uplo"])


def _general(k: Kernel, m: Expr, triangle: str = "") -> Tensor:
    p, pair = _product(k, m, triangle)
    return p.result(pair)


def _product(k: Kernel, m: Expr, triangle: str = "") -> tuple[Product, Pair]:
    n = k.size("n")
    p = Product(k, "alpha a b beta", (m, n), k.size("k"), triangle)
    rows, columns = p.operand("a", m, k.is_set("transa")), p.operand("b", n, not k.is_set("transb"))
    return p, Pair(rows, columns)


def gemm_batch(k: Kernel) -> Tensor:
    """c := alpha op(a) op(b) + beta c for each product of a batch. The tasks of all products are shared by
    all threads. Row i of `offsets` has the places of the i-th a, b and c behind the first element."""
    p, pair = _product(k, k.size("m"))
    tasks, task, item = p.loops(pair), Var("batch_task"), Var("item")
    places = Buffer("x4", I64, k[PLACES].shape)
    body, behind = tasks.body, [Var(f"behind_{name}") for name in "abc"]
    for name, offset in zip(("x1", "x2", "out"), behind, strict=True):
        buffer = p.out if name == "out" else Buffer(name, k.dtype, k["ab"[name == "x2"]].shape)
        body = replace_buffer(body, name, buffer, partial(_further, offset))
    each = maximum(tasks.extent, const(1))
    body = Let(tasks.var, task % each, body)
    for n, offset in enumerate(behind):
        body = Let(offset, Load(places, (item, const(n))), body)
    loop = For(task, k.size("batch") * tasks.extent, Let(item, task // each, body), "parallel")
    return k.nest(f"{p.names} {PLACES}", loop, "c")


def _further(offset: Expr, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the index of an element that lies `offset` elements behind the one at `index`."""
    return (*index[:-1], index[-1] + offset)


def symm(k: Kernel) -> Tensor:
    """c := alpha a b + beta c, or alpha b a + beta c, with a symmetric `a` of which a triangle is read."""
    m, n, lower = k.size("m"), k.size("n"), k.is_set("uplo")
    p = Product(k, "alpha a b beta", (m, n), k.order)
    a = p.operand("a", k.order, False, "symmetric", lower)
    if k.is_set("side"):
        return p.result(Pair(p.operand("b", m, False), a))
    return p.result(Pair(a, p.operand("b", n, True)))


def trmm(k: Kernel) -> Tensor:
    """Return b := alpha op(a) b, or alpha b op(a), with a triangular `a`. On the right side `a` gives the
    product's columns, and is read as transposed."""
    m, n, turned = k.size("m"), k.size("n"), k.is_set("transa")
    p, right = Product(k, "alpha a b", (m, n), k.order), k.is_set("side")
    lower = k.is_set("uplo") ^ turned ^ right
    a = p.operand("a", k.order, turned ^ right, "triangular", lower)
    return p.result(Pair(p.operand("b", m, False), a) if right else Pair(a, p.operand("b", n, True)))


def syrk(k: Kernel) -> Tensor:
    """The triangle of c := alpha a a' + beta c, or alpha a' a + beta c."""
    n = k.size("n")
    p = Product(k, "alpha a beta", (n, n), k.size("k"), k.options["uplo"])
    a = p.operand("a", n, k.is_set("trans"))
    return p.result(Pair(a, a))


def syr2k(k: Kernel) -> Tensor:
    """The triangle of c := alpha (a b' + b a') + beta c, or alpha (a' b + b' a) + beta c."""
    n = k.size("n")
    p = Product(k, "alpha a b beta", (n, n), k.size("k"), k.options["uplo"])
    a, b = (p.operand(name, n, k.is_set("trans")) for name in "ab")
    return p.result(Pair(a, b), Pair(b, a))
