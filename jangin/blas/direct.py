"""Repeated calls: a call like an earlier one needs no checks, only addresses.

A call is like another one if its arrays have the same types, shapes and strides, and all else but its factors
is equal. A kernel with its own working memory is then ready, and so is the place of each address.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.blas.compiled import Ready, loaded, set_to
from jangin.blas.routine import NUMPY, NUMPY_REALS, Routine
from jangin.ir.graph import Array
from jangin.runtime.arrays import (
    ALIGNED,
    F_ORDER,
    WRITEABLE,
    address,
    array_wanted,
    number_wanted,
    object_wanted,
    wanted,
)
from jangin.runtime.functions import TAKE

KINDS = 16
"""The most kinds of calls of a routine that are kept ready."""
_keeping = threading.Lock()

Made = Callable[[Sequence[Any]], Array]
"""Makes the array that is written, from the values of a call."""


class Direct:
    """A call that is repeated with other memory and other factors.

    `options`, `sizes` and `operands` are those of the first call. `places` has the number of each argument by
    its name. `made` makes the written array, and `shown` gives what the call returns of it. `own` is the
    number of the caller's array that is written."""

    def __init__(
        self,
        routine: Routine,
        letter: str,
        options: Mapping[str, str],
        sizes: Mapping[str, int],
        operands: Mapping[str, Array],
        places: Mapping[str, int],
        made: Made,
        shown: Callable[[Array], Any],
        own: int | None,
    ) -> None:
        kernel, inputs, order = loaded(routine, letter, options)
        ordered = tuple(sizes[n] for n in order)
        held = {n: operands[n] for n in inputs if n not in places}

        def new() -> _Prepared:
            return _Prepared(Ready(kernel, ordered), letter, inputs, routine, held, places)

        self._new = new
        self._free: list[_Prepared] = []
        self.made, self.shown, self.idle = made, shown, places.get(routine.idle)
        self.own, self.threads = own, set_to()

    def fits(self, values: Sequence[Any]) -> bool:
        """Return whether a call of this kind can be repeated: its factor isn't 0, and its array that is
        written may be."""
        if self.idle is not None and values[self.idle] == 0:
            return False
        return self.own is None or values[self.own].flags.writeable

    def taken(self, values: tuple[Any, ...]) -> Any:
        """Return what the call returns, or None if it isn't one that repeats this one in all. Native code
        compares the values, so this takes less time than finding the call's kind does."""
        try:
            prepared = self._free.pop()
        except IndexError:
            return None
        wanted = prepared.wanted
        if wanted is None or self.threads != set_to():
            self._free.append(prepared)
            return None
        wanted[0] = id(values)
        if not prepared.take() or (self.idle is not None and values[self.idle] == 0):
            self._free.append(prepared)
            return None
        written = self.made(values)
        if self.own is None:
            table, lies = prepared.table, address(written)
            for at in prepared.outs:
                table[at] = lies
        prepared.entry()
        self._free.append(prepared)
        return self.shown(written)

    def expect(self, values: tuple[Any, ...]) -> bool:
        """Let `taken` repeat calls with values like these. Return whether it can."""
        free = tuple(self._free)  # other threads take from it
        for prepared in free:
            if not prepared.is_tried:
                prepared.is_tried = True
                prepared.expect(values, self.own)
        return any(prepared.wanted for prepared in free)

    def __call__(self, values: Sequence[Any]) -> Any:
        """Return what the call returns."""
        try:
            prepared = self._free.pop()
        except IndexError:
            prepared = self._new()
        written = self.made(values)
        table = prepared.table
        for at, place in prepared.arrays:
            table[at] = address(values[place])
        for number, place in prepared.numbers:
            number[()] = values[place]
        for at in prepared.outs:
            table[at] = address(written)
        prepared.entry()
        self._free.append(prepared)
        return self.shown(written)


class _Prepared:
    """A kernel with its table of addresses. The operands that aren't given are `held` in it."""

    def __init__(
        self,
        ready: Ready,
        letter: str,
        inputs: Sequence[str],
        routine: Routine,
        held: Mapping[str, Array],
        places: Mapping[str, int],
    ) -> None:
        self.entry, self.table, self._held = ready.entry, ready.table, [ready, held]
        self._taker, self.take = ready.take, _nothing_taken
        self.wanted: Any = None
        self.is_tried = False
        self.arrays: list[tuple[int, int]] = []
        self.numbers: list[tuple[Array, int]] = []
        self.outs = ready.places[-1]
        for name, ats in zip(inputs, ready.places, strict=False):
            if name in places and name not in routine.scalars:
                self.arrays += [(at, places[name]) for at in ats]
                continue
            if name in places:
                number = np.zeros((), NUMPY_REALS[letter] if name in routine.real else NUMPY[letter])
                lies = address(number)
                self.numbers.append((number, places[name]))
            else:
                lies = address(held[name])
            for at in ats:
                self.table[at] = lies

    def expect(self, values: tuple[Any, ...], own: int | None) -> None:
        """Make the table by which native code takes values like these, if it can. `own` is the number of the
        array that is written."""
        numbers = {place: number for number, place in self.numbers}
        objects = []
        for n, value in enumerate(values):
            if isinstance(value, np.ndarray):
                places = [at for at, place in self.arrays if place == n]
                flags = WRITEABLE | ALIGNED if n == own else ALIGNED
                places += self.outs if n == own else []
                if places and not value.flags.f_contiguous:
                    return
                objects.append(
                    array_wanted(value.shape, value.dtype, places, flags | (F_ORDER if places else 0))
                )
            elif n in numbers and type(value) in NUMBERS[numbers[n].dtype.kind]:
                objects.append(number_wanted(value, numbers[n]))
            elif type(value) is int:
                self._held.append(value)
                objects.append(object_wanted(value))
                if n in numbers:
                    numbers[n][()] = value
            else:
                return
        if self._taker:
            self.wanted = wanted(objects)
            given = ctypes.addressof(self.table), ctypes.addressof(self.wanted)
            self.take = TAKE.prepared(self._taker, *given, locked=True)


NUMBERS: Mapping[str, tuple[type, ...]] = {"f": (float, np.float64), "c": (complex,)}
"""The types of factors that native code reads, by the kind of their memory's type."""


def _nothing_taken() -> int:
    return 0


def keep(kinds: dict[Hashable, Direct], kind: Hashable, direct: Direct) -> None:
    """Keep a call ready by its kind. The oldest kind makes room if there are KINDS already."""
    with _keeping:
        if kind not in kinds and len(kinds) >= KINDS:
            del kinds[next(iter(kinds))]
        kinds[kind] = direct


def same_kind(values: Sequence[Any], dtype: Any) -> tuple[Any, ...]:
    """Return what calls have in common that are alike: shapes and strides of arrays of a type, and numbers
    that aren't factors. Anything else stands for itself by its type."""
    array, number = np.ndarray, int
    return tuple(
        [
            (v.shape, v.strides) if (t := type(v)) is array and v.dtype is dtype else v if t is number else t
            for v in values
        ]
    )
