"""The target for the machine that this process runs on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from jangin.runtime.processor import why_not
from jangin.runtime.system.processor import architecture, cache_sizes, processor_features, processor_maker
from jangin.targets.target import Target

LEVELS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86", "V4_AMX", "V4_BF16", "V4_VBMI", "V4_VNNI", "V4", "V3_VNNI", "V3", "V2"),
    "aarch64": ("arm", "NEOVERSE_V1", "NEOVERSE_N1", "AARCH64"),
    "riscv64": ("riscv", "RISCV64_V", "RISCV64"),
}
"""The module of each architecture, and the names of its levels, best first. Every machine runs the last one.
Only this machine's module is imported."""
SLOW = {"x86-64-v4-bf16": "GenuineIntel"}
"""A level that a maker's processors are slower at than at the next one, and the maker. Intel's add two
products of bfloat16 at half the rate of float32 multiply-adds: ResNet-50 took 1.58 times as long."""


def host() -> Target:
    """Return the best level that this machine runs, with its own cache sizes.

    Code is made for the level and not for the exact processor, so an artefact moves between machines of a
    level. Raises ValueError for an unknown architecture.
    """
    return _of(architecture())


@cache
def _of(architecture: str) -> Target:
    """Return what `host` returns for an architecture. The result is cached, because every compilation asks
    twice."""
    if architecture not in LEVELS:
        raise ValueError(f"there is no target for {architecture}; known: {', '.join(LEVELS)}")
    levels = levels_of(architecture)
    maker = processor_maker()
    level = next((t for t in levels if SLOW.get(t.name) != maker and _has(t)), levels[-1])
    caches = cache_sizes()
    fields = {1: "l1", 2: "l2", 3: "l3"}
    return level.with_figures(**{fields[n]: size for n, size in caches.items() if n in fields})


def levels_of(architecture: str) -> list[Target]:
    """Return the levels of a known architecture, best first."""
    module, *names = LEVELS[architecture]
    own = import_module(f"jangin.targets.{module}")
    return [getattr(own, name) for name in names]


def _has(target: Target) -> bool:
    """Return whether this machine runs a target's code. The system's list of processor features decides. If
    the system has none, LLVM decides, which is slow to load."""
    if processor_features():
        return not why_not(str(target))
    from jangin.llvm import binding

    features = binding().get_host_cpu_features()
    return all(features.get(f.removeprefix("+"), False) for f in target.features.split(","))
