"""Operands of random calls in memory: SciPy's arguments in Python, and pointers into guarded buffers in C.

Each way of calling puts dense operands (`blas_oracle`) where a layout's generator says. It returns the
elements that a routine writes, and raises AssertionError if another element changed. Elements that aren't
read are NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from blas_cases import DTYPES, NAMES, PLACES
from blas_oracle import kind_of

from jangin import blas
from jangin.blas.calls import OTHER_RESULTS
from jangin.blas.routine import LETTERS, NUMPY_REALS, SIZES

if TYPE_CHECKING:
    from blas_fuzz import Case

Array = Any
GUARDS = 16
"""Elements before and behind an operand in C."""


def is_equal(a: Array, b: Array) -> bool:
    """Return whether arrays have the same bits."""
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def stored(case: Case, name: str, dense: Array, rows: bool = False) -> Array:
    """Return a matrix as it is stored. The diagonal of a Hermitian one has no imaginary part to read."""
    places = case.places(name, rows)
    whole = places.stored(dense, np.nan)
    if kind_of(case.routine, name)[0] == "h":
        own = places.i == places.j
        whole.imag[tuple(at[own] for at in places.at)] = np.nan
    return whole


class InPython:
    """Calls of `jangin.blas`, or of its routines on a target, with arrays of any order, type and stride."""

    def __init__(self, case: Case, routines: Any = blas) -> None:
        self.case, self.dtype = case, np.dtype(DTYPES[case.letter])
        self.call = getattr(routines, case.name)

    def called(self, rng: np.random.Generator, values: Mapping[str, Array], idle: bool) -> Any:
        """Return the results of a call by name."""
        r, arguments, taken, bases = self.case.routine, {}, {}, {}
        required, _, optional = r.scipy.replace("]", "").partition("[")
        words = [n for n in (*required.split(","), *optional.split(",")) if n]
        for name in words:
            option = NAMES.get(name, name)
            if option in self.case.options:
                arguments[name] = PLACES[option].index(self.case.options[option])
            elif name in r.sizes:
                arguments[name] = self.case.sizes[name]
            elif name.startswith("overwrite_"):
                arguments[name] = int(rng.random() < 0.5)
            elif name in r.scalars:
                arguments[name] = values[name]
            elif name in r.extents:
                if name in r.written and values.get("beta", 1) == 0 and r.level > 1 and rng.random() < 0.4:
                    continue
                more, base, places = self._placed(rng, name, values[name], words)
                arguments |= more
                bases[name], taken[name] = (base, base.copy(order="K")), places
        arguments = {n: arguments[n] for n in words if n in arguments} | {
            n: v for n, v in arguments.items() if n not in words
        }
        first = [n for n in required.split(",") if n] if rng.random() < 0.5 else []
        given = [arguments.pop(n) for n in first]
        found = self.call(*given, **arguments)
        self._confirm(bases, arguments)
        shown = found if isinstance(found, tuple) else (found,)
        if idle and r.level > 1:
            (name,) = r.written
            assert is_equal(shown[0], bases[name][1]), f"{self.case} changed {name}"
            return None
        return {n: self._result(n, a, bases, taken) for n, a in zip(r.returned, shown, strict=True)}

    def _placed(self, rng: np.random.Generator, name: str, dense: Array, words: list[str]) -> Any:
        """Return arguments that give an operand, the array among them, and where its elements lie in it."""
        case = self.case
        if not case.is_matrix(name):
            return self._vector(rng, name, dense, words)
        whole, places = stored(case, name, dense), case.places(name)
        if whole.ndim == 1:
            return {name: whole}, whole, places.at
        a = self._lying(rng, whole)
        return {name: a}, a, places.at

    def _lying(self, rng: np.random.Generator, whole: Array) -> Array:
        """Return a matrix in some order, which may be a part of another one."""
        m, n = whole.shape
        way = rng.integers(6)
        if way == 0:
            return np.asfortranarray(whole)
        if way == 1:
            return np.ascontiguousarray(whole)
        around = np.full((2 * m + 5, 2 * n + 5), np.nan, whole.dtype, order="CF"[way % 2])
        step = 2 if way > 3 else 1
        a = around[2 : 2 + step * m : step, 3 : 3 + step * n : step]
        a[...] = whole
        return a

    def _vector(self, rng: np.random.Generator, name: str, dense: Array, words: list[str]) -> Any:
        if name not in self.case.routine.vectors:
            whole = np.array(dense)
            return {name: whole}, whole, (slice(None),)
        more: dict[str, Any] = {}
        first, step, rest = 0, 1, 0
        if f"inc{name}" in words:
            step = int(rng.choice([1, 1, 2, 3, -1, -2]))
            if len(self.case.routine.vectors) == 1 and self.case.routine.level == 1:
                step = abs(step)
            more[f"inc{name}"] = step
        if f"off{name}" in words:
            more[f"off{name}"] = first = int(rng.integers(4))
            rest = int(rng.integers(3)) if "n" in words else 0
        length = first + (len(dense) - 1) * abs(step) + 1 + rest
        strided = rng.random() < 0.2
        whole = np.full(length * (2 if strided else 1), np.nan, self.dtype)[:: 2 if strided else 1]
        place = slice(first, first + (len(dense) - 1) * abs(step) + 1, abs(step))
        whole[place] = dense[::-1] if step < 0 else dense
        places = np.arange(length)[place]
        return {**more, name: whole}, whole, (places[::-1] if step < 0 else places,)

    def _confirm(self, bases: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Assert that no operand changed which a call may not write."""
        r = self.case.routine
        for name, (now, before) in bases.items():
            may = arguments.get(f"overwrite_{name}", r.level == 1) and name in r.written
            assert may or is_equal(now, before), f"{self.case} wrote {name}"

    def _result(self, name: str, found: Any, bases: Mapping[str, Any], taken: Mapping[str, Any]) -> Array:
        """Return the elements of a result, and assert that others are as they were."""
        if name == "result":
            return np.asarray(found)
        if name not in bases:
            if self.case.is_matrix(name):
                return found[self.case.places(name).at]
            return found
        before, at = bases[name][1], taken[name]
        assert found.shape == before.shape and found.dtype == self.dtype, f"{self.case}: {found.shape}"
        elements = found[at]
        others = found.copy(order="K")
        others[at] = before[at]
        assert is_equal(others, before), f"{self.case} changed more than the elements of {name}"
        return elements


class InLibrary:
    """Calls of an emitted library with pointers, leading dimensions and steps."""

    def __init__(self, case: Case, library: ctypes.CDLL) -> None:
        self.case, self.library, self.dtype = case, library, np.dtype(DTYPES[case.letter])

    def called(self, rng: np.random.Generator, values: Mapping[str, Array], idle: bool) -> Any:
        """Return the results of a call by name, or None if it had to change nothing."""
        case, r = self.case, self.case.routine
        how = ["fortran", "columns", "rows"][rng.integers(3 if r.level > 1 else 2)]
        rows = how == "rows"
        buffers: dict[str, tuple[Array, Array, Array]] = {}
        numbers: dict[str, int] = {}
        for name in r.extents:
            if case.is_matrix(name):
                buffers[name] = self._matrix(rng, name, values[name], rows, numbers)
            else:
                buffers[name] = self._vector(rng, name, values[name], numbers)
        stopped = r.one_sided and numbers.get("incx", 1) <= 0
        found = self._call(how, values, buffers, numbers)
        for name, (now, before, at) in buffers.items():
            others = now.copy()
            if name in r.written and not idle and not stopped:
                others[at] = before[at]
            assert is_equal(others, before), f"{case} in {how} changed more than the elements of {name}"
        if idle or stopped:
            assert "result" not in r.written or r.name == "sdsdot" or found in (0, -1), (
                f"{case} returned {found}"
            )
            return None
        if "result" in r.written:
            return {"result": np.asarray(found)}
        results = {n: buffers[n][0][buffers[n][2]] for n in r.written}
        for name in r.written:
            if case.is_matrix(name) and rows:  # the elements in the order of columns
                dense = np.zeros(case.shape(name), self.dtype)
                places = case.places(name, rows)
                dense[places.i, places.j] = results[name]
                own = case.places(name)
                results[name] = dense[own.i, own.j]
        return results

    def _guarded(self, length: int) -> Array:
        return np.full(length + 2 * GUARDS, np.nan, self.dtype)

    def _matrix(
        self, rng: np.random.Generator, name: str, dense: Array, rows: bool, numbers: dict[str, int]
    ) -> Any:
        """Return a buffer with a matrix, its copy, and where the written elements lie in it."""
        whole, places = stored(self.case, name, dense, rows), self.case.places(name, rows)
        if whole.ndim == 1:
            line, lines, at = len(whole), 1, places.at[0]
        else:
            across, along = places.at if rows else places.at[::-1]
            whole = whole if rows else whole.T
            lines = whole.shape[0]
            line = max(1, whole.shape[1] + int(rng.choice([0, 0, 1, 3, 16])))
            numbers[f"ld{name}"] = line
            at = across * line + along
        buffer = self._guarded(line * lines)
        inside = buffer[GUARDS : GUARDS + line * lines].reshape(lines, line)
        inside[:, : whole.shape[-1]] = whole
        return buffer, buffer.copy(), at + GUARDS

    def _vector(self, rng: np.random.Generator, name: str, dense: Array, numbers: dict[str, int]) -> Any:
        r, n = self.case.routine, len(dense)
        step = 1
        if name in r.vectors:
            step = int(rng.choice([1, 1, 1, 2, 3, -1, -2]))
            numbers[f"inc{name}"] = step
        length = max(0, (n - 1) * abs(step) + 1) if n else 0
        at = np.arange(n) * abs(step)
        at = (at[::-1] if step < 0 else at) + GUARDS
        buffer = self._guarded(length)
        buffer[at] = dense
        return buffer, buffer.copy(), at

    def _call(
        self, how: str, values: Mapping[str, Array], buffers: Mapping[str, Any], numbers: Mapping[str, int]
    ) -> Any:
        """Call a function of the library. Return its value."""
        case, r, fortran = self.case, self.case.routine, how == "fortran"
        held: list[Any] = []
        arguments: list[Any] = []
        if not fortran and r.level > 1:
            arguments.append({"columns": 102, "rows": 101}[how])
        for word in r.words:
            if word in LETTERS:
                letter = case.options[word]
                enums = {"side": {"L": 141, "R": 142}, "diag": {"N": 131, "U": 132}}
                plain = {"N": 111, "T": 112, "C": 113, "U": 121, "L": 122}
                arguments.append(letter.encode() if fortran else enums.get(word, plain)[letter])
            elif word in SIZES or word in numbers:
                number = case.sizes[word] if word in SIZES else numbers[word]
                arguments.append(ctypes.byref(ctypes.c_int(number)) if fortran else number)
            elif word in buffers:
                arguments.append(ctypes.c_void_p(buffers[word][0].ctypes.data + GUARDS * self.dtype.itemsize))
            else:
                of = NUMPY_REALS[case.letter] if word in r.real else self.dtype
                number = np.array([values[word]], of)
                held.append(number)
                by_value = not fortran and (case.letter in "sd" or word in r.real)
                if by_value:
                    single = number.dtype.itemsize == 4
                    arguments.append((ctypes.c_float if single else ctypes.c_double)(number[0]))
                else:
                    arguments.append(ctypes.c_void_p(number.ctypes.data))
        name = f"{case.name}_" if fortran else f"cblas_{case.name}"
        return self._returned(name, fortran, arguments)

    def _returned(self, name: str, fortran: bool, arguments: list[Any]) -> Any:
        r = self.case.routine
        if "result" not in r.written:
            getattr(self.library, name)(*arguments)
            return None
        if self.case.letter in "cz" and not r.is_real:
            if fortran:  # ctypes knows no complex results, so CBLAS's function is called
                arguments = [a._obj.value if hasattr(a, "_obj") else a for a in arguments]
            result = np.zeros(1, self.dtype)
            function = getattr(self.library, f"cblas_{self.case.name}_sub")
            function(*arguments, ctypes.c_void_p(result.ctypes.data))
            return result[0]
        function = getattr(self.library, name)
        if r.name == "iamax":
            function.restype = ctypes.c_int if fortran else ctypes.c_size_t
            return function(*arguments) - int(fortran)
        of = np.dtype(OTHER_RESULTS.get(r.name, NUMPY_REALS[self.case.letter]))
        function.restype = ctypes.c_float if of.itemsize == 4 else ctypes.c_double
        return function(*arguments)
