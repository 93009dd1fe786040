"""Single kernels, run on a WebGPU adapter with guard words around all memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from jangin.backends.wgsl.module import shader
from jangin.ir.graph import Array
from jangin.ir.groups import grouped, threads
from jangin.ir.interpret import size
from jangin.ir.kernel import rounds, scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.runtime.device import LoadError
from jangin.runtime.devices.webgpu import WebGPUDriver
from jangin.runtime.devices.webgpu_adapters import Adapter, adapters
from jangin.runtime.devices.wgsl import Shader
from jangin.targets import Target
from jangin.targets.webgpu import WEBGPU

GUARD = 256
"""Bytes of guards around each buffer."""
NONE = (
    "no WebGPU adapter here: pip install 'jangin[webgpu]' and a Vulkan driver (Debian: mesa-vulkan-drivers)"
)


def usable() -> list[Adapter]:
    try:
        return list(adapters())
    except LoadError:
        return []


def run(
    func: Func,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int],
    adapter: Adapter,
    groups: int = 1 << 20,
    on: Target = WEBGPU,
    made: Shader | None = None,
) -> dict[str, Array]:
    """Return a kernel's outputs. At most `groups` groups run it. Checks that the guards around each buffer
    are unchanged."""
    driver = WebGPUDriver(adapter)
    queue, kernel = driver.queue(), driver.load((made or shader(func, on)), str(on))
    guards, rng = [], np.random.default_rng(0)
    for p in func.params:
        inner = arrays[p.name].reshape(-1).view(np.uint8)
        room = -(-max(1, inner.nbytes) // GUARD) * GUARD
        given = rng.integers(0, 256, room + 2 * GUARD, np.uint8)
        given[GUARD : GUARD + inner.nbytes] = inner
        guards.append(given)
    starts = np.cumsum([0, *(g.nbytes for g in guards)])
    memory = driver.buffer(int(starts[-1]), np.concatenate(guards))
    parts = [
        memory.part(int(at) + GUARD, max(1, arrays[p.name].nbytes))
        for p, at in zip(func.params, starts[:-1], strict=True)
    ]
    local, count = threads(func), size(tasks(func), symbols)
    stride = -(-size(scratch_bytes(func, groups=grouped(func)), symbols) // 64) * 64
    used = max(1, min(groups, count))
    scratch = driver.buffer(max(1, stride * used))
    kernel.set_size(used * local, local)
    for turn in range(size(rounds(func), symbols)):
        values = [symbols[v.name] for v, _ in func.symbols]
        for n, value in enumerate([*parts, *values, count, turn, 1, scratch, stride]):
            kernel.set_arg(n, value)
        kernel.enqueue(queue)
    now_all = np.empty(memory.size, np.uint8)
    queue.read(now_all, memory)
    queue.finish()
    after = np.split(now_all, starts[1:-1])
    out = {}
    for p, before, now in zip(func.params, guards, after, strict=True):
        end = GUARD + prod(arrays[p.name].shape) * arrays[p.name].itemsize
        for around in (slice(0, GUARD), slice(end, None)):
            np.testing.assert_array_equal(now[around], before[around], f"{func.name} wrote outside {p.name}")
        if p.name in {r.name for r in func.results}:
            kind = arrays[p.name].dtype
            out[p.name] = now[GUARD:end].view(kind).reshape(arrays[p.name].shape)
    return out
