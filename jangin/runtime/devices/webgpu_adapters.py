"""The WebGPU adapters of this machine: their names and properties, or why there are none."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any

from jangin.environment import tell_drivers
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.system import renew_lock

PREFIX = "webgpu"
"""The prefix of targets' and devices' names. A ":" follows, with a number or a part of a name."""
ANY = "any"
"""The adapter's name in a target whose code any adapter may run. The adapter is chosen when the code is
loaded."""
BACKENDS = ("Vulkan", "Metal", "DX12")
"""The graphics APIs whose adapters wgpu is asked for. OpenGL is left out, because it lists the same devices
again with fewer features."""
WANTED = (*BACKENDS, "D3D12")
"""The names of these graphics APIs in the descriptions of adapters."""
ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
"""The kinds of adapters. Preferred kinds come first."""
STORAGE, BINDING, BUFFER, ROOM, GROUP = (
    "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-buffer-size",
    "max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup",
)  # fmt: skip
"""The names of limits for which a device gets its adapter's values (see `webgpu.LIMITS`)."""
TOLD = ("shader-f16", "subgroup", "timestamp-query")
"""The features that are shown to people. Jangin's shaders need none of them."""


@dataclass(frozen=True)
class Adapter:
    """An adapter. `number` is its index among all adapters, and `handle` is wgpu's object."""

    number: int
    name: str
    driver: str
    kind: str
    interface: str
    features: tuple[str, ...]
    limits: tuple[tuple[str, int], ...]
    handle: Any

    @property
    def identity(self) -> str:
        return _plain(f"{self.interface}, {self.name}")

    def limit(self, name: str) -> int:
        return dict(self.limits)[name]

    def __str__(self) -> str:
        return f"{PREFIX}:{self.number} ({self.identity})"


def adapters() -> tuple[Adapter, ...]:
    """Return all adapters, GPUs first. If there are none, raise LoadError with the reason and a remedy."""
    with _LOCK:
        known = _adapters()
    if not known:
        raise LoadError(
            "there is no WebGPU adapter here: Vulkan, Metal and Direct3D 12 offer none; install the driver "
            "of your GPU, or for processors Debian's mesa-vulkan-drivers"
        )
    return known


def select(which: str) -> Adapter:
    """Return the adapter with this number, or the first adapter with this text in its API's, its own or its
    driver's name. Upper and lower case are equal. "" selects number 0. Raises LoadError with a list of the
    adapters."""
    there = adapters()
    if which.isdigit() or not which:
        chosen = [a for a in there if a.number == int(which or 0)]
    else:
        chosen = [a for a in there if which.lower() in f"{a.interface} {a.name} {a.driver}".lower()]
    if not chosen:
        raise LoadError(f"no WebGPU adapter is {which!r}; here are {'; '.join(map(str, there))}")
    return chosen[0]


def of_target(target: str) -> Adapter:
    """Return the adapter that a plan was made for. Raises LoadError if it isn't on this machine."""
    identity = target.partition("/")[2].partition("/")[0]
    if identity == ANY:
        return select("")
    there = adapters()
    same = [a for a in there if a.identity == identity]
    if not same:
        raise LoadError(
            f"the model was compiled for the WebGPU adapter {identity!r}, which isn't here; here are "
            f"{'; '.join(map(str, there))}: load it with device= for one of them, or compile it again"
        )
    return same[0]


_LOCK = Lock()
"""Held during the first query of the adapters."""
renew_lock(globals(), "_LOCK", Lock)


@cache
def _adapters() -> tuple[Adapter, ...]:
    tell_drivers({"NODEVICE_SELECT": "1"})  # a layer of Mesa's that writes of missing screens
    try:
        from wgpu import GPUError, gpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except (ImportError, OSError, RuntimeError) as error:
        raise LoadError(f"WebGPU needs the package wgpu: pip install 'jangin[webgpu]' ({error})") from None
    with suppress(RuntimeError):  # the program has used wgpu already
        set_instance_extras(backends=BACKENDS)
    try:
        there = gpu.enumerate_adapters_sync()
    except (RuntimeError, GPUError) as error:
        raise LoadError(f"WebGPU's adapters can't be listed: {error}") from None
    there = [a for a in there if a.info["backend_type"] in WANTED]
    there = sorted(there, key=lambda a: _rank(a.info["adapter_type"]))
    return tuple(_found(n, a) for n, a in enumerate(there))


def _rank(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def _found(number: int, adapter: Any) -> Adapter:
    info = adapter.info
    return Adapter(
        number, info["device"], info["description"], info["adapter_type"], info["backend_type"],
        tuple(sorted(adapter.features)), tuple((n, int(v)) for n, v in adapter.limits.items()), adapter,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Return the text without the characters that separate a target's parts."""
    return " ".join(text.replace("/", "-").replace(",", " ").replace("+", " ").split())
