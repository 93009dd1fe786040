"""Kernels that construct plane rotations from single numbers."""

from __future__ import annotations

from collections.abc import Callable

from jangin.blas.kernel import Kernel
from jangin.blas.numbers import Number, element, parts_of
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, Expr, Load, Var, call, const, eq, land, lor, maximum, minimum, ne, select
from jangin.ir.loop import For, If, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.values import Tensor


def rotg(k: Kernel) -> tuple[Tensor, ...]:
    """The rotation that turns (a, b) to (r, 0): r, the number z from which it can be had again, c and s."""
    safe = 2.0**126 if k.dtype is F32 else 2.0**1022
    zero, one = const(0, k.dtype), const(1, k.dtype)

    def radius(a: Expr, b: Expr) -> Expr:
        size, other = call("abs", a), call("abs", b)
        scale = minimum(const(safe, k.dtype), maximum(const(1 / safe, k.dtype), maximum(size, other)))
        u, v = a / scale, b / scale
        length = scale * call("sqrt", u * u + v * v)
        negative = select(size > other, a, b) < 0
        return select(negative, -length, length)

    def whole(a: Expr, b: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        r = radius(a, b)
        c, s = a / r, b / r
        z = select(call("abs", a) > call("abs", b), s, select(ne(c, zero), one / c, one))
        return r, z, c, s

    def case(place: int) -> Tensor:
        def value(a: Expr, b: Expr) -> Expr:
            general, unturned, turned = (
                whole(a, b)[place],
                (a, zero, one, zero)[place],
                (b, one, zero, one)[place],
            )
            return select(eq(b, zero), unturned, select(eq(a, zero), turned, general))

        return k.b.map(value, k["a"], k["b"])

    return case(0), case(1), case(2), case(3)


def complex_rotg(k: Kernel) -> tuple[Tensor, ...]:
    """The rotation that turns complex (a, b) to (r, 0): r, the real c, and s.

    A number is divided by its largest part before it is squared, so no square overflows."""
    out = Buffer("out", k.dtype, (const(5),))
    a, b = (element(2, Buffer(f"x{n}", k.dtype, (const(2),)), const(0)) for n in range(2))

    def written(of_a: _Polar, of_b: _Polar) -> Stmt:
        scale, u, v, h = (Var(n, k.dtype) for n in ("scale", "u", "v", "h"))
        s = of_a.along * of_b.along.conjugate()
        unturned = eq(of_b.size, const(0, k.dtype))
        values = [
            select(unturned, x, p * (h * scale))
            for x, p in zip(parts_of(a), parts_of(of_a.along), strict=True)
        ]
        values += [u / h, s.re * (v / h), s.im * (v / h)]
        stores = block(*(Store(out, (const(n),), value) for n, value in enumerate(values)))
        nothing = block(*(Store(out, (const(n),), const(float(n == 2), k.dtype)) for n in range(5)))
        body: Stmt = Let(h, call("sqrt", u * u + v * v), stores)
        for own, number in ((u, of_a), (v, of_b)):
            body = Let(own, number.length * (number.size / scale), body)
        return Let(scale, maximum(of_a.size, of_b.size), If(eq(scale, const(0, k.dtype)), nothing, body))

    nest = _polar("a", a, lambda of_a: _polar("b", b, lambda of_b: written(of_a, of_b)))
    all_of = k.b.loop_nest([k["a"], k["b"]], nest, k.dtype, out.shape)
    r, c, s = (k.b.slice(all_of, (at,), (n,), (1,)) for at, n in ((0, 2), (2, 1), (3, 2)))
    return r, k.b.reshape(c, ()), s


@dataclass(frozen=True)
class _Polar:
    """A complex number: its largest part `size`, its length divided by it, and its direction."""

    size: Expr
    length: Expr
    along: Number


def _polar(name: str, value: Number, work: Callable[[_Polar], Stmt]) -> Stmt:
    """Define a complex number's absolute value and its direction as variables, and return the statement that
    `work` makes of them. The direction is the number divided by its absolute value, and 1 for 0. Parts are
    scaled so that their squares can't overflow."""
    size, length, re, im = (Var(f"{name}_{n}", value.re.dtype) for n in ("size", "length", "re", "im"))
    is_zero, nothing = eq(size, const(0, size.dtype)), const(0, size.dtype)
    along = Number(select(is_zero, nothing + 1, re / length), select(is_zero, nothing, im / length))
    divisor = select(is_zero, nothing + 1, size)
    inner: Stmt = Let(length, call("sqrt", re * re + im * im), work(_Polar(size, length, along)))
    inner = Let(re, value.re / divisor, Let(im, value.im / divisor, inner))
    return Let(size, maximum(call("abs", value.re), call("abs", value.im)), inner)


D1, D2, X1, FLAG, H11, H21, H12, H22 = range(8)
"""The places of a modified rotation's numbers in its kernel's result."""
SCALE = 4096.0
"""The factor by which numbers are brought nearer to 1, as in the reference's ROTMG (GAM)."""
LARGEST, LEAST = 1.67772e7, 5.96046e-8
"""Squares of lengths that are scaled, as the reference has them."""
TURNS = 64
"""The most times that a number is scaled, more than any float takes."""


def rotmg(k: Kernel) -> tuple[Tensor, ...]:
    """The modified rotation that makes the second component of (sqrt(d1) x1, sqrt(d2) y1) 0."""
    d1, d2, x1, y1 = (Load(Buffer(f"x{n}", k.dtype, ()), ()) for n in range(4))
    param = Buffer("x4", k.dtype, (const(5),))
    rotation = _Rotation(Buffer("out", k.dtype, (const(8),)))
    start = [rotation.put(D1, d1), rotation.put(D2, d2), rotation.put(X1, x1)]
    start += [rotation.put(FLAG + n, Load(param, (const(n),))) for n in range(5)]
    nest = block(*start, rotation.found(y1))
    all_of = k.b.loop_nest([k[n] for n in k.routine.operands], nest, k.dtype, (const(8),))

    def part(at: int) -> Tensor:
        return k.b.reshape(k.b.slice(all_of, (at,), (1,), (1,)), ())

    return part(D1), part(D2), part(X1), k.b.slice(all_of, (FLAG,), (5,), (1,))


class _Rotation:
    """The statements that find a modified rotation in the buffer `out`."""

    def __init__(self, out: Buffer) -> None:
        self.out = out

    def __getitem__(self, at: int) -> Expr:
        return Load(self.out, (const(at),))

    def put(self, at: int, value: Expr | float) -> Stmt:
        return Store(
            self.out, (const(at),), value if isinstance(value, Expr) else const(value, self.out.dtype)
        )

    def nothing(self) -> Stmt:
        """Return the statements for arguments without a rotation."""
        return block(self.put(FLAG, -1.0), *(self.put(n, 0.0) for n in (D1, D2, X1, H11, H21, H12, H22)))

    def found(self, y1: Expr) -> Stmt:
        """Return all statements."""
        p1, p2, q1, q2 = (Var(n, self.out.dtype) for n in ("p1", "p2", "q1", "q2"))
        first = self._first(y1, p1, p2)
        other = If(q2 < 0, self.nothing(), self._second(y1, p1, p2))
        chosen = If(call("abs", q1) > call("abs", q2), first, other)
        whole = block(chosen, self._scaled(D1, (H11, H12), X1), self._scaled(D2, (H21, H22)))
        turned = Let(p1, self[D1] * self[X1], Let(q2, p2 * y1, Let(q1, p1 * self[X1], whole)))
        some = Let(p2, self[D2] * y1, If(eq(p2, const(0, p2.dtype)), self.put(FLAG, -2.0), turned))
        return If(self[D1] < 0, self.nothing(), some)

    def _first(self, y1: Expr, p1: Expr, p2: Expr) -> Stmt:
        u = Var("u", self.out.dtype)
        parts = (self.put(FLAG, 0.0), self.put(D1, self[D1] / u), self.put(D2, self[D2] / u))
        good = block(*parts, self.put(X1, self[X1] * u))
        matrix = (self.put(H21, -y1 / self[X1]), self.put(H12, p2 / p1))
        return block(*matrix, Let(u, 1 - self[H12] * self[H21], If(u > 0, good, self.nothing())))

    def _second(self, y1: Expr, p1: Expr, p2: Expr) -> Stmt:
        u, held = Var("u", self.out.dtype), Var("held", self.out.dtype)
        parts = (self.put(D2, self[D1] / u), self.put(D1, held), self.put(X1, y1 * u))
        matrix = (self.put(FLAG, 1.0), self.put(H11, p1 / p2), self.put(H22, self[X1] / y1))
        return block(*matrix, Let(u, 1 + self[H11] * self[H22], Let(held, self[D2] / u, block(*parts))))

    def _scaled(self, square: int, row: tuple[int, int], length: int | None = None) -> Stmt:
        """Return a loop that scales a squared length until it is moderate, and a row of the matrix with
        it."""
        size = call("abs", self[square])
        scaled = (*row, *(() if length is None else (length,)))
        up = block(self.put(square, self[square] * SCALE**2), *(self.put(n, self[n] / SCALE) for n in scaled))
        down = block(
            self.put(square, self[square] / SCALE**2), *(self.put(n, self[n] * SCALE) for n in scaled)
        )
        whole = If(
            eq(self[FLAG], const(0, self.out.dtype)),
            block(self.put(H11, 1.0), self.put(H22, 1.0), self.put(FLAG, -1.0)),
            If(self[FLAG] > 0, block(self.put(H21, -1.0), self.put(H12, 1.0), self.put(FLAG, -1.0))),
        )
        far = lor(size <= LEAST, size >= LARGEST)
        turn = Var(f"turn{square}")
        once = If(
            land(far, ne(self[square], const(0, self.out.dtype))), block(whole, If(size <= LEAST, up, down))
        )
        return For(turn, const(TURNS), once)
