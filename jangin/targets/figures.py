"""The figures of a machine that decide whether graph passes pay on it.

A wrong figure costs speed, never correctness. The defaults were measured on x86-64 server cores.
"""

from __future__ import annotations

from jangin.ir.records import dataclass


@dataclass(frozen=True)
class WinogradFigures:
    """Figures for `passes.windows.winograd`. The unit of time is that of one multiply-add of the product.

    - `gain`: the estimated time must be below this share of the plain convolution's.
    - `tile_rows`: rows of the product's register tile. Part of the tile is idle unless the number of tiles is
      a multiple.
    - `transform`: time to make, store and read one element of V or M. 8 elements take some 2 vector
      operations, and 16 bytes a cycle go to and from L2, while 16 multiply-adds are done a cycle.
    - `stream`: time to read one weight from the L3 cache or memory, at 5 bytes a cycle.
    - `far`: bytes of V and M that stay in the L3 cache. Beyond them an element takes twice as long.
    - `near`: bytes of V and M of a block of tiles, which stay in the L2 cache.
    - `lanes`: channels of the transforms' vector loops, a cache line, so that no line is written in pieces.
    - `launch`: time of a launch beside its work. Three kernels take two more than one.
    - `changing`: `transform`, if the weights change from run to run and each kernel is over all tiles. It was
      46 to 60 on AVX-512, with 16 to 128 channels and batches of 4 to 32. The points of a tile often lie at
      distances that share a set of the L1 cache.
    - `nearby`: `changing` within blocks of tiles, where it was 20. The transformed weights lie between.
    """

    gain: float = 0.85
    tile_rows: int = 4
    transform: int = 12
    stream: int = 12
    far: int = 8 << 20
    near: int = 384 << 10
    lanes: int = 16
    launch: int = 0
    changing: int = 12
    nearby: int = 12


@dataclass(frozen=True)
class FusionFigures:
    """Figures for the passes `layout`, `fuse`, `attention` and `separable`.

    - `few_channels`: a convolution of fewer input channels reads its input in planes (NCHW). A transposing
      copy would cost more than it saves.
    - `heads`: attention with fewer heads isn't fused, because each head is one thread's task.
    - `queries`: attention with fewer rows isn't fused, because its scores are little memory traffic.
    - `head`: most elements of a head that is fused, which must be a known number. 0 allows any.
    - `pointwise`: fewest and most output channels of a separable convolution's pointwise part. With fewer,
      the depthwise part is nearly all of the work, and slower in parts. With more, no gain could be measured.
    - `image_rows`: a separable convolution with fewer rows isn't fused: tasks would be too few or too small.
    - `byte_weights`: weights of int8 models are stored as bytes if products read them as int16 or f32.
    - `prepares`: launches that read constants alone run once, when the program gets its weights.
    - `small_values`: memory is scarce. A value is kept small if its reader can widen it, and bytes are padded
      as words of four. Kernels write over what they have read.
    """

    few_channels: int = 8
    heads: int = 4
    queries: int = 8
    head: int = 0
    pointwise: tuple[int, int] = (24, 64)
    image_rows: int = 28
    byte_weights: bool = False
    prepares: bool = False
    small_values: bool = False


@dataclass(frozen=True)
class RecurrenceFigures:
    """Figures for `ops.recurrent`: the register tile of a step.

    - `accumulators`: fewer than 8 would make multiply-adds wait for each other. AVX2 has 16 registers, and
      the weights and the state need the others.
    - `vector_bytes`: most bytes of an accumulator. Whole vectors of AVX-512 made steps 2 % slower, because
      there are fewer blocks.
    - `rows`: most rows of the batch. More would save few loads of weights.
    - `words`: accumulators for words of bytes, in whole vectors, of 32 registers. With 24 on AVX-512, steps
      of a batch of 16 took 1.2 times as long.
    """

    accumulators: int = 12
    vector_bytes: int = 32
    rows: int = 6
    words: int = 16
