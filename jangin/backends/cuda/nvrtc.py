"""NVRTC, NVIDIA's library that compiles CUDA C, by ctypes. It needs no GPU and no driver."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from functools import cache

from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.runtime.libraries import nvidia_libraries

OPTIONS = ("--fmad=false", "-default-device", "-std=c++17", "--ptxas-options=-v")
"""The compiler's options. A product and a sum are rounded twice unless they are written as `fma`. All
functions are device functions. The log tells the registers and the memory that a kernel takes."""
LOG = 2000
"""The most characters of the compiler's messages that an error repeats, some 25 lines. The first messages
tell the cause."""
_USAGE = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    r"(?:.*?(\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Usage:
    """The resources that a kernel needs. `registers` (of 32 bits), `stack` and `spilled` (in bytes) are those
    of a work-item. `shared` is the bytes that a group shares."""

    registers: int
    stack: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    - `cubin` is machine code. It is empty if an architecture without machine code (compute_80) was asked for.
    - `ptx` is text that drivers compile.
    - `log` is the compiler's messages."""

    cubin: bytes
    ptx: bytes
    log: str

    @property
    def usage(self) -> Usage:
        match = _USAGE.search(self.log)
        assert match is not None, f"the compiler's log says no usage: {self.log}"
        stack, stores, loads, registers = map(int, match.groups()[:4])
        return Usage(registers, stack, stores + loads, int(match[5] or 0))


class Nvrtc:
    """An NVRTC library. `version` has its major and minor number. `supported` has the numbers of the
    architectures that it compiles for."""

    def __init__(self, place: str) -> None:
        self._library = ctypes.CDLL(place)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", architectures)
        self.version, self.supported = (major.value, minor.value), frozenset(architectures)

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    def _call(self, name: str, *given: object) -> None:
        status = self._library[name](*given)
        if status:
            raise CompileError(
                f"NVIDIA's compiler failed: {name} gave the error {status}; install another version of it"
            )

    def compiled(self, text: str, architecture: str) -> Compiled:
        """Return a program compiled for an architecture. Raises CompileError with the compiler's messages."""
        program, options = ctypes.c_void_p(), [f"--gpu-architecture={architecture}", *OPTIONS]
        c_options = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        try:
            status = self._library.nvrtcCompileProgram(program, len(options), c_options)
            log = self._said("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status:
                raise CompileError(f"{self} failed for {architecture}: {log[:LOG]}")
            cubin = self._said("CUBIN", program) if architecture.startswith("sm_") else b""
            return Compiled(cubin, self._said("PTX", program), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _said(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        said = ctypes.create_string_buffer(max(1, size.value))
        self._call(f"nvrtcGet{what}", program, said)
        return said.raw[: size.value]


@cache
def looked_for() -> tuple[Sequence[Nvrtc], Sequence[str]]:
    """Return the NVRTC libraries of this machine, one of each version, and what is wrong with other files.
    Libraries in CUDA_HOME come first, then those that pip installed, then the system's."""
    libraries, unusable = dict[tuple[int, int], Nvrtc](), []
    for place in nvidia_libraries("nvrtc"):
        try:
            library = Nvrtc(place)
        except (OSError, AttributeError) as error:
            if os.path.isabs(place):  # a bare name is the system's library, if it has one
                unusable.append(f"{place} can't be used: {error}")
            continue
        libraries.setdefault(library.version, library)
    return [*libraries.values()], unusable


def found() -> Sequence[Nvrtc]:
    """Return the NVRTC libraries of this machine."""
    return looked_for()[0]


def for_architecture(architecture: str, driver: tuple[int, int] | None = None) -> Nvrtc:
    """Return a library that compiles for an architecture ("sm_80"). Libraries whose code the `driver` loads,
    by its version of CUDA, are preferred. Raises CompileError, which tells what to install."""
    number = int(re.sub(r"\D", "", architecture))
    able = [library for library in found() if number in library.supported]
    if not able:
        package = "nvidia-cuda-nvrtc-cu12" if number < 75 else "nvidia-cuda-nvrtc"
        libraries, wrong = looked_for()
        reasons = [f"{', '.join(map(str, libraries))} doesn't know it"] * bool(libraries) + [*wrong]
        here = f" ({'; '.join(reasons)})" if reasons else ""
        raise CompileError(
            f"code for {architecture} needs NVIDIA's compiler NVRTC, which isn't here{here}: pip install "
            f"{package}, or set CUDA_HOME to a CUDA toolkit's folder"
        )
    fitting = [library for library in able if driver is None or library.version[0] <= driver[0]]
    return (fitting or able)[0]
