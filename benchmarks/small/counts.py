"""Executed instructions of a bare-metal program in QEMU, and the cycles of a Cortex-M4 for them.

The estimate follows the table of Arm's Technical Reference Manual for the Cortex-M4, with memory that never
waits. Most instructions take one cycle, loads two (or one behind another access), taken branches three, and
floating multiply-adds three. It is no measurement of hardware.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
OWN = frozenset(
    [
        "reset",
        "start",
        "enable_floats",
        "main",
        "run_once",
        "painted",
        "refuse",
        "told",
        "said",
        "opened",
        "transferred",
        "debugger",
        "leave",
        "fault",
    ]
)
"""The functions of a firmware's program, which are not the model's."""
_MANY = re.compile(r"(ldm|stm|push|pop|vldm|vstm|vpush|vpop)")
_CONDITIONS = "eq|ne|cs|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|lo|hs"
_BRANCH = re.compile(rf"(b|bl|blx|bx|tbb|tbh)$|(cbz|cbnz|b({_CONDITIONS}))$")
_TAKEN = 2
"""Cycles more of a branch that is taken."""


class Instruction(NamedTuple):
    at: int
    name: str
    operands: str
    function: str


def plugin(folder: Path) -> Path:
    """Compile the plugin that counts."""
    made = folder / "libcount.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(made), str(HERE / "count.c")]
    subprocess.run(command, check=True)
    return made


def instructions(program: Path, disassembler: str) -> list[Instruction]:
    """List a program's instructions."""
    command = [disassembler, "-d", "--no-show-raw-insn", str(program)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found, function = [], ""
    for line in listed.splitlines():
        if head := re.match(r"^[0-9a-f]{8} <(.+)>:$", line):
            function = head[1]
        elif body := re.match(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*)$", line):
            found.append(Instruction(int(body[1], 16), body[2], body[3], function))
    return found


def counted(path: Path) -> dict[int, int]:
    """Read the plugin's file."""
    return {int(at, 16): int(n) for at, n in (line.split() for line in path.read_text().splitlines())}


def of_model(code: Sequence[Instruction], counts: Mapping[int, int]) -> dict[int, int]:
    """Return the counts without those of the example's own functions."""
    return {i.at: counts[i.at] for i in code if i.at in counts and i.function not in OWN}


def cycles(code: Sequence[Instruction], counts: Mapping[int, int]) -> int:
    """Estimate the cycles of a Cortex-M4."""
    total, behind_access = 0, False
    for place, instruction in enumerate(code):
        count = counts.get(instruction.at, 0)
        following = counts.get(code[place + 1].at, 0) if place + 1 < len(code) else 0
        each, access = _each(instruction, behind_access)
        total += each * count
        if (branch := _BRANCH.match(instruction.name.split(".")[0])) is not None:
            total += _TAKEN * (count if branch[1] else max(0, count - following))
        behind_access = access and count > 0
    return total


def _each(instruction: Instruction, behind_access: bool) -> tuple[int, bool]:
    """Return an instruction's cycles, and whether it is an access that shortens the next one."""
    name, operands = instruction.name.split(".")[0], instruction.operands
    if _MANY.match(name):
        return 1 + _registers(operands), False
    for begins, taken in (
        (("ldrd", "strd"), 3), (("sdiv", "udiv"), 7), (("vdiv", "vsqrt"), 14),
        (("vfma", "vfms", "vmla", "vmls", "vfnm", "vnml"), 3),
        (("vldr", "vstr"), 2 + operands.startswith("d")),
    ):  # fmt: skip
        if name.startswith(begins):
            return taken, False
    if name.startswith("ldr"):
        return (1 if behind_access else 2), True
    return 1, name.startswith("str")


def _registers(operands: str) -> int:
    """Count the registers of a list."""
    listed = re.search(r"\{(.*)\}", operands)
    count = 0
    for part in listed[1].split(",") if listed else []:
        ends = [int(re.sub(r"\D", "", end) or 0) for end in part.split("-")]
        count += (ends[-1] - ends[0] + 1) * (2 if part.strip().startswith("d") else 1)
    return count
