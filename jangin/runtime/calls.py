"""Functions of native code that Python calls directly (`functions.CALL`).

A function knows one kind of call. It checks the arguments, makes the array of the result, and runs a plan.
All other calls go to a general function of Python, which may give it another kind to know.

Its words in memory are `STATE`, and `RECORD` for the kind that it knows."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.runtime.arrays import DESCRIBED, address, wanted
from jangin.runtime.arrays import HEAD as OWN_HEAD
from jangin.runtime.system import in_children

HEAD = 16
"""Bytes at the beginning of each object, in the Pythons whose objects the code reads. They are the count of
references and the type's address."""
STATE = ("record", "general", "python")
RECORD = (
    "busy", "table", "wanted", "named", "names", "entry", "bufs", "symbols", "pool", "scratch", "stride",
    "unlocks", "maker", "argument", "first", "second", "third", "fourth", "shared", "places", "places.at",
    "value", "value.at", "factor", "factor.single",
)  # fmt: skip
"""The words of a kind of call.

- `busy`: whether a call of this kind is running.
- `table`, `wanted`: what the check of arguments takes. `named` and `names` are the number of arguments by
  name, and where the addresses of the names lie.
- `entry` and the next five: the plan's entry and its arguments. `unlocks`: whether it runs without Python's
  lock.
- `maker`: the function that makes the result, or 0. Its arguments are `first` to `fourth`; the first is an
  argument of the call if `argument` isn't -1. `shared` is an object whose count of references it takes, or 0.
- `places`: how many entries of the table get the result's address. Their numbers lie at `places.at`.
- `value`: the kind of a number that is returned (`VALUES`), or 0. It is read from `value.at`.
- `factor`: where the number lies that may not be 0, or 0. `factor.single` tells whether it is a single."""
INTERFACE = (
    "Py_IncRef", "PyObject_Vectorcall", "PyEval_SaveThread", "PyEval_RestoreThread", "PyFloat_FromDouble",
    "PyLong_FromLongLong", "PyComplex_FromDoubles",
)  # fmt: skip
"""Functions of Python that the code calls."""
VALUES = {"d": 1, "f": 2, "l": 3, "q": 3, "D": 4, "F": 5}
"""The kinds of returned numbers, by NumPy's characters of types."""
MAKERS = {"copy": 85, "zeros": 183, "empty": 184}
"""Places in NumPy's table of C functions, which its binary interface fixes: NewCopy, Zeros and Empty."""
_CALLED = 0x80 | 0x02
"""METH_FASTCALL | METH_KEYWORDS of CPython's methodobject.h, which a function's description has."""


class _Described(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """How a call makes its result.

    `kind` is "value" for a number, and "empty" or "zeros" for a new array in Fortran's order. It is "copy"
    for a copy in this order of the argument number `argument`, and "own" for this argument itself."""

    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    argument: int = -1

    def made(self, values: Sequence[Any]) -> Array:
        """Return the array that is written, for the arguments of a call."""
        if self.kind == "own":
            own: Array = values[self.argument]
            return own
        if self.kind == "copy":
            return np.array(values[self.argument], order="F")
        return (np.zeros if self.kind == "zeros" else np.empty)(self.shape, self.dtype, "F")

    def shown(self, written: Array) -> Any:
        """Return the result of a call, from the array that it wrote: a number, or the array itself."""
        return written.item() if self.kind == "value" else written


class Known:
    """A kind of call, as native code knows it.

    `code` is the address of `functions.CALL`. `words` are the plan's entry and its arguments. `objects` is
    what `arrays.wanted` takes, for all arguments; the last ones have `names`. `places` are the entries of
    `table` for the result's address. The call gives Python's lock back if it `unlocks`. `factor` is the
    number that may not be 0. `held` keeps memory alive."""

    def __init__(
        self,
        code: int,
        words: Sequence[int],
        table: Any,
        objects: Sequence[Sequence[int]],
        names: Sequence[str],
        result: Result,
        places: Sequence[int],
        unlocks: bool,
        factor: Array | None,
        held: Any,
    ) -> None:
        check, numbers = wanted(objects), np.array(places, np.int64)
        pointers = np.array([id(n) for n in names], np.int64)
        value, shape = np.empty((), result.dtype), np.array(result.shape, np.int64)
        fields = {
            "table": ctypes.addressof(table), "wanted": ctypes.addressof(check), "named": len(names),
            "names": address(pointers), "unlocks": int(unlocks), "argument": result.argument,
        }  # fmt: skip
        fields |= dict(zip(RECORD[RECORD.index("entry") :], words, strict=False))
        if result.kind == "value":
            fields |= {"value": VALUES[result.dtype.char], "value.at": address(value)}
            for place in places:
                table[place] = address(value)
        elif result.kind == "own":
            fields["maker"] = _of_python("Py_NewRef")
        elif result.kind == "copy":
            fields |= {"maker": _of_numpy(result.kind), "second": 1}
        else:
            made = {"first": len(shape), "second": address(shape), "third": id(result.dtype), "fourth": 1}
            fields |= {"maker": _of_numpy(result.kind), "shared": id(result.dtype)} | made
        if result.kind not in ("value", "own"):
            fields |= {"places": len(numbers), "places.at": address(numbers)}
        if factor is not None:
            fields |= {"factor": address(factor), "factor.single": int(factor.real.itemsize == 4)}
        self.code, self.record = code, np.array([fields.get(name, 0) for name in RECORD], np.int64)
        self._held = table, check, numbers, names, pointers, value, shape, result, factor, held

    @property
    def is_busy(self) -> bool:
        return bool(self.record[RECORD.index("busy")])


class _State(np.ndarray):
    """The words of a function, which is called through it until it knows a kind of call."""

    general: Callable[..., Any]

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.general(*given, **named)


class Function:
    """A function that Python calls, and that runs native code if it can. `function` is the function itself.
    `general` is called with arguments that it doesn't know."""

    def __init__(self, name: str, general: Callable[..., Any]) -> None:
        self._state = np.zeros(len(STATE), np.int64).view(_State)
        self._state.general = general
        self._state[:] = 0, id(general), address(_interface())
        # Python reads the address of the code at each call. This one calls `_state`.
        self._described = _Described(name.encode(), _of_python("PyObject_Vectorcall"), _CALLED, None)
        pointer, python = ctypes.c_void_p, ctypes.py_object
        new = _callable("PyCFunction_NewEx", python, pointer, python, pointer)
        self.function = new(ctypes.addressof(self._described), self._state, None)
        self._last: Known | None = None
        self.known: Known | None = None
        _all.append(self)

    def forget(self) -> None:
        """Let every call go to the general function."""
        self._state[STATE.index("record")] = 0
        self.known = None

    def learn(self, known: Known) -> None:
        """Know a kind of call from now on, unless a call of the last kind still runs."""
        self.forget()
        if self._last is not None and self._last.is_busy:
            return
        self._last = self.known = known
        self._state[STATE.index("record")] = address(known.record)
        self._described.code = known.code


_all: list[Function] = []


def forget_all() -> None:
    """Let every call of every function go to its general one."""
    for function in _all:
        function.forget()


in_children(forget_all)  # a forked process has no threads but its own


@cache
def _interface() -> Array:
    return np.array([_of_python(name) for name in INTERFACE], np.int64)


def _callable(name: str, result: Any, *arguments: Any) -> Any:
    """Return a C function of Python that is called with Python's lock."""
    return ctypes.PYFUNCTYPE(result, *arguments)(_of_python(name))


def _of_python(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


@cache
def _of_numpy(name: str) -> int:
    """Return the address of a C function of NumPy."""
    package = "numpy._core" if hasattr(np, "_core") else "numpy.core"
    capsule = importlib.import_module(f"{package}._multiarray_umath")._ARRAY_API
    pointer = _callable("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return (ctypes.c_size_t * 256).from_address(pointer(capsule, None))[MAKERS[name]]


@cache
def are_known() -> bool:
    """Return whether this Python and this NumPy are as native code expects them. Python's lock must protect
    records, and NumPy's functions must make the arrays that they are known for."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    has_all = all(hasattr(ctypes.pythonapi, n) for n in (*INTERFACE, "Py_NewRef", "PyCFunction_NewEx"))
    if not (DESCRIBED and OWN_HEAD == HEAD and has_lock and has_all and sys.implementation.name == "cpython"):
        return False
    dtype, shape = np.dtype(np.float64), np.array([2, 3], np.int64)
    word = ctypes.c_ssize_t
    new = ctypes.PYFUNCTYPE(ctypes.py_object, word, word, word, word)
    for kind in ("empty", "zeros"):
        _callable("Py_IncRef", None, ctypes.py_object)(dtype)
        made = new(_of_numpy(kind))(2, address(shape), id(dtype), 1)
        if (made.shape, made.dtype, made.flags.f_contiguous) != ((2, 3), dtype, True):
            return False
    copy = new(_of_numpy("copy"))(id(shape), 1, 0, 0)
    return copy is not shape and bool((copy == shape).all())
