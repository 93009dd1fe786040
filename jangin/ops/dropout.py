"""Dropout: elements that are 0 at random in training (Srivastava et al. 2014)."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.dtype import I64, U32
from jangin.ir.expr import Buffer, Expr, Load, binary, cast, const, select
from jangin.ir.loop import Stmt
from jangin.ir.simplify import simplify
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.counted import Words, drawn, philox
from jangin.ops.values import Tensor

STATE = 3
"""Number of u32 words that determine the random numbers: two of the seed, and the number of the step."""
WIDTH = 4
"""Number of u32 words in a block of Philox."""


def dropout(b: Builder, x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return x with random elements set to 0 and the others times 1 / (1 - p). The second result, a bool
    tensor, tells which elements are kept.

    Each element becomes 0 with probability `p`. The same seed, step and node give the same elements, whatever
    the machine and the number of threads.
    """
    words = _words(b, simplify(product(x.shape), b.symbols))
    kept = b.map(lambda w: w >= const(round(p * 2**32), U32), b.reshape(words, x.shape))
    scale = 1 / (1 - p)
    return b.map(lambda k, v: select(k, v * scale, const(0, v.dtype)), kept, x), kept


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
