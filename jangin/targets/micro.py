"""Microcontrollers of Arm and RISC-V: C alone is made for them, which their own compilers take."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import products
from jangin.ir.dtype import I8, I16, U8, U16, DType
from jangin.targets.figures import FusionFigures
from jangin.targets.helium_rows import HELIUM
from jangin.targets.processor import Processor
from jangin.targets.rows import DOT2, EVEN_BYTES, FUSING, NEAREST, ODD_BYTES, PORTABLE, TOWARD_ZERO, Row
from jangin.targets.target import Target

TRIPLE = "thumbv7em-none-eabihf"
_COMPILER = "arm-none-eabi-gcc"
_FLAGS = ("-mthumb", "-mfloat-abi=hard")
_RISCV_COMPILER = "riscv64-unknown-elf-gcc"
PACKED = 11
"""General registers for sums and operands of packed rows, which take one address as the panel does."""
GENERAL = 9
"""General registers for sums and operands. C compilers allot 14, of which addresses and a counter take five.
With 10, tiles of 2 by 3 spill: 2.5 instructions a product instead of 1.0 to 1.6."""
VECTORS = 8
"""Vector registers of Helium (Armv8-M Architecture Reference Manual, MVE)."""


def _clamped(dtype: DType) -> Row:
    """Return the row that clamps a number of 32 bits to a smaller type by SSAT or USAT."""
    (low, high), sign = dtype.limits, "s" if dtype.kind == "i" else "u"
    return Row(
        "clamped", (dtype,), "x: i32[N]", "T", f"r[i] = T(min(max(x[i], i32({low})), i32({high})))",
        c=f"__{sign}sat(x, {dtype.bits})", lanes=1,
    )  # fmt: skip


DSP: tuple[Row, ...] = (
    replace(EVEN_BYTES, llvm="", c="__sxtb16(x)", lanes=1, registers=PACKED),
    replace(
        ODD_BYTES, llvm="", lanes=1,
        c='({{ i32 odd; __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(x)); odd; }})',
    ),
    replace(
        DOT2, llvm="call {T} @llvm.arm.smlad({T} %x, {T} %y, {T} %z)", c="__smlad(x, y, z)", lanes=1,
        becomes=r"smlad\s", between=0, registers=GENERAL,
    ),
    *(
        replace(
            row, llvm="", becomes="", lanes=1,
            c=f'({{{{ f32 whole; __asm__("{name}.s32.f32 %0, %1" : "=t"(whole) : "t"(x)); '
            "AS(i32, whole); }})",
        )
        for row, name in ((NEAREST, "vcvtr"), (TOWARD_ZERO, "vcvt"))
    ),
    *(_clamped(dtype) for dtype in (I8, U8, I16, U16)),
    *FUSING,
)  # fmt: skip
"""The rows of the DSP extension. SMLAD multiplies two pairs of int16 in general registers and adds both
products to a sum, in one cycle."""

SCARCE = FusionFigures(small_values=True)
"""RAM is what microcontrollers have the least of."""
SINGLE = Processor(
    4, 32, index_bits=32, l1=16 << 10, l2=64 << 10, l3=128 << 10, multiply_adds=1, latency=3, loads=1,
    hints=False, fusion=SCARCE, products=(products.DOT4, products.DOT2, products.DOT1B),
)  # fmt: skip
"""One instruction a cycle, 32 single floats, a fused multiply-add of three cycles, no cache: the levels are
what a chip has of memory."""
PLAIN = replace(
    SINGLE,
    registers=GENERAL,
    l2=32 << 10,
    l3=64 << 10,
    floats=False,
    atomics=False,
    products=(products.DOT1B,),
)
"""Without an FPU and without products of pairs."""

CORTEX_M4 = Target(
    "cortex-m4", TRIPLE, "cortex-m4", "+vfp4d16sp", DSP, SINGLE, outputs=("c",), c_compiler=_COMPILER,
    c_flags=("-mcpu=cortex-m4", *_FLAGS, "-mfpu=fpv4-sp-d16"),
)  # fmt: skip
"""Armv7E-M with FPv4-SP."""

CORTEX_M7 = Target(
    "cortex-m7", TRIPLE, "cortex-m7", "+fp-armv8d16sp", DSP, replace(SINGLE, l3=256 << 10, loads=2),
    outputs=("c",), c_compiler=_COMPILER, c_flags=("-mcpu=cortex-m7", *_FLAGS, "-mfpu=fpv5-sp-d16"),
)  # fmt: skip
"""Armv7E-M with FPv5 and an L1 cache, two instructions a cycle."""

CORTEX_M33 = Target(
    "cortex-m33", "thumbv8m.main-none-eabihf", "cortex-m33", "+dsp,+fp-armv8d16sp", DSP, SINGLE,
    outputs=("c",), c_compiler=_COMPILER, c_flags=("-mcpu=cortex-m33", *_FLAGS, "-mfpu=fpv5-sp-d16"),
)  # fmt: skip
"""Armv8-M Mainline with the DSP extension and FPv5."""

CORTEX_M55 = Target(
    "cortex-m55", "thumbv8.1m.main-none-eabihf", "cortex-m55", "+mve.fp,+fp-armv8d16sp", (*HELIUM, *DSP),
    replace(SINGLE, vector_bytes=16, registers=VECTORS, widest=4, compares=False, half_vectors=False,
        masks=False, l3=256 << 10, products=(products.DOT1B,)),
    outputs=("c",), c_compiler=_COMPILER, c_flags=("-mcpu=cortex-m55", *_FLAGS, "-mslow-flash-data"),
)  # fmt: skip
"""Armv8.1-M with Helium (MVE): vectors of 16 bytes for integers and f32. GCC 12 loads a vector constant
beside the code by two instructions, of which it counts one. Branches over them may be too short then, so the
flag puts constants elsewhere."""

CORTEX_M0PLUS = Target(
    "cortex-m0plus", "thumbv6m-none-eabi", "cortex-m0plus", "", PORTABLE, PLAIN, outputs=("c",),
    c_compiler=_COMPILER, c_flags=("-mcpu=cortex-m0plus", "-mthumb"),
)  # fmt: skip
"""Armv6-M. Floats are functions of the compiler's library, and so are 64-bit products."""

RISCV32IMC = Target(
    "riscv32imc", "riscv32-unknown-none-elf", "generic-rv32", "+m,+c", PORTABLE, replace(PLAIN, registers=20),
    outputs=("c",), c_compiler=_RISCV_COMPILER, c_flags=("-march=rv32imc", "-mabi=ilp32"),
    c_library=("-specs=picolibc.specs",),
)  # fmt: skip
"""RV32IMC, as in the ESP32-C3: 32 general registers, no FPU."""

RISCV32GC = replace(
    RISCV32IMC, name="riscv32gc", features="+m,+a,+f,+d,+c", rows=FUSING,
    machine=replace(PLAIN, registers=20, floats=True), c_flags=("-march=rv32gc", "-mabi=ilp32d"),
)  # fmt: skip
"""RV32GC: an FPU for floats of 32 and 64 bits."""
