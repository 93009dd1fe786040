"""Read a PyTorch checkpoint of tensors (`.pth`) without PyTorch, and without trusting it.

A checkpoint is a pickle that names storages, and the storages' bytes. Since PyTorch 1.6 they are files of a
zip archive; before, they follow one another in one file. The unpickler here builds only dictionaries and
NumPy arrays. Any other name in the pickle is an error, so no code of the file runs.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

_STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


class _Storage:
    """A flat array whose bytes may come after the pickle that mentions it."""

    def __init__(self, dtype: type, size: int) -> None:
        self.data = np.zeros(size, dtype)


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Any:
    """Return a view of the storage. Bounds are checked, because the file may be wrong."""
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if offset < 0 or min(strides, default=0) < 0 or (0 not in shape and last >= storage.data.size):
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    step = storage.data.itemsize
    return np.lib.stride_tricks.as_strided(storage.data[offset:], shape, [s * step for s in strides])


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"the checkpoint holds more than tensors: {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size = pid[:5]
        if kind != "storage":
            raise pickle.UnpicklingError(f"unknown persistent object {kind!r}")
        return self.storages.setdefault(key, _Storage(dtype, size))


def load_state(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a state dict by name. Raises pickle.UnpicklingError for anything else."""
    if zipfile.is_zipfile(path):
        return _load_zip(path)
    with path.open("rb") as file:
        if _Unpickler(file).load() != _LEGACY_MAGIC:
            raise pickle.UnpicklingError(f"{path.name} is not a PyTorch checkpoint")
        _Unpickler(file).load()  # protocol version
        _Unpickler(file).load()  # the writer's byte order and type sizes
        reader = _Unpickler(file)
        state = reader.load()
        for key in _Unpickler(file).load():
            storage = reader.storages[key].data
            count = int.from_bytes(file.read(8), "little")
            if count != storage.size or file.readinto(storage.view(np.uint8)) != storage.nbytes:
                raise pickle.UnpicklingError(f"storage {key} of {path.name} is cut short")
    return dict(state)


def _load_zip(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with zipfile.ZipFile(path) as archive:
        (index,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
        reader = _Unpickler(io.BytesIO(archive.read(index)))
        state = reader.load()
        for key, storage in reader.storages.items():
            raw = archive.read(index.removesuffix("data.pkl") + f"data/{key}")
            storage.data[:] = np.frombuffer(raw, storage.data.dtype)
    return dict(state)
