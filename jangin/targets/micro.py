"""Arm microcontrollers with single-precision floats. Jangin writes C for them, for their own compilers."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import products
from jangin.targets.processor import Processor
from jangin.targets.rows import DOT2, FUSING, Row
from jangin.targets.target import Target

TRIPLE = "thumbv7em-none-eabihf"
_COMPILER = "arm-none-eabi-gcc"
_FLAGS = ("-mthumb", "-mfloat-abi=hard")
GENERAL = 9
"""General registers for sums and operands. C compilers allot 14, of which addresses and a counter take five.
With 10, tiles of 2 by 3 spill: 2.5 instructions a product instead of 1.0 to 1.6."""

DSP: tuple[Row, ...] = (
    replace(
        DOT2, llvm="call {T} @llvm.arm.smlad({T} %x, {T} %y, {T} %z)", c="__smlad(x, y, z)", lanes=1,
        becomes=r"smlad\s", between=0, registers=GENERAL,
    ),
    *FUSING,
)  # fmt: skip
"""The rows of the DSP extension. SMLAD multiplies two pairs of int16 in general registers and adds both
products to a sum, in one cycle."""

CORTEX_M4 = Target(
    "cortex-m4", TRIPLE, "cortex-m4", "+vfp4d16sp", DSP,
    Processor(
        4, 32, index_bits=32, l1=16 << 10, l2=64 << 10, l3=128 << 10, multiply_adds=1, latency=3, loads=1,
        products=(products.DOT2,),
    ),
    outputs=("c",), c_compiler=_COMPILER,
    c_flags=("-mcpu=cortex-m4", *_FLAGS, "-mfpu=fpv4-sp-d16"),
)  # fmt: skip
"""Armv7E-M with FPv4-SP: 32 single-precision registers, and a fused multiply-add of three cycles. There is no
cache: the cache figures are a chip's memory."""

CORTEX_M7 = Target(
    "cortex-m7", TRIPLE, "cortex-m7", "+fp-armv8d16sp", DSP,
    Processor(
        4, 32, index_bits=32, l1=16 << 10, l2=64 << 10, l3=256 << 10, multiply_adds=1, latency=3, loads=2,
        products=(products.DOT2,),
    ),
    outputs=("c",), c_compiler=_COMPILER,
    c_flags=("-mcpu=cortex-m7", *_FLAGS, "-mfpu=fpv5-sp-d16"),
)  # fmt: skip
"""Armv7E-M with FPv5, an L1 cache, and two instructions a cycle."""
