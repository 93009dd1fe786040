"""Kernels that go through a matrix column by column: products and solutions with triangular, symmetric and
banded matrices.

Each column's elements are read once, as they lie in memory, and a whole vector at a time. An operator on a
column is one of two loops: `added` adds a multiple of the column to a vector, `summed` multiplies it with
one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce

from jangin.blas.kernel import Kernel, scaled
from jangin.ir.dtype import DType
from jangin.ir.expr import Buffer, Expr, Load, Var, const, eq, maximum, minimum, ne
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.values import Tensor

VECTOR_BYTES = 64
"""The bytes that a vector loop takes at once, a register of the widest processors."""
SUMS = 4
"""Vectors of partial sums, so that an addition needn't wait for the one before it."""
ZERO = (const(0),)
At = Callable[[Expr], Expr]


def lanes(dtype: DType) -> int:
    return VECTOR_BYTES // dtype.bytes


def each(name: str, begin: Expr, count: Expr, width: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """Return loops over `count` indices from `begin` on, `width` of them at once, then one by one."""
    turn, lane, rest = Var(f"{name}t"), Var(f"{name}l"), Var(f"{name}r")
    whole = For(lane, const(width), body(begin + turn * width + lane), "vector")
    return block(
        For(turn, count // width, whole),
        For(rest, count % width, body(begin + count // width * width + rest)),
    )


@dataclass(frozen=True)
class Vector:
    """A vector in a buffer: all of it, or the row `of` of a matrix."""

    buffer: Buffer
    of: tuple[Expr, ...] = ()

    def __getitem__(self, i: Expr) -> Load:
        return Load(self.buffer, (*self.of, i))

    def store(self, i: Expr, value: Expr) -> Stmt:
        return Store(self.buffer, (*self.of, i), value)


def added(name: str, out: Vector, factor: Expr, column: At, begin: Expr, count: Expr) -> Stmt:
    """Return a loop that adds `factor` times a column to `out`."""

    def one(i: Expr) -> Stmt:
        return out.store(i, out[i] + factor * column(i))

    return each(name, begin, count, lanes(out.buffer.dtype), one)


def summed(name: str, total: Buffer, term: At, begin: Expr, count: Expr) -> Stmt:
    """Return a loop that adds the terms to `total`, which has one element."""
    width = lanes(total.dtype)
    step = width * SUMS
    sums = Buffer(f"{name}s", total.dtype, (const(SUMS), const(width)), "register")
    turn, lane, rest, first, last = (Var(f"{name}{x}") for x in "tlrfe")

    def lanes_of(part: int) -> Stmt:
        at = const(part), lane
        i = begin + turn * step + part * width + lane
        return For(lane, const(width), Store(sums, at, Load(sums, at) + term(i)), "vector")

    def cleared(part: int) -> Stmt:
        return For(first, const(width), Store(sums, (const(part), first), const(0, total.dtype)), "vector")

    ends = [Store(total, ZERO, Load(total, ZERO) + Load(sums, (const(p), last))) for p in range(SUMS)]
    long = block(
        *(cleared(p) for p in range(SUMS)),
        For(turn, count // step, block(*(lanes_of(p) for p in range(SUMS)))),
        For(last, const(width), block(*ends)),
    )
    tail = begin + count // step * step + rest
    short = For(rest, count % step, Store(total, ZERO, Load(total, ZERO) + term(tail)))
    return block(If(count >= step, Alloc(sums, long)), short)


def summed_abreast(
    name: str,
    totals: Buffer,
    many: int,
    term: Callable[[int, Expr], Expr],
    begin: Expr,
    count: Expr,
    vectors: int,
    beside: Callable[[Expr], Stmt] | None = None,
) -> Stmt:
    """Return a loop that sums `many` totals at once, with `vectors` vectors of partial sums each. `beside` is
    done for each index too."""
    width = lanes(totals.dtype)
    sums = Buffer(f"{name}s", totals.dtype, (*map(const, (many, vectors, width)),), "register")
    turn, lane, rest, zero = Var(f"{name}t"), Var(f"{name}l"), Var(f"{name}r"), const(0, totals.dtype)
    step = width * vectors

    def along(statement: Stmt) -> Stmt:
        return For(lane, const(width), statement, "vector")

    def begun(c: int, v: int) -> Stmt:
        return along(Store(sums, (const(c), const(v), lane), zero))

    def some(v: int) -> list[Stmt]:
        i = begin + turn * step + v * width + lane
        cells = [(const(c), const(v), lane) for c in range(many)]
        terms = [Store(sums, cell, Load(sums, cell) + term(c, i)) for c, cell in enumerate(cells)]
        return [along(statement) for statement in (*terms, *([] if beside is None else [beside(i)]))]

    def ended(c: int) -> Stmt:
        cell, whole = (const(c),), total_of([Load(sums, (const(c), const(v), lane)) for v in range(vectors)])
        add = Store(totals, cell, Load(totals, cell) + whole)
        return block(Store(totals, cell, zero), For(lane, const(width), add))

    i = begin + count // step * step + rest
    singles = [Store(totals, (const(c),), Load(totals, (const(c),)) + term(c, i)) for c in range(many)]
    return block(
        Alloc(
            sums,
            block(
                *(begun(c, v) for c in range(many) for v in range(vectors)),
                For(turn, count // step, block(*(s for v in range(vectors) for s in some(v)))),
                *(ended(c) for c in range(many)),
            ),
        ),
        For(rest, count % step, block(*singles, *([] if beside is None else [beside(i)]))),
    )


class Columns:
    """The stored columns of a routine's matrix, whichever way they are stored.

    `at(i, j)` is an element. `begin(j)` and `count(j)` are the rows of column j that are stored beside the
    diagonal."""

    def __init__(self, k: Kernel, name: str, x: str) -> None:
        self.name = name
        self.buffer = Buffer(x, k.dtype, k[name].shape)
        self.n, self.lower = k.order, k.is_set("uplo")
        self.width = k.size("k") if "k" in k.routine.sizes else None
        self.packed = name in k.routine.packed

    def place(self, i: Expr, j: Expr) -> tuple[Expr, ...]:
        if self.packed:
            return (i + (2 * self.n - j - 1) * j // 2,) if self.lower else (i + j * (j + 1) // 2,)
        if self.width is not None:
            return (j, i - j) if self.lower else (j, self.width + i - j)
        return j, i

    def at(self, i: Expr, j: Expr) -> Expr:
        return Load(self.buffer, self.place(i, j))

    def begin(self, j: Expr) -> Expr:
        if self.lower:
            return j + 1
        return const(0) if self.width is None else maximum(j - self.width, const(0))

    def count(self, j: Expr) -> Expr:
        whole = self.n - 1 - j if self.lower else j
        return whole if self.width is None else minimum(whole, self.width)


Work = Callable[[Kernel, Columns, Vector, Expr], Stmt]
"""Returns the statements for column j of a triangle and a vector, from the kernel, columns, vector and j."""


def multiplied_by(k: Kernel, a: Columns, out: Vector, j: Expr) -> Stmt:
    """Return the step for column j of out := op(a) out."""
    own, held, unit = out[j], Var("held", k.dtype), k.is_set("diag")
    if k.is_transposed:
        start = own if unit else own * a.at(j, j)
        return _summed_up(k, start, lambda i: a.at(i, j) * out[i], a, j, lambda total: out.store(j, total))
    others = added("a", out, held, lambda i: a.at(i, j), a.begin(j), a.count(j))
    work = block(others, out.store(j, held if unit else held * a.at(j, j)))
    return Let(held, own, If(ne(held, const(0, k.dtype)), work))


def solved_for(k: Kernel, a: Columns, out: Vector, j: Expr) -> Stmt:
    """Return the step for column j of out := the solution y of op(a) y = out."""
    own, held, unit = out[j], Var("held", k.dtype), k.is_set("diag")
    if k.is_transposed:
        return _summed_up(
            k, own, lambda i: -(a.at(i, j) * out[i]), a, j,
            lambda total: out.store(j, total if unit else total / a.at(j, j)),
        )  # fmt: skip
    others = added("a", out, -held, lambda i: a.at(i, j), a.begin(j), a.count(j))
    work = Let(held, own if unit else own / a.at(j, j), block(out.store(j, held), others))
    return If(ne(own, const(0, k.dtype)), work)


def _summed_up(k: Kernel, start: Expr, term: At, a: Columns, j: Expr, end: Callable[[Expr], Stmt]) -> Stmt:
    total = Buffer("total", k.dtype, (const(1),), "register")
    terms = summed("d", total, term, a.begin(j), a.count(j))
    return Alloc(total, block(Store(total, ZERO, start), terms, end(Load(total, ZERO))))


def in_order(k: Kernel, a: Columns, first_up: bool, column: Callable[[Expr], Stmt]) -> Stmt:
    """Return a loop over the columns. Those of an upper triangle that isn't transposed are taken in ascending
    order if `first_up`."""
    step, j = Var("step"), Var("j")
    ascending = first_up ^ a.lower ^ k.is_transposed
    return For(step, a.n, Let(j, step if ascending else a.n - 1 - step, column(j)))


def _triangular(k: Kernel, work: Work, first_up: bool) -> Tensor:
    """Return a nest that works on a copy of x, a column after the other."""
    name = k.routine.operands[0]
    out, x = (Vector(Buffer(n, k.dtype, k["x"].shape)) for n in ("out", "x1"))
    a = Columns(k, name, "x0")
    copied = each("c", const(0), a.n, lanes(k.dtype), lambda i: out.store(i, x[i]))
    loops = in_order(k, a, first_up, lambda j: work(k, a, out, j))
    return k.nest(f"{name} x", block(copied, loops), "x")


def multiplied(k: Kernel) -> Tensor:
    """x := op(a) x for a triangular `a`, dense, banded or packed."""
    return _triangular(k, multiplied_by, True)


def solved(k: Kernel) -> Tensor:
    """x := the solution y of op(a) y = x for a triangular `a`, dense, banded or packed."""
    return _triangular(k, solved_for, False)


PARTS, LEAST = 8, 256
"""Parts of a product with a symmetric matrix, which threads share, and the least columns of a part. Each has
sums of its own."""


def symmetric(k: Kernel) -> Tensor:
    """y := alpha a x + beta y for a symmetric `a` of which a triangle is stored, dense, banded or packed.

    Each element is read once, and used for its row and for its column. A part takes every PARTS-th group of
    columns."""
    name = k.routine.operands[1]
    a = Columns(k, name, "x1")
    abreast = ABREAST if a.width is None else 1
    parts = maximum(minimum(a.n // LEAST, const(PARTS)), const(1)) if a.width is None else const(1)
    out, part, turn, rest = Buffer("out", k.dtype, (parts, a.n)), Var("part"), Var("turn"), Var("rest")
    own, first = Vector(out, (part,)), Var("first")
    groups = a.n // abreast
    group = Let(first, (part + turn * parts) * abreast, _group(k, a, own, first, abreast))
    last = Let(first, groups * abreast + rest, _group(k, a, own, first, 1))
    work = block(
        For(turn, (groups - part + parts - 1) // parts, group),
        If(eq(part, 0), For(rest, a.n - groups * abreast, last)),
    )
    alpha, zero = Load(Buffer("x0", k.dtype, ()), ()), const(0, k.dtype)
    cleared = each("s", const(0), a.n, lanes(k.dtype), lambda i: own.store(i, zero))
    body = For(part, parts, block(cleared, If(ne(alpha, zero), work)), "parallel")
    operands = [k[n] for n in ("alpha", name, "x")]
    sums = k.b.loop_nest(operands, body, k.dtype, out.shape)
    product = k.b.reduction(
        k.dtype, (a.n,), [parts], "sum", [sums], lambda bufs, place, at: bufs[0][(at[0], place[0])]
    )
    return k.updated(product, k["y"])


def _group(k: Kernel, a: Columns, out: Vector, first: Expr, abreast: int) -> Stmt:
    """Return the work of some columns of a symmetric matrix: their products with x, and what they add to other
    sums. The square on the diagonal comes element by element."""
    x, totals = (
        Vector(Buffer("x2", k.dtype, k["x"].shape)),
        Buffer("totals", k.dtype, (const(abreast),), "register"),
    )
    columns = [first + c for c in range(abreast)]
    factors = [Var(f"f{c}", k.dtype) for c in range(abreast)]
    begin, count = a.begin(first), a.count(first)
    if a.lower and abreast > 1:
        begin, count = first + abreast, a.n - first - abreast

    def element(r: int, c: int) -> Expr:
        return a.at(columns[r], columns[c]) if (r > c) == a.lower else a.at(columns[c], columns[r])

    def added_to(i: Expr) -> Stmt:
        return out.store(i, out[i] + total_of([factors[c] * a.at(i, columns[c]) for c in range(abreast)]))

    def end(c: int) -> Stmt:
        square = [factors[r] * element(r, c) for r in range(abreast)]
        return out.store(columns[c], out[columns[c]] + (total_of(square) + Load(totals, (const(c),))))

    sums = summed_abreast(
        "d", totals, abreast, lambda c, i: a.at(i, columns[c]) * x[i], begin, count, 1, added_to
    )
    work: Stmt = Alloc(totals, block(sums, *(end(c) for c in range(abreast))))
    for c in reversed(range(abreast)):
        work = Let(factors[c], x[columns[c]], work)
    return work


def total_of(terms: Sequence[Expr]) -> Expr:
    return reduce(operator.add, terms)


def _scaled_copy(out: Buffer, y: Buffer, beta: Expr) -> Stmt:
    return each(
        "s", const(0), out.shape[0], lanes(out.dtype), lambda i: Store(out, (i,), scaled(beta, Load(y, (i,))))
    )


def banded(k: Kernel) -> Tensor:
    """y := alpha op(a) x + beta y for a general band of kl diagonals below and ku above."""
    a = Buffer("x1", k.dtype, k["a"].shape)
    out, y = (Buffer(n, k.dtype, k["y"].shape) for n in ("out", "x4"))
    x = Buffer("x2", k.dtype, k["x"].shape)
    alpha, beta = (Load(Buffer(n, k.dtype, ()), ()) for n in ("x0", "x3"))
    m, n, kl, ku = (k.size(s) for s in ("m", "n", "kl", "ku"))
    j, total = Var("j"), Buffer("total", k.dtype, (const(1),), "register")
    begin = maximum(j - ku, const(0))
    count = maximum(minimum(m, j + kl + 1) - begin, const(0))

    def element(i: Expr) -> Expr:
        return Load(a, (j, ku + i - j))

    if k.is_set("trans"):
        terms = summed("d", total, lambda i: element(i) * Load(x, (i,)), begin, count)
        result = Store(out, (j,), Load(out, (j,)) + alpha * Load(total, ZERO))
        column: Stmt = Alloc(total, block(Store(total, ZERO, const(0, k.dtype)), terms, result))
    else:
        factor = Var("factor", k.dtype)
        column = Let(factor, alpha * Load(x, (j,)), added("a", Vector(out), factor, element, begin, count))
    work = If(ne(alpha, const(0, k.dtype)), For(j, n, column))
    return k.nest("alpha a x beta y", block(_scaled_copy(out, y, beta), work), "y")


def packed_updated(k: Kernel) -> Tensor:
    """The packed ap := alpha x x' + ap, or alpha (x y' + y x') + ap."""
    a = Columns(k, "ap", "x3" if "y" in k.operands else "x2")
    out = Buffer("out", k.dtype, k["ap"].shape)
    x = Buffer("x1", k.dtype, k["x"].shape)
    y = Buffer("x2", k.dtype, k["x"].shape) if "y" in k.operands else None
    alpha, j = Load(Buffer("x0", k.dtype, ()), ()), Var("j")
    one, other = Var("one", k.dtype), Var("other", k.dtype)
    first = const(0) if not a.lower else j

    def element(i: Expr) -> Stmt:
        place = a.place(i, j)
        more = Load(x, (i,)) * one
        if y is not None:
            more = more + Load(y, (i,)) * other
        return Store(out, place, Load(out, place) + more)

    column = each("u", first, a.count(j) + 1, lanes(k.dtype), element)
    if y is not None:
        column = Let(other, alpha * Load(x, (j,)), column)
    column = Let(one, alpha * Load(x if y is None else y, (j,)), column)
    work = If(ne(alpha, const(0, k.dtype)), For(j, a.n, column))
    size, before = out.shape[0], a.buffer
    copied = each("c", const(0), size, lanes(k.dtype), lambda i: Store(out, (i,), Load(before, (i,))))
    return k.nest(" ".join(k.routine.operands), block(copied, work), "ap")


ROWS = 1024
"""Rows of a task of a product with columns. Its sums stay in the L1 cache."""
ABREAST = 4
"""Columns that are added at once, so that sums are loaded and stored less often."""


def combined(k: Kernel) -> Tensor:
    """y := alpha a x + beta y. A task has some rows, and adds the columns a few at a time."""
    a = Buffer("x1", k.dtype, k["a"].shape)
    x, (out, y) = (
        Buffer("x2", k.dtype, k["x"].shape),
        (Buffer(n, k.dtype, k["y"].shape) for n in ("out", "x4")),
    )
    alpha, beta = (Load(Buffer(n, k.dtype, ()), ()) for n in ("x0", "x3"))
    m, n, task, turn, rest = k.size("m"), k.size("n"), Var("task"), Var("turn"), Var("rest")
    begin, count = task * ROWS, minimum(const(ROWS), m - task * ROWS)
    width, factors = lanes(k.dtype), [Var(f"f{c}", k.dtype) for c in range(ABREAST)]

    def some(first: Expr, columns: int) -> Stmt:
        def one(i: Expr) -> Stmt:
            total: Expr = Load(out, (i,))
            for c in range(columns):
                total = total + factors[c] * Load(a, (first + c, i))
            return Store(out, (i,), total)

        work = each("a", begin, count, width, one)
        for c in reversed(range(columns)):
            work = Let(factors[c], alpha * Load(x, (first + c,)), work)
        return work

    start = each("s", begin, count, width, lambda i: Store(out, (i,), scaled(beta, Load(y, (i,)))))
    whole = For(turn, n // ABREAST, some(turn * ABREAST, ABREAST))
    last = For(rest, n % ABREAST, some(n // ABREAST * ABREAST + rest, 1))
    work = block(start, If(ne(alpha, const(0, k.dtype)), block(whole, last)))
    return k.nest("alpha a x beta y", For(task, (m + ROWS - 1) // ROWS, work, "parallel"), "y")


SUMS_ABREAST = 2
"""Vectors of partial sums of each of those columns."""


def products_of_columns(k: Kernel) -> Tensor:
    """y := alpha a' x + beta y. A task has a few columns, for which x is read once."""
    a, x, y = (Buffer(f"x{p}", k.dtype, k[n].shape) for p, n in ((1, "a"), (2, "x"), (4, "y")))
    out, task, rest = Buffer("out", k.dtype, k["y"].shape), Var("task"), Var("rest")
    alpha, beta = (Load(Buffer(n, k.dtype, ()), ()) for n in ("x0", "x3"))
    m, n, zero = k.size("m"), k.size("n"), const(0, k.dtype)

    def some(first: Expr, columns: int) -> Stmt:
        totals = Buffer("totals", k.dtype, (const(columns),), "register")
        sums = summed_abreast(
            "d",
            totals,
            columns,
            lambda c, i: Load(a, (first + c, i)) * Load(x, (i,)),
            const(0),
            m,
            SUMS_ABREAST,
        )
        cleared = block(*(Store(totals, (const(c),), zero) for c in range(columns)))
        stores = [
            Store(out, (at,), scaled(alpha, Load(totals, (const(c),))) + scaled(beta, Load(y, (at,))))
            for c in range(columns)
            for at in [first + c]
        ]
        return Alloc(totals, block(If(ne(alpha, zero), sums, cleared), *stores))

    whole, first = some(task * ABREAST, ABREAST), task * ABREAST
    body = If(first + ABREAST <= n, whole, For(rest, n - first, some(first + rest, 1)))
    return k.nest("alpha a x beta y", For(task, (n + ABREAST - 1) // ABREAST, body, "parallel"), "y")
