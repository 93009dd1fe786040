"""Relocations: numbers in code and data that are known only once the code has an address.

Each has a value, written as in the ABIs' documents. S is the symbol's address, or its stub's for a function
in another library. G is the address of the symbol's slot in the table of addresses. A is the addend, P the
place, V the number at the place, and Page(x) clears the low 12 bits. "HI" is the value of the relocation at
the symbol's place, because RISC-V's second instruction of a pair names the first.

Sources: System V ABI, AMD64 supplement, table 4.9; ELF for the Arm 64-bit architecture, "Relocation"; RISC-V
ELF psABI, "Relocations".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from jangin.ir.records import dataclass
from jangin.once import once


@dataclass(frozen=True)
class Field:
    """Bits of a little-endian word of `size` bytes, which hold a number.

    Each of `pieces` (bit, width, at) puts `width` bits of the number, from `bit` on, at bit `at` of the word.
    `fits` is the number of bits that the signed number may have, or 0 if only its low bits are wanted.
    `carry` is added before bits 12 and above are taken. It compensates for the second instruction of a pair,
    which adds a signed number of 12 bits."""

    size: int
    pieces: tuple[tuple[int, int, int], ...]
    fits: int = 0
    carry: int = 0

    @once
    def _whole(self) -> int:
        """The word's mask if the number fills the word, else 0."""
        return (1 << 8 * self.size) - 1 if self.pieces == ((0, 8 * self.size, 0),) else 0

    def put(self, word: int, number: int) -> int:
        """Return the word with the number in its field. Raises ValueError for a number that the field can't
        hold."""
        rounded = number + self.carry
        if self.fits and not -(1 << self.fits - 1) <= rounded < 1 << self.fits - 1:
            raise ValueError(f"{number:#x} doesn't fit {self.fits} bits")
        if self._whole:
            return number & self._whole
        lowest = min(bit for bit, _, _ in self.pieces)
        if number % (1 << lowest) and not self.carry:
            raise ValueError(f"{number:#x} is no multiple of {1 << lowest}")
        for bit, width, at in self.pieces:
            mask = (1 << width) - 1
            taken = (rounded if bit >= 12 else number) >> bit & mask
            word = word & ~(mask << at) | taken << at
        return word


@dataclass(frozen=True)
class Relocation:
    """`name` is the ABI's name, and `field` the bits that the relocation sets. `value` is the formula that
    the module describes, or "" if nothing is to be done."""

    name: str
    value: str
    field: Field


VALUES: Mapping[str, Callable[[int, int, int, int, int], int]] = {
    "S+A": lambda s, g, a, p, v: s + a,
    "S+A-P": lambda s, g, a, p, v: s + a - p,
    "G+A": lambda s, g, a, p, v: g + a,
    "G+A-P": lambda s, g, a, p, v: g + a - p,
    "Page(S+A)-Page(P)": lambda s, g, a, p, v: (s + a & -4096) - (p & -4096),
    "Page(G+A)-Page(P)": lambda s, g, a, p, v: (g + a & -4096) - (p & -4096),
    "V+S+A": lambda s, g, a, p, v: v + s + a,
    "V-S-A": lambda s, g, a, p, v: v - s - a,
}


@dataclass(frozen=True)
class Stub:
    """Code that jumps to the address in a symbol's slot. `relocations` are (offset, relocation, addend), all
    for this symbol."""

    code: bytes
    relocations: tuple[tuple[int, Relocation, int], ...]


def _plain(size: int) -> Field:
    return Field(size, ((0, 8 * size, 0),), 0 if size == 8 else 8 * size)


def _table(rows: Mapping[int, tuple[str, str, Field]], prefix: str) -> Mapping[int, Relocation]:
    relocations = {
        n: Relocation(f"{prefix}_{name}", value, where) for n, (name, value, where) in rows.items()
    }
    return MappingProxyType(relocations)


_WORD = _plain(4)
_DOUBLE = _plain(8)

X86_64 = _table({
    1: ("64", "S+A", _DOUBLE), 2: ("PC32", "S+A-P", _WORD), 4: ("PLT32", "S+A-P", _WORD),
    9: ("GOTPCREL", "G+A-P", _WORD), 24: ("PC64", "S+A-P", _DOUBLE), 41: ("GOTPCRELX", "G+A-P", _WORD),
    42: ("REX_GOTPCRELX", "G+A-P", _WORD),
}, "R_X86_64")  # fmt: skip

X86_64_STUB = Stub(b"\xff\x25\0\0\0\0\x90\x90", ((2, X86_64[9], -4),))
"""jmp *slot(%rip)"""


def _offset(bytes_per_step: int) -> Field:
    """Return the field of the unsigned offset within a page, in AArch64's loads and stores of
    `bytes_per_step` bytes."""
    low = bytes_per_step.bit_length() - 1
    return Field(4, ((low, 12 - low, 10),))


_BRANCH_26 = Field(4, ((2, 26, 0),), 28)
_ADR_21 = Field(4, ((0, 2, 29), (2, 19, 5)), 21)
_ADRP_21 = Field(4, ((12, 2, 29), (14, 19, 5)), 33)

AARCH64 = _table({
    0: ("NONE", "", _WORD), 256: ("NONE", "", _WORD), 257: ("ABS64", "S+A", _DOUBLE),
    260: ("PREL64", "S+A-P", _DOUBLE), 261: ("PREL32", "S+A-P", _WORD),
    274: ("ADR_PREL_LO21", "S+A-P", _ADR_21), 275: ("ADR_PREL_PG_HI21", "Page(S+A)-Page(P)", _ADRP_21),
    277: ("ADD_ABS_LO12_NC", "S+A", _offset(1)), 278: ("LDST8_ABS_LO12_NC", "S+A", _offset(1)),
    280: ("CONDBR19", "S+A-P", Field(4, ((2, 19, 5),), 21)),
    282: ("JUMP26", "S+A-P", _BRANCH_26), 283: ("CALL26", "S+A-P", _BRANCH_26),
    284: ("LDST16_ABS_LO12_NC", "S+A", _offset(2)), 285: ("LDST32_ABS_LO12_NC", "S+A", _offset(4)),
    286: ("LDST64_ABS_LO12_NC", "S+A", _offset(8)), 299: ("LDST128_ABS_LO12_NC", "S+A", _offset(16)),
    311: ("ADR_GOT_PAGE", "Page(G+A)-Page(P)", _ADRP_21), 312: ("LD64_GOT_LO12_NC", "G+A", _offset(8)),
}, "R_AARCH64")  # fmt: skip

AARCH64_STUB = Stub(bytes.fromhex("10000090 110240f9 20021fd6"), ((0, AARCH64[311], 0), (4, AARCH64[312], 0)))
"""adrp x16, slot; ldr x17, [x16, low bits of slot]; br x17"""

_UPPER = Field(4, ((12, 20, 12),), 32, carry=0x800)
_LOW_I = Field(4, ((0, 12, 20),))
_LOW_S = Field(4, ((0, 5, 7), (5, 7, 25)))
_PAIR = Field(8, ((12, 20, 12), (0, 12, 52)), 32, carry=0x800)
"""The pair of `auipc` and `jalr`."""
_SUM = Field(4, ((0, 32, 0),))
_BRANCH_8 = Field(2, ((1, 2, 3), (3, 2, 10), (5, 1, 2), (6, 2, 5), (8, 1, 12)), 9)
_JUMP_11 = Field(
    2, ((1, 3, 3), (4, 1, 11), (5, 1, 2), (6, 1, 7), (7, 1, 6), (8, 2, 9), (10, 1, 8), (11, 1, 12)), 12
)

RISCV64 = _table({
    0: ("NONE", "", _WORD), 2: ("64", "S+A", _DOUBLE),
    16: ("BRANCH", "S+A-P", Field(4, ((1, 4, 8), (5, 6, 25), (11, 1, 7), (12, 1, 31)), 13)),
    17: ("JAL", "S+A-P", Field(4, ((1, 10, 21), (11, 1, 20), (12, 8, 12), (20, 1, 31)), 21)),
    18: ("CALL", "S+A-P", _PAIR), 19: ("CALL_PLT", "S+A-P", _PAIR), 20: ("GOT_HI20", "G+A-P", _UPPER),
    23: ("PCREL_HI20", "S+A-P", _UPPER), 24: ("PCREL_LO12_I", "HI", _LOW_I),
    25: ("PCREL_LO12_S", "HI", _LOW_S),
    35: ("ADD32", "V+S+A", _SUM), 39: ("SUB32", "V-S-A", _SUM),
    44: ("RVC_BRANCH", "S+A-P", _BRANCH_8), 45: ("RVC_JUMP", "S+A-P", _JUMP_11),
    51: ("RELAX", "", _WORD), 57: ("32_PCREL", "S+A-P", _WORD),
}, "R_RISCV")  # fmt: skip
"""RELAX allows a linker to shorten code, which this linker doesn't."""

RISCV64_STUB = Stub(
    bytes.fromhex("170e0000 033e0e00 67000e00"),
    ((0, RISCV64[20], 0), (4, Relocation("low bits of the slot", "G+A-P", _LOW_I), 4)),
)
"""auipc t3, slot; ld t3, low bits of slot(t3); jr t3"""
