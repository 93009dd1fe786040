"""Addresses that go on from those of accesses before, where accesses take no offset (`Target.offsets`).

Else each place of a block at a constant distance from one address would be an address of its own, which LLVM
computes before the loop: more than there are registers. So the distance from one place to the next is a
number that LLVM doesn't know, and how an address was computed is hidden from it; not by assembly without
instructions, as behind that RISC-V's vector instructions would have to be told their length again.
"""

from __future__ import annotations

from collections.abc import Callable

_HIDE = "llvm.strip.invariant.group.p0"
_OFFSETS = range(-(1 << 11), 1 << 11)
"""Bytes that RISC-V's other loads and stores can add to an address."""


class Addresses:
    """Of one function, whose instructions are in `lines`, those that begin it in `first`; `fresh` makes names
    of values."""

    declaration = f"declare ptr @{_HIDE}(ptr)"

    def __init__(self, first: list[str], lines: list[str], fresh: Callable[[], str]) -> None:
        self._first, self._lines, self._fresh = first, lines, fresh
        self._steps: dict[str, tuple[str, int]] = {}
        self._last: dict[str, tuple[str, int]] = {}
        self._near: dict[str, list[tuple[str, int]]] = {}
        self._distances: dict[int, str] = {}

    def stepped(self, pointer: str, start: str, size: int) -> None:
        """A pointer is known to lie so many bytes behind another."""
        self._steps[pointer] = start, size

    def begin_block(self) -> None:
        """What was accessed in the block before isn't gone on from."""
        self._last.clear()
        self._near.clear()

    def reached(self, at: str) -> str:
        """The name of an address by which to access a place."""
        start, place = self._steps.get(at, (at, 0))
        before = self._last.get(start)
        name = self._first_of(start, place) if before is None else self._from(*before, place)
        self._last[start] = name, place
        return name

    def near(self, at: str) -> str:
        """As `reached`, for an access that takes a small offset."""
        start, place = self._steps.get(at, (at, 0))
        found = self._near.setdefault(start, [])
        for name, before in found:
            if place - before in _OFFSETS:
                return self._moved(name, str(place - before)) if place != before else name
        found.append((self._from(*found[-1], place) if found else self._first_of(start, place), place))
        return found[-1][0]

    def _first_of(self, start: str, place: int) -> str:
        return self._moved(self._hidden(start), str(place))

    def _from(self, name: str, before: int, place: int) -> str:
        """A place's address, from that of another."""
        return name if place == before else self._hidden(self._moved(name, self._distance(place - before)))

    def _moved(self, at: str, by: str) -> str:
        return self._written(f"getelementptr i8, ptr {at}, i64 {by}")

    def _hidden(self, at: str) -> str:
        return self._written(f"call ptr @{_HIDE}(ptr {at})")

    def _written(self, text: str) -> str:
        name = self._fresh()
        self._lines.append(f"  {name} = {text}")
        return name

    def _distance(self, by: int) -> str:
        """The name of a number of bytes."""
        if by not in self._distances:
            self._distances[by] = name = self._fresh()
            self._first.append(f'  {name} = call i64 asm "", "=r,0"(i64 {by})')
        return self._distances[by]
