"""Tensors of other libraries on the mock's device: what PyTorch, CuPy and JAX offer by the protocols. The
work that fills them waits in a stream of their own, as late as a GPU may do it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jangin.ir.dtype import from_numpy
from jangin.runtime import dlpack
from jangin.runtime.devices.cuda import CudaDriver
from jangin.runtime.devices.cuda_devices import select
from jangin.runtime.devices.cuda_objects import Event

CODES = {"f32": 2, "f64": 2, "f16": 2, "i64": 0, "i32": 0, "u8": 1, "bool": 6, "bf16": 4}
"""DLPack's codes by `dlpack.h`, written apart from Jangin's table."""


class Theirs:
    """A tensor with neither protocol. Its elements lie in memory of `room` bytes more than the array's, which
    begins `offset` bytes behind an allocation's beginning. `strides` are in bytes, and `array` is the whole
    memory's contents, of which the tensor is a view."""

    def __init__(self, view: np.ndarray, memory: np.ndarray | None = None, offset: int = 0) -> None:
        memory = view if memory is None else memory
        driver = CudaDriver(select(""))
        self.array, self.shape, self.dtype, self.strides = view, view.shape, view.dtype, view.strides
        self.buffer = driver.buffer(memory.nbytes + offset + 1)
        self.stream = driver.queue()
        part = self.buffer.part(offset, memory.nbytes + 1)
        if memory.nbytes:
            self.stream.write(part, np.ascontiguousarray(memory))
        first = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        self.address = part.handle + first
        self.released = 0


class Interface(Theirs):
    """A tensor of a library that has `__cuda_array_interface__` alone."""

    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        plain = self.array.flags.c_contiguous
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3,
            "strides": None if plain else self.strides, "stream": self.stream.handle, **self.extra,
        }  # fmt: skip


class Dlpack(Theirs):
    """A tensor of a library that has DLPack. `versions` is false for libraries of before DLPack 1.0."""

    device, versions, flags = 0, True, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int | None = None, **how: Any) -> Any:
        if how and not self.versions:
            raise TypeError(f"unexpected arguments {how}")
        assert stream != 0, "0 is ambiguous"
        self.asked_for = stream
        context = self.stream.context
        self.ready = Event(context)
        context.call("cuEventRecord", self.ready.handle, self.stream.handle)
        context.call("cuStreamWaitEvent", 1 if stream is None else stream, self.ready.handle, 0)
        return self.capsule(versioned="max_version" in how)

    def capsule(self, versioned: bool) -> Any:
        managed = (dlpack.Versioned if versioned else dlpack.Managed)()
        if versioned:
            managed.major, managed.minor, managed.flags = 1, 1, self.flags
        t, rank = managed.tensor, len(self.shape)
        t.data, t.byte_offset = self.address - 64, 64
        t.device_type, t.device_id, t.ndim = 2, self.device, rank
        t.code, t.bits, t.lanes = CODES[str(from_numpy(self.dtype))], self.dtype.itemsize * 8, 1
        sizes = (ctypes.c_int64 * rank)(*self.shape)
        steps = (ctypes.c_int64 * rank)(*(s // self.dtype.itemsize for s in self.strides))
        word = ctypes.POINTER(ctypes.c_int64)
        t.shape = ctypes.cast(sizes, word)
        t.strides = None if self.array.flags.c_contiguous else ctypes.cast(steps, word)
        delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._delete)
        managed.deleter = ctypes.cast(delete, ctypes.c_void_p).value
        self.kept = managed, sizes, steps, delete
        return capsule(ctypes.addressof(managed), dlpack.NAMES[versioned])

    def _delete(self, address: int) -> None:
        assert address == ctypes.addressof(self.kept[0])
        self.released += 1


def capsule(address: int, name: bytes) -> Any:
    """Return a capsule without a destructor."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(address, name, None)


def consumed(capsule_of: Any, versioned: bool) -> tuple[np.ndarray, Any]:
    """Take a capsule as another library does. Return the tensor's elements, and a function that releases
    it."""
    kind = dlpack.Versioned if versioned else dlpack.Managed
    interface = ctypes.pythonapi
    interface.PyCapsule_GetPointer.restype = ctypes.c_void_p
    interface.PyCapsule_GetPointer.argtypes = ctypes.py_object, ctypes.c_char_p
    interface.PyCapsule_SetName.argtypes = ctypes.py_object, ctypes.c_char_p
    at = interface.PyCapsule_GetPointer(capsule_of, dlpack.NAMES[versioned])
    interface.PyCapsule_SetName(capsule_of, dlpack.USED[versioned])
    managed: Any = kind.from_address(at)
    t = managed.tensor
    assert t.device_type == 2 and t.lanes == 1
    shape = t.shape[: t.ndim]
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    return at_address(t.data + t.byte_offset, shape, t.bits // 8, t.code), lambda: release(at)


def at_address(address: int, shape: Sequence[int], itemsize: int, code: int = 2) -> np.ndarray:
    """Return the elements at an address of the mock's device, which is this process's memory."""
    size = int(np.prod(shape, dtype=np.int64)) * itemsize
    raw = bytes((ctypes.c_char * size).from_address(address))
    return np.frombuffer(raw, f"{'iuf'[code]}{itemsize}").reshape(shape)
