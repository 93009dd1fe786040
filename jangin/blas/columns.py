"""Kernels that go through a matrix column by column: products and solutions with triangular, symmetric and
banded matrices.

Each column's elements are read once, as they lie in memory, and a whole vector at a time. An operator on a
column is one of two loops: `added` adds a multiple of the column to a vector, `summed` multiplies it with
one. The elements may be complex (see `numbers`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import copy
from functools import reduce

from jangin.blas.kernel import Kernel
from jangin.blas.numbers import (
    Number,
    Value,
    conjugate,
    element,
    held,
    is_some,
    number,
    parts_of,
    scaled,
    stored,
    zero,
)
from jangin.ir.dtype import DType
from jangin.ir.expr import Buffer, Expr, Load, Var, const, eq, maximum, minimum
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.values import Tensor

VECTOR_BYTES = 64
"""The bytes that a vector loop takes at once, a register of the widest processors."""
SUMS = 4
"""Vectors of partial sums, so that an addition needn't wait for the one before it."""
ZERO = (const(0),)
At = Callable[[Expr], Value]


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


def width_of(k: Kernel) -> int:
    """Return the elements that fill a vector of the widest processors."""
    return lanes(k.dtype) // k.parts


@dataclass(frozen=True)
class Vector:
    """A vector in a buffer: all of it, or the row `of` of a matrix, or its column `down`."""

    buffer: Buffer
    parts: int = 1
    of: tuple[Expr, ...] = ()
    down: tuple[Expr, ...] = ()

    def __getitem__(self, i: Expr) -> Value:
        return element(self.parts, self.buffer, *self.of, i, *self.down)

    def store(self, i: Expr, value: Value) -> Stmt:
        return stored(self.buffer, (*self.of, i, *self.down), value)

    @property
    def width(self) -> int:
        return lanes(self.buffer.dtype) // self.parts


def operand(k: Kernel, place: int) -> Vector:
    """Return the operand in this place as a vector."""
    return Vector(Buffer(f"x{place}", k.dtype, k[k.routine.operands[place]].shape), k.parts)


def factor(k: Kernel, name: str) -> Value:
    """Return a factor, which is real in some complex routines."""
    shape = k[name].shape
    buffer = Buffer(f"x{k.routine.operands.index(name)}", k.dtype, shape)
    return element(2, buffer, const(0)) if shape else Load(buffer, ())


def added(name: str, out: Vector, factor: Value, column: At, begin: Expr, count: Expr) -> Stmt:
    """Return a loop that adds `factor` times a column to `out`."""

    def one(i: Expr) -> Stmt:
        return out.store(i, out[i] + factor * column(i))

    return each(name, begin, count, out.width, one)


@dataclass(frozen=True)
class Totals:
    """Sums of `many` columns at once, in registers."""

    dtype: DType
    parts: int
    many: int = 1

    @property
    def buffer(self) -> Buffer:
        return Buffer("totals", self.dtype, (const(self.many), const(self.parts)), "register")

    def __getitem__(self, c: int) -> Value:
        cells = [Load(self.buffer, (const(c), const(p))) for p in range(self.parts)]
        return Number(*cells) if self.parts == 2 else cells[0]

    def put(self, c: int, value: Value) -> Stmt:
        stores = (Store(self.buffer, (const(c), const(p)), v) for p, v in enumerate(parts_of(value)))
        return block(*stores)

    def within(self, *work: Stmt) -> Stmt:
        """Return statements that set the sums to 0 and then do the work. The sums exist only inside."""
        cleared = (self.put(c, zero(self.parts, self.dtype)) for c in range(self.many))
        return Alloc(self.buffer, block(*cleared, *work))


def summed(
    name: str,
    totals: Totals,
    term: Callable[[int, Expr], Value],
    begin: Expr,
    count: Expr,
    vectors: int,
    beside: Callable[[Expr], Stmt] | None = None,
    ways: int = 1,
) -> Stmt:
    """Return a loop that adds the terms of each column to its total, by `vectors` vectors of partial sums
    each. `beside` is done for each index too. If there are two `ways`, half of the vectors go through the
    column's first half, and the others through its second half."""
    width, many, parts = lanes(totals.dtype) // totals.parts, range(totals.many), range(totals.parts)
    shape = (*map(const, (totals.many, totals.parts, vectors, width)),)
    sums = Buffer(f"{name}s", totals.dtype, shape, "register")
    turn, lane, rest = Var(f"{name}t"), Var(f"{name}l"), Var(f"{name}r")
    step, turns, per_way = width * vectors, count // (width * vectors), vectors // ways

    def along(statement: Stmt) -> Stmt:
        return For(lane, const(width), statement, "vector")

    def cell(c: int, p: int, v: int) -> tuple[Expr, ...]:
        return const(c), const(p), const(v), lane

    def some(v: int) -> list[Stmt]:
        way, place = divmod(v, per_way)
        i = begin + (way * turns + turn) * (step // ways) + place * width + lane
        adds = [
            Store(sums, cell(c, p, v), Load(sums, cell(c, p, v)) + value)
            for c in many
            for p, value in enumerate(parts_of(term(c, i)))
        ]
        return [along(statement) for statement in (*adds, *([] if beside is None else [beside(i)]))]

    def ended(c: int, p: int) -> Stmt:
        at, total = (const(c), const(p)), totals.buffer
        whole = total_of([Load(sums, cell(c, p, v)) for v in range(vectors)])
        return For(lane, const(width), Store(total, at, Load(total, at) + whole))

    i = begin + count // step * step + rest
    singles = [totals.put(c, totals[c] + term(c, i)) for c in many]
    nothing = const(0, totals.dtype)
    long = block(
        *(along(Store(sums, cell(c, p, v), nothing)) for c in many for p in parts for v in range(vectors)),
        For(turn, turns, block(*(s for v in range(vectors) for s in some(v)))),
        *(ended(c, p) for c in many for p in parts),
    )
    short = For(rest, count % step, block(*singles, *([] if beside is None else [beside(i)])))
    return block(If(count >= step, Alloc(sums, long)), short)


def total_of(terms: Sequence[Value]) -> Value:
    return reduce(operator.add, terms)


class Columns:
    """The stored columns of a routine's matrix, whichever way they are stored.

    `at(i, j)` is an element, conjugate if the routine's option says so. `begin(j)` and `count(j)` are the
    rows of column j that are stored beside the diagonal, from row `first` up to row `end`."""

    def __init__(self, k: Kernel, name: str, x: str) -> None:
        self.name, self.parts = name, k.parts
        self.buffer = Buffer(x, k.dtype, k[name].shape if name in k.operands else k.result(name))
        self.n, self.lower = k.order, k.is_set("uplo")
        self.first: Expr = const(0)
        self.end = self.n
        self.width = k.size("k") if "k" in k.routine.sizes else None
        self.packed = name in k.routine.packed
        self.is_conjugate = "C" in (k.options.get("trans"), k.options.get("transa"))

    def within(self, first: Expr, end: Expr) -> Columns:
        """Return the square of a dense matrix on the diagonal that has these rows and columns."""
        part = copy(self)
        part.first, part.end = first, end
        return part

    def place(self, i: Expr, j: Expr) -> tuple[Expr, ...]:
        if self.packed:
            return (i + (2 * self.n - j - 1) * j // 2,) if self.lower else (i + j * (j + 1) // 2,)
        if self.width is not None:
            return (j, i - j) if self.lower else (j, self.width + i - j)
        return j, i

    def at(self, i: Expr, j: Expr) -> Value:
        return conjugate(element(self.parts, self.buffer, *self.place(i, j)), self.is_conjugate)

    def begin(self, j: Expr) -> Expr:
        if self.lower:
            return j + 1
        return self.first if self.width is None else maximum(j - self.width, const(0))

    def count(self, j: Expr) -> Expr:
        whole = self.end - 1 - j if self.lower else j - self.first
        return whole if self.width is None else minimum(whole, self.width)


PARTS, LEAST = 8, 256
"""Parts of a product with a symmetric matrix, which threads share, and the least columns of a part. Each has
sums of its own."""
ABREAST = 4
"""Columns that are taken at once, so that sums are loaded and stored less often."""


def symmetric(k: Kernel) -> Tensor:
    """y := alpha a x + beta y for a symmetric or Hermitian `a`, of which a triangle is stored in any way.

    Each element is read once, and used for its row and for its column. A part takes every PARTS-th group of
    columns."""
    name = k.routine.operands[1]
    a = Columns(k, name, "x1")
    abreast = ABREAST // k.parts if a.width is None else 1
    parts = maximum(minimum(a.n // LEAST, const(PARTS)), const(1)) if a.width is None else const(1)
    part, turn, rest, first = Var("part"), Var("turn"), Var("rest"), Var("first")
    own = Vector(Buffer("out", k.dtype, (parts, *k["x"].shape)), k.parts, of=(part,))
    groups = a.n // abreast
    group = Let(first, (part + turn * parts) * abreast, _group(k, a, own, first, abreast))
    last = Let(first, groups * abreast + rest, _group(k, a, own, first, 1))
    work = block(
        For(turn, (groups - part + parts - 1) // parts, group),
        If(eq(part, 0), For(rest, a.n - groups * abreast, last)),
    )
    nothing = zero(k.parts, k.dtype)
    cleared = each("s", const(0), a.n, own.width, lambda i: own.store(i, nothing))
    body = For(part, parts, block(cleared, If(is_some(factor(k, "alpha")), work)), "parallel")
    sums = k.b.loop_nest([k[n] for n in ("alpha", name, "x")], body, k.dtype, own.buffer.shape)
    k.operands["product"] = k.b.reduction(
        k.dtype, k["x"].shape, [parts], "sum", [sums], lambda bufs, place, at: bufs[0][(at[0], place[0])]
    )
    return _combination(k)


def _combination(k: Kernel) -> Tensor:
    """Return alpha product + beta y. A factor of 0 leaves its operand out, even if that is NaN."""
    names = ["alpha", "product", "beta", "y"]
    buffers = [Buffer(f"x{n}", k.dtype, k[name].shape) for n, name in enumerate(names)]
    alpha, beta = (element(k.parts, buffers[n], *[const(0)] * (k.parts - 1)) for n in (0, 2))
    product, y = (Vector(buffers[n], k.parts) for n in (1, 3))
    out = Vector(Buffer("out", k.dtype, k["y"].shape), k.parts)

    def one(i: Expr) -> Stmt:
        return out.store(i, scaled(alpha, product[i]) + scaled(beta, y[i]))

    return k.nest(" ".join(names), each("s", const(0), k.size("n"), out.width, one), "y")


def _group(k: Kernel, a: Columns, out: Vector, first: Expr, abreast: int) -> Stmt:
    """Return the work of some columns of a symmetric matrix: their products with x, and what they add to
    other sums. The square on the diagonal comes element by element."""
    x, totals = operand(k, 2), Totals(k.dtype, k.parts, abreast)
    columns = [first + c for c in range(abreast)]
    begin, count = a.begin(first), a.count(first)
    if a.lower and abreast > 1:
        begin, count = first + abreast, a.n - first - abreast

    def square(r: int, c: int) -> Value:
        """Return an element of the square. The diagonal of a Hermitian matrix is real."""
        if r == c:
            own = a.at(columns[r], columns[r])
            return number(own.re) if isinstance(own, Number) else own
        if (r > c) == a.lower:
            return a.at(columns[r], columns[c])
        return conjugate(a.at(columns[c], columns[r]))

    def worked(factors: list[Value]) -> Stmt:
        def added_to(i: Expr) -> Stmt:
            return out.store(i, out[i] + total_of([factors[c] * a.at(i, columns[c]) for c in range(abreast)]))

        def end(c: int) -> Stmt:
            beside = total_of([factors[r] * square(c, r) for r in range(abreast)])
            return out.store(columns[c], out[columns[c]] + (beside + totals[c]))

        def term(c: int, i: Expr) -> Value:
            return conjugate(a.at(i, columns[c])) * x[i]

        sums = summed("d", totals, term, begin, count, 1, added_to)
        return totals.within(sums, *(end(c) for c in range(abreast)))

    return all_held([x[j] for j in columns], worked)


def all_held(values: Sequence[Value], body: Callable[[list[Value]], Stmt], *own: Value) -> Stmt:
    """Return statements that use values, each of which is computed once."""
    if len(own) == len(values):
        return body(list(own))
    return held(f"f{len(own)}", values[len(own)], lambda value: all_held(values, body, *own, value))


def scaled_before(name: str, out: Vector, y: Vector, beta: Value, begin: Expr, count: Expr) -> Stmt:
    """Return a loop that writes beta y to `out`."""
    return each(name, begin, count, out.width, lambda i: out.store(i, scaled(beta, y[i])))


def banded(k: Kernel) -> Tensor:
    """y := alpha op(a) x + beta y for a general band of kl diagonals below and ku above."""
    a, x, y = (operand(k, place) for place in (1, 2, 4))
    out = Vector(Buffer("out", k.dtype, k["y"].shape), k.parts)
    alpha, beta = factor(k, "alpha"), factor(k, "beta")
    m, n, kl, ku = (k.size(s) for s in ("m", "n", "kl", "ku"))
    j, totals = Var("j"), Totals(k.dtype, k.parts)
    begin = maximum(j - ku, const(0))
    count = maximum(minimum(m, j + kl + 1) - begin, const(0))

    def at(i: Expr) -> Value:
        return conjugate(element(k.parts, a.buffer, j, ku + i - j), k.options["trans"] == "C")

    if k.is_set("trans"):
        terms = summed("d", totals, lambda _, i: at(i) * x[i], begin, count, SUMS)
        column = totals.within(terms, out.store(j, out[j] + alpha * totals[0]))
    else:
        column = held("factor", alpha * x[j], lambda own: added("a", out, own, at, begin, count))
    length = m if not k.is_set("trans") else n
    start = scaled_before("s", out, y, beta, const(0), length)
    return k.nest("alpha a x beta y", block(start, If(is_some(alpha), For(j, n, column))), "y")


def updated(k: Kernel, name: str) -> Tensor:
    """a := alpha x y' + a for a whole matrix.

    A triangle, which may be packed, becomes alpha x x' + a, or alpha (x y' + y x') + a. The second vectors of
    complex routines but `geru` are conjugate."""
    packed, rank_2 = name in k.routine.packed, k.routine.name[-1] == "2"
    out, x = Buffer("out", k.dtype, k.result(name)), operand(k, 1)
    y = operand(k, 2) if "y" in k.operands else x
    alpha, j = factor(k, "alpha"), Var("j")
    is_conjugate = k.routine.name != "geru"
    a = Columns(k, name, "out") if "uplo" in k.options else None
    begin, count = (const(0), k.size("m")) if a is None else (j if a.lower else const(0), a.count(j) + 1)

    def worked(factors: list[Value]) -> Stmt:
        def one(i: Expr) -> Stmt:
            place = (j, i) if a is None else a.place(i, j)
            new = element(k.parts, out, *place) + x[i] * factors[0]
            return stored(out, place, new + y[i] * factors[1] if rank_2 else new)

        return each("u", begin, count, width_of(k), one)

    factors = [scaled(alpha, conjugate(y[j], is_conjugate))]
    if rank_2:
        factors.append(scaled(conjugate(alpha), conjugate(x[j])))
    column = all_held(factors, worked)
    if a is not None and k.parts == 2:
        diagonal = element(2, out, *a.place(j, j))
        column = block(column, stored(out, a.place(j, j), number(diagonal.re)))
    if not packed:
        return k.nest(
            " ".join(n for n in k.routine.operands if n != name),
            For(j, k.size("n"), column, "parallel"),
            name,
        )
    before = Buffer(f"x{k.routine.operands.index(name)}", k.dtype, out.shape)
    copied = each("c", const(0), out.shape[0], lanes(k.dtype), lambda i: Store(out, (i,), Load(before, (i,))))
    return k.nest(
        " ".join(k.routine.operands), block(copied, If(is_some(alpha), For(j, k.size("n"), column))), name
    )
