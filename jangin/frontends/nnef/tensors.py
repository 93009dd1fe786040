"""Read and write NNEF's files of tensors (.dat): a header of 128 bytes, then the elements, little-endian.

The header begins with the bytes 4E EF 01 00, followed by u32 numbers. They are the length of the elements in
bytes, the rank (at most 8), eight sizes, the bits of an element, and its kind. The rest is 0. Source: the
specification's chapter on storing network data."""

from __future__ import annotations

import math
import struct

import numpy as np

from jangin.ir.graph import Array, CompileError

HEADER = struct.Struct("<4BII8III")
LENGTH = 128
MOST_AXES = 8
"""The bytes of a tensor file's header, and the most axes that it can describe (NNEF 1.0, tensor file
format)."""
FLOAT, UINT, QUINT, QINT, INT, BOOL = range(6)
_NAMES = {FLOAT: "f", UINT: "u", QUINT: "u", QINT: "i", INT: "i"}


def read_tensor(data: bytes | memoryview, what: str) -> tuple[Array, bool]:
    """Return the tensor in a file's bytes, as a view of `data`, and whether its elements are quantized.
    Raises CompileError, which begins with `what`, if the file is malformed."""
    if len(data) < LENGTH:
        raise CompileError(f"{what} has {len(data)} bytes, fewer than a header's {LENGTH}: it is cut short")
    first, second, major, minor, length, rank, *rest = HEADER.unpack_from(data)
    sizes, bits, kind = rest[:MOST_AXES], rest[-2], rest[-1]
    if (first, second) != (0x4E, 0xEF):
        raise CompileError(f"{what} is no file of a tensor: it does not begin as one")
    if (major, minor) != (1, 0):
        raise CompileError(f"{what} is of version {major}.{minor}, and only 1.0 is supported")
    if rank > MOST_AXES:
        raise CompileError(f"{what} has {rank} axes, and may have at most {MOST_AXES}")
    if kind == UINT and struct.unpack_from("<I", data, HEADER.size)[0]:
        kind = INT  # as older files of version 1.0 mark it
    dtype = _dtype(kind, bits, what)
    shape = sizes[:rank]
    count = math.prod(shape)
    wanted = (count + 7) // 8 if kind == BOOL and bits == 1 else count * (bits // 8)
    if length != wanted or len(data) != LENGTH + wanted:
        raise CompileError(
            f"{what} has {len(data) - LENGTH} bytes of elements and says {length}; its shape {shape} of "
            f"{bits} bits needs {wanted}: it is damaged"
        )
    if kind == BOOL and bits == 1:
        flags = np.unpackbits(np.frombuffer(data, np.uint8, wanted, LENGTH), count=count)
        return flags.astype(bool).reshape(shape), False
    return np.frombuffer(data, dtype, count, LENGTH).reshape(shape), kind in (QUINT, QINT)


def _dtype(kind: int, bits: int, what: str) -> np.dtype[np.generic]:
    if kind == BOOL and bits in (1, 8):
        return np.dtype(np.bool_)
    known = {FLOAT: (16, 32, 64)}.get(kind, (8, 16, 32, 64) if kind in _NAMES else ())
    if bits not in known:
        raise CompileError(f"{what} has elements of kind {kind} and {bits} bits, which is not supported")
    return np.dtype(f"<{_NAMES[kind]}{bits // 8}")


def tensor_bytes(array: Array) -> bytes:
    """Return the bytes of a file for a tensor. Raises CompileError if the format lacks its type or rank."""
    kinds = {"f": FLOAT, "u": UINT, "i": INT, "b": BOOL}
    if array.dtype.kind not in kinds or array.ndim > MOST_AXES:
        raise CompileError(f"NNEF has no tensors of {array.dtype} with {array.ndim} axes")
    bits = 1 if array.dtype.kind == "b" else array.dtype.itemsize * 8
    content = (
        np.packbits(array).tobytes() if bits == 1 else array.astype(array.dtype.newbyteorder("<")).tobytes()
    )
    sizes = [*array.shape, *[0] * (MOST_AXES - array.ndim)]
    header = HEADER.pack(0x4E, 0xEF, 1, 0, len(content), array.ndim, *sizes, bits, kinds[array.dtype.kind])
    return header.ljust(LENGTH, b"\0") + content
