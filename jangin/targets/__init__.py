"""Targets by name, in one table."""

from __future__ import annotations

from difflib import get_close_matches

from jangin.runtime.processor import architecture
from jangin.targets import portable, x86
from jangin.targets.target import Target

NAMED: dict[str, Target] = {
    t.name: t for t in (x86.V2, x86.V3, x86.V4, portable.ARM64, portable.RISCV64)
}  # fmt: skip


def resolve(target: str | Target) -> Target:
    """The target of a name; "cpu" or "host" is the machine this runs on. A target of one's own is taken as it
    is. Raises ValueError for an unknown name."""
    if isinstance(target, Target):
        return target
    if target in ("cpu", "host"):
        return host()
    if target not in NAMED:
        near = get_close_matches(target, ["cpu", *NAMED], 2)
        hint = f", did you mean {' or '.join(near)}?" if near else ";"
        raise ValueError(f"unknown target {target!r}{hint} known: cpu, {', '.join(NAMED)}")
    return NAMED[target]


def host() -> Target:
    """The machine that this runs on. Raises ValueError where there is no target for its kind."""
    if architecture() == "x86_64":
        return x86.host()
    for target in NAMED.values():
        if target.triple.startswith(f"{architecture()}-"):
            return target
    raise ValueError(f"there is no target for {architecture()}; known: {', '.join(NAMED)}")


__all__ = ["NAMED", "Target", "resolve"]
