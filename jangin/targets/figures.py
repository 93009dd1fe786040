"""What graph passes need to know of a machine to tell what pays on it.

A wrong figure costs speed, never correctness. The defaults were measured on x86-64 server cores.
"""

from __future__ import annotations

from jangin.ir.records import dataclass


@dataclass(frozen=True)
class WinogradFigures:
    """For `passes.winograd`, whose unit of time is that of one multiply-add of the product.

    `gain`: the estimated time must be below this share of the plain convolution's. `tile_rows`: rows of the
    product's register tile; fewer tiles than a multiple of it leave part of it idle. `transform`: the time
    in which one element of V or M is made, stored and read again (some 2 vector operations for 8 elements,
    and 8 bytes at 16 a cycle from and to L2, where 16 multiply-adds are done a cycle). `stream`: the time in
    which one weight comes from the L3 cache or from memory (5 bytes a cycle). `far`: bytes of V and M
    together that stay in the L3 cache; where they are more, an element takes twice as long. `near`: bytes
    of V and M of a block of tiles that stay in the L2 cache. `lanes`: channels of the transforms' vector
    loops, a cache line, so that no line is written in pieces."""

    gain: float = 0.85
    tile_rows: int = 4
    transform: int = 12
    stream: int = 12
    far: int = 8 << 20
    near: int = 384 << 10
    lanes: int = 16


@dataclass(frozen=True)
class FusionFigures:
    """For `passes.layout`, `fuse`, `attention` and `separable`.

    `few_channels`: a convolution of fewer input channels reads them where they are, each in its plane, as a
    transposing copy would cost more than it saves. `heads`: fewer attention heads can't keep several threads
    busy, as each is one thread's. `queries`: for fewer rows attention's scores are no traffic to speak of.
    `head`: tiles of heads have room that have no more elements, a known number; 0 for any.
    `pointwise`: the fewest and the most channels that the pointwise part of a separable convolution may
    make; of fewer the window is nearly all of the work, and slower in parts, and of more the time saved is
    lost in the measurement's noise. `image_rows`: fewer rows of an image are too few tasks, or tasks of too
    few pixels, for a separable convolution."""

    few_channels: int = 8
    heads: int = 4
    queries: int = 8
    head: int = 0
    pointwise: tuple[int, int] = (24, 64)
    image_rows: int = 28


@dataclass(frozen=True)
class RecurrenceFigures:
    """For `ops.recurrent`: the tile that a step accumulates in registers.

    `accumulators`: with fewer than 8, multiply-adds would wait for each other, and of AVX2's 16 registers the
    others are for the weights and the state. `vector_bytes`: of an accumulator at most; with whole vectors of
    AVX-512, steps took 2 % longer, as their blocks are fewer. `rows`: of the batch at most; more would save
    few loads of weights. `words`: accumulators of words of bytes, whole vectors, of 32 registers: with 24, of
    AVX-512, steps of a batch of 16 took 1.2 times as long."""

    accumulators: int = 12
    vector_bytes: int = 32
    rows: int = 6
    words: int = 16
