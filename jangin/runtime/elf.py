"""A small linker and loader of ELF64 relocatable objects for this machine.

Loading needs neither LLVM nor a system linker: importing LLVM alone takes 70 ms and 45 MB. The sources are
the System V ABI, chapters 4 and 5, and its supplements. `runtime.relocations` has the meaning of each
architecture's relocations.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jangin.runtime.abi import abi_of
from jangin.runtime.device import LoadError
from jangin.runtime.relocations import VALUES, Field, Relocation, Stub
from jangin.runtime.system.memory import make_executable, symbol
from jangin.runtime.system.processor import architecture

_ALLOC, _WRITE = 2, 1
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_UNDEFINED = 0
"""ELF's flags and types of sections, and the section number of symbols that are defined elsewhere (elf.h:
SHF_, SHT_ and SHN_)."""
_FORMATS = {2: "<H", 4: "<I", 8: "<Q"}


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


def unusable(why: str) -> LoadError:
    return LoadError(f"the machine code can't be used: {why}; compile the model again on this machine")


def process_symbol(name: str) -> int:
    """Return the address of a function of the system's libraries. Raises LoadError if none has it."""
    if address := symbol(name):
        return address
    raise unusable(f"it needs the function {name!r}, which libc, libm and libgcc lack")


class Image:
    """Linked code in memory. No page of it is ever writable and executable at once.

    The memory is unmapped with the object, but not when Python exits, because threads may still run the code.
    """

    def __init__(self, objects: Iterable[bytes], resolve: Callable[[str], int] = process_symbol) -> None:
        linker = Linker(objects, architecture())
        try:
            self._memory = mmap.mmap(-1, max(1, linker.bytes))
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise LoadError(f"there is no memory for {linker.bytes} bytes of machine code: {error}") from None
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._exports = linker.link(self._memory, address, resolve)
        _make_executable(address, linker.writable_at)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))  # from now on only `_unmap` releases it
        weakref.finalize(self, _unmap, self._memory).atexit = False

    def has(self, name: str) -> bool:
        """Return whether an object defines an exported function."""
        return name in self._exports

    def address(self, name: str) -> int:
        """Return the address of an exported function. Raises LoadError if no object defines `name`."""
        if name not in self._exports:
            raise unusable(f"it has no function {name!r}")
        return self._exports[name]


def _unmap(memory: mmap.mmap) -> None:
    """Drop the reference that kept the code mapped, so that its memory can be released."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(memory))


def _make_executable(address: int, size: int) -> None:
    try:
        make_executable(address, size)
    except OSError as error:
        raise LoadError(f"the model's code can't be loaded: {error}") from None
    flush = abi_of(architecture()).flush
    if flush:
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        function(process_symbol(flush))(address, address + size, 0)


class Linker:
    """Objects of one architecture, laid out in an image. Code, constants and stubs come first. Writable data
    and the table of addresses begin at `writable_at`, the beginning of a page. `bytes` is the size of the
    image."""

    def __init__(self, objects: Iterable[bytes], architecture: str) -> None:
        self._architecture, self._abi = architecture, abi_of(architecture)
        with _damage():
            self._objects = parsed = [_parse(o, architecture) for o in objects]
            self._defined = {s[0]: (o, s) for o in parsed for s in o.symbols if s[1] and s[2] != _UNDEFINED}
            wanted = {s[0] for o in parsed for s in o.symbols if s[0] and s[2] == _UNDEFINED}
            self._outside = sorted(wanted - {*self._defined})
            self._place()

    def _place(self) -> None:
        assert self._abi.stub is not None
        room = -(-len(self._abi.stub.code) // 8) * 8
        at = 0
        for writable in (False, True):
            for o in self._objects:
                for section in o.sections.values():
                    if bool(section.flags & _WRITE) == writable:
                        at = -(-at // section.align) * section.align
                        section.at, at = at, at + section.size
            if not writable:
                at = -(-at // 16) * 16
                self._stubs = {name: at + i * room for i, name in enumerate(self._outside)}
                at = self.writable_at = -(-(at + room * len(self._outside)) // mmap.PAGESIZE) * mmap.PAGESIZE
        table = -(-at // 16) * 16
        self._slots = {n: table + 8 * i for i, n in enumerate([*self._outside, *sorted(self._defined)])}
        self.bytes = table + 8 * len(self._slots)

    def link(self, memory: Any, base: int, resolve: Callable[[str], int]) -> dict[str, int]:
        """Write the image to `memory`, which has `bytes` zero bytes and will run at the address `base`, the
        beginning of a page.

        `resolve` returns the addresses of symbols that no object defines. Return the addresses of the
        exported symbols by name."""
        with _damage():
            exports = {name: base + _value(o, s) for name, (o, s) in self._defined.items()}
            everywhere = exports | {name: resolve(name) for name in self._outside}
            for name, slot in self._slots.items():
                struct.pack_into("<Q", memory, slot, everywhere[name])
            for o in self._objects:
                for section in o.sections.values():
                    memory[section.at : section.at + len(section.data)] = section.data
            for name, stub in self._stubs.items():
                self._write_stub(memory, base, name, stub, self._abi.stub)
            for o in self._objects:
                for section in o.sections.values():
                    for relocation in section.relocations:
                        self._relocate(memory, base, o, section, relocation)
        return exports

    def _write_stub(self, memory: Any, base: int, name: str, at: int, stub: Stub | None) -> None:
        assert stub is not None
        memory[at : at + len(stub.code)] = stub.code
        for offset, relocation, addend in stub.relocations:
            place, slot = at + offset, base + self._slots[name]
            number = VALUES[relocation.value](slot, slot, addend, base + place, 0)
            _write(memory, place, relocation.field, number)

    def _relocate(
        self, memory: Any, base: int, o: _Object, section: _Section, entry: tuple[int, int, int, int]
    ) -> None:
        known = self._abi.relocations.get(entry[1])
        if known is None:
            what = o.symbols[entry[2]][0] or section.name
            raise unusable(f"relocation type {entry[1]} of {what!r} is unknown on {self._architecture}")
        if known.value:
            try:
                number = self._evaluate(memory, base, o, section, entry, known)
                _write(memory, section.at + entry[0], known.field, number)
            except ValueError as error:
                what = o.symbols[entry[2]][0] or section.name
                raise unusable(f"{known.name} of {what!r} can't be made: {error}") from None

    def _evaluate(
        self,
        memory: Any,
        base: int,
        o: _Object,
        section: _Section,
        entry: tuple[int, int, int, int],
        known: Relocation,
    ) -> int:
        offset, _, index, addend = entry
        symbol, place = o.symbols[index], section.at + offset
        if known.value == "HI":
            return self._upper(memory, base, o, symbol)
        name, value, slot, stands = symbol[0], 0, 0, 0
        if "G" in known.value:
            slot = self._slots[name]
        elif name in self._stubs:
            value = self._stubs[name]
        else:
            value = _value(*self._defined[name]) if symbol[1] else _value(o, symbol)
        if known.value[0] == "V":
            (stands,) = struct.unpack_from(_FORMATS[known.field.size], memory, place)
        return VALUES[known.value](base + value, base + slot, addend, base + place, stands)

    def _upper(self, memory: Any, base: int, o: _Object, label: tuple[str, int, int, int]) -> int:
        """Return the value of the relocation at a label's position. RISC-V's second instruction of a pair
        refers to the first by this label."""
        section = o.sections[label[2]]
        for entry in section.relocations:
            known = self._abi.relocations.get(entry[1])
            if entry[0] == label[3] and known is not None and known.field.carry:
                return self._evaluate(memory, base, o, section, entry, known)
        raise LookupError(f"no upper half at {label[0]!r}")


def _write(memory: Any, at: int, where: Field, number: int) -> None:
    form = _FORMATS[where.size]
    (word,) = struct.unpack_from(form, memory, at)
    struct.pack_into(form, memory, at, where.put(word, number))


@contextmanager
def _damage() -> Iterator[None]:
    """Inside this context, turn errors caused by damaged objects into LoadError."""
    try:
        yield
    except (struct.error, ArithmeticError, LookupError, ValueError) as error:
        raise unusable(f"it is damaged: {error}") from None


def _value(o: _Object, symbol: tuple[str, int, int, int]) -> int:
    """Return a defined symbol's offset in the image. Raises LoadError if its section isn't loaded."""
    section = o.sections.get(symbol[2])
    if section is None:
        raise unusable(f"symbol {symbol[0]!r} is in a section that isn't loaded")
    return section.at + symbol[3]


def _parse(data: bytes, architecture: str) -> _Object:
    abi = abi_of(architecture)
    kind = bytes([2 if abi.pointer_bytes == 8 else 1, 1 if abi.little_endian else 2])
    if data[:6] != b"\x7fELF" + kind or struct.unpack_from("<H", data, 18)[0] != abi.elf_machine:
        raise unusable(f"it is no ELF object for {architecture}")
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    sections: dict[int, _Section] = {}
    symbols: list[tuple[str, int, int, int]] = []
    for i, (name, kind, flags, _, offset, length, link, _, align, _) in enumerate(headers):
        label = _string(data, headers[names][4] + name)
        if flags & _ALLOC and length and not label.startswith(".eh_frame"):
            if align > mmap.PAGESIZE:  # an image is aligned to a page only
                raise ValueError(f"section {label} asks for places at multiples of {align}")
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
