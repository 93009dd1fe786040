"""Read the data on which a model is calibrated and measured: pictures, arrays, text, or what a caller's
function gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.pictures import PICTURES, read_picture
from jangin.runtime.sizes import TensorSpec

ARRAYS = (".npy", ".npz")
Feeds = list[dict[str, Array]]
Data = str | os.PathLike[str] | Callable[[], Iterable[Any]] | Iterable[Any]
"""A path, the inputs of one run after another, or a function that returns these inputs.

A path is a folder of pictures or arrays, a file of arrays, or a .txt file with a text in each line. The
inputs of a run are an array, a tuple of arrays, or a dictionary by name."""


@dataclass(frozen=True)
class Reading:
    """The settings by which files become inputs. `jangin.pictures` describes `pixels` and `crop`. `tokenizer`
    is the path of a tokenizer.json. `limit` is the most runs that are read."""

    pixels: str = "unit"
    crop: float = 1.0
    tokenizer: Path | None = None
    limit: int | None = None


def read(data: Data, specs: Sequence[TensorSpec], how: Reading | None = None) -> Feeds:
    """Return the inputs of each run, at most `how.limit` of them. Raises ValueError if there are none, or if
    one doesn't fit the model."""
    how = how or Reading()
    if isinstance(data, (str, os.PathLike)):
        runs = _of_path(Path(data), specs, how)
    else:
        content = data() if callable(data) else data
        runs = ((f"run {n} of the data", item) for n, item in enumerate(content))
    feeds: Feeds = []
    for what, item in runs:
        if how.limit is not None and len(feeds) >= how.limit:
            break
        feeds.append(fitted(item, specs, what))
    if not feeds:
        raise ValueError(f"there is no data to calibrate with: {_called(data)} is empty")
    return feeds


def present(data: Data) -> None:
    """Raise FileNotFoundError if a path doesn't exist, before any work."""
    if isinstance(data, (str, os.PathLike)) and not os.path.exists(data):
        raise FileNotFoundError(2, "there is no such file or folder", os.fspath(data))


def _called(data: Data) -> str:
    return str(data) if isinstance(data, (str, os.PathLike)) else "what was given"


def fitted(item: Any, specs: Sequence[TensorSpec], what: str) -> dict[str, Array]:
    """Return one run's inputs by name, in the model's types. Raises ValueError, which names `what`, if an
    input doesn't fit. A missing first axis is added."""
    if not isinstance(item, Mapping):
        arrays = item if isinstance(item, (tuple, list)) else [item]
        if len(arrays) != len(specs):
            raise ValueError(f"{what} has {len(arrays)} arrays, and the model takes {len(specs)} inputs")
        item = {s.name: a for s, a in zip(specs, arrays, strict=True)}
    names = {s.name for s in specs}
    if set(item) != names:
        raise ValueError(f"{what} has {', '.join(item) or 'nothing'}; the inputs are {', '.join(names)}")
    return {s.name: _array(item[s.name], s, what) for s in specs}


def _array(given: Any, spec: TensorSpec, what: str) -> Array:
    array = np.asarray(given)
    if array.ndim == len(spec.shape) - 1:
        array = array[None]
    sizes: dict[str, int] = {}
    fits = array.ndim == len(spec.shape) and all(
        size == d if isinstance(d, int) else size == sizes.setdefault(d, size)
        for size, d in zip(array.shape, spec.shape, strict=True)
    )
    if not fits or not array.size:
        raise ValueError(f"{what} is {array.dtype}{list(array.shape)}, which doesn't fit the input {spec}")
    if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise ValueError(
            f"{what} is of {array.dtype}, and the input {spec} of {spec.dtype}: convert it first"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what} has infinities or NaN: leave it out")
    return np.asarray(array, spec.dtype, order="C")  # ascontiguousarray would give a scalar an axis


def _of_path(path: Path, specs: Sequence[TensorSpec], how: Reading) -> Iterable[tuple[str, Any]]:
    present(path)
    if not path.is_dir():
        return _of_file(path, specs, how)
    files = files_of(path)
    if not files:
        kinds = ", ".join((*PICTURES, *ARRAYS))
        raise ValueError(f"there is no data to calibrate with: {path} has no file of {kinds}")
    return (item for file in files for item in _of_file(file, specs, how))


def files_of(folder: Path) -> list[Path]:
    """Return the pictures and arrays in a folder and its subfolders, in the order of their paths."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in (*PICTURES, *ARRAYS))


def _of_file(path: Path, specs: Sequence[TensorSpec], how: Reading) -> Iterable[tuple[str, Any]]:
    kind = path.suffix.lower()
    if kind in PICTURES:
        if len(specs) != 1:
            raise ValueError(
                f"{path} is a picture, and the model takes {len(specs)} inputs: give .npz files with all "
                "of them"
            )
        return [(str(path), read_picture(path, specs[0], how.pixels, how.crop))]
    if kind == ".txt":
        return _of_text(path, specs, how)
    if kind not in ARRAYS:
        raise ValueError(f"{path} is no data: give pictures, .npy, .npz or .txt")
    try:
        held = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} can't be read as arrays: {error}") from None
    if isinstance(held, np.ndarray):
        return _runs(str(path), {specs[0].name: held}, specs)
    arrays = dict(held)
    if len(arrays) == len(specs) == 1:
        arrays = {specs[0].name: next(iter(arrays.values()))}
    return _runs(str(path), arrays, specs)


def _runs(what: str, arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> Iterable[tuple[str, Any]]:
    """Return the runs that arrays contain. All arrays are split along their first axis if each input has a
    first size that is 1 or not fixed. An array for a scalar input must have one axis for this."""
    shapes = {s.name: s.shape for s in specs}

    def is_stacked(name: str, array: Array) -> bool:
        shape = shapes.get(name)
        if not shape:
            return shape is not None and array.ndim == 1
        return array.ndim == len(shape) and (shape[0] == 1 or not isinstance(shape[0], int))

    counts = {len(a) if is_stacked(n, a) else -1 for n, a in arrays.items()}
    if len(counts) != 1 or -1 in counts:
        return [(what, arrays)]
    return [
        (f"{what}[{i}]", {n: a[i : i + 1] if shapes[n] else a[i] for n, a in arrays.items()})
        for i in range(counts.pop())
    ]


def _of_text(path: Path, specs: Sequence[TensorSpec], how: Reading) -> Iterable[tuple[str, Any]]:
    """Return a run for each line that isn't blank. Inputs named "mask" get ones, those named "type" get
    zeros, and all others the line's tokens."""
    if how.tokenizer is None:
        raise ValueError(f"{path} is text: give its tokenizer (--tokenizer tokenizer.json)")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ValueError("text needs tokenizers: pip install 'jangin[gguf]'") from None
    known = Tokenizer.from_file(str(how.tokenizer))
    known.no_padding()
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    runs = []
    for n, line in enumerate(lines, 1):
        ids = np.array([known.encode(line).ids])
        run = {s.name: ids for s in specs if "mask" not in s.name and "type" not in s.name}
        run |= {s.name: np.ones_like(ids) for s in specs if "mask" in s.name}
        run |= {s.name: np.zeros_like(ids) for s in specs if "type" in s.name}
        runs.append((f"{path}:{n}", {s.name: run[s.name].astype(s.dtype) for s in specs}))
    return runs


def read_labels(labels: str | os.PathLike[str] | Sequence[int] | Array, runs: int) -> Array:
    """Return the right class of each run, i64 [runs]. `labels` are numbers, a .npy file, or a text file whose
    lines end with a number."""
    if isinstance(labels, (str, os.PathLike)):
        path = Path(labels)
        if path.suffix == ".npy":
            numbers = np.load(path, allow_pickle=False)
        else:
            try:
                numbers = np.array([int(line.split()[-1]) for line in path.read_text().splitlines() if line])
            except ValueError:
                raise ValueError(f"{path} must have a class number at the end of each line") from None
    else:
        numbers = np.asarray(labels)
    if numbers.dtype.kind not in "iu" or numbers.shape != (runs,):
        raise ValueError(
            f"labels are {numbers.dtype}{list(numbers.shape)}: give one whole number for each of the "
            f"{runs} runs"
        )
    return np.asarray(numbers, np.int64)
