"""Counter-based random bits: each block of words is a function of a key and the block's number (Salmon et al.
2011)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.ir.dtype import U32, U64
from jangin.ir.expr import Buffer, Expr, Load, Var, binary, cast, const
from jangin.ir.loop import Alloc, For, Stmt, Store, block
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

Words = tuple[Expr, ...]
Bijection = Callable[[Words, Words], tuple[list[Stmt], Words]]
"""`fn(key, counter)`: statements, and the block's words, from the two key words and the words of the block's
number. Intermediate words lie in `HELD`."""
HELD = Buffer("held", U32, (const(2), const(4)), "register")
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
"""Philox 4x32's multipliers of a round, and what its key grows by in each round (Salmon et al., 2011)."""
PARITY = 0x1BD11BDA
"""Threefry's constant of 32 bits from which the last word of the key is made (SKEIN_KS_PARITY32; Salmon et
al., 2011)."""
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
"""Threefry 2x32's rotations, for even and for odd groups of four rounds (Salmon et al., 2011)."""


def _xor(*words: Expr) -> Expr:
    first, *rest = words
    for word in rest:
        first = binary("xor", first, word)
    return first


def halves(v: Expr) -> Words:
    """Return the two words of a u64, the lower first."""
    return cast(U32, binary("and", v, const(0xFFFFFFFF, U64))), cast(U32, binary("shr", v, const(32, U64)))


def _held(row: int, words: Words) -> tuple[list[Stmt], Words]:
    places = [(const(row), const(n)) for n in range(len(words))]
    stores: list[Stmt] = [Store(HELD, at, word) for at, word in zip(places, words, strict=True)]
    return stores, tuple(Load(HELD, at) for at in places)


def philox(key: Words, counter: Words) -> tuple[list[Stmt], Words]:
    """Return the statements and words of Philox 4x32 with ten rounds (a `Bijection`)."""
    steps, words = _held(0, counter)
    for n in range(10):
        (low, high), (other_low, other_high) = (
            halves(cast(U64, words[2 * i]) * const(m, U64)) for i, m in enumerate(MULTIPLIERS)
        )
        own = [k + const(n * w & 0xFFFFFFFF, U32) for k, w in zip(key, WEYL, strict=True)]
        mixed = _xor(other_high, words[1], own[0]), other_low, _xor(high, words[3], own[1]), low
        more, words = _held((n + 1) % 2, mixed)
        steps += more
    return steps, words


def threefry(key: Words, counter: Words) -> tuple[list[Stmt], Words]:
    """Return the statements and words of Threefry 2x32 with twenty rounds (a `Bijection`)."""
    keys = (*key, _xor(*key, const(PARITY, U32)))
    steps, words = _held(0, tuple(c + k for c, k in zip(counter, key, strict=True)))
    for n, bits in enumerate(bits for i in range(5) for bits in ROTATIONS[i % 2]):
        x, y = words
        turned = binary("or", binary("shl", y, const(bits, U32)), binary("shr", y, const(32 - bits, U32)))
        mixed = x + y, _xor(turned, x + y)
        if n % 4 == 3:
            i = n // 4
            mixed = mixed[0] + keys[(i + 1) % 3], mixed[1] + keys[(i + 2) % 3] + const(i + 1, U32)
        more, words = _held((n + 1) % 2, mixed)
        steps += more
    return steps, words


def drawn(
    b: Builder, inputs: Sequence[Tensor], blocks: Expr, words: int,
    made: Callable[[Sequence[Buffer], Expr], tuple[list[Stmt], Words]],
) -> Tensor:  # fmt: skip
    """Return u32 [blocks, words]: the words that `made` returns for each block's number (i64). `made` may
    read `inputs`."""
    real = [b.materialize(t) for t in inputs]
    buffers = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(real)]
    out, i = Buffer("out", U32, (blocks, const(words))), Var("i")
    steps, numbers = made(buffers, i)
    stores = [Store(out, (i, const(n)), word) for n, word in enumerate(numbers)]
    return b.loop_nest(real, For(i, blocks, Alloc(HELD, block(*steps, *stores))), U32, out.shape)
