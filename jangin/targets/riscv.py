"""64-bit RISC-V targets."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import products
from jangin.targets.figures import WinogradFigures
from jangin.targets.processor import Processor
from jangin.targets.rows import DOT1, FUSING, NEAREST, Row
from jangin.targets.target import Target

TRIPLE = "riscv64-unknown-linux-gnu"
_GENERAL = "+m,+a,+f,+d,+c"

RVV: tuple[Row, ...] = (
    replace(NEAREST, needs=("v",), becomes=r"vfcvt\.x\.f\.v", c=""),
    replace(DOT1, needs=("v",), lanes=8, becomes=r"vwmacc\.v"),
    *FUSING,
)
"""The rows of RISC-V's vector extension, with vectors of 128 bits. Rounding alone writes a control register
twice."""

RISCV64 = Target(
    "riscv64", TRIPLE, "generic-rv64", _GENERAL, FUSING, Processor(8, 32, hints=False),
    c_flags=("-march=rv64gc",),
)  # fmt: skip
"""Every 64-bit RISC-V processor that runs Linux (RV64GC): no vectors."""

RISCV64_V = Target(
    "riscv64-v", TRIPLE, "generic-rv64", f"{_GENERAL},+v", RVV,
    Processor(
        16, 32, products=(products.DOT1,), wide_products=True, short_sum=4, offsets=False, elements=32,
        hints=False, winograd=WinogradFigures(lanes=4),
    ),
    c_flags=("-march=rv64gcv",),
)  # fmt: skip
"""RISC-V with the vector extension 1.0, in registers of 128 bits.

Winograd's transforms use 4 lanes. A cache line would be a group of four registers, and there are only eight
such groups, so transforms would spill.
"""
