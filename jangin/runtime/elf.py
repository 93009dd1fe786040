"""A small linker and loader: ELF64 relocatable objects for this machine into executable memory.

Loading needs neither LLVM nor a system linker: importing LLVM alone takes 70 ms and 45 MB.
Written from the System V ABI, AMD64 supplement, sections 4.2 to 4.4. Which relocations an architecture
has is in `runtime.abi`, by these forms: "absolute 64", "relative 64" and "relative 32" (to the place), and
"slot 32" (relative, of the symbol's place in the table of addresses).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jangin.runtime.abi import Abi, abi_of
from jangin.runtime.device import LoadError
from jangin.runtime.processor import architecture

_ALLOC, _WRITE = 2, 1
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_UNDEFINED = 0
_STUB = 8
"""Bytes of `jmp *slot(%rip)` and padding: the one part that is x86-64's."""


@dataclass
class _Section:
    name: str
    flags: int
    align: int
    data: bytes
    size: int
    at: int = 0
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)  # offset, type, symbol, addend


@dataclass
class _Object:
    sections: dict[int, _Section]
    symbols: list[tuple[str, int, int, int]]  # name, binding, section, value


def process_symbol(name: str) -> int:
    """The address of a function of the C library, of libm or of the compiler's runtime (16-bit floats).
    Raises LoadError where none has it."""
    for library in (None, "libm.so.6", "libgcc_s.so.1"):
        try:
            address = ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
        except (AttributeError, OSError):
            continue
        if address:
            return address
    raise LoadError(f"the machine code needs {name!r}, which libc, libm and libgcc lack")


class Image:
    """Linked code in memory, there until `close`: threads may still run it when Python exits."""

    def __init__(self, objects: Iterable[bytes], resolve: Callable[[str], int] = process_symbol) -> None:
        self._abi = abi_of(architecture())
        try:
            self._link([_parse(o, self._abi) for o in objects], resolve)
        except (struct.error, ArithmeticError, LookupError, MemoryError, OSError, ValueError) as error:
            raise LoadError(f"the machine code is damaged: {error}") from None

    def address(self, name: str) -> int:
        """Raises LoadError where no object defines `name`."""
        if name not in self._exports:
            raise LoadError(f"the machine code defines no {name!r}")
        return self._exports[name]

    def close(self) -> None:
        """Unmap the code. Nothing may run it, or hold addresses of it, any more."""
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._memory))
        del self._memory

    def _link(self, parsed: list[_Object], resolve: Callable[[str], int]) -> None:
        defined = {s[0]: (o, s) for o in parsed for s in o.symbols if s[1] and s[2] != _UNDEFINED}
        wanted = sorted({s[0] for o in parsed for s in o.symbols if s[0] and s[2] == _UNDEFINED})
        outside = [name for name in wanted if name not in defined]
        slots = self._place(parsed, [*outside, *sorted(defined)], len(outside))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        where = {name: address + _value(o, s) for name, (o, s) in defined.items()}
        self._exports = dict(where)
        where.update({name: resolve(name) for name in outside})
        stubs = {name: self._stubs_at + i * _STUB for i, name in enumerate(outside)}
        for name, slot in slots.items():
            struct.pack_into("<Q", self._memory, slot, where[name])
        for name, stub in stubs.items():
            self._memory[stub : stub + 6] = b"\xff\x25" + struct.pack("<i", slots[name] - stub - 6)
        for o in parsed:
            for section in o.sections.values():
                for relocation in section.relocations:
                    self._relocate(o, section, relocation, address, where, slots, stubs)
        libc = ctypes.CDLL(None, use_errno=True)
        code = ctypes.c_void_p(address)
        if libc.mprotect(code, ctypes.c_size_t(self._writable_at), mmap.PROT_READ | mmap.PROT_EXEC):
            raise LoadError(f"the system refuses executable memory (errno {ctypes.get_errno()})")

    def _place(self, parsed: list[_Object], slots: list[str], stubs: int) -> dict[str, int]:
        """Copy sections into fresh memory: code and constants, stubs; then, on pages of their
        own, what is writable and the table of addresses."""
        at = 0
        for writable in (False, True):
            for o in parsed:
                for section in o.sections.values():
                    if bool(section.flags & _WRITE) == writable:
                        at = -(-at // section.align) * section.align
                        section.at, at = at, at + section.size
            if not writable:
                self._stubs_at = -(-at // 16) * 16
                at = self._writable_at = -(-(self._stubs_at + stubs * _STUB) // mmap.PAGESIZE) * mmap.PAGESIZE
        table = -(-at // 16) * 16
        self._memory = mmap.mmap(-1, max(1, table + 8 * len(slots)))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))  # only `close` lets go
        for o in parsed:
            for section in o.sections.values():
                self._memory[section.at : section.at + len(section.data)] = section.data
        return {name: table + 8 * i for i, name in enumerate(slots)}

    def _relocate(
        self,
        o: _Object,
        section: _Section,
        relocation: tuple[int, int, int, int],
        base: int,
        where: dict[str, int],
        slots: dict[str, int],
        stubs: dict[str, int],
    ) -> None:
        offset, kind, index, addend = relocation
        symbol = o.symbols[index]
        name = symbol[0]
        place = section.at + offset
        form = self._abi.relocations.get(kind, "")
        if form == "slot 32":
            target = base + slots[name]
        elif name in stubs and form == "relative 32":
            target = base + stubs[name]
        else:
            target = where[name] if symbol[1] else base + _value(o, symbol)
        if form == "absolute 64":
            struct.pack_into("<Q", self._memory, place, (target + addend) & (2**64 - 1))
        elif form:
            width = "<q" if form.endswith("64") else "<i"
            struct.pack_into(width, self._memory, place, target + addend - base - place)
        else:
            raise LoadError(f"relocation type {kind} of {name or section.name!r} is not supported")


def _value(o: _Object, symbol: tuple[str, int, int, int]) -> int:
    """A defined symbol's offset in the image."""
    section = o.sections.get(symbol[2])
    if section is None:
        raise LoadError(f"symbol {symbol[0]!r} is in a section that isn't loaded")
    return section.at + symbol[3]


def _parse(data: bytes, abi: Abi) -> _Object:
    kind = bytes([2 if abi.pointer_bytes == 8 else 1, 1 if abi.little_endian else 2])
    if data[:6] != b"\x7fELF" + kind or struct.unpack_from("<H", data, 18)[0] != abi.elf_machine:
        raise LoadError(f"the machine code is not an ELF object for {architecture()}")
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    sections: dict[int, _Section] = {}
    symbols: list[tuple[str, int, int, int]] = []
    for i, (name, kind, flags, _, offset, length, link, _, align, _) in enumerate(headers):
        label = _string(data, headers[names][4] + name)
        if flags & _ALLOC and length and not label.startswith(".eh_frame"):
            body = b"" if kind == _NOBITS else data[offset : offset + length]
            sections[i] = _Section(label, flags, max(1, align), body, length)
        if kind == _SYMTAB:
            strings = headers[link][4]
            entries = struct.iter_unpack("<IBBHQQ", data[offset : offset + length])
            for text, info, _, where, value, _ in entries:
                symbols.append((_string(data, strings + text), info >> 4, where, value))
    for _, kind, _, _, offset, length, _, info, _, _ in headers:
        if kind == _RELA and info in sections:
            for place, what, addend in struct.iter_unpack("<QQq", data[offset : offset + length]):
                sections[info].relocations.append((place, what & 0xFFFFFFFF, what >> 32, addend))
    return _Object(sections, symbols)


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
