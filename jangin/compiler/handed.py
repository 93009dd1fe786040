"""A compiled model handed to the process that asked for it, with no file between.

It travels pickled. What its arrays hold, the other process reads from this one's memory, a batch at a time,
and what was read this one lets go of: so weights are in memory about once. (Most of what it takes to write
them to a file that both map is to get its pages one by one.) Where the system doesn't let a process read
another's memory, arrays come in a file that never has a name.
"""

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
"""Bytes that are read before what held them is let go of. The next are read to the same memory: to write to
such as the system must find first takes many times as long."""


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
    """Send what `pickled` gave, and stay until it is taken. The arrays are taken out of the list, and go as
    they are read, in the order in which they lie in memory. A pipe of their own has what is said of that, as
    what else a caller says may be another process's to read."""
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
    """Return the compiled model that a process hands over.

    Raises EOFError if the process ends before the hand-over, and OSError if the process can't hand the model
    over."""
    with Connection(recv_handle(caller)) as pipe:
        process, data, found = pipe.recv()
        parts = [_Held(n, start, size, 0) for n, start, size in found]
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
    made: Compiled = pickle.loads(data, buffers=held)
    return made


class _Held(NamedTuple):
    """An array of the other process: its number, where it begins there, its bytes, and its place here."""

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
    """Another process's memory; raises what `read_other` raises."""
    read_other(process, start, goal.ctypes.data, goal.nbytes)


def _batches(parts: Sequence[_Held]) -> Iterator[list[_Held]]:
    """About `BATCH` bytes of arrays at a time."""
    batch, size = list[_Held](), 0
    for part in parts:
        batch.append(part)
        size += part.size
        if size >= BATCH or part is parts[-1]:
            yield batch
            batch, size = [], 0
