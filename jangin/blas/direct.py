"""Repeated calls: a call like an earlier one needs no checks, only addresses.

A call is like another one if its arrays have the same types, shapes and strides, and all else but its factors
is equal. A kernel with its own working memory is then ready, and so is the place of each address.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.blas.compiled import Ready, loaded
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
)
from jangin.runtime.calls import Function, Known, Result
from jangin.runtime.system import renew_lock

KINDS = 16
"""The most kinds of calls of a routine that are kept ready. A kind holds memory, and programs repeat a few
kinds."""
_keeping = threading.Lock()


renew_lock(globals(), "_keeping", threading.Lock)

LOCKED = 1 << 17
"""The most bytes of arrays of a call that keeps Python's lock. A product of this size takes about 10 us, and
giving the lock back costs 0.1."""


class Direct:
    """A call that is repeated with other memory and other factors.

    `options`, `sizes` and `operands` are those of the first call. `places` has the number of each argument by
    its name. `result` makes the written array."""

    def __init__(
        self,
        routine: Routine,
        letter: str,
        options: Mapping[str, str],
        sizes: Mapping[str, int],
        operands: Mapping[str, Array],
        places: Mapping[str, int],
        result: Result,
        target: str | None = None,
    ) -> None:
        kernel, inputs, order = loaded(routine, letter, options, target)
        ordered = tuple(sizes[n] for n in order)
        held = {n: operands[n] for n in inputs if n not in places}

        def new() -> _Prepared:
            return _Prepared(Ready(kernel, ordered), letter, inputs, routine, held, places)

        self._new = new
        self._free: list[_Prepared] = []
        self.result, self.idle = result, places.get(routine.idle)
        self._known: Known | None = None
        self._is_described = False

    def fits(self, values: Sequence[Any]) -> bool:
        """Return whether a call with these values can be repeated. It can't if its factor is 0, or if the
        array that it would write is read-only."""
        if self.idle is not None and values[self.idle] == 0:
            return False
        return self.result.kind != "own" or values[self.result.argument].flags.writeable

    def teach(self, function: Function, values: Sequence[Any], names: Sequence[str]) -> None:
        """Let a function know calls with values like these, of which the last ones are given by `names`, if
        native code can check them."""
        if not self._is_described:
            self._is_described = True
            self._known = self._described(values, names)
        if self._known is not None and function.known is not self._known:
            function.learn(self._known)

    def _described(self, values: Sequence[Any], names: Sequence[str]) -> Known | None:
        prepared, result = self._new(), self.result
        objects = prepared.expected(values, result.argument if result.kind == "own" else None)
        if objects is None or not prepared.ready.caller:
            return None
        unlocks = sum(v.nbytes for v in values if isinstance(v, np.ndarray)) > LOCKED
        factor = next((n for n, place in prepared.numbers if place == self.idle), None)
        ready = prepared.ready
        return Known(
            ready.caller, ready.words, ready.table, objects, names, result, prepared.outs, unlocks, factor,
            prepared,
        )  # fmt: skip

    def __call__(self, values: Sequence[Any]) -> Any:
        """Return what the call returns."""
        try:
            prepared = self._free.pop()
        except IndexError:
            prepared = self._new()
        written = self.result.made(values)
        table = prepared.table
        for at, place in prepared.arrays:
            table[at] = address(values[place])
        for number, place in prepared.numbers:
            number[()] = values[place]
        for at in prepared.outs:
            table[at] = address(written)
        prepared.entry()
        self._free.append(prepared)
        return self.result.shown(written)


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
        self.ready, self.entry, self.table = ready, ready.entry, ready.table
        self._held: list[Any] = [held]
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

    def expected(self, values: Sequence[Any], own: int | None) -> list[list[int]] | None:
        """Return what native code wants of values like these (`runtime.arrays`), or None if it can't check
        them. `own` is the number of the array that is written."""
        numbers = {place: number for number, place in self.numbers}
        objects = []
        for n, value in enumerate(values):
            if isinstance(value, np.ndarray):
                places = [at for at, place in self.arrays if place == n]
                flags = WRITEABLE | ALIGNED if n == own else ALIGNED
                places += self.outs if n == own else []
                if places and not value.flags.f_contiguous:
                    return None
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
                return None
        return objects


NUMBERS: Mapping[str, tuple[type, ...]] = {"f": (float, np.float64), "c": (complex, float, np.float64)}
"""The types of factors that native code reads, by the kind of their memory's type."""


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
