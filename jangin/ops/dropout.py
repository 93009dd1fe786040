"""Random numbers of training: dropout (Srivastava et al. 2014), and numbers of a distribution.

The same seed, step and node give the same numbers, whatever the machine and the number of threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jangin.ir.dtype import BOOL, F32, I64, U32
from jangin.ir.expr import Buffer, Expr, Load, binary, call, cast, const, select
from jangin.ir.loop import Stmt
from jangin.ir.simplify import simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.counted import Words, drawn, philox
from jangin.ops.values import Tensor

Shape = Sequence[Expr]
WORD = 32
"""Bits of a random word: the generator Philox 4x32 gives words of u32."""
STATE = 3
"""Number of u32 words that determine the random numbers: two of the seed, as Philox 4x32 needs, and the
number of the step."""
WIDTH = 4
"""Number of u32 words in a block of Philox 4x32 (Salmon et al., 2011)."""


def dropout(b: Builder, x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return x with random elements set to 0 and the others times 1 / (1 - p). The second result, a bool
    tensor, tells which elements are kept.

    Each element becomes 0 with probability `p`."""
    kept = chosen(b, x.shape, 1 - p)
    scale = 1 / (1 - p)
    return b.map(lambda k, v: select(k, v * scale, const(0, v.dtype)), kept, x), kept


def chosen(b: Builder, shape: Shape, p: float) -> Tensor:
    """Return a bool tensor of this shape. Each element is true with probability `p`."""
    least = round((1 - p) * 2**WORD)
    if least in (0, 2**WORD):
        return b.expand(b.scalar(not least, BOOL), shape)
    words = _words(b, simplify(product(shape), b.symbols))
    return b.map(lambda w: w >= const(least, U32), b.reshape(words, shape))


def uniform(b: Builder, shape: Shape) -> Tensor:
    """Return numbers of f32 in [0, 1). Each is made of 24 random bits, as many as a float's fraction has."""
    words = _words(b, simplify(product(shape), b.symbols))
    return b.reshape(b.map(_fraction, words), shape)


def normal(b: Builder, shape: Shape) -> Tensor:
    """Return numbers of f32 with mean 0 and standard deviation 1 (Box & Muller 1958)."""
    count = simplify(product(shape), b.symbols)
    words = b.reshape(_words(b, simplify(count * 2, b.symbols)), (count, const(2)))
    first, second = (b.reshape(b.slice(words, [0, n], [count, 1], [1, 1]), shape) for n in range(2))

    def number(v: Expr, w: Expr) -> Expr:
        radius = call("sqrt", call("log", 1.0 - _fraction(v)) * -2.0)
        return radius * call("cos", _fraction(w) * (2 * math.pi))

    return b.map(number, first, second)


def _fraction(word: Expr) -> Expr:
    return cast(F32, binary("shr", word, const(8, U32))) * 2.0**-24


def _words(b: Builder, count: Expr) -> Tensor:
    """Return `count` random u32 words of one axis. The first node that draws adds an input of STATE words to
    the model."""
    if not b.draws:
        b.draws.append(b.input(b.fresh("random"), U32, (const(STATE),)).name)
    node = len(b.draws)
    b.draws.append(b.draws[0])
    blocks = simplify((count + (WIDTH - 1)) // WIDTH, b.symbols)

    def made(given: Sequence[Buffer], i: Expr) -> tuple[list[Stmt], Words]:
        low, high, step = (Load(given[0], (const(n),)) for n in range(STATE))
        place = cast(U32, i), cast(U32, binary("shr", cast(I64, i), const(32)))
        return philox((low, high), (*place, const(node, U32), step))

    words = drawn(b, [b.tensor(b.draws[0])], blocks, WIDTH, made)
    flat = b.reshape(words, [simplify(blocks * WIDTH, b.symbols)])
    return b.slice(flat, [0], [count], [1])
