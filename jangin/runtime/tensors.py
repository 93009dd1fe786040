"""Tensors of other libraries in a GPU's memory, as described by DLPack or `__cuda_array_interface__`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime.sizes import TensorSpec

GPU = 2, 13
"""DLPack's numbers of CUDA's memory: the device's own, and memory that the driver moves."""
LEGACY_STREAM = 1
"""The number by which both protocols name CUDA's default stream, which waits for other streams."""
STREAMS_SINCE = 3
"""The version of `__cuda_array_interface__` from which on tensors name their stream."""
PIECES = 4096
"""The most copies of rows for one tensor that isn't contiguous. More would take longer than the remedy, which
is one kernel of the caller's library."""

CONTIGUOUS = "give a contiguous copy of it (x.contiguous() in PyTorch, cupy.ascontiguousarray)"


@dataclass(frozen=True, eq=False)
class Taken:
    """An input that a caller's library holds in a GPU's memory.

    - `device` is the GPU's number, or None if the protocol doesn't tell it.
    - `strides` are in bytes.
    - `stream` is the stream whose work makes the tensor, or None if there is nothing to wait for.
    - `owner` keeps the memory alive."""

    address: int
    device: int | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stream: int | None
    owner: Any

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return len(merged(self)) <= 1

    def __str__(self) -> str:
        where = "a GPU" if self.device is None else f"cuda:{self.device}"
        return f"a tensor {self.dtype}[{', '.join(map(str, self.shape))}] on {where}"


@runtime_checkable
class Receiver(Protocol):
    """Working memory whose device computes on tensors of other libraries."""

    def received(self, value: Any, want: TensorSpec) -> Taken:
        """Return a tensor on the device as the input `want`. The next run waits for the stream that makes it.
        Raises TypeError for a wrong dtype, and ValueError for memory that the run can't use."""


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is a tensor in a GPU's memory, by either protocol."""
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        return where()[0] in GPU
    return hasattr(value, "__cuda_array_interface__")


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an input, without reading its elements if it is a tensor."""
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def taken(value: Any, stream: Callable[[], int]) -> Taken:
    """Return the description of a tensor on a GPU, by DLPack if the tensor has it. `stream` returns the
    handle of the stream that will read the tensor. With DLPack, the tensor's library makes that stream wait.

    Raises what the library raises, and TypeError for an unknown element type."""
    if hasattr(value, "__dlpack__"):
        from jangin.runtime import dlpack

        where, held = value.__dlpack_device__(), dlpack.imported(value, stream())
        t = held.tensor
        strides = [n * held.dtype.itemsize for n in held.strides]
        return Taken(
            (t.data or 0) + t.byte_offset, int(where[1]), held.dtype, held.shape, tuple(strides), None, held
        )
    return _by_interface(value)


def _by_interface(value: Any) -> Taken:
    said = value.__cuda_array_interface__
    dtype, shape = np.dtype(said["typestr"]), tuple(said["shape"])
    if said.get("mask") is not None:
        raise TypeError("it has a mask: give its values and its mask as two inputs")
    stream = said.get("stream") if said.get("version", 0) >= STREAMS_SINCE else LEGACY_STREAM
    if stream == 0:
        raise ValueError("its stream is 0, which the protocol forbids: 1 is the default stream")
    strides = said.get("strides") or c_strides(shape, dtype.itemsize)
    return Taken(said["data"][0], None, dtype, shape, tuple(strides), stream, value)


def c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous tensor in C's order."""
    return tuple(math.prod(shape[n + 1 :]) * itemsize for n in range(len(shape)))


# --- copies of tensors that aren't contiguous


def merged(tensor: Taken) -> list[tuple[int, int, int]]:
    """Return the tensor's dimensions as (size, stride, stride in a contiguous copy), with strides in bytes.
    Neighbours that one loop can walk are one dimension. Elements follow the last one without a gap, so that a
    contiguous tensor has at most one dimension, a run of bytes."""
    if not tensor.nbytes:
        return []
    merged_axes = [(tensor.dtype.itemsize, 1, 1)]
    dense = c_strides(tensor.shape, tensor.dtype.itemsize)
    for size, stride, to in reversed(list(zip(tensor.shape, tensor.strides, dense, strict=True))):
        inner, inner_stride, inner_to = merged_axes[-1]
        if size == 1:
            continue
        if stride == inner * inner_stride:
            merged_axes[-1] = inner * size, inner_stride, inner_to
        else:
            merged_axes.append((size, stride, to))
    return merged_axes[::-1]


@dataclass(frozen=True)
class Piece:
    """Rows of equal length, for one copy. `at` and `to` are the offsets in bytes in the tensor and in its
    contiguous copy, and the pitches are the distances of rows."""

    at: int
    to: int
    width: int
    rows: int
    pitch: int
    to_pitch: int


def pieces(tensor: Taken) -> Iterator[Piece]:
    """Yield the copies that make a contiguous copy of a tensor. Raises ValueError if there would be too
    many."""
    *outer, (width, _, _) = merged(tensor)
    able = [n for n, (_, stride, _) in enumerate(outer) if stride >= width]
    best = max(able, key=lambda n: outer[n][0], default=None)
    rows, pitch, to_pitch = (1, width, width) if best is None else outer.pop(best)
    count = math.prod(size for size, _, _ in outer)
    if count > PIECES:
        raise ValueError(f"its strides {tensor.strides} need {count} copies: {CONTIGUOUS}")
    for index in product(*(range(size) for size, _, _ in outer)):
        at = sum(n * stride for n, (_, stride, _) in zip(index, outer, strict=True))
        to = sum(n * stride for n, (_, _, stride) in zip(index, outer, strict=True))
        yield Piece(at, to, width, rows, pitch, to_pitch)


def on_host(value: Any, want: TensorSpec) -> TypeError:
    """Return the exception for a tensor on a GPU as an input of a model that reads the host's memory."""
    kind = type(value)
    return TypeError(
        f"input {want} is on a GPU ({kind.__module__.partition('.')[0]}'s {kind.__name__}, "
        f"{shape_of(value)}), but only models for target='cuda' without branches and loops read it there: "
        "copy it to the host first (x.cpu() in PyTorch, x.get() in CuPy)"
    )


Readable = Array | Taken
"""An input as a run reads it."""
