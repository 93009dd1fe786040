"""Add a section of constant bytes to a relocatable ELF object whose code refers to them.

A weights array in LLVM IR would be text of several times its size. (System V ABI, "Object Files".)"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN

_SECTION = b"\0.rodata.weights\0"
_PROGBITS, _SYMTAB, _ALLOCATED, _OBJECT = 1, 2, 2, 1
"""ELF's types and flags: contents, table of symbols, memory at run time, and a symbol of data (elf.h: SHT_,
SHF_ and STT_)."""


class _Format:
    """The offsets and formats of the fields in 32-bit or 64-bit (`wide`) ELF."""

    def __init__(self, wide: bool) -> None:
        self.address = "<Q" if wide else "<I"
        self.shoff, self.shnum, self.shstrndx = (40, 60, 62) if wide else (32, 48, 50)
        self.section = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
        self.symbol = "<IBBHQQ" if wide else "<IIIBBH"
        self.wide = wide

    def symbol_with(self, fields: tuple[int, ...], section: int, size: int) -> bytes:
        """Return the bytes of a symbol that is defined at the beginning of a section."""
        if self.wide:
            name, info, other = fields[:3]
            return struct.pack(self.symbol, name, info & 0xF0 | _OBJECT, other, section, 0, size)
        name, info, other = fields[0], fields[3], fields[4]
        return struct.pack(self.symbol, name, 0, size, info & 0xF0 | _OBJECT, other, section)


def with_bytes(object: bytes, symbol: str, pieces: Sequence[Array]) -> bytes:
    """Return the object with a read-only section added, which contains the pieces one after another.

    The undefined symbol `symbol` becomes the section's beginning. Raises ValueError if the object has no such
    symbol."""
    form = _Format(object[4] == 2)
    (table,) = struct.unpack_from(form.address, object, form.shoff)
    count, names = (
        struct.unpack_from("<HH", object, form.shnum)[0],
        struct.unpack_from("<H", object, form.shstrndx)[0],
    )
    size = struct.calcsize(form.section)
    sections = [list(struct.unpack_from(form.section, object, table + n * size)) for n in range(count)]
    total = sum(p.nbytes for p in pieces)
    image = bytearray(object[:table])
    _define(image, form, sections, symbol, count, total)
    start, length = sections[names][4:6]
    sections[names][4:6] = [len(image), length + len(_SECTION)]
    image += object[start : start + length] + _SECTION
    image += bytes(-len(image) % ALIGN)
    sections.append([length + 1, _PROGBITS, _ALLOCATED, 0, len(image), total, 0, 0, ALIGN, 0])
    for piece in pieces:
        image += piece.data
    image += bytes(-len(image) % 8)
    struct.pack_into(form.address, image, form.shoff, len(image))
    struct.pack_into("<H", image, form.shnum, count + 1)
    for section in sections:
        image += struct.pack(form.section, *section)
    return bytes(image)


def _define(
    made: bytearray, form: _Format, sections: list[list[int]], symbol: str, section: int, size: int
) -> None:
    step = struct.calcsize(form.symbol)
    for kind, at, length, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != _SYMTAB:
            continue
        strings = sections[link][4]
        for place in range(at, at + length, step):
            fields = struct.unpack_from(form.symbol, made, place)
            name = made[strings + fields[0] : made.index(0, strings + fields[0])]
            if name == symbol.encode():
                made[place : place + step] = form.symbol_with(fields, section, size)
                return
    raise ValueError(f"the object refers to no {symbol}")


def code_bytes(object: bytes) -> int:
    """Return the total bytes of those sections of an object that are in memory when it runs."""
    form = _Format(object[4] == 2)
    (table,) = struct.unpack_from(form.address, object, form.shoff)
    (count,) = struct.unpack_from("<H", object, form.shnum)
    size = struct.calcsize(form.section)
    headers = (struct.unpack_from(form.section, object, table + n * size) for n in range(count))
    return sum(s[5] for s in headers if s[2] & _ALLOCATED)


def undefined(object: bytes) -> list[str]:
    """Return the names that an object uses and doesn't define."""
    return [name for name, section in _symbols(object) if section == 0]


def defined(object: bytes) -> list[str]:
    """Return the names that an object defines, local ones too."""
    return [name for name, section in _symbols(object) if section]


def _symbols(object: bytes) -> Iterator[tuple[str, int]]:
    """Yield an object's symbols, each with the number of the section that defines it, or 0."""
    form = _Format(object[4] == 2)
    (table,) = struct.unpack_from(form.address, object, form.shoff)
    (count,) = struct.unpack_from("<H", object, form.shnum)
    size, step = struct.calcsize(form.section), struct.calcsize(form.symbol)
    sections = [struct.unpack_from(form.section, object, table + n * size) for n in range(count)]
    for kind, at, length, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != _SYMTAB:
            continue
        strings = sections[link][4]
        for place in range(at + step, at + length, step):
            fields = struct.unpack_from(form.symbol, object, place)
            begin = strings + fields[0]
            yield object[begin : object.index(0, begin)].decode(), fields[3] if form.wide else fields[5]
