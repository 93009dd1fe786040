"""The ways to run an exact model that this machine has, by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import mocked
from built import COMPILERS
from exact_ahead import by_api, in_node
from exact_machines import MACHINES, emulated, planned
from exact_runs import Case, native
from on_device import usable

from jangin.runtime.device import device_of
from jangin.targets import NAMED, resolve

Way = Callable[[Case], list[str]]
"""Runs a model one way, and returns its faults."""


def native_targets() -> list[str]:
    """Return the targets whose code this machine runs."""
    host = resolve("cpu").triple
    here = (name for name, target in NAMED.items() if target.triple == host)
    return [name for name in here if not device_of(NAMED[name].device).why_not(str(NAMED[name]))]


def mocked_gpu(case: Case) -> list[str]:
    """Run a model's CUDA kernels on the simulated device, in one of three orders of work."""
    with mocked.mocked() as driver:
        driver.mock_order(case.number % 3)
        return native("cuda", case)


@cache
def ways() -> dict[str, Way]:
    found: dict[str, Way] = {name: partial(native, name) for name in native_targets()}
    names = [f"opencl:{device.number}@{kind}" for device in usable() for kind in ("cpu", "gpu")]
    found |= {name: partial(native, name) for name in names}
    if mocked.compiler():
        found["cuda"] = mocked_gpu
    if COMPILERS:
        found |= {kind: partial(by_api, kind) for kind in ("object", "c")}
    if shutil.which("node") and (find_spec("ziglang") or shutil.which("wasm-ld")):
        found["wasm32"] = in_node
    for name, (compiler, emulator, _) in MACHINES.items():
        if shutil.which(compiler) and shutil.which(emulator):
            found[name] = partial(emulated, name)
    return {**found, "plans": planned}
