"""Calls of every routine: operands behind guard elements, at odd sizes, with strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jangin.blas.routine import Routine

GUARD = 12345.0
"""The value of elements that no routine may write."""
DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
PLACES = {"side": "LR", "uplo": "UL", "diag": "NU", "trans": "NTC", "transa": "NTC", "transb": "NTC"}
NAMES = {"lower": "uplo", "trans_a": "transa", "trans_b": "transb"}


def value(text: str, sizes: Mapping[str, int]) -> int:
    """Return the number that an extent of a routine stands for."""
    if text.endswith("*"):
        return sizes[text[:-1]] * (sizes[text[:-1]] + 1) // 2
    return sum(int(p) if p.isdigit() else sizes[p] for p in text.split("+"))


def diagonal(routine: Routine, uplo: str, sizes: Mapping[str, int]) -> Any:
    """Return where the diagonal of a band or of a packed triangle lies."""
    n, row = sizes["n"], np.arange(sizes["n"])
    if routine.name == "tbsv":
        return sizes["k"] if uplo == "U" else 0
    return row * (row + 3) // 2 if uplo == "U" else row * n - row * (row - 1) // 2


def arguments(
    routine: Routine, letter: str, options: Mapping[str, str], sizes: Mapping[str, int], step: int, seed: int
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a SciPy-like call by name. Vectors have the stride `step`, and begin behind two
    guard elements.

    Triangles of systems have small numbers beside the diagonal, so that results don't overflow."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[letter]
    is_complex = letter in "cz"

    def drawn(*shape: int) -> Any:
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if is_complex else real

    needed = routine.scipy.partition("[")[0].split(",")
    for name in routine.scipy.replace("[", "").replace("]", "").split(","):
        option = NAMES.get(name, name)
        if name in routine.extents:
            extents = [value(e, sizes) for e in routine.extent(name, options)]
            if name in routine.vectors:
                whole = np.full(2 + (extents[0] - 1) * abs(step) + 1, GUARD, dtype)
                whole[2 :: abs(step)] = drawn(extents[0])
                if f"off{name}" not in routine.scipy:  # GER takes whole vectors only
                    whole = whole[2 :: abs(step)].copy()
                else:
                    yield f"off{name}", 2
                    yield f"inc{name}", step
            else:
                whole = np.asfortranarray(drawn(*extents)).astype(dtype)
            if option in ("a", "ap") and routine.name in ("tbsv", "tpsv"):
                whole /= sizes["n"] ** 0.5
                whole[diagonal(routine, options["uplo"], sizes)] += 4
            elif option == "a" and routine.name in ("trsm", "trsv") and options["diag"] == "U":
                whole /= extents[0] ** 0.5
            elif len(extents) == 2 and extents[0] == extents[1]:
                whole[np.diag_indices(extents[0])] += extents[0]
            yield name, whole
        elif option in options:
            yield name, PLACES[option].index(options[option])
        elif name in routine.scalars:
            factor = float(rng.choice([-1.25, 0.75, 2.0]))
            yield name, factor * (1 - 0.5j) if is_complex and name not in routine.real else factor
        elif name in routine.sizes and (name in needed or (f"{name}," in routine.scipy and routine.vectors)):
            yield name, sizes[name]
