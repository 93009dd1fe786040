"""Matrix products: NumPy's matmul, BLAS's gemm, Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.dtype import BOOL, F64, DType
from jangin.ir.expr import Expr, cast, const, eq, is_const, land, lor
from jangin.ir.graph import CompileError
from jangin.ir.simplify import prove, simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def matmul(b: Builder, x: Tensor, y: Tensor, *, dtype: DType | None = None) -> Tensor:
    """Return numpy.matmul of x[..., M, K] and y[..., K, N], whose batch dimensions broadcast: [..., M, N].

    A vector operand gets an axis of size 1, which the result loses again. `dtype`: of the sums, by default
    x's.
    """
    if not x.rank or not y.rank:
        raise CompileError(f"a matrix product of {x} and {y}: both must have at least one axis")
    left = x if x.rank > 1 else b.reshape(x, [1, *x.shape])
    right = y if y.rank > 1 else b.reshape(y, [*y.shape, 1])
    out = b.matmul(left, right, dtype=dtype)
    dims = list(out.shape)
    if y.rank == 1:
        del dims[-1]
    if x.rank == 1:
        del dims[len(dims) - (1 if y.rank == 1 else 2)]
    return b.reshape(out, dims)


def scaled(e: Expr, factor: float) -> Expr:
    """Return e * factor in e's dtype; an integer is scaled in f64 and truncated."""
    if factor == 1:
        return e
    if e.dtype.is_int and not float(factor).is_integer():
        return cast(e.dtype, cast(F64, e) * factor)
    return e * const(factor, e.dtype)


def gemm(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_x: bool = False,
    transpose_y: bool = False,
) -> Tensor:
    """Return alpha * x y + beta * c for matrices x[M, K] and y[K, N], each transposed first if asked. `c`
    broadcasts to [M, N]."""
    if x.rank != 2 or y.rank != 2:
        raise CompileError(f"a gemm of {x} and {y}: both must be matrices, of rank 2")
    out = b.matmul(x, y, transpose_a=transpose_x, transpose_b=transpose_y)
    if c is not None:
        c = _bias(b, c, out)
    if c is not None and beta != 0:
        return b.map(lambda p, q: scaled(p, alpha) + scaled(q, beta), out, c)
    return out if alpha == 1 else b.map(lambda p: scaled(p, alpha), out)


def _bias(b: Builder, c: Tensor, out: Tensor) -> Tensor:
    """Return `c`, which must broadcast to the product without enlarging it. If only a run can tell, the run
    checks it. Raises CompileError if it can't broadcast."""
    fits: Expr = const(c.rank <= out.rank, BOOL)
    for d, size in zip(c.shape, out.shape[out.rank - c.rank :], strict=False):
        fits = land(fits, lor(eq(d, size), eq(d, 1)))
    if is_const(fits := simplify(fits, b.symbols), False):
        raise CompileError(f"{c} doesn't broadcast to a product {out}: its sizes must be 1 or the product's")
    return c if prove(fits, b.symbols) else b.requiring(c, fits)


# -- Einstein sums -------------------------------------------------------------------------------

Labels = tuple[str, ...]


def _labels(term: str, rank: int, ellipsis: int) -> Labels:
    """Return one label an axis. The axes of an ellipsis are "0", "1", ...; the innermost always has the
    highest number."""
    term = term.strip()
    head, dots, tail = term.partition("...")
    width = rank - len(head) - len(tail) if dots else 0
    if not (head + tail).isalpha() and head + tail:
        raise CompileError(f"the einsum term {term!r} must consist of letters and one ellipsis")
    if width < 0 or len(head) + len(tail) + width != rank:
        raise CompileError(f"the einsum term {term!r} does not fit a tensor of rank {rank}")
    return (*head, *(str(ellipsis - width + i) for i in range(width)), *tail)


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise CompileError(f"einsum {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    widths = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True) if "..." in t]
    ellipsis = max(widths, default=0)
    inputs = [_labels(t, r, ellipsis) for t, r in zip(terms, ranks, strict=True)]
    if arrow:
        letters = right.replace("...", "")
        return inputs, _labels(right, len(letters) + (ellipsis if "..." in right else 0), ellipsis)
    every = [label for term in inputs for label in term]
    once = sorted(label for label in set(every) if every.count(label) == 1 and label.isalpha())
    return inputs, (*map(str, range(ellipsis)), *once)


def einsum(b: Builder, *xs: Tensor, equation: str) -> Tensor:
    """Return numpy.einsum by its equation: letters, an ellipsis, repeated letters for diagonals; sizes of 1
    broadcast. Operands are contracted from left to right, and each pair is one matrix product."""
    terms, result = _parse(equation, [x.rank for x in xs])
    sizes: dict[str, Expr] = {}
    for x, term in zip(xs, terms, strict=True):
        for label, d in zip(term, x.shape, strict=True):
            if is_const(sizes.get(label, const(1)), 1):
                sizes[label] = d
    for label in result:
        if label not in sizes:
            raise CompileError(f"einsum {equation!r}: {label!r} of the result is in no operand")
    value, have = _prepared(b, xs[0], terms[0], {*result, *_later(terms, 1)})
    for n in range(1, len(xs)):
        needed = {*result, *_later(terms, n + 1)}
        other, theirs = _prepared(b, xs[n], terms[n], {*needed, *have})
        value, have = _contract(b, value, have, other, theirs, needed)
    value, have = _prepared(b, value, have, set(result))
    value = b.transpose(value, [have.index(label) for label in result if label in have])
    return b.expand(value, [sizes[label] for label in result])


def _later(terms: Sequence[Labels], first: int) -> set[str]:
    return {label for term in terms[first:] for label in term}


def _prepared(b: Builder, x: Tensor, labels: Labels, needed: set[str]) -> tuple[Tensor, Labels]:
    """Return `x` with repeated labels read along their diagonal, and with labels summed away that nobody
    needs. Return also the labels of its axes."""
    unique = tuple(dict.fromkeys(labels))
    if unique != labels:
        shape = [x.shape[labels.index(label)] for label in unique]
        x = b.compute(
            x.dtype, shape, [x], lambda bufs, *i: bufs[0][tuple(i[unique.index(label)] for label in labels)]
        )
    gone = [i for i, label in enumerate(unique) if label not in needed]
    return b.reduce("sum", x, gone), tuple(label for label in unique if label in needed)


def _contract(
    b: Builder, x: Tensor, left: Labels, y: Tensor, right: Labels, needed: set[str]
) -> tuple[Tensor, Labels]:
    """Return the product of two operands, summed over the labels that are no longer needed. Return also the
    labels of its axes."""
    size = dict(zip(left, x.shape, strict=True)), dict(zip(right, y.shape, strict=True))
    shared = [label for label in left if label in right]
    ones = [n for n in shared if is_const(size[0][n], 1) != is_const(size[1][n], 1)]
    x, left = _dropped(b, x, left, [n for n in ones if is_const(size[0][n], 1)])
    y, right = _dropped(b, y, right, [n for n in ones if is_const(size[1][n], 1)])
    x, left = _prepared(b, x, left, {*needed, *right})
    y, right = _prepared(b, y, right, {*needed, *left})
    batch = tuple(n for n in left if n in right and n in needed)
    inner = tuple(n for n in left if n in right and n not in needed)
    rows = tuple(n for n in left if n not in right)
    cols = tuple(n for n in right if n not in left)
    product_of = b.matmul(_matrix(b, x, left, batch, rows, inner), _matrix(b, y, right, batch, inner, cols))
    dims = dict(zip(left, x.shape, strict=True)) | dict(zip(right, y.shape, strict=True))
    out = (*batch, *rows, *cols)
    return b.reshape(product_of, [dims[n] for n in out]), out


def _dropped(b: Builder, x: Tensor, labels: Labels, gone: Sequence[str]) -> tuple[Tensor, Labels]:
    """Return `x` without the axes `gone`, which have size 1 and broadcast against the other operand. Return
    also the labels of the remaining axes."""
    keep = [i for i, label in enumerate(labels) if label not in gone]
    return b.reshape(x, [x.shape[i] for i in keep]), tuple(labels[i] for i in keep)


def _matrix(b: Builder, x: Tensor, labels: Labels, batch: Labels, rows: Labels, cols: Labels) -> Tensor:
    """Return `x` as [*batch, prod(rows), prod(cols)]."""
    dims = dict(zip(labels, x.shape, strict=True))
    turned = b.transpose(x, [labels.index(n) for n in (*batch, *rows, *cols)])
    shape = [dims[n] for n in batch]
    return b.reshape(turned, [*shape, product(dims[n] for n in rows), product(dims[n] for n in cols)])
