"""Programs of kernels on an OpenCL device: kept as a source with what a driver made of it, loaded, built."""

from __future__ import annotations

import shutil
import struct
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from threading import Lock, Thread

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.clblast import Product, unpacked
from jangin.runtime.devices.opencl_devices import Found, select
from jangin.runtime.devices.opencl_library import Context, Error, Kernel, Program

LOG = 2000
"""Characters of a compiler's messages that an error repeats."""

OPTIONS = ("-cl-std=CL1.2", "-w")
"""Of each program; nobody wrote this code who could heed warnings."""

_HEAD = struct.Struct("<III")


@dataclass(frozen=True)
class Built:
    """A program of one kernel: its source, and what a driver made of that, empty where none has. `product`:
    what a library computes before (`clblast.packed`), empty for nothing; then there may be no source."""

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
        """What was packed. Raises LoadError."""
        try:
            start, name, source, product = accumulate(_HEAD.unpack_from(code), initial=_HEAD.size)
            parts = code[start:name], code[name:source], code[source:product]
            return cls(parts[0].decode(), parts[1], code[product:], parts[2])
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}") from None


@dataclass
class Opened:
    """A device with the context that its programs and memory belong to."""

    device: Found
    context: Context


_OPENED: dict[int, Opened] = {}
_LOCK = Lock()
"""Held while a device is opened."""


def opened(device: Found) -> Opened:
    """The one of a device in this process. Raises LoadError where it can't be opened."""
    with _LOCK:
        if device.number not in _OPENED:
            try:
                _OPENED[device.number] = Opened(device, Context(device.handle))
            except Error as error:
                raise LoadError(f"{device} can't be opened: {error}") from error
        return _OPENED[device.number]


def begin(which: str) -> None:
    """Start drivers, and open the device that `select` would give, beside what the caller does: they take as
    long as its imports. What goes wrong is told to whoever needs the device."""

    def start() -> None:
        with suppress(LoadError):
            opened(select(which))

    Thread(target=start).start()


def forget(lost: Opened) -> None:
    """Open the device anew for what is loaded next."""
    if _OPENED.get(lost.device.number) is lost:
        del _OPENED[lost.device.number]


def load_program(device: Found, built: Built, *, same: bool) -> Program:
    """A program of what the `same` driver made, or else of its source. Raises LoadError."""
    here = opened(device)
    if built.binary and same:
        try:
            return Program(here.context, binary=built.binary).build()
        except Error:
            pass  # a driver may refuse what it made: the source is there
    return build_program(device, built.source)


def load_kernel(device: Found, built: Built, *, same: bool) -> Kernel | Product:
    """The kernel of a program. Raises LoadError."""
    if built.product:
        rest = load_kernel(device, replace(built, product=b""), same=same) if built.source else None
        return Product(unpacked(built.product), rest)
    program = load_program(device, built, same=same)
    try:
        return Kernel(program, built.kernel)
    except Error as error:
        raise LoadError(f"{device} has no kernel {built.kernel} in its program: {error}") from error


def build_program(device: Found, source: bytes) -> Program:
    """A program of OpenCL C. Raises LoadError with what the driver's compiler says."""
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
