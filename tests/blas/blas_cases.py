"""Calls of every routine: operands behind guard elements, at odd sizes, with strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jangin.blas.routine import Routine

GUARD = 12345.0
"""The value of elements that no routine may write."""
PLACES = {"side": "LR", "uplo": "UL", "diag": "NU", "trans": "NT", "transa": "NT", "transb": "NT"}
NAMES = {"lower": "uplo", "trans_a": "transa", "trans_b": "transb"}


def value(text: str, sizes: Mapping[str, int]) -> int:
    """Return the number that an extent of a routine stands for."""
    if text.endswith("*"):
        return sizes[text[:-1]] * (sizes[text[:-1]] + 1) // 2
    return sum(int(p) if p.isdigit() else sizes[p] for p in text.split("+"))


def arguments(
    routine: Routine, letter: str, options: Mapping[str, str], sizes: Mapping[str, int], step: int, seed: int
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a SciPy-like call by name. Vectors have the stride `step`, and begin behind two
    guard elements."""
    rng = np.random.default_rng(seed)
    dtype = np.float32 if letter == "s" else np.float64
    needed = routine.scipy.partition("[")[0].split(",")
    for name in routine.scipy.replace("[", "").replace("]", "").split(","):
        option = NAMES.get(name, name)
        if name in routine.extents:
            extents = [value(e, sizes) for e in routine.extent(name, options)]
            if name in routine.vectors:
                whole = np.full(2 + (extents[0] - 1) * abs(step) + 1, GUARD, dtype)
                whole[2 :: abs(step)] = rng.standard_normal(extents[0])
                if f"off{name}" not in routine.scipy:  # GER takes whole vectors only
                    whole = whole[2 :: abs(step)].copy()
                else:
                    yield f"off{name}", 2
                    yield f"inc{name}", step
            else:
                whole = np.asfortranarray(rng.standard_normal(extents)).astype(dtype)
            if len(extents) == 2 and extents[0] == extents[1]:
                whole[np.diag_indices(extents[0])] += extents[0]
            if option == "a" and routine.name[:2] in ("tb", "tp"):
                whole += 4
            yield name, whole
        elif option in options:
            yield name, PLACES[option].index(options[option])
        elif name in routine.scalars:
            yield name, float(rng.choice([-1.25, 0.75, 2.0]))
        elif name in routine.sizes and (name in needed or (f"{name}," in routine.scipy and routine.vectors)):
            yield name, sizes[name]
