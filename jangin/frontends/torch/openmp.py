"""PyTorch's OpenMP library, whose threads compiled graphs take."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

_PROCESS = os.getpid()


def lender() -> tuple[int, int] | None:
    """Return the addresses of GOMP_parallel and omp_get_thread_num in the OpenMP library on which PyTorch's
    own operators run, or None if they use other threads.

    A process that was forked gets None. It has none of the library's threads, and the library would wait for
    them."""
    return _found() if os.getpid() == _PROCESS else None


@cache
def _found() -> tuple[int, int] | None:
    """The system looks for a symbol of PyTorch's library among the process's global symbols first. PyTorch's
    operators therefore run on a preloaded OpenMP library. PyTorch's library and the libraries that it needs
    come next. Other packages may have loaded other OpenMP libraries for themselves."""
    if not torch.backends.openmp.is_available():
        return None
    for path in (None, str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so")):
        try:
            library = ctypes.CDLL(path)
            return _address(library.GOMP_parallel), _address(library.omp_get_thread_num)
        except (OSError, AttributeError):
            continue
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
