"""DLPack's structures in capsules: tensors of other libraries, and tensors for them.

A capsule holds a structure with a deleter, which its consumer calls exactly once. A consumer renames the
capsule, so that the capsule itself doesn't call the deleter too. DLPack's header, `dlpack.h`, has all names
and numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.ir.dtype import DTYPES, from_numpy

CPU, CUDA = 1, 2
"""The numbers of the kinds of device in DLPack's header (kDLCPU, kDLCUDA)."""
VERSION = 1, 0
"""The version of versioned capsules that are made and asked for."""
READ_ONLY, IS_COPIED = 1, 2
"""Flags of versioned capsules. Runs only read such tensors, so both kinds are taken."""
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}
"""Names of capsules, before and after a consumer took them. `True` is for versioned ones."""
_CODES = {
    "bf16": 4, "bool": 6, "f8e4m3fn": 10, "f8e4m3fnuz": 11, "f8e5m2": 12, "f8e5m2fnuz": 13, "f8e8m0": 14,
}  # fmt: skip
"""The codes of element types that have a code of their own."""
_KINDS = {"i": 0, "u": 1, "f": 2}
"""The codes of all other element types, by their kind."""
_TYPES = {
    (_CODES.get(t.name, _KINDS.get(t.kind, -1)), t.bits): t
    for t in DTYPES.values()
    if t.name in _CODES or t.bits >= 16 or t.name in ("i8", "u8")
}
"""Element types by code and bits. Types of less than a byte aren't exchanged."""

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    """DLTensor. `strides` count elements, and null stands for a contiguous tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor, of capsules without a version."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    )  # fmt: skip


_FORMS: dict[bool, type[Managed | Versioned]] = {False: Managed, True: Versioned}


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's C interface, with types of its own."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set_name = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class Held:
    """A tensor from a capsule. The deleter is called when this object is released."""

    def __init__(self, capsule: Any) -> None:
        self._address = 0
        versioned = bool(_is_valid(capsule, NAMES[True]))
        if not versioned and not _is_valid(capsule, NAMES[False]):
            raise TypeError("its __dlpack__ gave no capsule of a tensor that nobody has taken")
        address = _pointer(capsule, NAMES[versioned])
        managed: Any = _FORMS[versioned].from_address(address)
        if versioned and managed.major > VERSION[0]:
            raise TypeError(f"its capsule is of DLPack {managed.major}: ask its library for version 1")
        if versioned and managed.flags & ~(READ_ONLY | IS_COPIED):
            raise TypeError(f"its capsule has the flags {managed.flags:#x}, and Jangin knows 0x1 and 0x2")
        _set_name(capsule, USED[versioned])
        self._address, self._deleter = address, managed.deleter
        self.tensor: Any = managed.tensor
        t, rank = self.tensor, self.tensor.ndim
        element = _TYPES.get((t.code, t.bits)) if t.lanes == 1 else None
        if element is None:
            raise TypeError(
                f"its element type (code {t.code}, {t.bits} bits, {t.lanes} lanes) is none of Jangin's: "
                "convert it to the input's"
            )
        self.dtype = element.numpy
        self.shape = tuple(t.shape[:rank]) if rank else ()
        self.strides = tuple(t.strides[:rank]) if rank and t.strides else _dense(self.shape)

    def __del__(self) -> None:
        if self._address and self._deleter:
            _Deleter(self._deleter)(self._address)
        self._address = 0


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()


def imported(value: Any, stream: int) -> Held:
    """Take a tensor on a GPU by its `__dlpack__`, whose library makes `stream` wait for the tensor. Raises
    what the library raises, and TypeError for an unknown element type."""
    try:
        capsule = value.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # libraries of before DLPack 1.0 don't know the argument
        capsule = value.__dlpack__(stream=stream)
    return Held(capsule)


# --- tensors for other libraries

_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_EXPORTED: dict[int, tuple[Any, ...]] = {}
"""Structures that consumers hold, by their addresses, and all that they refer to."""
_raw = {
    name: ctypes.PYFUNCTYPE(result, ctypes.c_void_p, ctypes.c_char_p)((name, ctypes.pythonapi))
    for name, result in (("PyCapsule_IsValid", ctypes.c_int), ("PyCapsule_GetPointer", ctypes.c_void_p))
}
"""Functions on a capsule that is being released: ctypes would make a new reference to it as an object."""


def _delete(address: int) -> None:
    _EXPORTED.pop(address, None)


def _release(capsule: int) -> None:
    """Release the tensor of a capsule that nobody took."""
    for name in NAMES.values():
        if _raw["PyCapsule_IsValid"](capsule, name):
            _delete(_raw["PyCapsule_GetPointer"](capsule, name))


_DELETE, _RELEASE = _Deleter(_delete), _Deleter(_release)
"""Both functions for native code. They live as long as the process."""


def exported(
    address: int, device: int, dtype: np.dtype[Any], shape: Sequence[int], owner: Any,
    *, versioned: bool, copied: bool = False,
) -> Any:  # fmt: skip
    """Return a capsule of a contiguous tensor in a GPU's memory. It keeps `owner` until the deleter is
    called. Raises BufferError for an element type that DLPack doesn't know."""
    element = from_numpy(dtype)
    code = next((key for key, t in _TYPES.items() if t is element), None)
    if code is None:
        raise BufferError(f"DLPack has no element type {element}")
    rank = len(shape)
    sizes, strides = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*_dense(shape))
    managed: Any = _FORMS[versioned]()
    managed.deleter = ctypes.cast(_DELETE, ctypes.c_void_p).value
    if versioned:
        (managed.major, managed.minor), managed.flags = VERSION, IS_COPIED * copied
    t = managed.tensor
    t.data, t.device_type, t.device_id, t.ndim = address, CUDA, device, rank
    (t.code, t.bits), t.lanes = code, 1
    word = ctypes.POINTER(ctypes.c_int64)
    t.shape, t.strides = ctypes.cast(sizes, word), ctypes.cast(strides, word)
    at = ctypes.addressof(managed)
    _EXPORTED[at] = managed, sizes, strides, owner
    return _new(at, NAMES[versioned], ctypes.cast(_RELEASE, ctypes.c_void_p))
