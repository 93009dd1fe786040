"""A process that finds itself on another operating system: everything that only Linux has is taken away.

`python other_system.py SYSTEM MODEL FILE...` takes Python's name of a system, an ONNX file, and compiled
models. The process imports the whole package, describes the files, tries to load them, and builds the model.
It prints its findings as a line of JSON.
"""

from __future__ import annotations

import builtins
import concurrent.futures.thread  # Python and other packages request the true system's parts
import ctypes
import io
import json
import mmap
import multiprocessing.connection
import multiprocessing.reduction
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy
import onnx
import rich.console
import typer

READY = (
    concurrent.futures.thread, multiprocessing, tempfile, llvmlite.binding, numpy, onnx, rich.console, typer,
)  # fmt: skip
OS = (
    "fchmod", "fork", "forkpty", "getpgrp", "getppid", "kill", "killpg", "memfd_create", "posix_spawn",
    "readv", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sysconf", "waitid", "waitpid",
)  # fmt: skip
MMAP = ("MAP_ANONYMOUS", "MAP_PRIVATE", "MAP_SHARED", "PROT_EXEC", "PROT_READ", "MADV_DONTNEED")
"""Names that Python's module `mmap` lacks on Windows."""
SYMBOLS = ("getauxval", "prctl", "process_vm_readv", "syscall", "mprotect")
OTHERS = ("torch", "coremltools", "tensorflow", "sklearn", "pyopencl", "pytest")
"""Packages of other makers, which would miss their own systems' parts or take long to import."""


def pretend(system: str) -> None:
    """Pretend to be on another system, as far as Python tells."""
    sys.platform = system
    for name in OS:
        delattr(os, name)
    del select.epoll
    for name in ("fcntl", "resource"):
        sys.modules[name] = None  # type: ignore[assignment]
    if system == "win32":
        del signal.pause
        for name in MMAP:
            delattr(mmap, name)
    true_open, true_library = io.open, ctypes.CDLL

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, int) and os.fspath(file).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", file)
        return true_open(file, *args, **kwargs)

    class Library(true_library):  # type: ignore[misc, valid-type]
        def __init__(self, name: Any, *args: Any, **kwargs: Any) -> None:
            if name is None and system == "win32":
                raise TypeError("bad argument type for built-in operation")
            if name is not None and ".so" in str(name):
                raise OSError(f"{name}: no such library")
            super().__init__(name, *args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            if name in SYMBOLS:
                raise AttributeError(name)
            return super().__getattr__(name)

    builtins.open = io.open = opened  # type: ignore[assignment]
    ctypes.CDLL = Library  # type: ignore[misc]


def imported() -> int:
    """Import the modules of the package, and count them. Modules that need a missing package, or one of
    OTHERS, are left out."""
    import jangin

    for name in OTHERS:
        sys.modules[name] = None  # type: ignore[assignment]
    count = 0
    for module in modules([*jangin.__path__], "jangin"):
        try:
            import_module(module)
            count += 1
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package in sys.stdlib_module_names or package in ("", "jangin"):
                raise
    return count


def modules(folders: Sequence[str], name: str) -> Sequence[str]:
    """Return the names of a package's modules without importing them."""
    found = []
    for folder in folders:
        for file in sorted(Path(folder).rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found.append(".".join([name, *(p for p in parts if p != "__init__")]))
    return [m for m in found if not m.endswith(("__main__", ".chatting", ".parsing"))]


def told(work: Callable[[], object]) -> str:
    """Return the error of a function and its class, or ""."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def described(path: str) -> dict[str, Any]:
    """Return the summary of a compiled model, and the message of an attempt to load it."""
    import jangin
    from jangin.commands.common import Settings
    from jangin.commands.inspect import inspect

    with redirect_stdout(io.StringIO()) as summary:
        for sizes in (False, True):
            inspect(Path(path), Settings(), "", "", "", [], None, sizes=sizes)
    return {"summary": summary.getvalue(), "loading": told(lambda: jangin.load(path))}


def main(system: str, model: str, *files: str) -> None:
    pretend(system)
    count = imported()
    import jangin

    def build(isolated: bool | None) -> None:
        jangin.build(model, "x86-64-v3", 2, cache=False, isolated=isolated).save(f"{model}.jgn")

    found = {
        "modules": count,
        "files": {path: described(path) for path in files},
        "build": told(lambda: build(None)),
        "apart": told(lambda: build(True)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
