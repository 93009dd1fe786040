"""Runs single kernels on an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.backends.clike.module import emit_kernels
from jangin.backends.opencl.backend import DIALECT, GROUPED
from jangin.backends.opencl.check import run_alone
from jangin.ir.graph import Array
from jangin.ir.groups import grouped
from jangin.ir.loop import Func
from jangin.runtime.device import LoadError
from jangin.runtime.devices.opencl import OpenCLDriver
from jangin.runtime.devices.opencl_devices import Found, devices
from jangin.runtime.devices.opencl_library import Kernel
from jangin.runtime.devices.opencl_programs import build_program
from jangin.targets import Target

SIMULATOR = "Oclgrind"


def usable() -> list[Found]:
    """Return one device of each driver that builds a program. The list is empty if OpenCL's library or all
    drivers are missing."""
    found: dict[str, Found] = {}
    try:
        for device in devices():
            if device.platform not in found:
                try:
                    build_program(device, b"__kernel void nothing(__global int *p) { *p = 1; }")
                except LoadError:
                    continue
                found[device.platform] = device
    except LoadError:
        return []
    return list(found.values())


def built(funcs: Sequence[Func], on: Target, device: Found) -> Any:
    """Build a program of kernels. Either all kernels are for work-groups, or none is."""
    dialect = GROUPED if any(map(grouped, funcs)) else DIALECT
    text = emit_kernels(funcs, on, dialect)
    # the simulator can't tell apart the promises of functions that are inlined
    if device.platform == SIMULATOR:
        text = text.replace(" restrict ", " ")
    return build_program(device, text.encode())


def call(
    program: Any,
    device: Found,
    func: Func,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int],
    items: int,
) -> dict[str, Array]:
    """Run a kernel of a program, as `run_alone` does."""
    return run_alone(Kernel(program, func.name), OpenCLDriver(device), func, arrays, symbols, items)
