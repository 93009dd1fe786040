"""The target for the machine that this process runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from jangin.runtime.processor import why_not
from jangin.runtime.system.processor import architecture, cache_sizes, processor_features, processor_maker
from jangin.targets import arm, riscv, x86
from jangin.targets.target import Target

_X86_64 = x86.V4_AMX, x86.V4_BF16, x86.V4_VBMI, x86.V4_VNNI, x86.V4, x86.V3_VNNI, x86.V3, x86.V2
LEVELS: Mapping[str, Sequence[Target]] = {
    "x86_64": _X86_64,
    "aarch64": (arm.NEOVERSE_V1, arm.NEOVERSE_N1, arm.AARCH64),
    "riscv64": (riscv.RISCV64_V, riscv.RISCV64),
}
"""The levels of each architecture, best first. Every machine runs the last one."""
SLOW = {x86.V4_BF16.name: "GenuineIntel"}
"""A level that a maker's processors are slower at than at the next one, and the maker. Intel's add two
products of bfloat16 at half the rate of float32 multiply-adds: ResNet-50 took 1.58 times as long."""


def host() -> Target:
    """The best level that this machine runs, with its own cache sizes.

    Code is made for the level and not for the exact processor, so an artefact moves between machines of a
    level. Raises ValueError for an unknown architecture.
    """
    return _of(architecture())


@cache
def _of(architecture: str) -> Target:
    """The best level that this machine runs, cached because every compilation asks twice."""
    levels = LEVELS.get(architecture)
    if levels is None:
        raise ValueError(f"there is no target for {architecture}; known: {', '.join(LEVELS)}")
    maker = processor_maker()
    level = next((t for t in levels if SLOW.get(t.name) != maker and _has(t)), levels[-1])
    caches = cache_sizes()
    names = {1: "l1", 2: "l2", 3: "l3"}
    return level.with_figures(**{names[n]: size for n, size in caches.items() if n in names})


def _has(target: Target) -> bool:
    """Whether this machine runs a target's code. The system's list of processor features decides; if it has
    none, LLVM, which is slow to load."""
    if processor_features():
        return not why_not(str(target))
    from jangin.llvm import binding

    features = binding().get_host_cpu_features()
    return all(features.get(f.removeprefix("+"), False) for f in target.features.split(","))
