"""Random numbers like NumPy's `RandomState`: MT19937 (Matsumoto & Nishimura 1998), two draws a double.

Every run restarts the generator, so one seed always gives the same numbers. Without a seed, the node's name
is the seed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from jangin.ir.dtype import F64, U32
from jangin.ir.expr import Buffer, Expr, Load, Var, call, cast, const, eq, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import Shape
from jangin.ir.loop import Alloc, For, If, Store, block
from jangin.ops.axes import ceil_div, product
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

WORDS = 624
"""Words of the generator's state (n of MT19937, Matsumoto & Nishimura 1998)."""
MIDDLE = 397
"""The distance between a word of the state and the later word that it is mixed with (m of MT19937, Matsumoto
& Nishimura 1998)."""


def _word(value: int) -> Expr:
    return const(value, U32)


def _right(x: Expr, bits: int) -> Expr:
    return operation("shr", x, bits)


def _tempered(x: Expr) -> Expr:
    x = operation("xor", x, _right(x, 11))
    for bits, mask in ((7, 0x9D2C5680), (15, 0xEFC60000)):
        x = operation("xor", x, operation("and", operation("shl", x, bits), mask))
    return operation("xor", x, _right(x, 18))


def uniform(b: Builder, shape: Shape, seed: float | None) -> Tensor:
    """Return f64 numbers in [0, 1), of this shape."""
    start = zlib.crc32(str(b.source).encode()) if seed is None else int(seed)
    count = product(shape)
    state, out = Buffer("state", U32, (const(WORDS),), "scratch"), Buffer("out", F64, (count,))
    i, k, turn, pair = Var("i"), Var("k"), Var("turn"), Var("pair")

    def word(at: Expr) -> Expr:
        return Load(state, (at,))

    before = word(i)
    grown = operation("xor", before, _right(before, 30)) * _word(1812433253) + cast(U32, i + 1)
    seeded = block(
        Store(state, (const(0),), _word(start)),
        For(i, const(WORDS - 1), Store(state, (i + 1,), grown)),
    )
    joined = operation(
        "or", operation("and", word(k), 1 << 31), operation("and", word((k + 1) % WORDS), (1 << 31) - 1)
    )
    odd = eq(operation("and", joined, 1), _word(1))
    mixed = operation("xor", _right(joined, 1), select(odd, _word(0x9908B0DF), _word(0)))
    twist = For(k, const(WORDS), Store(state, (k,), operation("xor", word((k + MIDDLE) % WORDS), mixed)))
    high, low = (cast(F64, _right(_tempered(word(pair * 2 + n)), bits)) for n, bits in ((0, 5), (1, 6)))
    place = turn * (WORDS // 2) + pair
    drawn = Store(out, (place,), (high * float(1 << 26) + low) / float(1 << 53))
    draw = For(pair, const(WORDS // 2), If(place < count, drawn))
    body = Alloc(state, block(seeded, For(turn, ceil_div(count, WORDS // 2), block(twist, draw))))
    flat = b.loop_nest((), body, F64, (count,))
    return b.reshape(flat, shape)


def normal(b: Builder, shape: Shape, seed: float | None) -> Tensor:
    """Return f64 numbers of mean 0 and standard deviation 1 (Box & Muller 1958)."""
    pairs = uniform(b, (const(2), *shape), seed)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        radius = call("sqrt", call("log", 1.0 - bufs[0][(0, *index)]) * -2.0)
        return radius * call("cos", bufs[0][(1, *index)] * (2 * math.pi))

    return b.compute(F64, shape, [pairs], at)
