"""Arrays for inputs and outputs of engines: files of arrays by name (.npz), and random arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from jangin.files import write_whole
from jangin.ir.graph import Array


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write arrays to a file by name, completely or not at all. Any name is possible. `numpy.savez` takes the
    names as Python's keyword arguments, and therefore refuses some, such as "file". Raises OSError with the
    file's name and a remedy."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)

    write_whole(path, write)


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a file by name. Values of two bytes without a type are bfloat16, because NumPy's
    format can't express that type."""
    with np.load(path) as stored:
        return {name: _typed(stored[name]) for name in stored.files}


def _typed(array: Array) -> Array:
    if array.dtype != np.dtype("V2"):
        return array
    from ml_dtypes import bfloat16

    return array.view(bfloat16)


def random_array(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], mask: bool = False
) -> Array:
    """Return a random array for an input: floats in -1..1, integers 0 or 1, or ones for a mask."""
    if mask:
        return np.ones(shape, dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return (rng.random(shape, np.float32) * 2 - 1).astype(dtype)
