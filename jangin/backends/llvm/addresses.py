"""Derives addresses from earlier accesses' addresses, for targets whose accesses take no offset
(`Processor.offsets`).

Otherwise LLVM would compute each address at a constant distance from a base before the loop, and need more
registers than there are. The distance between two places is therefore hidden from LLVM, and so is an
address's computation. Empty assembly can't hide it: RISC-V's vector instructions behind it would have to set
their length again.
"""

from __future__ import annotations

from collections.abc import Callable

_HIDE = "llvm.strip.invariant.group.p0"
_OFFSETS = range(-(1 << 11), 1 << 11)
"""Offsets, in bytes, that RISC-V's scalar loads and stores can add to an address."""


class Addresses:
    """Derives the addresses of one function's accesses from each other. `lines` are the function's
    instructions, and `first` those at its beginning. `fresh` makes names of values."""

    declaration = f"declare ptr @{_HIDE}(ptr)"

    def __init__(self, first: list[str], lines: list[str], fresh: Callable[[], str]) -> None:
        self._first, self._lines, self._fresh = first, lines, fresh
        self._steps: dict[str, tuple[str, int]] = {}
        self._last: dict[str, tuple[str, int]] = {}
        self._near: dict[str, list[tuple[str, int]]] = {}
        self._distances: dict[int, str] = {}

    def stepped(self, pointer: str, start: str, size: int) -> None:
        """Record that a pointer lies `size` bytes behind another."""
        self._steps[pointer] = start, size

    def begin_block(self) -> None:
        """Forget the addresses of the previous block."""
        self._last.clear()
        self._near.clear()

    def reached(self, at: str) -> str:
        """Return the name of an address for an access at `at`, derived from the last access's address."""
        start, place = self._steps.get(at, (at, 0))
        before = self._last.get(start)
        name = self._first_of(start, place) if before is None else self._from(*before, place)
        self._last[start] = name, place
        return name

    def near(self, at: str) -> str:
        """Return the name of an address for an access at `at`. It is an earlier address plus a constant that
        fits the instruction's offset, if there is one."""
        start, place = self._steps.get(at, (at, 0))
        bases = self._near.setdefault(start, [])
        for name, before in bases:
            if place - before in _OFFSETS:
                return self._moved(name, str(place - before)) if place != before else name
        bases.append((self._from(*bases[-1], place) if bases else self._first_of(start, place), place))
        return bases[-1][0]

    def _first_of(self, start: str, place: int) -> str:
        return self._moved(self._hidden(start), str(place))

    def _from(self, name: str, before: int, place: int) -> str:
        """Return the name of the address `place` bytes behind a base. It is computed from the address `name`,
        which lies `before` bytes behind the base."""
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
        """Return the name of a value that holds the number `by`, which LLVM can't see."""
        if by not in self._distances:
            self._distances[by] = name = self._fresh()
            self._first.append(f'  {name} = call i64 asm "", "=r,0"(i64 {by})')
        return self._distances[by]
