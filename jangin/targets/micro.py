"""Microcontrollers of Arm with single floats: C alone is made for them, which their own compilers take."""

from __future__ import annotations

from jangin.targets.rows import FUSING
from jangin.targets.target import Target

TRIPLE = "thumbv7em-none-eabihf"
_COMPILER = "arm-none-eabi-gcc"
_FLAGS = ("-mthumb", "-mfloat-abi=hard")

CORTEX_M4 = Target(
    "cortex-m4", TRIPLE, "cortex-m4", "+vfp4d16sp", 4, 32, FUSING, word_bits=32, l1=16 << 10, l2=64 << 10,
    l3=128 << 10, multiply_adds=1, latency=3, loads=1, outputs=("c",),
    c_compiler=_COMPILER,
    c_flags=("-mcpu=cortex-m4", *_FLAGS, "-mfpu=fpv4-sp-d16"),
)  # fmt: skip
"""Armv7E-M with FPv4-SP: 32 single floats, a fused multiply-add of three cycles, no cache: the levels are
what a chip has of memory."""

CORTEX_M7 = Target(
    "cortex-m7", TRIPLE, "cortex-m7", "+fp-armv8d16sp", 4, 32, FUSING, word_bits=32, l1=16 << 10, l2=64 << 10,
    l3=256 << 10, multiply_adds=1, latency=3, loads=2, outputs=("c",),
    c_compiler=_COMPILER,
    c_flags=("-mcpu=cortex-m7", *_FLAGS, "-mfpu=fpv5-sp-d16"),
)  # fmt: skip
"""Armv7E-M with FPv5 and an L1 cache, two instructions a cycle."""
