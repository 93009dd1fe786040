"""Calls of routines at random, beside their definitions in extended precision (`blas_oracle`).

    python tests/blas/blas_fuzz.py --minutes 10
    python tests/blas/blas_fuzz.py --seed 7 --case 123
    python tests/blas/blas_fuzz.py --target opencl --minutes 10

A case draws a routine, its options, sizes and operands. Half of the cases are called in Python and half in
the emitted library, by Fortran's symbols or CBLAS's. Elements that a call may not read are NaN, and those
that it may not write are compared bit by bit. Factors are often 0, and operands beside them are NaN then. Now
and then a single element is NaN, and just the results that depend on it must be NaN.
"""

from __future__ import annotations

import argparse
import ctypes
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from blas_cases import DTYPES, value  # noqa: E402
from blas_oracle import STORED, Oracle, Places, kind_of, places, wide  # noqa: E402
from blas_placed import InLibrary, InPython  # noqa: E402

from jangin import blas  # noqa: E402
from jangin.blas.calls import all_routines  # noqa: E402
from jangin.blas.routine import Routine  # noqa: E402

Array = Any
LEFT_OUT = ("rotg", "rotmg", "gemm_strided_batched")
"""Routines without operands in memory, or with tests like these of their own."""
KNOWN = {n: (t, r) for n, (t, r) in all_routines().items() if t in DTYPES and r.name not in LEFT_OUT}
TOGETHER = 24
"""Cases between two changes of the number of threads."""
FEW, SOME, MANY = (
    (0, 1, 2, 3, 5, 7, 8, 9),
    (16, 17, 23, 24, 25, 31, 33, 48, 64, 65, 71),
    (97, 129, 150, 200, 263),
)
LONG = (1000, 16384, 16385, 40_000)
"""Lengths of vectors of level 1, around the elements of a task."""


class Wrong(AssertionError):
    """A call that didn't do what its definition says."""


@dataclass(frozen=True)
class Case:
    """A routine with options and sizes. Operands are drawn by a generator, so one case has many of them."""

    name: str
    letter: str
    routine: Routine
    options: Mapping[str, str]
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.name} {''.join(self.options.values())} {dict(self.sizes)}"

    @property
    def is_system(self) -> bool:
        return self.routine.name.endswith(("sv", "sm"))

    @property
    def bands(self) -> tuple[int, int]:
        """The diagonals below and above the main one. A band of a triangle has k of them."""
        k = self.sizes.get("k", 0)
        return self.sizes.get("kl", k), self.sizes.get("ku", k)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a dense operand."""
        r, n = self.routine, self.sizes.get("n", 0)
        kind = kind_of(r, name)
        if name == "ap" or (name == "a" and r.level == 2 and kind in STORED):
            return n, n
        if kind == "gb":
            return self.sizes["m"], n
        return tuple(value(e, self.sizes) for e in r.extent(name, self.options))

    def places(self, name: str, rows: bool = False) -> Places:
        return places(kind_of(self.routine, name), self.shape(name), self.options, self.bands, rows)

    def is_matrix(self, name: str) -> bool:
        return name == "ap" or name in self.routine.matrices

    def is_idle(self, values: Mapping[str, Array]) -> bool:
        """Return whether a call leaves all of its operands as they are."""
        r, sizes = self.routine, self.sizes
        if r.level == 1:
            return sizes.get("n") == 0 or (r.name == "axpy" and values["a"] == 0)
        if sizes.get("n") == 0 or sizes.get("m") == 0:
            return True
        nothing = values.get("alpha", 1) == 0 or (r.level == 3 and sizes.get("k") == 0)
        return bool(nothing and (values["beta"] == 1 if "beta" in values else r.level == 2))


def drawn_case(rng: np.random.Generator, name: str, least: int) -> Case:
    """Draw options and sizes, which are `least` or more."""
    letter, routine = KNOWN[name]
    options = {o: str(rng.choice([*routine.letters(o)])) for o in routine.options}
    pool = [FEW, SOME, FEW, SOME, MANY][rng.integers(5)]
    if routine.level == 1 and rng.random() < 0.15:
        pool = LONG
    sizes = {s: max(least, int(rng.choice(pool))) for s in routine.sizes}
    for s in ("k", "kl", "ku"):
        if s in sizes and routine.level == 2:
            sizes[s] = int(rng.choice(FEW))
            if least:
                sizes[s] = min(sizes[s], min(sizes[n] for n in "mn" if n in sizes) - 1)
    return Case(name, letter, routine, options, sizes)


def drawn_values(rng: np.random.Generator, case: Case) -> dict[str, Array]:
    """Draw dense operands. Those that a factor of 0 leaves out are NaN."""
    r, dtype = case.routine, DTYPES[case.letter]
    values: dict[str, Array] = {}

    def numbers(*shape: int) -> Array:
        real = rng.standard_normal(shape)
        return (real + 1j * rng.standard_normal(shape) if case.letter in "cz" else real).astype(dtype)

    for name in r.operands:
        if name in r.extents:
            a = numbers(*case.shape(name))
            if name == "param":
                a[0] = rng.choice([-2, -1, 0, 1])
            values[name] = _structured(case, name, a) if case.is_matrix(name) else a
        else:
            values[name] = _factor(rng, case.letter in "cz" and name not in r.real)
    if r.level > 1:
        if values.get("alpha", 1) == 0:
            for name in {*r.extents} - {*r.written}:
                values[name][...] = np.nan
        no_use = values.get("beta") == 0 or (r.name in ("trmm", "trsm") and values["alpha"] == 0)
        if no_use:
            values[r.written[0]][...] = np.nan
    elif r.name == "axpby":
        for factor, name in (("alpha", "x"), ("beta", "y")):
            if values[factor] == 0:
                values[name][...] = np.nan
    return values


def _factor(rng: np.random.Generator, is_complex: bool) -> Any:
    number = float(rng.choice([0.0, 1.0, -1.0, 0.75, -1.25, 2.0]))
    if is_complex and number and rng.random() < 0.6:
        return number * (1 - 0.5j)
    return complex(number) if is_complex else number


def _structured(case: Case, name: str, a: Array) -> Array:
    """Return a dense matrix of the kind that a routine takes."""
    kind = kind_of(case.routine, name)
    n = a.shape[1]
    lower = case.options.get("uplo") == "L"
    i, j = np.indices(a.shape)
    below, above = case.bands
    if kind == "gb":
        return np.where((i - j <= below) & (j - i <= above), a, 0).astype(a.dtype)
    if kind == "ge":
        return a
    if STORED[kind] == "band":
        a = np.where(abs(i - j) <= case.sizes["k"], a, 0).astype(a.dtype)
    a = np.tril(a) if lower else np.triu(a)
    if kind[0] == "t":
        if case.is_system:
            a = (a / max(1, n) ** 0.5).astype(a.dtype)
            a[np.diag_indices(n)] += 2
        if case.options["diag"] == "U":
            a[np.diag_indices(n)] = 1
        return a
    other = a.conj().T if kind[0] == "h" else a.T
    whole = a + other
    own = np.diag(a).real if kind[0] == "h" else np.diag(a)
    whole[np.diag_indices(n)] = own
    return whole.astype(a.dtype)


def checked(
    case: Case, values: Mapping[str, Array], results: Mapping[str, Array], spoilt: tuple[str, Any] | None
) -> None:
    """Raise Wrong if a result differs from the definition. Results of matrices are the elements that are
    written, in the order of `Case.places`. `spoilt` is the operand and the place of an element that was NaN
    in the call; it is 1 in `values`."""
    r = case.routine
    oracle = Oracle(r, case.options, values)
    unit = np.finfo(np.float64 if r.name == "dsdot" else DTYPES[case.letter]).eps
    most = max(case.sizes.values())
    if case.is_system:
        (name,) = r.written
        solution = results[name]
        if case.is_matrix(name):
            places = case.places(name)
            solution = np.zeros(case.shape(name), DTYPES[case.letter])
            solution[places.i, places.j] = results[name]
        if values.get("alpha", 1) == 0:
            _near(case, name, solution, np.zeros(solution.shape), np.zeros(solution.shape), 0.0)
        else:
            rest, size = oracle.rest(solution)
            _near(case, name, np.zeros(rest.shape), rest, size, 8 * unit * (most + 8))
        return
    exact = oracle.results()
    differing: dict[str, Array] = {}
    if spoilt is not None:
        other = {n: np.array(v) for n, v in values.items()}
        other[spoilt[0]][spoilt[1]] = 2
        if kind_of(r, spoilt[0])[0] in "sh" and case.is_matrix(spoilt[0]):
            other[spoilt[0]][spoilt[1][::-1]] = 2
        changed = Oracle(r, case.options, other).results()
        differing = {n: changed[n][0] != exact[n][0] for n in exact}
    for name, found in results.items():
        wanted, size = exact[name]
        is_spoilt = differing.get(name, np.zeros(wanted.shape, bool))
        if case.is_matrix(name):
            places = case.places(name)
            wanted, size, is_spoilt = (v[places.i, places.j] for v in (wanted, size, is_spoilt))
        found, wanted, size, is_spoilt = map(np.atleast_1d, (found, wanted, size, is_spoilt))
        if (np.isnan(found) != is_spoilt).any():
            raise Wrong(f"{case}: {name} has NaN at {np.argwhere(np.isnan(found) != is_spoilt)[:3].tolist()}")
        known = ~is_spoilt
        _near(case, name, found[known], wanted[known], size[known], 8 * unit * (most + 8))


def _near(case: Case, name: str, found: Array, wanted: Array, size: Array, most: float) -> None:
    least = float(np.finfo(DTYPES[case.letter]).tiny) * (len(case.sizes) + max(case.sizes.values()))
    error = np.abs(wide(found) - wide(wanted))
    if not (error <= most * np.asarray(size) + least).all():
        worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
        raise Wrong(f"{case}: {name}{list(map(int, worst))} is {found[worst]}, not {wanted[worst]}")


def tried(case: Case, rng: np.random.Generator, library: ctypes.CDLL | None, routines: Any = blas) -> None:
    """Call a routine twice with one layout of operands, and check the results. `routines` are Python's."""
    layout = int(rng.integers(1 << 32))
    way = InPython(case, routines) if library is None else InLibrary(case, library)
    for _ in range(2):
        values = drawn_values(rng, case)
        spoilt = _spoilt(rng, case, values) if rng.random() < 0.15 else None
        given = {n: np.array(v) for n, v in values.items()}
        if spoilt is not None:
            given[spoilt[0]][spoilt[1]] = np.nan
            if kind_of(case.routine, spoilt[0])[0] in "sh" and case.is_matrix(spoilt[0]):
                given[spoilt[0]][spoilt[1][::-1]] = np.nan
        results = way.called(np.random.default_rng(layout), given, case.is_idle(values))
        if results is not None:
            checked(case, values, results, spoilt)


def _spoilt(rng: np.random.Generator, case: Case, values: dict[str, Array]) -> tuple[str, Any] | None:
    """Return the name and place of an element that becomes NaN, and set it to 1. Return None for a call whose
    results say nothing of it: a system, a search, or one with a factor of 0."""
    r = case.routine
    if case.is_system or r.name in ("iamax", "rotm") or case.is_idle(values):
        return None
    if any(not np.any(values[n]) for n in r.scalars):
        return None
    read = [n for n in r.extents if n not in r.written or "beta" in r.scalars]
    name = str(rng.choice(read)) if read else ""
    if not read or not values[name].size:
        return None
    if case.is_matrix(name):
        places = case.places(name)
        if not len(places.i.reshape(-1)):
            return None
        one = int(rng.integers(places.i.size))
        at: Any = int(places.i.reshape(-1)[one]), int(places.j.reshape(-1)[one])
        if kind_of(r, name)[0] == "h" and at[0] == at[1]:
            return None
        if kind_of(r, name)[0] in "sh":
            values[name][at[::-1]] = 1
    else:
        at = int(rng.integers(len(values[name])))
    values[name][at] = 1
    return name, at


@dataclass
class Tally:
    calls: Counter[str]
    wrong: list[str]


def run_one(
    seed: int,
    number: int,
    library: ctypes.CDLL | None,
    names: Sequence[str],
    tally: Tally,
    routines: Any = blas,
) -> None:
    rng = np.random.default_rng([seed, number])
    in_python = library is None or number // TOGETHER % 2 == 0
    case = drawn_case(rng, str(rng.choice(names)), 1 if in_python else 0)
    try:
        with np.errstate(all="ignore"):
            tried(case, rng, None if in_python else library, routines)
    except Exception as error:  # every fault is told with its case
        tally.wrong.append(f"case {number}: {'python' if in_python else 'library'}: {case}: {error!r}"[:600])
        print(tally.wrong[-1], flush=True)
    tally.calls[case.routine.name] += 1


def campaign(
    seed: int,
    seconds: float,
    library: ctypes.CDLL | None,
    names: Sequence[str] = (),
    most: int = 1 << 60,
    routines: Any = blas,
) -> Tally:
    """Run cases for so many seconds of processor time, or `most` of them. Threads of the kernels and of the
    callers change after every TOGETHER cases."""
    tally = Tally(Counter(), [])
    chosen = sorted(names or KNOWN)
    end, number = time.process_time() + seconds, 0
    with ThreadPoolExecutor(3) as pool:
        while time.process_time() < end and number < most:
            turn = number // TOGETHER
            blas.set_threads(1 if turn // 2 % 2 else 3)
            numbers = range(number, min(number + TOGETHER, most))
            jobs = ((seed, n, library, chosen, tally, routines) for n in numbers)
            if turn // 4 % 2:
                for job in [pool.submit(run_one, *j) for j in jobs]:
                    job.result()
            else:
                for j in jobs:
                    run_one(*j)
            number += TOGETHER
    blas.set_threads(None)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of processor time")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--case", type=int, help="run one case again")
    parser.add_argument("--library", type=Path, help="an emitted library; without one it is emitted first")
    parser.add_argument("--only", nargs="+", default=[], help="names of routines")
    parser.add_argument("--target", help="call the routines in Python on this target")
    asked = parser.parse_args()
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    path, library, routines = asked.library, None, blas if asked.target is None else blas.on(asked.target)
    if path is None and asked.target is None:
        from jangin.blas.library import emit

        folder = Path(tempfile.mkdtemp())
        emit(folder, asked.only)
        path = folder / "libjangin_blas.so"
    if path is not None:
        library = ctypes.CDLL(str(path.resolve()))
    if asked.case is not None:
        tally = Tally(Counter(), [])
        run_one(seed, asked.case, library, sorted(asked.only or KNOWN), tally, routines)
    else:
        tally = campaign(seed, 60 * asked.minutes, library, asked.only, routines=routines)
    print(
        f"seed {seed}: {tally.calls.total()} cases of {len(tally.calls)} routines, {len(tally.wrong)} wrong"
    )
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
