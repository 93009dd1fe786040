"""The check of an untested driver: a kernel's outputs against native code of the same loop nest.

It runs once, when the kernel is first built.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.objects import compile_modules
from jangin.ir.expr import Const
from jangin.ir.graph import Array, CompileError
from jangin.ir.groups import ARRIVALS, grouped, threads
from jangin.ir.interpret import size
from jangin.ir.kernel import launch_bytes, rounds, scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.runtime.arrays import address
from jangin.runtime.devices.driver import Driver, Kernel
from jangin.runtime.devices.opencl import OpenCLDriver
from jangin.runtime.devices.opencl_devices import Found
from jangin.runtime.elf import Image
from jangin.runtime.functions import KERNEL
from jangin.targets.host import host

SIZE = 3
"""The value of symbolic sizes, if their range allows it. It is small for a quick check, and odd for
remainders."""
TOLERANCE = 1e-3
"""The difference that is allowed, as a share of the wanted magnitude plus the largest one. Other orders of
summation and other functions cause it."""


def run_alone(
    kernel: Kernel,
    driver: Driver,
    func: Func,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int],
    items: int,
) -> dict[str, Array]:
    """Return the outputs of a kernel that runs alone, by name.

    `items`: work-items, or groups, of the launch; fewer if there are fewer tasks.
    """
    queue = driver.queue()
    memory = [driver.buffer(max(1, arrays[p.name].nbytes)) for p in func.params]
    for p, m in zip(func.params, memory, strict=True):
        if arrays[p.name].nbytes:
            queue.write(m, arrays[p.name])
    stride = -(-size(scratch_bytes(func, groups=grouped(func)), symbols) // 64) * 64
    scratch = driver.buffer(max(1, stride * items))
    if (common := size(launch_bytes(func), symbols)) > 0:
        scratch = driver.buffer(common)
        queue.write(scratch, np.zeros(ARRIVALS, np.uint8))
    count = size(tasks(func), symbols)
    used = max(1, min(items, count))
    values = [symbols[v.name] for v, _ in func.symbols]
    kernel.set_size(used * threads(func), threads(func))
    for turn in range(size(rounds(func), symbols)):
        for n, value in enumerate([*memory, *values, count, turn, 1, scratch, stride]):
            kernel.set_arg(n, value)
        kernel.enqueue(queue)
    out = {p.name: np.empty_like(arrays[p.name]) for p in func.results}
    for p, m in zip(func.params, memory, strict=True):
        if p.name in out and out[p.name].nbytes:
            queue.read(out[p.name], m)
    queue.finish()
    return out


def require_right(kernel: Kernel, device: Found, func: Func) -> None:
    """Raise CompileError if the device's results differ from native code's. Kernels for which small sizes
    don't fit together aren't checked."""
    symbols = {}
    for v, (low, high) in func.symbols:
        least = int(low.value) if isinstance(low, Const) else 1
        symbols[v.name] = min(max(least, SIZE), int(high.value) if isinstance(high, Const) else SIZE + least)
    shapes = {p.name: tuple(size(d, symbols) for d in p.shape) for p in func.params}
    if any(d < 0 for shape in shapes.values() for d in shape):
        return  # these sizes don't go together
    rng = np.random.default_rng(0)
    operands = {}
    for p in func.params:
        kind, count = p.dtype.numpy, prod(shapes[p.name])
        numbers = rng.integers(0, 2, count) if kind.kind in "iub" else rng.random(count, np.float32) * 2 - 1
        operands[p.name] = numbers.astype(kind).reshape(shapes[p.name])
    want = native(func, operands, symbols)
    for name, value in run_alone(kernel, OpenCLDriver(device), func, operands, symbols, 4).items():
        wrong = _wrong(value, want[name])
        if wrong:
            raise CompileError(
                f"{device}, whose driver Jangin doesn't know, computes {func.name} wrong: {wrong} of "
                f"{value.size} elements differ from native code's; compile the model for another device, and "
                "tell the maker of the driver, or Jangin's"
            )


def native(func: Func, given: Mapping[str, Array], symbols: Mapping[str, int]) -> dict[str, Array]:
    """Return the outputs of a kernel on this machine's processor, by name."""
    target = host()
    image = Image([compile_modules([(func.name, emit_kernel(func, target))], target)])
    held = {name: array.copy() for name, array in given.items()}
    addresses = np.array([address(held[p.name]) for p in func.params], np.int64)
    scratch = np.empty(size(scratch_bytes(func), symbols) + 64, np.uint8)
    run = KERNEL.at(image.address(func.name))
    for turn in range(size(rounds(func), symbols)):
        values = np.array([*(symbols[v.name] for v, _ in func.symbols), turn], np.int64)
        count = size(tasks(func), symbols)
        run(address(addresses), address(values), 0, count, -(-address(scratch) // 64) * 64)
    return {p.name: held[p.name] for p in func.results}


def _wrong(value: Array, want: Array) -> int:
    """Return the number of elements that differ. Integers and booleans must be equal. Floats may differ by
    `TOLERANCE` times the sum of the wanted magnitude and the largest finite one. Two NaNs count as equal."""
    if value.dtype.kind in "iub":
        return int(np.count_nonzero(value != want))
    a, b = value.astype(np.float64), want.astype(np.float64)
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    return int(np.count_nonzero(~np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)))
