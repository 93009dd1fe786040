"""Targets by name, in one table."""

from __future__ import annotations

from jangin.targets import arm, micro, opencl, riscv, wasm, x86
from jangin.targets.host import host
from jangin.targets.several import SEPARATOR, several
from jangin.targets.target import Target

NAMED: dict[str, Target] = {
    t.name: t
    for t in (
        x86.V2, x86.V3, x86.V3_VNNI, x86.V4, x86.V4_VNNI, x86.V4_VBMI, x86.V4_BF16, x86.V4_AMX,
        arm.AARCH64, arm.CORTEX_A53, arm.CORTEX_A72, arm.CORTEX_A76, arm.NEOVERSE_N1,
        arm.NEOVERSE_V1,
        arm.ARMV7, arm.CORTEX_A7,
        riscv.RISCV64, riscv.RISCV64_V, micro.CORTEX_M4, micro.CORTEX_M7, wasm.WASM32,
    )
}  # fmt: skip


def resolve(target: str | Target) -> Target:
    """The target of a name; "cpu" or "host" is the machine this runs on, and names with "+" between them are
    several devices at once. A target of one's own is taken as it is. Raises ValueError for an unknown
    name."""
    if isinstance(target, Target):
        return target
    if SEPARATOR in target:
        return several(target, [resolve(name) for name in target.split(SEPARATOR)])
    if target in ("cpu", "host"):
        return host()
    if target.partition(":")[0] == "opencl":
        return opencl.named(target)
    if target not in NAMED:
        raise ValueError(
            f"unknown target {target!r}{_nearest(target)} known: cpu, {', '.join(NAMED)}, opencl"
        )
    return NAMED[target]


def _nearest(name: str) -> str:
    """What was meant by a target that there isn't: another, or a feature that some have."""
    from difflib import get_close_matches

    if near := get_close_matches(name, ["cpu", *NAMED], 2):
        return f", did you mean {' or '.join(near)}?"
    features = {f.lstrip("+") for t in NAMED.values() for f in t.features.split(",")}
    for feature in get_close_matches(name, sorted(features), 1):
        have = " or ".join(t.name for t in NAMED.values() if t.has(feature))
        return f": features come with targets ({feature}: {have});"
    return ";"


__all__ = ["NAMED", "Target", "resolve"]
