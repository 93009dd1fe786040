"""Calls of routines by the conventions of `scipy.linalg.blas`.

Arrays are converted to the routine's type and to Fortran's order if they aren't of them. A vector is given
with the place of its first element and a step; a negative step means its elements in reverse order. A
written operand is a copy, unless `overwrite_...` says otherwise and it needs no conversion. Level 1
always writes into such an array.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from jangin.blas.blocked import Blocked, is_large
from jangin.blas.compiled import is_device, run, set_number, set_to
from jangin.blas.direct import Direct, keep, same_kind
from jangin.blas.routine import NUMPY, NUMPY_REALS, PAIRS, Routine
from jangin.blas.table import BATCHED, COMPLEX, ROUTINES, on_device
from jangin.ir.graph import Array
from jangin.runtime.arrays import address
from jangin.runtime.calls import Function, Result, are_known, forget_all

_OPTION_OF = {"lower": "uplo", "trans_a": "transa", "trans_b": "transb"}
"""SciPy's names of options that Fortran calls otherwise."""
_DEFAULTS = {"alpha": 1.0, "beta": 0.0, "a": 1.0}


OTHER_RESULTS = {"iamax": np.int64, "dsdot": np.float64}
"""The types of results that aren't of the operands' type."""
FACTORS = (int, float, np.float64)
"""Types of factors of such calls. Those of complex routines may be complex too."""


class BlasError(ValueError):
    """An argument that the reference BLAS's XERBLA refuses, or whose shape doesn't fit the others."""


def illegal(letter: str, routine: Routine, argument: str, why: str) -> BlasError:
    """Return the error for an argument, in XERBLA's words, with its number in Fortran's order."""
    name, number = routine.named(letter).upper(), routine.words.index(argument) + 1
    return BlasError(f"On entry to {name} parameter number {number} had an illegal value: {argument} {why}")


def function(letter: str, routine: Routine, target: str | None = None) -> Callable[..., Any]:
    """Return the function of a routine for one type and target, called as SciPy's is."""
    required, _, optional = routine.scipy.replace("]", "").partition("[")
    names = [n for n in (*required.split(","), *optional.split(",")) if n]
    needed, name = [n for n in required.split(",") if n], routine.named(letter)

    repeated: dict[Hashable, Direct] = {}
    last: list[Direct | None] = [None]
    dtype = np.dtype(NUMPY[letter])

    def general(*given: Any, **named: Any) -> Any:
        held = (*given, *named.values()) if named else given
        kind = (*named, set_to(), *same_kind(held, dtype))
        direct = repeated.get(kind)
        if direct is not None and direct.fits(held):
            if native is not None and last[0] is not direct:
                last[0] = direct
            elif native is not None:
                direct.teach(native, held, tuple(named))
            return direct(held)
        unknown = [n for n in named if n not in names or n in names[: len(given)]]
        if len(given) > len(names) or unknown:
            raise TypeError(f"{name}({routine.scipy}) got {unknown or f'{len(given)} arguments'}")
        arguments = (*zip(names, given, strict=False), *named.items())
        values = {n: value for n, value in arguments if value is not None}
        if lacking := [n for n in needed if n not in values]:
            raise TypeError(f"{name}({routine.scipy}) lacks {', '.join(lacking)}")
        here = on_device(routine.name, letter) if is_device(target) else routine
        prepared = _Call(letter, here, values, target)
        results = prepared.results()
        if prepared.is_repeatable(results):
            places = {n: place for place, n in enumerate((*names[: len(given)], *named)) if n in values}
            keep(repeated, kind, prepared.direct(places))
        return results

    native = Function(name, general) if are_known() else None
    call: Any = general if native is None else partial(native.function)  # a partial function takes attributes
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name}({routine.scipy})\n\nSee scipy.linalg.blas.{name}."
    call.typecode = letter  # get_blas_funcs of SciPy gives it too
    function_of_type: Callable[..., Any] = call
    return function_of_type


def set_threads(threads: int | None) -> None:
    """Let all later calls run on `threads` threads. None, the default, means as many as the process may
    use."""
    set_number(threads)
    forget_all()


class _Call:
    """One call: its options, sizes, and operands as the kernel takes them."""

    def __init__(self, letter: str, routine: Routine, values: dict[str, Any], target: str | None) -> None:
        self.letter, self.routine, self.values, self.target = letter, routine, values, target
        self.dtype = NUMPY[letter]
        self.of_scalars = self.dtype if letter in "sdcz" else np.float32
        self.options = self._options()
        self.sizes = {n: int(values[n]) for n in routine.sizes if n in values}
        self.arrays: dict[str, Array] = {}
        self.operands: dict[str, Array] = {}
        names = [n for n in routine.in_order if values.get(n) is not None]
        self.from_vectors = {*routine.sizes} - {*self.sizes}
        for name in sorted(names, key=self._is_triangle):
            (self._matrix if name in routine.matrices else self._row)(name)
        self._confirm()

    def _is_triangle(self, name: str) -> bool:
        """Return whether a matrix may be larger than the part that the routine reads."""
        return name == "a" and {"side", "diag"} <= self.options.keys()

    def _options(self) -> dict[str, str]:
        options = {o: self.routine.letters(o)[0] for o in self.routine.options}
        for name, value in self.values.items():
            option = _OPTION_OF.get(name, name)
            if option in options:
                most = 2 if option.startswith("trans") else 1
                if value not in range(most + 1):
                    raise illegal(self.letter, self.routine, option, f"is {value!r}, not 0 to {most}")
                letters = self.routine.letters(option)
                options[option] = letters[min(int(value), len(letters) - 1)]
        return options

    def _wrong(self, argument: str, why: str) -> BlasError:
        return illegal(self.letter, self.routine, argument, why)

    # --- shapes

    def _matrix(self, name: str) -> None:
        """Convert a matrix and take its sizes."""
        a = np.asarray(self.values[name], self.dtype)
        if a.ndim > 2:
            raise self._wrong(name, f"has {a.ndim} axes, and a matrix has 2")
        self.arrays[name] = a.reshape(-1, 1) if a.ndim < 2 else a
        if self._is_triangle(name):
            self._triangle(name, *self.arrays[name].shape)
            return
        extents = self.routine.extent(name, self.options)
        for size, known in zip(extents, self.arrays[name].shape, strict=True):
            if size in self.routine.sizes and self.sizes.setdefault(size, known) != known:
                why = f"has the shape {a.shape}, which doesn't fit {size} = {self.sizes[size]}"
                raise self._wrong(name, why)

    def _triangle(self, name: str, rows: int, columns: int) -> None:
        order = self.sizes[self.routine.extent(name, self.options)[0]]
        if rows != columns or rows < order:
            raise self._wrong(name, f"has the shape {rows, columns}, and {order} rows and columns are needed")

    def _row(self, name: str) -> None:
        """Convert a vector or packed operand. A vector gives its length's size if nothing before it does. The
        shorter of two vectors counts in level 2, and the first in level 1."""
        x = np.atleast_1d(np.asarray(self.values[name], self.dtype))
        if x.ndim != 1:
            raise self._wrong(name, f"has {x.ndim} axes, and a vector has 1")
        self.arrays[name] = x
        (size,) = self.routine.extent(name, self.options)
        if name not in self.routine.vectors:
            return
        first, step = int(self.values.get(f"off{name}", 0)), abs(self._step(name))
        held = max(0, (len(x) - 1 - first) // step + 1)
        if size in self.from_vectors and not self.routine.matrices_before(name):
            known = self.sizes.get(size, held)
            self.sizes[size] = min(known, held) if self.routine.level > 1 else known

    def _size(self, text: str) -> int:
        """Return the value of an extent (see `Routine.extent`)."""
        if text.endswith("*"):
            n = self.sizes[text[:-1]]
            return n * (n + 1) // 2
        return sum(int(p) if p.isdigit() else self.sizes[p] for p in text.split("+"))

    def _step(self, name: str) -> int:
        step = int(self.values.get(f"inc{name}", 1))
        if step == 0:
            raise self._wrong(f"inc{name}", "is 0, and must be another number")
        if step < 0 and self.routine.written == ("result",) and len(self.routine.vectors) == 1:
            raise self._wrong(f"inc{name}", f"is {step}, and these sums have no order to reverse")
        return step

    def _confirm(self) -> None:
        """Raise BlasError if a size is negative or a vector too short for it."""
        for size, value in self.sizes.items():
            if value < 0:
                raise self._wrong(size, f"is {value}, and must be 0 or more")
        for name, array in self.arrays.items():
            extents = self.routine.extent(name, self.options)
            if name in self.routine.vectors:
                self._place(name)
            elif any(there < self._size(e) for e, there in zip(extents, array.shape, strict=True)):
                needed = tuple(map(self._size, extents))
                raise self._wrong(name, f"has the shape {array.shape}, and {needed} is needed")

    def _place(self, name: str) -> slice:
        """Return where a vector's elements lie in its array, in ascending order."""
        step, first = abs(self._step(name)), int(self.values.get(f"off{name}", 0))
        count = self._size(*self.routine.extent(name, self.options))
        end = first + (count - 1) * step + 1 if count else first
        if first < 0 or end > len(self.arrays[name]):
            raise self._wrong(name, f"has {len(self.arrays[name])} elements, and {end} are needed")
        return slice(first, end, step)

    # --- operands

    def results(self) -> Any:
        """Run the kernel. Return what it writes, as SciPy does."""
        routine = self.routine
        operands = self.operands = {n: self._operand(n) for n in routine.operands}
        if self._is_idle(operands):
            lying = routine.in_place(self.letter)
            arrays = [operands[n] if n in lying else operands[n].T.copy(order="K") for n in routine.written]
        elif self._is_halved() and operands["alpha"]:
            order, b = (
                len(operands["b"]) if self.options["side"] == "L" else operands["b"].shape[1],
                operands["b"],
            )
            system = Blocked(routine, ROUTINES["gemm"], self.letter, self.options, self.target)
            system.solve(operands["alpha"], operands["a"][:order, :order], b)
            arrays = [b]
        else:
            arrays = run(routine, self.letter, self.options, operands, self.sizes, self.target)
        outputs = {n: self._stored(n, r) for n, r in zip(routine.written, arrays, strict=True)}
        shown = [outputs[n] for n in routine.returned]
        return shown[0] if len(shown) == 1 else tuple(shown)

    def _is_halved(self) -> bool:
        """Return whether a system is large enough for blocks, on a processor."""
        return not self.routine.placed and is_large(self.routine, self.options, self.sizes)

    # --- repeated calls

    def is_repeatable(self, result: Any) -> bool:
        """Return whether a call like this one needs no conversion, and has one result that is all written.
        The `result` of this call is the caller's own array, or one of the written operand's shape."""
        routine = self.routine
        if self.letter not in "sdcz" or len(routine.written) != 1 or routine.returned != routine.written:
            return False
        if routine.placed or self._is_halved() or self._is_idle(self.operands):
            return False
        if not all(self._is_plain(name, value) for name, value in self.values.items()):
            return False
        (name,) = routine.written
        if name == "result":
            return True
        value, in_place = self.values.get(name), name in routine.in_place(self.letter)
        if in_place and value is not None and not self._is_copied(name):
            return result is value
        if name in routine.vectors and self._place(name) != slice(0, len(self.arrays[name]), 1):
            return False
        return name not in routine.packed and result.shape == self.arrays[name].shape

    def _is_plain(self, name: str, value: Any) -> bool:
        """Return whether an argument is an option, a factor, or an array that isn't converted.
        A matrix that is copied before it is written may have any order."""
        if name in self.routine.scalars:
            is_complex = self.letter in PAIRS and name not in self.routine.real
            return type(value) in FACTORS or (is_complex and type(value) is complex)
        if name not in self.routine.extents:
            return type(value) is int
        if type(value) is not np.ndarray or value.dtype is not np.dtype(self.dtype):
            return False
        if name in self.routine.written and name not in self.routine.in_place(self.letter):
            if self.values.get(f"overwrite_{name}"):
                return False
        elif self._is_copied(name):
            return value.ndim == 2 and not self.values.get(f"overwrite_{name}")
        return address(value) == address(self.operands[name])

    def _is_copied(self, name: str) -> bool:
        """Return whether a matrix is copied, so that the kernel can update the copy."""
        in_place = name in self.routine.matrices and name in self.routine.in_place(self.letter)
        return in_place and not (self.values.get(f"overwrite_{name}") and self._is_given(name))

    def direct(self, places: Mapping[str, int]) -> Direct:
        """Return the call that repeats this one. `places` has the number of each argument by its name."""
        (name,) = self.routine.written
        dtype, shape = np.dtype(self.dtype), () if name == "result" else self.arrays[name].shape
        if name == "result":
            own_type = NUMPY_REALS[self.letter] if self.routine.is_real else self.dtype
            result = Result("value", np.dtype(OTHER_RESULTS.get(self.routine.name, own_type)))
        elif name not in self.routine.in_place(self.letter):
            result = Result("empty", dtype, shape)
        elif name not in places:
            is_unread = self._is_unread() and "beta" not in places
            result = Result("empty" if is_unread else "zeros", dtype, shape)
        else:
            result = Result("copy" if self._is_copied(name) else "own", dtype, argument=places[name])
        operands, routine, letter = self.operands, self.routine, self.letter
        return Direct(routine, letter, self.options, self.sizes, operands, places, result, self.target)

    def _is_idle(self, operands: Mapping[str, Array]) -> bool:
        """Return whether the call changes nothing."""
        routine = self.routine
        backwards = routine.one_sided and "x" in routine.written and self._step("x") < 0
        return backwards or (bool(routine.idle) and operands[routine.idle] == 0)

    def _operand(self, name: str) -> Array:
        if name in self.routine.scalars:
            of = NUMPY_REALS[self.letter] if name in self.routine.real else self.of_scalars
            return np.asarray(self.values.get(name, _DEFAULTS.get(name, 0.0)), of)
        if name in self.routine.matrices:
            return self._columns(name)
        if name in self.routine.vectors:
            return self._elements(name)
        (length,) = self.routine.extent(name, self.options)
        self.arrays.setdefault(name, np.zeros(self._size(length), self.dtype))
        return np.ascontiguousarray(self.arrays[name][: self._size(length)])

    def _elements(self, name: str) -> Array:
        if name not in self.arrays:
            count = self._size(*self.routine.extent(name, self.options))
            first, step = int(self.values.get(f"off{name}", 0)), abs(self._step(name))
            self.arrays[name] = np.zeros(first + max(0, (count - 1) * step + 1), self.dtype)
        taken = self.arrays[name][self._place(name)]
        taken = taken[::-1] if self._step(name) < 0 else taken
        own = name not in self.routine.in_place(self.letter) or self._is_written(name)
        return np.ascontiguousarray(taken) if own else np.array(taken)

    def _columns(self, name: str) -> Array:
        """Return a matrix in Fortran's order, and note its leading dimension. One that the kernel updates is
        the caller's own if that may be overwritten, else a copy."""
        in_place = name in self.routine.in_place(self.letter)
        if name not in self.arrays:
            rows, columns = map(self._size, self.routine.extent(name, self.options))
            fill = np.empty if in_place and self._is_unread() else np.zeros
            self.arrays[name] = fill((rows, columns), self.dtype, order="F")
        elif self._is_copied(name):
            self.arrays[name] = np.array(self.arrays[name], order="F")
        a = self.arrays[name]
        if not _lies_in_columns(a):
            a = np.asfortranarray(a)
        rows, columns = a.shape
        self.sizes[f"ld{name}"] = a.strides[1] // a.itemsize if columns > 1 else max(1, rows)
        return a

    # --- results

    def _stored(self, name: str, made: Array) -> Any:
        if name in self.routine.scalars or name == "result":
            return made.item()
        if name in self.routine.packed:
            whole = self._target(name, self.arrays[name].flags.c_contiguous)
            whole[: len(made)] = made
            return whole
        if name in self.routine.vectors:
            whole = self._target(name, self.arrays[name].flags.c_contiguous)
            if not np.may_share_memory(whole, made):
                whole[self._place(name)] = made[::-1] if self._step(name) < 0 else made
            return whole
        value = self.values.get(name)
        if name in self.routine.in_place(self.letter):
            own = isinstance(value, np.ndarray) and np.may_share_memory(made, value)
            whole = made
        else:
            own = bool(self.values.get(f"overwrite_{name}")) and self._is_given(name)
            is_updated = self.routine.placed and name in self.routine.updates  # as processors do it
            a = self.arrays[name]
            own = own and (_lies_in_columns(a) if is_updated else a.flags.f_contiguous)
            whole = made.T
            if own:
                self.arrays[name][...] = whole
        if own:
            return value
        return whole.reshape(-1) if value is not None and np.ndim(value) == 1 else whole

    def _is_unread(self) -> bool:
        """Return whether all of a matrix that isn't given is written, and none of it is read."""
        routine = self.routine
        return "beta" in routine.scalars and not routine.of_a_triangle and not self.values.get("beta")

    def _is_given(self, name: str) -> bool:
        """Return whether an operand is the caller's own array, unconverted."""
        operand = self.values.get(name)
        return isinstance(operand, np.ndarray) and operand.dtype == self.dtype and operand.flags.writeable

    def _is_written(self, name: str) -> bool:
        """Return whether a vector is written where it lies. Level 1 always does it if it can."""
        always = self.routine.level == 1 and f"overwrite_{name}" not in self.routine.scipy
        return bool(always or self.values.get(f"overwrite_{name}")) and self._is_given(name)

    def _target(self, name: str, fits: bool) -> Array:
        """Return the array into which a vector is written: the caller's or a copy."""
        return self.arrays[name] if fits and self._is_written(name) else self.arrays[name].copy()


def _lies_in_columns(a: Array) -> bool:
    """Return whether a matrix lies in Fortran's order, maybe as a part of another one."""
    size = a.itemsize
    return bool(a.strides[0] == size and a.strides[1] % size == 0 and a.strides[1] >= size * max(1, len(a)))


@cache
def all_routines() -> Mapping[str, tuple[str, Routine]]:
    """Return the letter and routine of every name, such as dgemm."""
    tables = (*ROUTINES.values(), *BATCHED.values(), *COMPLEX.values())
    return {r.named(t): (t, r) for r in tables for t in r.types}


def found(name: str, target: str | None = None) -> Callable[..., Any]:
    """Return a routine for a target by its name with the letter of its type, such as dgemm. Raises
    AttributeError for another name."""
    if name not in all_routines():
        raise AttributeError(f"jangin.blas has no routine {name!r}")
    return function(*all_routines()[name], target)
