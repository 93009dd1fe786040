"""Linking for other architectures: the fields that relocations write, and that linked code runs.

Fields are compared with an assembler's. Linked images run as whole programs, on this machine's processor or
under QEMU's user mode (Debian: qemu-user-static).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from programs import run_program

from jangin.backends.llvm.objects import compile_modules
from jangin.runtime.abi import ABIS
from jangin.runtime.device import LoadError
from jangin.runtime.elf import Image, Linker
from jangin.runtime.system.processor import architecture
from jangin.targets import NAMED

TARGETS = {
    "x86_64": NAMED["x86-64-v2"],
    "aarch64": NAMED["aarch64"],
    "riscv64": NAMED["riscv64"],
    "riscv64 with relaxation": replace(NAMED["riscv64"], features=NAMED["riscv64"].features + ",+relax"),
}
NOBITS = 8
"""The kind of an ELF section without bytes in the file."""
NEAR, FAR = 0x10000000, 0x3000000000


ENCODED = {
    "R_AARCH64_CALL26": [(-0x8000000, 0x96000000), (0x7FFFFFC, 0x95FFFFFF), (-0x3B349C4, 0x97132D8F)],
    "R_AARCH64_CONDBR19": [(-0x100000, 0x54800000), (0xFFFFC, 0x547FFFE0), (-0x87408, 0x54BC5FC0)],
    "R_AARCH64_ADR_PREL_LO21": [(-0x100000, 0x10800003), (0xFFFFF, 0x707FFFE3), (-0x2901A, 0x50EB7F23)],
    "R_AARCH64_ADD_ABS_LO12_NC": [(0, 0x91000083), (0xFFF, 0x913FFC83), (0xE8, 0x9103A083)],
    "R_AARCH64_LDST8_ABS_LO12_NC": [(0, 0x39400083), (0xFFF, 0x397FFC83)],
    "R_AARCH64_LDST16_ABS_LO12_NC": [(0, 0x79400083), (0xFFE, 0x795FFC83), (0xC78, 0x7958F083)],
    "R_AARCH64_LDST32_ABS_LO12_NC": [(0, 0xB9400083), (0xFFC, 0xB94FFC83), (0x884, 0xB9488483)],
    "R_AARCH64_LDST64_ABS_LO12_NC": [(0, 0xF9000083), (0xFF8, 0xF907FC83), (0xA28, 0xF9051483)],
    "R_AARCH64_LDST128_ABS_LO12_NC": [(0, 0x3DC00083), (0xFF0, 0x3DC3FC83), (0xB0, 0x3DC02C83)],
    "R_RISCV_BRANCH": [(-0x1000, 0x80B56063), (0xFFE, 0x7EB56FE3), (-0x224, 0xDCB56EE3)],
    "R_RISCV_JAL": [(-0x100000, 0x800000EF), (0xFFFFE, 0x7FFFF0EF), (-0xE2434, 0xBCD1D0EF)],
    "R_RISCV_PCREL_LO12_I": [(-0x800, 0x8007869B), (0x7FF, 0x7FF7869B), (-0x8B, 0xF757869B)],
    "R_RISCV_PCREL_LO12_S": [(-0x800, 0x80D78023), (0x7FF, 0x7ED78FA3), (0x6B5, 0x6AD78AA3)],
    "R_RISCV_RVC_BRANCH": [(-0x100, 0xD281), (0xFE, 0xCEFD), (-0x78, 0xD6C1)],
    "R_RISCV_RVC_JUMP": [(-0x800, 0xB001), (0x7FE, 0xAFFD), (-0x43C, 0xB6D1)],
}
"""Numbers for each relocation, and GNU assembler 2.40's word of an instruction with them.

AArch64's instructions are bl; b.eq; adr x3; add x3, x4; ldrb, ldrh, ldr w3, [x4]; str x3, [x4]; ldr q3, [x4].

RISC-V's instructions are bltu a0, a1; jal ra; addiw a3, a5; sb a3, (a5); c.beqz a3; c.j."""


@pytest.mark.parametrize("name", ENCODED)
def test_fields_are_as_assembled(name: str) -> None:
    known = {r.name: r.field for abi in ABIS.values() for r in abi.relocations.values()}
    where, cases = known[name], ENCODED[name]
    for number, word in cases:
        for _, other in cases:
            assert where.put(other, number) == word
    least, most = cases[0][0], cases[1][0]
    step = 1 << min(bit for bit, _, _ in where.pieces)
    if where.fits:
        for number in (least - step, most + step):
            with pytest.raises(ValueError, match="doesn't fit"):
                where.put(0, number)
    if step > 1:
        with pytest.raises(ValueError, match="is no multiple"):
            where.put(0, step // 2)


@pytest.mark.parametrize("number", [0, 4, 0x7FF, 0x800, 0xFFF, 0x12345678, -0x800, -0x801, -(1 << 31)])
def test_pairs_add_up(number: int) -> None:
    """RISC-V's upper half and its signed lower half add up to the number."""
    known = {r.name: r.field for r in ABIS["riscv64"].relocations.values()}
    upper, lower = known["R_RISCV_PCREL_HI20"].put(0, number), known["R_RISCV_PCREL_LO12_I"].put(0, number)
    both = known["R_RISCV_CALL_PLT"].put(0, number)
    assert both == upper | lower << 32
    high = (upper >> 12) - (1 << 20 if upper >> 31 else 0)
    assert (high << 12) + ((lower >> 20) ^ 0x800) - 0x800 == number


_MAIN = """
@bytes = internal global [3 x i8] c"\\01\\02\\03"
@halves = internal global [3 x i16] [i16 4, i16 5, i16 6]
@words = internal global [3 x i32] [i32 7, i32 8, i32 9]
@doubles = internal global [3 x i64] [i64 10, i64 11, i64 12]
@vector = internal global <2 x i64> <i64 13, i64 14>, align 16
@zeros = internal global [100 x i64] zeroinitializer
@functions = internal constant [3 x ptr] [ptr @one, ptr @near, ptr @far]
@shared = external global i64
declare i64 @near(i64)
declare i64 @far(i64)
define internal i64 @one(i64 %x) noinline {
  ret i64 1
}
define i64 @chosen(i64 %x) noinline {
  switch i64 %x, label %other [
    i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a:
  %ra = tail call i64 @near(i64 %x)
  ret i64 %ra
b:
  %rb = call i64 @far(i64 %x)
  %rb1 = mul i64 %rb, 3
  ret i64 %rb1
c:
  %rc = load i64, ptr @shared
  ret i64 %rc
d:
  store i64 %x, ptr @shared
  ret i64 0
e:
  %f.at = getelementptr [3 x ptr], ptr @functions, i64 0, i64 2
  %f = load volatile ptr, ptr %f.at
  %re = call i64 %f(i64 %x)
  ret i64 %re
other:
  ret i64 200
}
define i64 @main() {
  %b.at = getelementptr [3 x i8], ptr @bytes, i64 0, i64 2
  %b = load volatile i8, ptr %b.at
  store volatile i8 %b, ptr @bytes
  %h.at = getelementptr [3 x i16], ptr @halves, i64 0, i64 2
  %h = load volatile i16, ptr %h.at
  %w = load volatile i32, ptr @words
  %d = load volatile i64, ptr @doubles
  store volatile i64 %d, ptr getelementptr ([100 x i64], ptr @zeros, i64 0, i64 99)
  %z = load volatile i64, ptr getelementptr ([100 x i64], ptr @zeros, i64 0, i64 99)
  %v = load volatile <2 x i64>, ptr @vector
  %v1 = extractelement <2 x i64> %v, i64 1
  %be = zext i8 %b to i64
  %he = zext i16 %h to i64
  %we = zext i32 %w to i64
  %c0 = call i64 @chosen(i64 0)
  %c1 = call i64 @chosen(i64 1)
  %c2 = call i64 @chosen(i64 2)
  %c3 = call i64 @chosen(i64 3)
  %c4 = call i64 @chosen(i64 4)
  %c5 = call i64 @chosen(i64 2)
  %s0 = add i64 %be, %he
  %s1 = add i64 %s0, %we
  %s2 = add i64 %s1, %z
  %s3 = add i64 %s2, %v1
  %s4 = add i64 %s3, %c0
  %s5 = add i64 %s4, %c1
  %s6 = add i64 %s5, %c2
  %s7 = add i64 %s6, %c3
  %s8 = add i64 %s7, %c4
  %r = add i64 %s8, %c5
  ret i64 %r
}
"""
_NEAR = """
@shared = global i64 20
define i64 @near(i64 %x) {
  %r = add i64 %x, 15
  ret i64 %r
}
"""
_FAR = "define i64 @far(i64 %x) {\n  %r = add i64 %x, 16\n  ret i64 %r\n}"
SUM = 3 + 6 + 7 + 10 + 14 + 15 + 17 * 3 + 20 + 0 + 20 + 3
OCCUR = {
    "x86_64": "X86_64 64 PLT32 REX_GOTPCRELX PC32",
    "aarch64": "AARCH64 ABS64 CALL26 JUMP26 ADR_GOT_PAGE LD64_GOT_LO12_NC ADR_PREL_PG_HI21 ADD_ABS_LO12_NC "
    "LDST32_ABS_LO12_NC LDST64_ABS_LO12_NC LDST128_ABS_LO12_NC",
    "riscv64": "RISCV 64 CALL_PLT GOT_HI20 PCREL_HI20 PCREL_LO12_I PCREL_LO12_S ADD32 SUB32",
    "riscv64 with relaxation": "RISCV RELAX CALL_PLT BRANCH",
}
"""Relocations that each machine's code must have."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TARGETS)
def test_linked_code_runs(name: str, tmp_path: Path) -> None:
    """The code has data of all widths, calls near and beyond a branch's reach, and jump and pointer
    tables."""
    machine, target = name.split()[0], TARGETS[name]
    near = Linker([compile_modules([("a", t)], target) for t in (_MAIN, _NEAR)], machine)
    away = Linker([compile_modules([("a", _FAR)], target)], machine)
    kinds = [r[1] for o in near._objects for s in o.sections.values() for r in s.relocations]
    names = {ABIS[machine].relocations[kind].name for kind in kinds}
    assert {f"R_{OCCUR[name].split()[0]}_{n}" for n in OCCUR[name].split()[1:]} <= names
    images = [bytearray(near.bytes), bytearray(away.bytes)]
    there = away.link(images[1], FAR, lambda _: pytest.fail("nothing is missing"))
    main = near.link(images[0], NEAR, there.__getitem__)["main"]
    parts = [(NEAR, bytes(images[0])), (FAR, bytes(images[1]))]
    assert run_program(parts, main, machine, tmp_path) == SUM


def linked_with(relocation: tuple[int, int, int], machine: str) -> None:
    """Link the code of `near` with one more relocation of its symbol: offset, type, addend."""
    linker = Linker([compile_modules([("a", _NEAR)], TARGETS[machine])], machine)
    made = linker._objects[0]
    offset, kind, addend = relocation
    index = next(i for i, s in enumerate(made.symbols) if s[0] == "near")
    code = next(s for s in made.sections.values() if s.name == ".text")
    code.relocations.append((offset, kind, index, addend))
    linker.link(bytearray(linker.bytes), NEAR, lambda _: 0)


def test_relocations_that_cannot_be_made_are_named() -> None:
    with pytest.raises(LoadError, match="relocation type 999 of 'near' is unknown on aarch64"):
        linked_with((0, 999, 0), "aarch64")
    with pytest.raises(LoadError, match=r"R_X86_64_PC32 of 'near' can't be made: .* doesn't fit 32 bits"):
        linked_with((0, 2, 1 << 40), "x86_64")
    with pytest.raises(LoadError, match="R_AARCH64_CALL26 of 'near' can't be made: 0x2 is no multiple of 4"):
        linked_with((0, 283, 2), "aarch64")
    with pytest.raises(LoadError, match="damaged: no upper half at 'near'"):
        linked_with((0, 24, 0), "riscv64")
    with pytest.raises(LoadError, match="damaged"):
        linked_with((1 << 40, 257, 0), "aarch64")


@pytest.mark.parametrize("field, number", [(32, 1 << 63), (32, 1 << 62), (48, 1 << 63), (48, 1 << 40)])
def test_sections_that_fit_no_memory_are_refused(field: int, number: int) -> None:
    """Sections without bytes in the file, but with a huge size, and alignments beyond a page are refused."""
    source = "@zeros = internal global [64 x i8] zeroinitializer\ndefine ptr @at() { ret ptr @zeros }"
    code = bytearray(compile_modules([("a", source)], TARGETS[architecture()]))
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    for header in range(start, start + size * count, size):
        if struct.unpack_from("<I", code, header + 4)[0] == NOBITS:
            struct.pack_into("<Q", code, header + field, number)
    with pytest.raises(LoadError, match=r"there is no memory|asks for places"):
        Image([bytes(code)])
