"""A compiled model handed to the process that asked for it, with no file between.

It travels pickled. What its arrays hold, the other process reads from this one's memory, a batch at a time,
and what was read this one lets go of: so weights are in memory about once. (Most of what it takes to write
them to a file that both map is to get its pages one by one.) Where the system doesn't let a process read
another's memory, arrays come in a file that never has a name.
"""

from __future__ import annotations

import copyreg
import ctypes
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from io import BytesIO
from itertools import accumulate
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from jangin.ir.dtype import DType, from_numpy
from jangin.ir.graph import Array
from jangin.ir.plan import Plan
from jangin.mapped import SLAB
from jangin.runtime.artifact import PLACE, placed
from jangin.runtime.compiled import Compiled
from jangin.runtime.threads import default_threads

BATCH = 64 << 20
"""Bytes that are read before what held them is let go of."""


def pickled(made: Compiled) -> tuple[bytes, list[Array]]:
    """A compiled model without what only the compiler needs, and the bytes that its arrays hold."""
    file, held = BytesIO(), list[Array]()
    pickler = pickle.Pickler(file, 5, buffer_callback=lambda b: held.append(np.frombuffer(b.raw(), np.uint8)))
    pickler.dispatch_table = {**copyreg.dispatch_table, np.ndarray: _array, np.memmap: _array, Plan: _plan}
    pickler.dump(made)
    return file.getvalue(), held


def _array(array: Array) -> tuple[Callable[..., Array], tuple[Any, ...]]:
    if array.dtype == object or not array.nbytes:
        return array.__reduce_ex__(4)  # type: ignore[return-value]
    data = np.asarray(array, order="C").reshape(-1).view(np.uint8).data
    return _array_of, (pickle.PickleBuffer(data), from_numpy(array.dtype), array.shape)


def _array_of(data: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def _plan(plan: Plan) -> tuple[type[Plan], tuple[Any, ...]]:
    bare = replace(plan, kernels={}, calls={})
    return Plan, tuple(getattr(bare, f.name) for f in fields(Plan))


def hand(caller: Connection, data: bytes, held: list[Array]) -> None:
    """Send what `pickled` gave, and stay until it is taken: the arrays go from the list as they are read. A
    pipe of their own has what is said of that, as what else a caller says may be another process's to read.
    """
    ours, theirs = Pipe()
    send_handle(caller, theirs.fileno(), None)
    theirs.close()
    with ours:
        ours.send((os.getpid(), data, [(array.ctypes.data, array.nbytes) for array in held]))
        held.reverse()
        while held:
            count: int | None = ours.recv()
            if count is None:
                _send_file(ours, held[::-1])
                return
            del held[-count:]


def _send_file(pipe: Connection, held: Sequence[Array]) -> None:
    with TemporaryFile() as file:
        for array in held:
            file.seek(placed(file.tell()))
            file.write(array.data)
        file.flush()
        send_handle(pipe, file.fileno(), None)


def taken(caller: Connection) -> Compiled:
    """What a process hands over. Raises EOFError where it ends before."""
    with Connection(recv_handle(caller)) as pipe:
        process, data, parts = pipe.recv()
        sizes = [size for _, size in parts]
        places = [0, *accumulate(map(placed, sizes))]
        try:
            block = _copied(process, parts, places, pipe)
        except (OSError, AttributeError):
            pipe.send(None)
            with os.fdopen(recv_handle(pipe), "rb") as file:
                block = np.memmap(file, np.uint8, "r")
    block.flags.writeable = False
    held = [block[at : at + size] for at, size in zip(places, sizes, strict=False)]
    made: Compiled = pickle.loads(data, buffers=held)
    return made


def _copied(process: int, parts: Sequence[tuple[int, int]], places: Sequence[int], pipe: Connection) -> Array:
    """The arrays of another process, whose address and size `parts` has, at their places in one block."""
    block = np.empty(places[-1] + PLACE, np.uint8)
    block = block[-block.ctypes.data % PLACE :]
    with ThreadPoolExecutor(default_threads()) as threads:
        for first, last in _batches([size for _, size in parts]):
            pieces = [
                (process, start + at, block[places[n] + at : places[n] + min(size, at + SLAB)])
                for n, (start, size) in enumerate(parts[first:last], first)
                for at in range(0, size, SLAB)
            ]
            list(threads.map(_read, *zip(*pieces, strict=True)))
            pipe.send(last - first)
    return block


class _Part(ctypes.Structure):
    """C's `struct iovec`."""

    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _read(process: int, start: int, goal: Array) -> None:
    """Another process's memory. Raises OSError where the system refuses, AttributeError where it can't."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    one = ctypes.c_ulong(1)
    ours, theirs = _Part(goal.ctypes.data, goal.nbytes), _Part(start, goal.nbytes)
    got = read(process, ctypes.byref(ours), one, ctypes.byref(theirs), one, ctypes.c_ulong(0))
    if got != goal.nbytes:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of arrays of about `BATCH` bytes."""
    first, room = 0, BATCH
    for n, size in enumerate(sizes, 1):
        room -= size
        if room <= 0 or n == len(sizes):
            yield first, n
            first, room = n, BATCH
