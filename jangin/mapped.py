"""Map files into memory: their pages are loaded when they are read, and can be released again."""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

import numpy as np

from jangin.runtime.system.memory import PRIVATE, let_go

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLAB = 8 << 20
"""Bytes of an array that are copied at once. The pages of a mapped file leave memory after each slab, so that
a copy needs little more memory than its result."""
BLOCK = 4 << 20
"""Bytes that `digest` hashes as one block. A block takes a thread some 2 ms, long beside the start of a
thread."""
PIECE = 16 << 20
"""Bytes of a piece of memory that many arrays share. A piece has several large pages (2 MiB), so that little
of it is left over at its ends."""
ALIGNED = 64
"""The alignment, in bytes, of arrays in a piece of memory: a cache line."""
PATIENCE = 0.1
"""Seconds after which a block that a thread has taken is hashed again. Hashing a block takes a fiftieth of
this time."""
GLANCE = 0.0002
"""Seconds between two checks for a hashed block, a tenth of the time that hashing one takes."""
HASHERS = 4
"""The most threads that hash blocks. With more threads, memory limits the speed, not the processor."""


def map_file(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """Return a file's bytes, read-only. The file must not be cut short while they are in use. Raises
    OSError."""
    with open(path, "rb") as file:
        return map_opened(file)


def map_opened(file: BinaryIO) -> mmap.mmap | bytes:
    """Map an open file as `map_file` does."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (ValueError, OSError):  # the file is empty, or its file system can't map files
        return file.read()


class InMemory(mmap.mmap):
    """Zeroed memory of a given size, at the start of a page, that can be read like a mapped file."""

    def __new__(cls, size: int) -> InMemory:
        return super().__new__(cls, -1, max(1, size), *PRIVATE)


def copied(file: BinaryIO) -> InMemory:
    """Return a copy of a file's current contents. Raises OSError if the file becomes shorter meanwhile."""
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
    """Return the SHA-256 of the size and of each block's SHA-256. Several threads hash the blocks."""
    return Digests([memoryview(data)]).wait()[0]


class Digests:
    """The `digest` of each of several byte strings, computed by threads in the background.

    With `passing`, the pages of mapped files leave this process's memory as soon as they are hashed."""

    def __init__(self, parts: Sequence[memoryview], passing: bool = False) -> None:
        self._passing = passing
        self._parts = [p.cast("B") if p.nbytes else memoryview(b"") for p in parts]
        self._made: list[bytes] | None = None
        self._blocks = [(n, at) for n, p in enumerate(self._parts) for at in range(0, len(p), BLOCK)]
        self._left = deque(self._blocks)
        self._found: dict[tuple[int, int], bytes] = {}
        for _ in range(min(HASHERS, os.cpu_count() or 1, len(self._blocks)) - 1):
            try:
                # Thread.start would wait forever for a thread without memory
                start_new_thread(self._hash, ())
            except RuntimeError:  # the system starts no more threads
                break

    def wait(self) -> list[bytes]:
        """Return the digests in order. The caller's thread helps to compute them. The byte strings are
        released."""
        from hashlib import sha256  # which loads OpenSSL

        parts = self._parts
        if self._made is not None:
            return self._made
        self._hash()
        wholes = [sha256(len(p).to_bytes(8, "little")) for p in parts]
        for n, at in self._blocks:
            self._await(n, at)
            wholes[n].update(self._found[n, at])
        self._made, self._parts = [w.digest() for w in wholes], []
        return self._made

    def _await(self, n: int, at: int) -> None:
        """Wait for a block that a thread has taken. Hash it if the thread ended without a result.

        A thread ends early if it had no memory, or if it belongs to the process from which this one was
        forked."""
        end = time.monotonic() + PATIENCE
        while (n, at) not in self._found:
            if time.monotonic() > end:
                self._hash_block(n, at)
            else:
                time.sleep(GLANCE)

    def _hash(self) -> None:
        """Hash blocks until none is left, or until memory runs out."""
        with suppress(IndexError, MemoryError):
            while True:
                self._hash_block(*self._left.popleft())

    def _hash_block(self, n: int, at: int) -> None:
        from hashlib import sha256  # which loads OpenSSL

        part = self._parts[n]
        self._found[n, at] = sha256(part[at : at + BLOCK]).digest()
        file = part.obj
        if self._passing and _is_file(file) and len(file) == len(part):
            let_go(file, at, min(BLOCK, len(part) - at))


def release(arrays: Iterable[NDArray[Any]]) -> None:
    """Release the memory of arrays in mapped files. The system's page cache serves later reads. Other arrays
    stay unchanged."""
    sources = {id(m): m for m in map(_source, arrays) if _is_file(m)}
    for source in sources.values():
        let_go(source)


def _is_file(memory: object) -> TypeGuard[mmap.mmap]:
    """Tell if memory is a mapped file, whose pages the system can read again."""
    return isinstance(memory, mmap.mmap) and not isinstance(memory, InMemory)


def fill(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy `source` in slabs, so that little of a mapped file is in memory at once."""
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
    """Memory for many arrays, allocated in large pieces, for which systems use large pages.

    Pages of a few KiB are provided one by one, which takes longer than filling them. A piece is freed with
    its last array."""

    def __init__(self) -> None:
        self._piece = np.empty(0, np.uint8)
        self._lock = Lock()

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialized array, like `numpy.empty`."""
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // ALIGNED) * ALIGNED
        with self._lock:
            if taken > len(self._piece):
                self._piece = np.empty(max(PIECE, taken), np.uint8)
            here, self._piece = self._piece[:size], self._piece[taken:]
        return here.view(dtype).reshape(shape)


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in C order and in memory of its own, which outlives a file or bytes that it views."""
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    copied = np.empty(array.shape, array.dtype)
    fill(copied, array)
    return copied


def _source(array: NDArray[Any]) -> object:
    """Return the object that owns an array's memory."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        below = base.base if isinstance(base, np.ndarray) else base.obj
        if below is None:
            break
        base = below
    return base
