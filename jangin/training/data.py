"""Examples to train on: arrays in a file, or pictures in a folder with one folder for each class."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from jangin.ir.graph import Array
from jangin.pictures import PICTURES, read_picture
from jangin.runtime.sizes import TensorSpec

LABELS, INPUTS = "labels", "inputs"
"""The names of arrays in a file. A model with several inputs has an array by the name of each."""


class Examples(ABC):
    """Examples by their number. `labels` has each one's label or target. `unreadable` has the files that
    couldn't be read so far, with the reasons."""

    labels: Array
    unreadable: dict[Path, str]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, numbers: Array) -> tuple[Array, ...]:
        """Return the inputs of these examples, and their labels behind them."""
        return *self.inputs(numbers), self.labels[numbers]

    @abstractmethod
    def inputs(self, numbers: Array) -> tuple[Array, ...]:
        """Return the inputs of these examples, in the model's order."""


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a .npz file by name. Raises ValueError for any other file, and FileNotFoundError
    if there is none."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.lib.npyio.NpzFile):
            with content:
                return dict(content)
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, OSError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} can't be read as arrays of a .npz file: {error}") from None
    raise ValueError(f"{path} has a single array: write a .npz file, by numpy.savez")


class Arrays(Examples):
    """The arrays of a .npz file, split along their first axis. Raises ValueError for arrays that don't fit
    the model's inputs."""

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        arrays = read_arrays(path)
        names = [s.name for s in specs]
        if len(specs) == 1 and INPUTS in arrays:
            names = [INPUTS]
        if not {*names, LABELS} <= arrays.keys():
            wanted = f"{INPUTS!r}" if len(specs) == 1 else ", ".join(map(repr, names))
            raise ValueError(
                f"{path} has the arrays {', '.join(arrays) or 'none'}; it must have {wanted} and {LABELS!r}"
            )
        self.labels = arrays[LABELS]
        if not self.labels.ndim or self.labels.dtype.kind not in "iufb":
            raise ValueError(
                f"{path} has the labels {self.labels.dtype}{list(self.labels.shape)}; "
                "they must be numbers, with one entry for each example"
            )
        self.unreadable = {}
        self._inputs = [_fitting(arrays[n], s, path) for n, s in zip(names, specs, strict=True)]
        for name, array in zip(names, self._inputs, strict=True):
            if len(array) != len(self.labels):
                raise ValueError(
                    f"{path} has {len(array)} entries of {name!r} and {len(self.labels)} of {LABELS!r}: "
                    "each example has one"
                )

    def inputs(self, numbers: Array) -> tuple[Array, ...]:
        return tuple(a[numbers] for a in self._inputs)


def _fitting(array: Array, spec: TensorSpec, path: Path) -> Array:
    sizes = zip(array.shape[1:], spec.shape[1:], strict=False)
    if array.ndim != len(spec.shape) or any(isinstance(d, int) and d != n for n, d in sizes):
        raise ValueError(f"{path} has inputs {array.dtype}{list(array.shape)}; the model takes {spec}")
    if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise ValueError(f"{path} has inputs of {array.dtype}; the model takes {spec}")
    return np.asarray(array, spec.dtype)


class Pictures(Examples):
    """The pictures in the folders of a folder. Each folder is a class, and `classes` has their names in
    order. Hidden files and folders are left out. A picture is read when it is needed. Raises ValueError if
    there are none.

    A picture that can't be read gives its place to the next one of the batch. `unreadable` has the reason by
    path."""

    def __init__(self, folder: Path, specs: Sequence[TensorSpec], pixels: str) -> None:
        if len(specs) != 1:
            raise ValueError(
                f"{folder} has pictures, and the model takes {len(specs)} inputs: give an .npz file with "
                "all of them"
            )
        self._spec, self._pixels = specs[0], pixels
        folders = sorted(p for p in folder.iterdir() if p.is_dir() and not _is_hidden(p))
        files = [(p, n) for n, f in enumerate(folders) for p in sorted(_pictures(f))]
        if not files:
            raise ValueError(f"{folder} has no folder with pictures: give each class a folder of its own")
        self.classes = [f.name for f in folders]
        self._files = [p for p, _ in files]
        self.unreadable = {}
        self.labels = np.array([n for _, n in files], np.int64)

    def batch(self, numbers: Array) -> tuple[Array, ...]:
        pictures_or_none = [self._picture(self._files[n]) for n in numbers.tolist()]
        read = [k for k, picture in enumerate(pictures_or_none) if picture is not None]
        if not read:
            first = self._files[numbers[0]]
            raise ValueError(f"no picture of a batch can be read, beginning with {first}")
        places = [read[bisect_left(read, k) % len(read)] for k in range(len(pictures_or_none))]
        pictures = [picture for k in places if (picture := pictures_or_none[k]) is not None]
        return np.concatenate(pictures), self.labels[numbers[places]]

    def inputs(self, numbers: Array) -> tuple[Array, ...]:
        return self.batch(numbers)[:-1]

    def _picture(self, path: Path) -> Array | None:
        """Return a picture, or None if the file can't be read as one."""
        try:
            return read_picture(path, self._spec, self._pixels)
        except (ValueError, MemoryError):  # the options and the model are wrong, not the file
            raise
        except Exception as error:  # Pillow's decoders raise many kinds
            self.unreadable[path] = f"{type(error).__name__}: {error}"
            return None


def _pictures(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if path.suffix.lower() in PICTURES and not any(n.startswith(".") for n in inside.parts):
            yield path


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def examples(path: Path, specs: Sequence[TensorSpec], pixels: str) -> Examples:
    """Return the examples in a .npz file or a folder. Raises ValueError if they don't fit the model."""
    return Pictures(path, specs, pixels) if path.is_dir() else Arrays(path, specs)


def check_labels(data: Examples, classes: Any, ignored: int) -> None:
    """Raise ValueError, which names the first example, if a label is none of the classes 0 to `classes` - 1.
    Return at once if the number of classes isn't known."""
    labels = data.labels
    if labels.dtype.kind not in "iu" or not isinstance(classes, int):
        return
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignored)
    if wrong.any():
        first = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise ValueError(
            f"example {first[0]} has the label {labels[first]}, and the model tells {classes} classes apart, "
            f"0 to {classes - 1}"
        )
