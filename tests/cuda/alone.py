"""Single CUDA kernels, run on the mock's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.backends.clike.module import emit_kernels, exported
from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import DIALECT
from jangin.backends.cuda.dialect import asked_shared
from jangin.backends.opencl.check import run_alone
from jangin.ir.graph import Array
from jangin.ir.loop import Func
from jangin.runtime.devices.cuda import CudaDriver
from jangin.runtime.devices.cuda_devices import select
from jangin.runtime.devices.cuda_objects import Kernel, Module
from jangin.targets import Target

ORDERS = (0, 7)
"""Orders of work-items and groups: by their numbers, and drawn by a seed (see `mock/shim.h`)."""


class Program:
    """Kernels of one text, loaded on the device."""

    def __init__(self, funcs: Sequence[Func], on: Target) -> None:
        text = emit_kernels(funcs, on, DIALECT)
        compiled = nvrtc.for_architecture(on.cpu).compiled(text, on.cpu)
        self._driver = CudaDriver(select(""))
        self._module = Module(self._driver._in, compiled.cubin)

    def run(
        self, func: Func, arrays: Mapping[str, Array], symbols: Mapping[str, int], groups: int, mock: Any
    ) -> list[dict[str, Array]]:
        """Return a kernel's outputs in each of the orders. `groups` is the number of groups; there are at
        most as many as tasks."""
        found = []
        for order in ORDERS:
            mock.mock_order(order)
            kernel = Kernel(self._module, exported(func), asked_shared(func))
            found.append(run_alone(kernel, self._driver, func, arrays, symbols, groups))
        return found
