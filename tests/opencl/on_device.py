"""Kernels run alone on an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.backends.clike.module import emit_kernels
from jangin.backends.opencl.backend import DIALECT, GROUPED
from jangin.ir.graph import Array
from jangin.ir.groups import grouped, threads
from jangin.ir.interpret import size
from jangin.ir.kernel import scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.runtime.device import LoadError
from jangin.runtime.devices.opencl import build_program, opened
from jangin.runtime.devices.opencl_devices import Found, devices, library
from jangin.targets import Target

SIMULATOR = "Oclgrind"


def usable() -> list[Found]:
    """One device of each driver that builds a program; none where pyopencl or drivers are missing."""
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
    """A program of kernels, all for work-groups or none."""
    dialect = GROUPED if any(map(grouped, funcs)) else DIALECT
    text = emit_kernels(funcs, on, dialect)
    if device.platform == SIMULATOR:  # which can't tell apart what inlined functions are promised
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
    """The outputs of a kernel run by so many work-items (or groups), or as many as there are tasks."""
    cl, here = library(), opened(device)
    queue = cl.CommandQueue(here.context)
    flags = cl.mem_flags.READ_WRITE
    memory = [cl.Buffer(here.context, flags, max(1, arrays[p.name].nbytes)) for p in func.params]
    for p, m in zip(func.params, memory, strict=True):
        if arrays[p.name].nbytes:
            cl.enqueue_copy(queue, m, arrays[p.name].reshape(-1).view(np.uint8))
    stride = -(-size(scratch_bytes(func, groups=grouped(func)), symbols) // 64) * 64
    scratch = cl.Buffer(here.context, flags, max(1, stride * items))
    kernel = cl.Kernel(program, func.name)
    sizes = [symbols[v.name] for v, _ in func.symbols]
    numbers = [*sizes, size(tasks(func), symbols), 0, 1]
    kernel.set_args(*memory, *map(np.int64, numbers), scratch, np.int64(stride))
    count = max(1, min(items, size(tasks(func), symbols)))
    cl.enqueue_nd_range_kernel(queue, kernel, (count * threads(func),), (threads(func),))
    out = {p.name: np.empty_like(arrays[p.name]) for p in func.results}
    for p, m in zip(func.params, memory, strict=True):
        if p.name in out and out[p.name].nbytes:
            cl.enqueue_copy(queue, out[p.name].reshape(-1).view(np.uint8), m)
    queue.finish()
    return out
