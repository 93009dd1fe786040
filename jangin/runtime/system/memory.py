"""Special memory from the system: for machine code, private to one process, or of another process."""

from __future__ import annotations

import ctypes
import errno
import mmap

from jangin.runtime.system import lacking

_LIBRARIES = (None, "libm.so.6", "libgcc_s.so.1")
"""Libraries whose functions machine code calls. None stands for all that the process has loaded."""
PRIVATE = (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,) if hasattr(mmap, "MAP_ANONYMOUS") else ()
"""The flags of private memory without a file; empty on systems whose `mmap` takes none."""


def let_go(mapped: mmap.mmap, start: int = 0, size: int | None = None) -> None:
    """Return the memory of a mapped file to the system, either all of it or `size` bytes from `start`, the
    beginning of a page.

    The bytes are read from the file again at their next use. Systems other than Linux decide by themselves
    when to release the memory."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, start, len(mapped) - start if size is None else size)


def symbol(name: str) -> int:
    """Return the address of a function of the C library, of libm or of the compiler's runtime (16-bit
    floats). Return 0 if none of them has it."""
    for library in _LIBRARIES:
        try:
            address = ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
        # the last one on Windows, because of the missing library name
        except (AttributeError, OSError, TypeError):
            continue
        if address:
            return address
    return 0


def make_executable(address: int, size: int) -> None:
    """Make `size` bytes from the beginning of a page executable, and no longer writable. Raises OSError if
    the system refuses, and Lacking if it has no such call."""
    try:
        protect = ctypes.CDLL(None, use_errno=True).mprotect
    except (AttributeError, OSError, TypeError):
        raise lacking("memory for machine code", "run the model on Linux, or on an OpenCL device") from None
    if protect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "the system refuses executable memory")


class _Part(ctypes.Structure):
    """C's `struct iovec`."""

    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_other(process: int, start: int, goal: int, size: int) -> None:
    """Copy `size` bytes from the address `start` of another process to the address `goal` of this one.

    Raises PermissionError if the system refuses, AttributeError if it has no such call, and EOFError if the
    other process is gone."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    one = ctypes.c_ulong(1)
    ours, theirs = _Part(goal, size), _Part(start, size)
    got = read(process, ctypes.byref(ours), one, ctypes.byref(theirs), one, ctypes.c_ulong(0))
    if got != size:
        raise EOFError if ctypes.get_errno() == errno.ESRCH else PermissionError
