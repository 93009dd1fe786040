"""What machine code must agree on with processor, operating system and loader, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Abi:
    """`name`: what LLVM calls it, "" for the triple's own; `elf_machine`: e_machine of object files;
    `futex`: the system call's number; `pause`: an LLVM intrinsic that tells the processor that a loop
    waits, with its arguments, "" for none; `relocations`: those that the loader knows, by number, each
    one of the forms in `runtime.elf`."""

    elf_machine: int
    futex: int
    name: str = ""
    pause: str = ""
    pointer_bytes: int = 8
    little_endian: bool = True
    relocations: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


ABIS: Mapping[str, Abi] = {
    "x86_64": Abi(
        62, 202, pause="llvm.x86.sse2.pause()",
        relocations=MappingProxyType({
            1: "absolute 64", 2: "relative 32", 4: "relative 32", 9: "slot 32", 24: "relative 64",
            41: "slot 32", 42: "slot 32",
        }),
    ),
    "aarch64": Abi(183, 98, pause="llvm.aarch64.hint(i32 1)"),
    "riscv64": Abi(243, 98, "lp64d"),
}  # fmt: skip
"""By the first part of a triple. x86_64: System V ABI, AMD64 supplement, table 4.9 (R_X86_64_64, PC32, PLT32,
GOTPCREL, PC64, GOTPCRELX, REX_GOTPCRELX). System call numbers: Linux's syscall tables."""


def abi_of(triple: str) -> Abi:
    """Of a triple's architecture. Raises ValueError where that isn't known."""
    architecture = triple.split("-")[0]
    if architecture not in ABIS:
        raise ValueError(f"nothing is known of code for {architecture}: known are {', '.join(ABIS)}")
    return ABIS[architecture]
