"""Files read where they lie: their pages come into memory as they are read, and can be let go."""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import os
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from jangin.runtime.system.memory import PRIVATE, let_go

SLAB = 8 << 20
"""Bytes of an array that are copied at once."""
BLOCK = 4 << 20
"""Bytes that `digest` hashes as one block: enough for the work of a thread."""
PIECE = 16 << 20
"""Bytes of a piece of memory for many arrays."""
ALIGNED = 64
"""Bytes at a multiple of which arrays begin in it."""
PATIENCE = 0.1
"""Seconds after which a block that a thread has taken is hashed again: fifty times as long as one takes."""
GLANCE = 0.0002
"""Seconds from one look for a block to the next."""
HASHERS = 4
"""Threads that hash blocks: with more, memory and not the processor is what they wait for."""


def map_file(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """A file's bytes, read-only; it must not be cut short while they are in use. Raises OSError."""
    with open(path, "rb") as file:
        return map_opened(file)


def map_opened(file: BinaryIO) -> mmap.mmap | bytes:
    """As `map_file`, of one that is open."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (ValueError, OSError):  # it is empty, or its file system maps nothing
        return file.read()


class InMemory(mmap.mmap):
    """So many bytes of memory, at a page's start, that can be read like a file."""

    def __new__(cls, size: int) -> InMemory:
        return super().__new__(cls, -1, max(1, size), *PRIVATE)


def copied(file: BinaryIO) -> InMemory:
    """All that a file holds, as it is while this reads it. Raises OSError where it becomes shorter."""
    size = os.fstat(file.fileno()).st_size
    memory = InMemory(size)
    file.seek(0)
    with io.FileIO(file.fileno(), closefd=False) as raw, memoryview(memory) as view:
        at = 0
        while at < size:
            count = raw.readinto(view[at : at + SLAB])
            if not count:
                raise OSError("it became shorter while it was read")
            at += count
    return memory


def digest(data: bytes | memoryview | mmap.mmap) -> bytes:
    """SHA-256 of the size and of each block's SHA-256, which several threads compute."""
    return Digests([memoryview(data)]).wait()[0]


class Digests:
    """The `digest` of each of several byte strings, computed by threads beside what the program does. With
    `passing` the pages of mapped files leave this process's memory as soon as they are hashed."""

    def __init__(self, parts: Sequence[memoryview], passing: bool = False) -> None:
        self._passing = passing
        self._parts = [p.cast("B") if p.nbytes else memoryview(b"") for p in parts]
        self._made: list[bytes] | None = None
        self._blocks = [(n, at) for n, p in enumerate(self._parts) for at in range(0, len(p), BLOCK)]
        self._left = deque(self._blocks)
        self._found: dict[tuple[int, int], bytes] = {}
        for _ in range(min(HASHERS, os.cpu_count() or 1, len(self._blocks)) - 1):
            try:
                start_new_thread(self._hash, ())  # Thread.start waits for ever where the thread has no memory
            except RuntimeError:  # the system starts no more
                break

    def wait(self) -> list[bytes]:
        """In order; the caller's thread helps. The byte strings are let go of."""
        parts = self._parts
        if self._made is not None:
            return self._made
        self._hash()
        wholes = [hashlib.sha256(len(p).to_bytes(8, "little")) for p in parts]
        for n, at in self._blocks:
            self._await(n, at)
            wholes[n].update(self._found[n, at])
        self._made, self._parts = [w.digest() for w in wholes], []
        return self._made

    def _await(self, n: int, at: int) -> None:
        """Wait for a block that a thread has taken, and hash it where that thread ended: it had no memory, or
        it isn't one of this process, which was forked."""
        end = time.monotonic() + PATIENCE
        while (n, at) not in self._found:
            if time.monotonic() > end:
                self._hash_block(n, at)
            else:
                time.sleep(GLANCE)

    def _hash(self) -> None:
        """Until no block is left, or no memory for it."""
        with suppress(IndexError, MemoryError):
            while True:
                self._hash_block(*self._left.popleft())

    def _hash_block(self, n: int, at: int) -> None:
        part = self._parts[n]
        self._found[n, at] = hashlib.sha256(part[at : at + BLOCK]).digest()
        file = part.obj
        if self._passing and _is_file(file) and len(file) == len(part):
            let_go(file, at, min(BLOCK, len(part) - at))


def release(arrays: Iterable[NDArray[Any]]) -> None:
    """Let go of the memory that arrays in mapped files take; what is read again comes from the system's
    page cache. Other arrays stay as they are."""
    sources = {id(m): m for m in map(_source, arrays) if _is_file(m)}
    for source in sources.values():
        let_go(source)


def _is_file(memory: object) -> TypeGuard[mmap.mmap]:
    """Whether it is a mapped file, whose pages the system can read again."""
    return isinstance(memory, mmap.mmap) and not isinstance(memory, InMemory)


def fill(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy `source`, a slab of its memory at a time, so that little of a mapped file is in memory."""
    axis = max(range(source.ndim), key=lambda n: source.strides[n] * (source.shape[n] > 1), default=0)
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


class Large:
    """Memory for many arrays, in pieces of which systems make large pages: those of a few KiB are got one by
    one, which takes longer than to fill them. A piece goes with its last array."""

    def __init__(self) -> None:
        self._piece = np.empty(0, np.uint8)
        self._lock = Lock()

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """As NumPy's."""
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // ALIGNED) * ALIGNED
        with self._lock:
            if taken > len(self._piece):
                self._piece = np.empty(max(PIECE, taken), np.uint8)
            here, self._piece = self._piece[:size], self._piece[taken:]
        return here.view(dtype).reshape(shape)


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
