"""Memory that shows what kernels do beyond their buffers.

Under `watched`, outputs, arenas and scratch memory lie between guard bytes. With `pages`, they end at a page
that can't be read. So do the buffers within an arena, if they are placed apart, and each thread's part of
scratch memory. Fresh floats are NaN. `Memory.faults` says what was written outside of buffers, in memory that
is still used and in memory that was freed since the last call.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock
from weakref import WeakValueDictionary

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN
from jangin.runtime import outputs, script
from jangin.runtime.arrays import address
from jangin.runtime.devices import cpu, cuda_host, queued, queued_memory
from jangin.runtime.layout import Frame, Layout, Placement

Range = tuple[int, int]
GUARD = 4 * ALIGN
"""Bytes before and after a buffer: more than a few of the widest vectors."""
UNTOUCHED = 0x5A
"""The value of each byte of a guard."""
FRESH = 0xFF
"""The value of each byte of a fresh buffer. Floats of such bytes are NaN."""
PAGE = mmap.PAGESIZE
MOST_APART = 64 << 20
"""The most bytes of buffers that are placed apart, which takes several times the memory."""
PLACES = (cpu, cuda_host, outputs, queued, queued_memory, script)
"""The modules that make memory for kernels by `aligned`."""
_GUARDS = bytes([UNTOUCHED]) * (2 * PAGE)
_aligned = outputs.aligned
_protect = ctypes.CDLL(None, use_errno=True).mprotect


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


class Block:
    """Memory of `size` bytes for NumPy, at an address that is a multiple of `to`.

    `gaps` are ranges in which nothing may be written, and `hidden` are pages that can't be read. Both are
    counted in bytes from the begin of the memory."""

    def __init__(self, owner: Memory, what: str, size: int, to: int) -> None:
        self._tell, self._what, self.size = owner.told.append, what, size
        self._gaps: Sequence[Range] = ()
        self._hidden: Sequence[Range] = ()
        if owner.pages:
            room = _up(size + to + GUARD, PAGE)
            self._map = mmap.mmap(-1, room + PAGE)
            whole = np.frombuffer(self._map, np.uint8)
            start = (room - size) // to * to
        else:
            whole = np.empty(size + to + 2 * GUARD, np.uint8)
            start = GUARD - (address(whole) + GUARD) % -to
            room = len(whole)
        self._memory, self._start = whole[:room], start
        whole[:start], whole[start : start + size], whole[start + size : room] = UNTOUCHED, FRESH, UNTOUCHED
        self.at = address(whole) + start
        self.__array_interface__ = {
            "data": (self.at, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        if owner.pages:
            self._hide([(room - start, room - start + PAGE)], 0)

    def leave(self, gaps: Sequence[Range], hidden: Sequence[Range] = ()) -> None:
        """Set other gaps and hidden pages."""
        self.check()
        self._hide(self._hidden, mmap.PROT_READ | mmap.PROT_WRITE)
        self._gaps, self._hidden = gaps, hidden
        for first, end in gaps:
            self._memory[self._start + first : self._start + end] = UNTOUCHED
        self._hide(hidden, 0)

    def check(self) -> None:
        """Report bytes that were written outside of the buffers."""
        around = (-self._start, 0), (self.size, len(self._memory) - self._start)
        for first, end in (*around, *self._gaps):
            part = self._memory[self._start + first : self._start + end]
            if part.tobytes() != (
                _GUARDS[: len(part)] if len(part) <= len(_GUARDS) else part.size * _GUARDS[:1]
            ):
                (found,) = np.nonzero(part != UNTOUCHED)
                where = f"{first + int(found[0])} to {first + int(found[-1])}"
                self._tell(f"{self._what} of {self.size} bytes: {len(found)} more written, at {where}")
                part[:] = UNTOUCHED

    def _hide(self, pages: Sequence[Range], how: int) -> None:
        for first, end in pages:
            if _protect(ctypes.c_void_p(self.at + first), ctypes.c_size_t(end - first), how):
                raise OSError(ctypes.get_errno(), "mprotect")

    def __del__(self) -> None:
        if hasattr(self, "_memory"):  # without memory for it, the constructor failed
            self.check()


class Memory:
    """Makes memory in place of `runtime.outputs`. While `on` is False, memory is made as usual."""

    def __init__(self, pages: bool = False) -> None:
        self.pages, self.on = pages, True
        self.told: list[str] = []
        self._blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()

    def aligned(self, shape: Sequence[int], dtype: np.dtype[Any], to: int = ALIGN) -> Array:
        if not self.on:
            return _aligned(shape, dtype, to)
        dtype = np.dtype(dtype)
        block = Block(self, f"{dtype}{list(shape)}", math.prod(shape) * dtype.itemsize, to)
        self._blocks[block.at] = block
        found: Array = np.asarray(block).view(dtype).reshape(shape)
        return found

    def fresh(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        return self.aligned(shape, dtype, np.dtype(dtype).itemsize) if self.on else np.empty(shape, dtype)

    def copy(self, array: Array) -> Array:
        """Copy an input or a constant to guarded memory."""
        made = self.fresh(array.shape, array.dtype)
        made[...] = array
        return made

    def block(self, array: Array) -> Block | None:
        """Return the block of an array that was made here, or None."""
        return self._blocks.get(address(array))

    def faults(self) -> list[str]:
        for block in list(self._blocks.values()):
            block.check()
        found, self.told[:] = self.told[:], []
        return found


@dataclass(frozen=True, eq=False)
class Apart(Placement):
    """A placement in which no two buffers overlap, with `gaps` between them."""

    gaps: Sequence[Range]
    hidden: Sequence[Range]


def placed_apart(sizes: Sequence[tuple[str, int]], align: int, pages: bool = False) -> Apart:
    """Place buffers of given names and bytes apart. With `pages`, each ends at the end of a page, as nearly
    as `align` allows, and the next page is hidden."""
    offsets, gaps, hidden, at = dict[str, int](), list[Range](), list[Range](), 0
    for name, size in sizes:
        room = _up(size, PAGE if pages else align)
        start = at + (room - size) // align * align
        end = at + room + (PAGE if pages else _up(GUARD, align))
        offsets[name] = start
        gaps += [(at, start), (start + size, at + room if pages else end)]
        hidden += [(at + room, end)] if pages else []
        at = end
    return Apart(offsets, at, [g for g in gaps if g[0] < g[1]], hidden)


def always(frame: Frame) -> bool:
    return True


@contextmanager
def watched(memory: Memory, apart: Callable[[Frame], bool] = always) -> Iterator[None]:
    """Executables that are loaded inside the context use `memory`. `apart` decides whether an arena's buffers
    lie apart."""
    place, sized, begin, prepare = Frame._placed, Layout._bytes, Layout.__init__, cpu.Mapped.prepare
    queued_prepare = queued.Memory._prepare

    def is_apart(frame: Frame) -> bool:
        return memory.on and apart(frame)

    def placed(frame: Frame, bytes: tuple[int, ...]) -> Placement:
        sizes = [(b.name, bytes[k]) for b, k in zip(frame.arena, frame.kind, strict=True)]
        if not is_apart(frame) or sum(size for _, size in sizes) > MOST_APART:
            return place(frame, bytes)
        exact = memory.pages and frame.align == ALIGN  # a processor takes any address
        return placed_apart(sizes, 1 if exact else frame.align, memory.pages)

    def exactly(layout: Layout, values: int) -> Iterator[int]:
        """Yield the exact sizes of this run, in bytes."""
        if not is_apart(layout.frame):
            return sized(layout, values)
        return iter(math.prod(layout.value.shape(d)) * width for d, width in layout.frame.kinds)

    def laid_out(layout: Layout, *given: Any) -> None:
        begin(layout, *given)
        layout.stride += GUARD if memory.on and layout.stride else 0

    def prepared(mapped: cpu.Mapped, layout: Layout) -> None:
        known = mapped._for
        prepare(mapped, layout)
        if known is not layout:
            parts = range(layout.stride, layout.stride * mapped._code.threads + 1, layout.stride or 1)
            _leave(mapped._scratch, [(end - GUARD, end) for end in parts])
            _leave_apart(mapped._arena, layout)

    def queued_prepared(memory: queued.Memory, layout: Layout) -> None:
        queued_prepare(memory, layout)
        kept = getattr(memory._arena, "_kept", None)
        if isinstance(kept, np.ndarray):
            _leave_apart(kept, layout)

    def _leave(array: Array, gaps: Sequence[Range], hidden: Sequence[Range] = ()) -> None:
        block = memory.block(array)
        if block is not None:
            block.leave(gaps, hidden)

    def _leave_apart(arena: Array, layout: Layout) -> None:
        """Guard the gaps of this layout, and no longer those of the one before it in the same memory."""
        placement = layout.placement
        apart = isinstance(placement, Apart)
        _leave(arena, placement.gaps if apart else (), placement.hidden if apart else ())

    with ExitStack() as stack:
        for module in PLACES:
            stack.enter_context(mock.patch.object(module, "aligned", memory.aligned))
        for module in (cpu, script):
            stack.enter_context(mock.patch.object(module, "fresh", memory.fresh))
        for owner, name, new in (
            (Frame, "_placed", placed), (Layout, "_bytes", exactly), (Layout, "__init__", laid_out),
            (cpu.Mapped, "prepare", prepared), (queued.Memory, "_prepare", queued_prepared),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(owner, name, new))
        yield
