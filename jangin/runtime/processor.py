"""Whether this machine runs code made for a target."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

from jangin.runtime.abi import abi_of

_LINUX_NAMES = {"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1"}
"""LLVM's features that /proc/cpuinfo calls otherwise."""


def architecture() -> str:
    """This machine's, as triples begin with it."""
    return platform.machine().lower().replace("amd64", "x86_64")


def why_not(target: str) -> str:
    """Why code for `target` (LLVM's triple/cpu/features) can't run here; "" when it can, or the
    system doesn't say what the processor has."""
    triple, _, rest = target.partition("/")
    _, _, features = rest.partition("/")
    wanted, machine = triple.split("-")[0], architecture()
    if wanted != machine:
        return f"it is for {wanted}, this machine is {machine}"
    if not abi_of(triple).relocations:
        return f"code for {wanted} can be built and saved so far, but not loaded"
    have = processor_flags()
    names = [f[1:] for f in features.split(",") if f.startswith("+")]
    missing = [n for n in names if have and _plain(_LINUX_NAMES.get(n, n)) not in have]
    return f"this processor lacks {', '.join(missing)}" if missing else ""


@cache
def processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The first processor's feature flags, letters and digits only; empty where none are told."""
    try:
        found = re.search(r"(?m)^flags\s*:(.*)$", path.read_text())
    except OSError:
        return frozenset()
    return frozenset(_plain(f) for f in found[1].split()) if found else frozenset()


def processor_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself; the architecture where the system doesn't say."""
    try:
        found = re.search(r"(?m)^model name\s*:(.*)$", path.read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
