"""Single kernels, run on a WebGPU adapter with guard words around all memory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import pytest

from jangin.backends.wgsl.module import shader
from jangin.ir.graph import Array
from jangin.ir.groups import grouped, threads
from jangin.ir.interpret import size
from jangin.ir.kernel import rounds, scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.runtime.device import LoadError
from jangin.runtime.devices.webgpu import WebGPUDriver, opened
from jangin.runtime.devices.webgpu_adapters import Adapter, adapters
from jangin.runtime.devices.wgsl import Bindings, Range, Shader, bind
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
    local, count = threads(func), size(tasks(func), symbols)
    stride = -(-size(scratch_bytes(func, groups=grouped(func)), symbols) // 64) * 64
    used = max(1, min(groups, count))
    room = -(-max(1, stride * used) // GUARD) * GUARD
    guards.append(rng.integers(0, 256, room + 2 * GUARD, np.uint8))
    starts = np.cumsum([0, *(g.nbytes for g in guards)])
    memory = driver.buffer(int(starts[-1]), np.concatenate(guards))
    parts = [
        memory.part(int(at) + GUARD, max(1, arrays[p.name].nbytes))
        for p, at in zip(func.params, starts[:-2], strict=True)
    ]
    scratch = memory.part(int(starts[-2]) + GUARD, max(1, stride * used))
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
    for end in (slice(0, GUARD), slice(GUARD + room, None)):
        np.testing.assert_array_equal(
            after[-1][end], guards[-1][end], f"{func.name} wrote outside its scratch"
        )
    out = {}
    for p, before, now in zip(func.params, guards[:-1], after[:-1], strict=True):
        end = GUARD + prod(arrays[p.name].shape) * arrays[p.name].itemsize
        for around in (slice(0, GUARD), slice(end, None)):
            np.testing.assert_array_equal(now[around], before[around], f"{func.name} wrote outside {p.name}")
        if p.name in {r.name for r in func.results}:
            kind = arrays[p.name].dtype
            out[p.name] = now[GUARD:end].view(kind).reshape(arrays[p.name].shape)
    return out


def unchecked(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shaders access memory without wgpu's checks of indices, and bind all memory at once. A kernel that
    leaves its buffers then meets the guards. Otherwise its indices are clamped, or the access does
    nothing."""
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    objects = importlib.import_module("jangin.runtime.devices.webgpu_objects")
    trusted = api.lib.wgpuDeviceCreateShaderModuleTrusted

    def whole(memory: Sequence[Range], most: int, largest: int) -> tuple[Bindings, list[int], list[Range]]:
        bindings, starts, parts = bind(memory, 1, largest)
        return bindings, [0] * len(starts), [Range(parts[0].handle, parts[0].handle.size)]

    monkeypatch.setattr(api.libf, "wgpuDeviceCreateShaderModule", lambda device, how: trusted(device, how, 0))
    monkeypatch.setattr(objects, "bind", whole)
    monkeypatch.setattr(opened(adapter), "_pipelines", {})
