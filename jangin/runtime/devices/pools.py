"""The thread pools of this process, which run the kernels of compiled models."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from jangin.runtime.elf import Image
from jangin.runtime.functions import POOL_CREATE, POOL_DESTROY
from jangin.runtime.system import in_children
from jangin.runtime.threads import default_threads


class Pool:
    """Threads that run kernels, and end with the object. `address` is 0 for one thread, or if the system gave
    no pool.

    The threads run code of `image`, which therefore lives as long as they do. A forked process has a copy of
    the pool's memory but none of its threads, so `alive` is False there."""

    def __init__(self, image: Image, threads: int) -> None:
        processors = max(threads, default_threads())
        self.address: int = POOL_CREATE.at(image.address(POOL_CREATE.name))(threads, processors) or 0
        self._process = os.getpid()
        release = weakref.finalize(self, _end, image, self.address, self._process)
        release.atexit = False  # daemon threads may still run the code

    @property
    def alive(self) -> bool:
        return self._process == os.getpid()


def _end(image: Image, address: int, process: int) -> None:
    if address and process == os.getpid():
        POOL_DESTROY.at(image.address(POOL_DESTROY.name))(address)


class _Shared(NamedTuple):
    """The pools that several models use, by the digest of their code and the number of threads.

    Code of another version of Jangin may lay out a pool differently. The number differs among threads that
    may use other processors. `lock` is held while a pool is looked for or made."""

    pools: weakref.WeakValueDictionary[tuple[bytes, int], Pool]
    lock: threading.Lock


_shared = _Shared(weakref.WeakValueDictionary(), threading.Lock())


def _forget() -> None:
    """Drop the pools and the lock, in a forked process. Neither the pools' threads nor the thread that may
    hold the lock exist there."""
    global _shared
    _shared = _Shared(weakref.WeakValueDictionary(), threading.Lock())


in_children(_forget)


def pool_for(image: Image, codes: Sequence[bytes], threads: int) -> Pool:
    """Return a pool of `threads` threads for a model's linked `codes`.

    Models that use all processors share one pool, so that a hundred loaded models have as many threads as
    one. A model with another number of threads gets its own pool, because callers divide the processors among
    models by that number."""
    from hashlib import sha256  # which loads OpenSSL

    if threads != default_threads():
        return Pool(image, threads)
    name = POOL_CREATE.name.encode()
    key = sha256(b"".join(code for code in codes if name in code)).digest(), threads
    with _shared.lock:
        pool = _shared.pools.get(key)
        if pool is None:
            pool = _shared.pools[key] = Pool(image, threads)
    return pool
