"""Programs made only of linked images, run by this machine or by QEMU's user mode."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from jangin.runtime.abi import ABIS
from jangin.runtime.system.processor import architecture

START_AT = 0x20000000
START = {
    "x86_64": "ff150a00000089c7b83c0000000f0590",
    "aarch64": "8900005820013fd6a80b80d2010000d4",
    "riscv64": "9702000083b28201e78002009308d0057300000013000000",
}
"""Code that calls the address after it, and ends the program with the result as its status."""


def program(parts: list[tuple[int, bytes]], machine: int) -> bytes:
    """Return an ELF executable from the bytes at each address. It starts at the last part."""
    page, headers, body = 0x10000, b"", b""
    for base, data in parts:
        at = page + len(body)
        headers += struct.pack("<IIQQQQQQ", 1, 7, at, base, base, len(data), len(data), page)
        body += data.ljust(-(-len(data) // page) * page, b"\0")
    flags = (
        5 if machine == ABIS["riscv64"].elf_machine else 0
    )  # the flags say: compressed instructions, doubles in registers
    fields = (2, machine, 1, parts[-1][0], 64, 0, flags, 64, 56, len(parts), 64, 0, 0)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", *fields)
    return (head + headers).ljust(page, b"\0") + body


def run_program(
    parts: list[tuple[int, bytes]], main: int, machine: str, folder: Path, processor: str = ""
) -> int:
    """Run the function at `main`, and return the lowest 8 bits of its result.

    `parts`: addresses, and the bytes there. `processor`: the one that QEMU emulates, if QEMU is needed. Skips
    the test if QEMU is missing."""
    start = bytes.fromhex(START[machine]) + main.to_bytes(8, "little")
    path = folder / "program"
    path.write_bytes(program([*parts, (START_AT, start)], ABIS[machine].elf_machine))
    path.chmod(0o755)
    command = [str(path)]
    if machine != architecture():
        emulator = shutil.which(f"qemu-{machine}-static")
        if emulator is None:
            pytest.skip(f"there is no qemu-{machine}-static to run the program with")
        command = [emulator, *(["-cpu", processor] if processor else []), *command]
    return subprocess.run(command, timeout=600).returncode
