"""Kernels of CUDA C run alone on the mock's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.backends.clike.module import emit_kernels, exported
from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import DIALECT
from jangin.backends.opencl.check import run_alone
from jangin.ir.graph import Array
from jangin.ir.loop import Func
from jangin.runtime.devices.cuda import CudaDriver
from jangin.runtime.devices.cuda_devices import select
from jangin.runtime.devices.cuda_library import Kernel, Module
from jangin.targets import Target

ORDERS = (0, 7)
"""Work-items and groups by their numbers, and in an order drawn by a seed (see `mock/shim.h`)."""


class Program:
    """Kernels of one text, on the device."""

    def __init__(self, funcs: Sequence[Func], on: Target) -> None:
        text = emit_kernels(funcs, on, DIALECT)
        compiled = nvrtc.for_architecture(on.cpu).compiled(text, on.cpu)
        self._driver = CudaDriver(select(""))
        self._module = Module(self._driver._in, compiled.cubin)

    def run(
        self, func: Func, arrays: Mapping[str, Array], symbols: Mapping[str, int], groups: int, mock: Any
    ) -> list[dict[str, Array]]:
        """A kernel's outputs by so many groups (or as many as there are tasks), in each of the orders."""
        found = []
        for order in ORDERS:
            mock.mock_order(order)
            kernel = Kernel(self._module, exported(func))
            found.append(run_alone(kernel, self._driver, func, arrays, symbols, groups))
        return found
