"""Programs of kernels on an OpenCL device: stored as source and binary, loaded and built."""

from __future__ import annotations

import shutil
import struct
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from threading import Lock, Thread

from jangin.ir.library import Sgemm
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.clblast import Clblast
from jangin.runtime.devices.opencl_devices import Found, select
from jangin.runtime.devices.opencl_library import Context, Error, Kernel, Program
from jangin.runtime.devices.products import unpacked
from jangin.runtime.system import renew_lock

LOG = 2000
"""An error contains at most this many characters of a compiler's messages, some 25 lines. The first messages
tell the cause."""

OPTIONS = ("-cl-std=CL1.2", "-w")
"""Build options. Warnings are off, because nobody could act on them."""

_HEAD = struct.Struct("<III")


@dataclass(frozen=True)
class Built:
    """A program of one kernel: its source and the driver's binary, which may be empty.

    `product` is a library call before the kernel (`products.packed`), or empty. With a product, the source
    may be empty too."""

    kernel: str
    source: bytes
    binary: bytes = b""
    product: bytes = b""

    @property
    def packed(self) -> bytes:
        parts = self.kernel.encode(), self.source, self.product
        return _HEAD.pack(*map(len, parts)) + b"".join(parts) + self.binary

    @classmethod
    def of(cls, code: bytes) -> Built:
        """Unpack the program from the bytes that `packed` made. Raises LoadError if they are damaged."""
        try:
            start, name, source, product = accumulate(_HEAD.unpack_from(code), initial=_HEAD.size)
            parts = code[start:name], code[name:source], code[source:product]
            return cls(parts[0].decode(), parts[1], code[product:], parts[2])
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}; compile the model again") from None


@dataclass
class Opened:
    """A device with the context of its programs and memory."""

    device: Found
    context: Context


_OPENED: dict[int, Opened] = {}
_LOCK = Lock()
"""Held while a device is opened."""
renew_lock(globals(), "_LOCK", Lock)


def opened(device: Found) -> Opened:
    """Open a device, unless this process has opened it, and return it. Raises LoadError if it can't be
    opened."""
    with _LOCK:
        if device.number not in _OPENED:
            try:
                _OPENED[device.number] = Opened(device, Context(device.handle))
            except Error as error:
                raise LoadError(f"{device} can't be opened: {error}") from error
        return _OPENED[device.number]


def begin(which: str) -> None:
    """Start the drivers and open the device that `select` returns, in a thread, and return at once.

    Drivers take as long to start as the caller's imports. Errors are ignored here, and raised again where the
    device is needed."""

    def start() -> None:
        with suppress(LoadError):
            opened(select(which))

    Thread(target=start).start()


def forget(lost: Opened) -> None:
    """Drop a lost device, so that the next load opens it anew."""
    if _OPENED.get(lost.device.number) is lost:
        del _OPENED[lost.device.number]


def load_program(device: Found, built: Built, *, same: bool) -> Program:
    """Build a program from its binary if the `same` driver made it and accepts it, else from its source.
    Raises LoadError."""
    here = opened(device)
    if built.binary and same:
        try:
            return Program(here.context, binary=built.binary).build()
        except Error:
            pass  # a driver may refuse its own binary; the source is there
    return build_program(device, built.source)


def load_kernel(device: Found, built: Built, *, same: bool) -> Kernel | Clblast:
    """Load the kernel of a program, with its library call if it has one. Raises LoadError."""
    if built.product:
        rest = load_kernel(device, replace(built, product=b""), same=same) if built.source else None
        product = unpacked(built.product)
        if not isinstance(product, Sgemm):
            raise LoadError(
                "a kernel's code is damaged: CLBlast has no convolutions; compile the model again"
            )
        return Clblast(product, rest)
    program = load_program(device, built, same=same)
    try:
        return Kernel(program, built.kernel)
    except Error as error:
        raise LoadError(f"{device} has no kernel {built.kernel} in its program: {error}") from error


def build_program(device: Found, source: bytes) -> Program:
    """Build a program from OpenCL C. Raises LoadError with the compiler's messages."""
    if device.linker and shutil.which(device.linker) is None:
        raise LoadError(
            f"{device} needs the program {device.linker!r}, without which its driver ends this process: "
            "install your system's binutils"
        )
    here = opened(device)
    options = list(OPTIONS)
    if device.rounded:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    try:
        return Program(here.context, source).build(options)
    except Error as error:
        raise LoadError(
            f"the compiler of {device} failed; compile the model for another device, and tell the maker of "
            f"the driver what it says: {str(error)[:LOG]}"
        ) from error
