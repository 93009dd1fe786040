"""Targets by name, in one table."""

from __future__ import annotations

from jangin.targets import x86
from jangin.targets.target import Target

NAMED: dict[str, Target] = {t.name: t for t in (x86.V2, x86.V3, x86.V4)}


def resolve(name: str) -> Target:
    """The target called `name`; "cpu" or "host" is the machine this runs on. ValueError if unknown."""
    if name in ("cpu", "host"):
        return x86.host()
    if name not in NAMED:
        raise ValueError(f"unknown target {name!r}; known: cpu, {', '.join(NAMED)}")
    return NAMED[name]


__all__ = ["NAMED", "Target", "resolve"]
