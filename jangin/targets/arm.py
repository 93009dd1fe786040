"""Arm targets: 64-bit with NEON (Armv8-A), some of its processors, and 32-bit (Armv7-A).

Estimates count instructions. These processors issue two or three a cycle, and a vector's multiply-add is one
of them, so fewer instructions are quicker. Winograd's figures count instructions too: about 4 make, store and
read a vector of V or M.
"""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.products import DOT1B, DOT1H, DOT2B, DOT2BF, DOT4, DOT4BF, DOT4U, DOT8, DOT8U, Product
from jangin.targets.arm_rows import NEON, NEON32
from jangin.targets.figures import FusionFigures, WinogradFigures
from jangin.targets.processor import Processor
from jangin.targets.target import Target

TRIPLE = "aarch64-unknown-linux-gnu"
_NEON = "+neon,+fp-armv8"
_FUSION = FusionFigures(few_channels=0)
_WINOGRAD = WinogradFigures(gain=0.95, transform=4, stream=1, lanes=4)

AARCH64 = Target(
    "aarch64", TRIPLE, "generic", _NEON, NEON,
    Processor(
        16, 32, lane_operands=True, issue=2, hints=False, masks=False, wide_products=True,
        several_loads="llvm.aarch64.neon.ld1x{count}.v4f32.p0", fusion=_FUSION, winograd=_WINOGRAD,
    ),
)  # fmt: skip
"""Every 64-bit Arm processor (Armv8-A): NEON, 32 vector registers."""


def _processor(name: str, more: str = "", products: tuple[Product, ...] = ()) -> Target:
    features, flags = _NEON + more, (f"-mcpu={name}",)
    level = AARCH64.with_figures(products=products)
    return replace(level, name=name, cpu=name, features=features, c_flags=flags)


CORTEX_A53 = _processor("cortex-a53")
# Only for out-of-order processors: for in-order ones LLVM schedules too many loads early.
CORTEX_A72 = _processor("cortex-a72", products=(DOT2B,))
CORTEX_A76 = _processor("cortex-a76", ",+fullfp16,+dotprod", products=(DOT4,))
NEOVERSE_N1 = _processor("neoverse-n1", ",+fullfp16,+dotprod", products=(DOT4,))
NEOVERSE_V1 = _processor(
    "neoverse-v1", ",+fullfp16,+fp16fml,+dotprod,+i8mm,+bf16",
    products=(DOT8U, DOT8, DOT4U, DOT4, DOT1H, DOT4BF, DOT2BF),
)  # fmt: skip

ARMV7 = Target(
    "armv7", "armv7-unknown-linux-gnueabihf", "generic", "+neon,+vfp4,-slowfpvmlx,-vmlx-hazards",
    NEON32,
    Processor(
        16, 16, index_bits=32, lane_operands=True, issue=2, hints=False, masks=False, offsets=False,
        products=(DOT2B,),
        several_loads="llvm.arm.neon.vld1x{count}.v4f32.p0", several=2, winograd=_WINOGRAD,
        fusion=replace(_FUSION, byte_weights=True),
    ),
    c_flags=("-march=armv7-a+neon-vfpv4", "-mfloat-abi=hard"),
    c_figures=(
        ("products", (DOT2B, DOT1B)), ("floats", False), ("several_sums", False), ("lane_operands", False),
    ),
)  # fmt: skip
"""32-bit processors from the Cortex-A7 on: NEON, and the hard-float ABI, which passes floats in registers.
NEON takes subnormal numbers for zero and makes none. It has two multiply-adds, but the fused one takes no
lane. C compilers make NEON of vectors of integers alone, because these are exact."""
CORTEX_A7 = replace(
    ARMV7, name="cortex-a7", cpu="cortex-a7",
    c_flags=("-mcpu=cortex-a7", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
)  # fmt: skip
