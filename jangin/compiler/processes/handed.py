"""Hands a compiled model to the process that requested it, without a named file.

The model travels pickled. The other process reads the arrays' contents from this one's memory, a batch at a
time, and this process then releases the batch. Weights are therefore in memory about once. A file that both
processes map would be slower, because the system provides its pages one by one. If the system doesn't let a
process read another's memory, arrays are sent in an unnamed file."""

from __future__ import annotations

import copyreg
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from io import BytesIO
from itertools import accumulate
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from tempfile import TemporaryFile, gettempdir
from typing import Any, NamedTuple

import numpy as np

from jangin.files import writing
from jangin.ir.dtype import DType, from_numpy
from jangin.ir.graph import Array
from jangin.ir.plan import Plan
from jangin.mapped import PIECE, SLAB
from jangin.runtime.artifact import PLACE, placed
from jangin.runtime.compiled import Compiled
from jangin.runtime.system.memory import read_other
from jangin.runtime.threads import default_threads

BATCH = PIECE
"""Bytes that are read before their arrays are released. The next arrays then get the same memory again.
Writing to memory that the system must provide first takes many times as long."""


def pickled(made: Compiled) -> tuple[bytes, list[Array]]:
    """Return a compiled model as pickled bytes, and its arrays' contents apart from them. Its kernels' loops
    and library calls, which only the compiler needs, are left out."""
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
    """Send the results of `pickled` through a new pipe, and wait until the receiver has read the arrays from
    this process's memory.

    The list `held` is emptied, and each batch of arrays is released once it is read, by ascending address.
    The pipe is new because another process may read messages from `caller`. If the receiver can't read this
    memory, it gets the arrays in an unnamed file.
    """
    ours, theirs = Pipe()
    send_handle(caller, theirs.fileno(), None)
    theirs.close()
    with ours:
        order = sorted(range(len(held)), key=lambda n: -held[n].ctypes.data)
        left = [held[n] for n in order]
        held.clear()
        parts = [(n, a.ctypes.data, a.nbytes) for n, a in zip(order, left, strict=True)][::-1]
        ours.send((os.getpid(), data, parts))
        while left:
            count: int | None = ours.recv()
            if count is None:
                assert len(left) == len(parts), "memory that could be read can't be any more"
                _send_file(ours, left[::-1])
                return
            del left[-count:]


def _send_file(pipe: Connection, held: Sequence[Array]) -> None:
    try:
        with TemporaryFile() as file:
            with writing(gettempdir()):
                for array in held:
                    file.seek(placed(file.tell()))
                    file.write(array.data)
                file.flush()
            pipe.send(None)
            send_handle(pipe, file.fileno(), None)
    except OSError as error:
        pipe.send(error)


def taken(caller: Connection) -> Compiled:
    """Receive the compiled model that another process sends with `hand`, and return it. Its arrays are
    read-only.

    Raises EOFError if the process ends before the hand-over, and OSError if the process can't hand the model
    over."""
    with Connection(recv_handle(caller)) as pipe:
        process, data, ranges = pipe.recv()
        parts = [_Held(n, start, size, 0) for n, start, size in ranges]
        ends = [0, *accumulate(placed(p.size) for p in parts)]
        parts = [p._replace(place=at) for p, at in zip(parts, ends, strict=False)]
        block = np.empty(ends[-1] + PLACE, np.uint8)
        block = block[-block.ctypes.data % PLACE :]
        try:
            _copy(process, parts, block, pipe)
        except (PermissionError, AttributeError):
            pipe.send(None)
            if (error := pipe.recv()) is not None:
                raise error from None
            with os.fdopen(recv_handle(pipe), "rb") as file:
                block = np.memmap(file, np.uint8, "r")
    block.flags.writeable = False
    held = [block[p.place : p.place + p.size] for p in sorted(parts)]
    artifact: Compiled = pickle.loads(data, buffers=held)
    return artifact


class _Held(NamedTuple):
    """An array of the other process. `number` is its place in pickling order and `start` its address there.
    `size` is its bytes, and `place` its first byte in this process's block."""

    number: int
    start: int
    size: int
    place: int


def _copy(process: int, parts: Sequence[_Held], block: Array, pipe: Connection) -> None:
    with ThreadPoolExecutor(default_threads()) as threads:
        for batch in _batches(parts):
            pieces = [
                (process, p.start + at, block[p.place + at : p.place + min(p.size, at + SLAB)])
                for p in batch
                for at in range(0, p.size, SLAB)
            ]
            list(threads.map(_read, *zip(*pieces, strict=True)))
            pipe.send(len(batch))


def _read(process: int, start: int, goal: Array) -> None:
    """Copy bytes from another process's memory at the address `start` into `goal`, which they fill. Raises
    the errors of `read_other`."""
    read_other(process, start, goal.ctypes.data, goal.nbytes)


def _batches(parts: Sequence[_Held]) -> Iterator[list[_Held]]:
    """Yield consecutive arrays in batches, each of at least `BATCH` bytes except the last."""
    batch, size = list[_Held](), 0
    for part in parts:
        batch.append(part)
        size += part.size
        if size >= BATCH or part is parts[-1]:
            yield batch
            batch, size = [], 0
