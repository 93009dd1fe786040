"""Whether this machine can run code made for a target."""

from __future__ import annotations

import sys

from jangin.runtime.abi import abi_of
from jangin.runtime.system import named, system_of
from jangin.runtime.system.processor import architecture, plain, processor_features, refused

_LINUX_NAMES = {"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1"}
"""x86-64 features that /proc/cpuinfo and LLVM name differently."""
_TILES = "amx-tile"
"""LLVM's name of the matrix-register feature; a process must ask the system before it uses them."""


def why_not(target: str) -> str:
    """Return the reason why code for `target` (LLVM's triple/cpu/features) can't run here, or "" if it can.
    Features aren't compared if the system doesn't report the processor's."""
    triple, _, rest = target.partition("/")
    _, _, features = rest.partition("/")
    wanted, machine = triple.split("-")[0], architecture()
    if wanted != machine:
        return f"it is for {wanted}, this machine is {machine}"
    if (system := system_of(triple)) not in ("", sys.platform):
        return f"its code is for {named(system)}, and this machine runs {named(sys.platform)}"
    if not abi_of(triple).relocations:
        return f"code for {wanted} can be built and saved so far, but not loaded"
    have = processor_features()
    names = [f[1:] for f in features.split(",") if f.startswith("+")]
    missing = [n for n in names if have and plain(_LINUX_NAMES.get(n, n)) not in have]
    if missing:
        return f"this processor lacks {', '.join(missing)}"
    return refused() if _TILES in names else ""
