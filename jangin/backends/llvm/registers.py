"""Local arrays that end in registers, while one block is written.

A load of what the block stored is that value, and of several stores to a place only the last is written,
where the block ends. LLVM would find the same, but of a tile's multiply-adds each would first be a load, the
operation and a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jangin.backends.walk.writer import Pointer, Value
from jangin.ir.dtype import DType


@dataclass
class _Array:
    """`held`: by element, the address and value of each store that isn't written yet. All of them are of
    values of one `shape`, side by side."""

    shape: tuple[DType, int] | None = None
    held: dict[int, tuple[Pointer, Value]] = field(default_factory=dict)


class Registers:
    """The arrays of one function; `write` writes a store."""

    def __init__(self, write: Callable[[Pointer, Value], None]) -> None:
        self._write = write
        self._places: dict[Pointer, tuple[_Array, int | None]] = {}
        self._waiting: list[_Array] = []

    def __contains__(self, at: Pointer) -> bool:
        return at in self._places

    def add(self, array: Pointer) -> None:
        self._places[array] = _Array(), 0

    def stepped(self, pointer: Pointer, start: Pointer, by: int | None) -> None:
        """A pointer lies so many elements behind another into an array: None for any number."""
        array, place = self._places[start]
        self._places[pointer] = array, None if place is None or by is None else place + by

    def load(self, at: Pointer, dtype: DType, lanes: int) -> list[Value]:
        """The values that lie side by side from an address on; none where they have to be loaded, as they
        then can be."""
        if at not in self._places:
            return []
        array, place = self._places[at]
        own, each = array.shape or (dtype, 1)
        if place is None or own is not dtype or lanes % each or place % each:
            self._settle(array)
            return []
        found = [array.held.get(n) for n in range(place, place + lanes, each)]
        if None in found and len(found) > 1:
            self._settle(array)
        return [] if None in found else [held[1] for held in found if held]

    def store(self, at: Pointer, v: Value) -> bool:
        """Whether the store will be written at the block's end, or when it is needed."""
        if at not in self._places:
            return False
        array, place = self._places[at]
        shape = v.dtype, v.lanes
        if place is None or array.shape != shape or place % v.lanes:
            self._settle(array)
            if place is None or place % v.lanes:
                return False
            array.shape = shape
        if not array.held:
            self._waiting.append(array)
        array.held[place] = at, Value(v.ref, *shape)
        return True

    def settle(self, at: Pointer) -> None:
        """Write what was stored to the array that an address lies in."""
        if at in self._places:
            self._settle(self._places[at][0])

    def end_block(self) -> None:
        """Write all that was stored."""
        waiting, self._waiting = self._waiting, []
        for array in waiting:
            self._settle(array)

    def _settle(self, array: _Array) -> None:
        held, array.held = array.held, {}
        for at, value in held.values():
            self._write(at, value)
