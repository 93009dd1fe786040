"""What machine code must agree on with processor, operating system and loader, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from jangin.ir.records import dataclass
from jangin.runtime import relocations
from jangin.runtime.relocations import Relocation, Stub


@dataclass(frozen=True)
class Abi:
    """`name`: what LLVM calls it, "" for the triple's own; `elf_machine`: e_machine of object files;
    `pause`: an LLVM intrinsic that tells the processor that a loop
    waits, with its arguments, "" for none; `relocations`: those that the loader knows, by number; `stub`: a
    jump to a function of another library; `flush`: the C function of (first byte, byte after the last,
    flags) after which fresh code can be fetched, "" where the processor sees to it."""

    elf_machine: int
    name: str = ""
    pause: str = ""
    pointer_bytes: int = 8
    little_endian: bool = True
    relocations: Mapping[int, Relocation] = field(default_factory=lambda: MappingProxyType({}))
    stub: Stub | None = None
    flush: str = ""


ABIS: Mapping[str, Abi] = {
    "x86_64": Abi(
        62, pause="llvm.x86.sse2.pause()", relocations=relocations.X86_64, stub=relocations.X86_64_STUB,
    ),
    "aarch64": Abi(
        183, pause="llvm.aarch64.hint(i32 1)", relocations=relocations.AARCH64,
        stub=relocations.AARCH64_STUB, flush="__clear_cache",
    ),
    "riscv64": Abi(
        243, "lp64d", relocations=relocations.RISCV64, stub=relocations.RISCV64_STUB,
        flush="__riscv_flush_icache",
    ),
    "wasm32": Abi(0, pointer_bytes=4),
    "armv7": Abi(40, pause="llvm.arm.hint(i32 1)", pointer_bytes=4),
}  # fmt: skip
"""By the first part of a triple. On AArch64 libgcc's function
cleans the data cache and invalidates the instruction cache line by line; on RISC-V libgcc's does nothing, and
the C library's makes the system fence every hart that runs the process (riscv_flush_icache, system call
259)."""


def abi_of(triple: str) -> Abi:
    """Of a triple's architecture. Raises ValueError where that isn't known."""
    architecture = triple.split("-")[0]
    if architecture not in ABIS:
        raise ValueError(f"nothing is known of code for {architecture}: known are {', '.join(ABIS)}")
    return ABIS[architecture]
