"""Conventions between machine code, processor, operating system and loader, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from jangin.ir.records import dataclass
from jangin.runtime import relocations
from jangin.runtime.relocations import Relocation, Stub


@dataclass(frozen=True)
class Abi:
    """An Abi describes the conventions that machine code follows on an architecture.

    - `name` is LLVM's name of the ABI, or "" for the triple's default.
    - `elf_machine` is the field e_machine of ELF object files.
    - `pause` is a call of an LLVM intrinsic that tells the processor that a loop waits, or "" for none.
    - `relocations` are the relocations that the loader supports, by number.
    - `stub` is a jump to a function of another library, or None.
    - `flush` is a C function that makes fresh code safe to fetch. Its arguments are the first byte, the byte
      after the last, and flags. `flush` is "" if the processor keeps its instruction fetches coherent itself.
    """

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
"""The ABI of each architecture, by the first part of a triple.

On AArch64, libgcc's function for `flush` cleans the data cache and invalidates the instruction cache line by
line. On RISC-V, libgcc's function does nothing. The C library's function makes the system fence every hart
that runs the process (riscv_flush_icache, system call 259)."""


def abi_of(triple: str) -> Abi:
    """Return the ABI of a triple's architecture. Raises ValueError for an unknown architecture."""
    architecture = triple.split("-")[0]
    if architecture not in ABIS:
        raise ValueError(f"nothing is known of code for {architecture}: known are {', '.join(ABIS)}")
    return ABIS[architecture]
