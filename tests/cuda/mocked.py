"""NVIDIA's driver and compiler as mock libraries. Their device is this machine's processor (see `mock/`)."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jangin.backends.cuda import nvrtc
from jangin.runtime import libraries
from jangin.runtime.devices import cublas, cuda, cuda_devices, cuda_library, cudnn

SOURCES = Path(__file__).parent / "mock"
FLAGS = ("-std=c++17", "-shared", "-fPIC", "-w")
KERNEL_FLAGS = (
    *FLAGS, "-O1", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fwrapv",
    "-U_FORTIFY_SOURCE", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
"""Flags of the C++ compiler. Products are fused only where the text says so, and a misaligned access ends the
kernel."""
if Path("/proc/cpuinfo").exists() and " fma " in Path("/proc/cpuinfo").read_text():
    KERNEL_FLAGS += ("-mfma",)


LIBRARIES = {
    "libcuda.so.1": "cuda.cpp", "lib/libnvrtc.so.12": "nvrtc.cpp", "lib/libcublasLt.so.12": "cublaslt.cpp",
    "lib/libcudnn.so.9": "cudnn.cpp",
}  # fmt: skip
"""The mock's libraries, and their sources."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """Return a C++ compiler as a command, or an empty tuple if there is none."""
    for name in ("clang++", "g++"):
        if (path := shutil.which(name)) is not None:
            return (path,)
    return ()


@functools.cache
def folder() -> Path:
    """Return the folder with both libraries, for CUDA_HOME and LD_LIBRARY_PATH. It keeps compiled kernels for
    later tests."""
    texts = b"".join(file.read_bytes() for file in sorted(SOURCES.iterdir()))
    key = hashlib.sha256(texts + " ".join([*compiler(), *KERNEL_FLAGS]).encode()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"jangin-mock-cuda-{os.getuid()}-{key}"
    for name, source in LIBRARIES.items():
        place = made / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            own = place.with_suffix(f".{os.getpid()}")
            command = [*compiler(), *FLAGS, "-O1", "-g", "-o", str(own), str(SOURCES / source), "-ldl"]
            subprocess.run(command, check=True)
            own.rename(place)
    shutil.copy(SOURCES / "shim.h", made)
    return made


def settings() -> dict[str, str]:
    """Return the environment variables with which a process takes the mock."""
    command = " ".join([*compiler(), *KERNEL_FLAGS])
    return {"CUDA_HOME": str(folder()), "MOCK_FOLDER": str(folder()), "MOCK_CXX": command,
            "LD_LIBRARY_PATH": str(folder())}  # fmt: skip


@contextmanager
def mocked() -> Iterator[Any]:
    """Replace any other driver in this process by the mock, and yield it with functions that steer it."""
    library = ctypes.CDLL(str(folder() / "libcuda.so.1"))
    library.mock_device.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_size_t
    library.mock_live.restype = ctypes.c_size_t
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings().items():
            patch.setenv(name, value)
        patch.setenv("JANGIN_CACHE_DIR", str(folder() / "cache"))  # no other mock's kernels, nor a real GPU's
        patch.setattr(cuda_library, "_opened", lambda: library)
        library.mock_reset()
        forget()  # now, so that no other thread's look just before lasts
        try:
            yield library
        finally:
            library.mock_reset()
            forget()
    forget()


@contextmanager
def beside(name: str) -> Iterator[Any]:
    """Yield one of the mock's other libraries (see LIBRARIES), with functions that steer it."""
    library = ctypes.CDLL(str(folder() / name))
    library.mock_objects.restype = ctypes.c_size_t
    yield library
    library.mock_refuse(0)


def forget() -> None:
    """Make Jangin look for devices, drivers and compilers again."""
    for context in cuda._OPENED.values():
        context.end()
    cuda._OPENED.clear()
    for function in (
        cuda_library.functions,
        cuda_devices._devices,
        nvrtc.looked_for,
        libraries.find,
        cublas._functions,
        cudnn._functions,
    ):
        function.cache_clear()


needed = pytest.mark.skipif(
    not compiler() or not sys.platform.startswith("linux"),
    reason="the mock of NVIDIA's driver is made by clang++ or g++, and its kernels are Linux's libraries",
)
