"""Lower random numbers by TensorFlow's generator, Philox. They are equal to LiteRT's.

The generator continues from run to run. If both seeds are 0, LiteRT uses other seeds in each process. Here
the seed is then computed from the operator's name."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.ir.core import Reshape
from jangin.ir.dtype import F32, F64, I64, U32, U64
from jangin.ir.expr import Buffer, Expr, binary, cast, const, maximum, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import CompileError
from jangin.ir.loop import Stmt
from jangin.ops.axes import ceil_div, product
from jangin.ops.counted import Words, drawn, halves, philox, threefry
from jangin.ops.elementwise import bitcast
from jangin.ops.scan import cumulate
from jangin.ops.values import Tensor

WORDS = 4
"""The number of 32-bit words in a block of Philox 4x32 (Salmon et al., 2011)."""
DEFAULT, PHILOX, THREEFRY = range(3)


def _blocks(call: Call, count: Expr, before: Tensor) -> Tensor:
    """Return `count` blocks of the operator's generator, u32 [blocks, 4], that follow the first `before`
    blocks. Seeds are reduced to signed 32-bit integers, as in LiteRT."""
    b = call.b
    seeds = [(int(call.options[n]) + (1 << 31)) % (1 << 32) - (1 << 31) for n in ("seed", "seed2")]
    if not any(seeds):
        seeds[0] = zlib.crc32(str(b.source).encode())
    key, high = (halves(const(s % (1 << 64), U64)) for s in seeds)

    def made(bufs: Sequence[Buffer], i: Expr) -> tuple[list[Stmt], Words]:
        return philox(key, (*halves(cast(U64, bufs[0][()] + i)), *high))

    return drawn(b, [b.reshape(before, [])], count, WORDS, made)


def _part(v: Expr) -> Expr:
    """Return a float in [0, 1) that is made from 23 bits of a word."""
    return cast(F32, binary("and", v, const((1 << 23) - 1, U32))) * 2.0**-23


@lowers("RANDOM_UNIFORM")
def uniform(call: Call) -> tuple[Tensor, Tensor]:
    """Return random numbers in [0, 1), and the number of blocks drawn so far. The inputs are the sizes and
    the number of blocks drawn before."""
    return _numbers(call, False)


@lowers("RANDOM_STANDARD_NORMAL")
def normal(call: Call) -> tuple[Tensor, Tensor]:
    """Return random numbers with mean 0 and standard deviation 1 (Box & Muller 1958), and the number of
    blocks drawn so far. The inputs are those of `uniform`."""
    return _numbers(call, True)


def _numbers(call: Call, normal: bool) -> tuple[Tensor, Tensor]:
    b, shape, before = call.b, call.sizes(0), call.x(1)
    if call.out.dtype is not F32:
        raise CompileError(f"random numbers of {call.out.dtype} are not supported")
    total = product(shape)
    count = ceil_div(total, WORDS)
    words = _blocks(call, count, before)

    def pair(bufs: Sequence[Buffer], i: Expr, k: Expr) -> Expr:
        first, second = (_part(bufs[0][i, k // 2 * 2 + n]) for n in (0, 1))
        angle = cast(F32, cast(F64, second) * (2 * math.pi))
        radius = intrinsic("sqrt", intrinsic("log", maximum(first, 1e-7)) * -2.0)
        return radius * select(k % 2 < 1, intrinsic("sin", angle), intrinsic("cos", angle))

    numbers = b.compute(F32, words.shape, [words], pair) if normal else b.map(_part, words)
    flat = b.slice(b.reshape(numbers, [count * WORDS]), [0], [total], [1])
    return b.reshape(flat, shape), b.map(lambda v: v + count, before)


@lowers("MULTINOMIAL")
def multinomial(call: Call) -> tuple[Tensor, Tensor]:
    """Return classes [rows, draws], and the number of blocks drawn so far.

    The inputs are logarithms of odds [rows, classes], the number of draws for each row, and the number of
    blocks drawn before."""
    b, logits, (draws,), before = call.b, call.x(), call.sizes(1), call.x(2)
    rows, classes = logits.shape
    finite = b.map(lambda v: intrinsic("abs", v) < math.inf, logits)
    none = const(-math.inf, F32)
    known = b.map(lambda v, f: select(f, v, none), logits, finite)
    odds = b.map(
        lambda v, m: intrinsic("exp", cast(F64, v) - cast(F64, m)), known, b.reduce("max", known, [1], True)
    )
    sums = cumulate(b, odds, "sum", axis=1, exclusive=False, reverse=False)
    total = rows * draws
    words = b.reshape(_blocks(call, ceil_div(total * 2, WORDS), before), [ceil_div(total * 2, WORDS) * 2, 2])

    def part(bufs: Sequence[Buffer], i: Expr, j: Expr, _: Expr) -> Expr:
        high, low = (bufs[0][i * draws + j, const(n)] for n in (0, 1))
        upper = cast(F64, binary("and", high, const(0xFFFFF, U32)))
        return (upper * 2.0**32 + cast(F64, low)) * 2.0**-52

    drawn_at = b.compute(F64, [rows, draws, const(1)], [words], part)
    last = b.slice(sums, [0, classes - 1], [rows, 1], [1, 1])
    wanted = b.map(lambda v, s: v * s, drawn_at, b.reshape(last, [rows, 1, 1]))
    passed = b.map(lambda s, v: cast(I64, s <= v), b.reshape(sums, [rows, 1, classes]), wanted)
    picks = b.cast(b.reduce("sum", passed, [2]), call.out.dtype or I64)
    counted = rows * (ceil_div(draws, 4) * 4) * 512
    return picks, b.map(lambda v: v + counted, before)


@lowers("STABLEHLO_RNG_BIT_GENERATOR")
def bits(call: Call) -> tuple[Tensor, Tensor]:
    """Return the next state and random bits. A state is u64 [2] or [3]: the key, the number of the block, and
    the upper half of that number."""
    b, state, (_, out) = call.b, call.x(), call.gives
    shape = call.options["shapes"][1]
    wide = out.dtype is not None and out.dtype.bits == 64
    quick = call.options["algorithm"] == THREEFRY
    words = 2 if quick else WORDS
    total = product(shape) * (2 if wide else 1)
    count = ceil_div(total, words)
    upper = 2 if state.shape[0] == const(3) else 0

    def made(bufs: Sequence[Buffer], i: Expr) -> tuple[list[Stmt], Words]:
        key, number = halves(bufs[0][const(0),]), halves(bufs[0][const(1),] + cast(U64, i))
        return threefry(key, number) if quick else philox(key, (*number, *halves(bufs[0][const(upper),])))

    random_bits = b.reshape(drawn(b, [state], count, words, made), [count * words])
    random_bits = b.slice(random_bits, [0], [total], [1])
    assert out.dtype is not None
    if wide:
        random_bits = b.node(
            Reshape((product(shape),), out.dtype), [b.reshape(random_bits, [product(shape), 2])]
        )
    elif out.dtype is not U32:
        random_bits = bitcast(b, random_bits, out.dtype)

    def later(bufs: Sequence[Buffer], i: Expr) -> Expr:
        return bufs[0][i] + select(i >= 1, select(i < 2, cast(U64, count), const(0, U64)), const(0, U64))

    return b.compute(U64, state.shape, [state], later), b.reshape(random_bits, shape)
