"""x86-64 targets: v2 (SSE4, the portable row set), v3 (AVX2) and v4 (AVX-512), and the host."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from jangin.runtime.processor import processor_flags, why_not
from jangin.targets.rows import AVX2, AVX512, PORTABLE
from jangin.targets.target import Target

TRIPLE = "x86_64-unknown-linux-gnu"
_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"
_V3 = _V2 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_V4 = _V3 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"

V2 = Target("x86-64-v2", TRIPLE, "x86-64-v2", _V2, 16, 16, PORTABLE)
V3 = Target("x86-64-v3", TRIPLE, "x86-64-v3", _V3, 32, 16, AVX2)
V4 = Target("x86-64-v4", TRIPLE, "x86-64-v4", _V4, 64, 32, AVX512, l2=1 << 20)


def host() -> Target:
    """The best level that this machine runs, with its own cache sizes. The code is made for
    the level, not the exact processor, so that an artefact moves between machines of a level."""
    level = next((t for t in (V4, V3) if _has(t)), V2)
    caches = _caches()
    return replace(level, l1=caches.get(1, level.l1), l2=caches.get(2, level.l2), l3=caches.get(3, level.l3))


def _has(target: Target) -> bool:
    """Whether this machine runs a target's code: by what the system tells of its processor, or else LLVM,
    which is large to load."""
    if processor_flags():
        return not why_not(str(target))
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return all(features.get(f.removeprefix("+"), False) for f in target.features.split(","))


def _caches() -> dict[int, int]:
    """Data cache sizes in bytes by level, as Linux tells them; empty elsewhere."""
    sizes: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = re.fullmatch(r"(\d+)K", (index / "size").read_text().strip())
        except OSError:
            continue
        if kind != "Instruction" and size:
            sizes[level] = int(size[1]) << 10
    return sizes
