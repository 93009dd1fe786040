"""Files read where they lie: their pages come into memory as they are read, and can be let go."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLAB = 32 << 20
"""Bytes of an array that are copied at once."""
BLOCK = 4 << 20
"""Bytes that `digest` hashes as one block: enough for the work of a thread."""
HASHERS = 4
"""Threads that hash blocks: with more, memory and not the processor is what they wait for."""


def map_file(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """A file's bytes, read-only; it must not be cut short while they are in use. Raises OSError."""
    with open(path, "rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (ValueError, OSError):  # it is empty, or its file system maps nothing
            return file.read()


def digest(data: bytes | memoryview | mmap.mmap) -> bytes:
    """SHA-256 of the size and of each block's SHA-256, which several threads compute."""
    whole = hashlib.sha256(len(data).to_bytes(8, "little"))
    with memoryview(data) as view:
        starts = range(0, len(view), BLOCK)
        if len(starts) < 2:
            blocks = [_block_digest(view, at) for at in starts]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1)) as threads:
                blocks = list(threads.map(lambda at: _block_digest(view, at), starts))
    whole.update(b"".join(blocks))
    return whole.digest()


def _block_digest(view: memoryview, at: int) -> bytes:
    with view[at : at + BLOCK] as block:
        return hashlib.sha256(block).digest()


def release(arrays: Iterable[NDArray[Any]]) -> None:
    """Let go of the memory that arrays in mapped files take; what is read again comes from the system's
    page cache. Other arrays stay as they are."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for source in {id(m): m for m in map(_source, arrays) if isinstance(m, mmap.mmap)}.values():
        source.madvise(mmap.MADV_DONTNEED)


def fill(target: NDArray[Any], source: NDArray[Any], axis: int = 0) -> None:
    """Copy `source`, a slab along `axis` at a time, so that little of a mapped file is in memory."""
    size = source.shape[axis] if source.ndim else 0
    step = max(1, size * SLAB // max(source.nbytes, 1))
    if step >= size:
        target[...] = source
    else:
        to, of = np.moveaxis(target, axis, 0), np.moveaxis(source, axis, 0)
        for at in range(0, size, step):
            to[at : at + step] = of[at : at + step]
            release([source])
    release([source])


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order and in memory of its own, which outlives the file or bytes it may lie in."""
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    copied = np.empty(array.shape, array.dtype)
    fill(copied, array)
    return copied


def _source(array: NDArray[Any]) -> object:
    """What an array's memory belongs to in the end."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        below = base.base if isinstance(base, np.ndarray) else base.obj
        if below is None:
            break
        base = below
    return base
