"""Processors with the rows that do for all and a fused multiply-add: code can be built and saved for them."""

from __future__ import annotations

from jangin.targets.rows import FUSING
from jangin.targets.target import Target

ARM64 = Target("arm64", "aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 16, 32, FUSING)
"""Every 64-bit Arm processor (Armv8-A): NEON, 32 vector registers."""

RISCV64 = Target("rv64gcv", "riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c,+v", 16, 32, FUSING)
"""64-bit RISC-V with the vector extension 1.0, of whose registers 128 bits are used."""
