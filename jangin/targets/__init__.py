"""Targets by name, in one table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jangin import environment
from jangin.environment import HOST
from jangin.runtime.device import LoadError
from jangin.targets.host import host
from jangin.targets.target import Target

if TYPE_CHECKING:
    NAMED: dict[str, Target]
    """The targets that need no device, by name. Their modules are imported when the table is asked for."""


def __getattr__(name: str) -> Any:
    if name == "NAMED":
        return _named()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _named() -> dict[str, Target]:
    from jangin.targets import arm, micro, riscv, wasm, x86

    targets = (
        x86.V2, x86.V3, x86.V3_VNNI, x86.V4, x86.V4_VNNI, x86.V4_VBMI, x86.V4_BF16, x86.V4_AMX,
        arm.AARCH64, arm.CORTEX_A53, arm.CORTEX_A72, arm.CORTEX_A76, arm.NEOVERSE_N1,
        arm.NEOVERSE_V1,
        arm.ARMV7, arm.CORTEX_A7,
        riscv.RISCV64, riscv.RISCV64_V, micro.CORTEX_M0PLUS, micro.CORTEX_M4, micro.CORTEX_M7,
        micro.CORTEX_M33, micro.CORTEX_M55, micro.RISCV32IMC, micro.RISCV32GC,
        wasm.WASM32,
        wasm.WASM32_THREADS,
        wasm.WASM32_RELAXED,
    )  # fmt: skip
    return {t.name: t for t in targets}


OTHER_NAMES = {
    "arm64": "aarch64", "armv7a": "armv7", "x86_64": "x86-64-v2", "riscv64gc": "riscv64",
    "cortex-m0+": "cortex-m0plus",
}  # fmt: skip
"""Targets by what others call them. For an architecture it is the target that all its processors run."""
DEVICES = ("opencl", "cuda", "webgpu")
"""Targets that a device decides, by what their names begin with. A module of each name is imported when a
target needs it."""


def resolve(target: str | Target | None = None) -> Target:
    """Return the target of a name. A `Target` is returned as it is.

    - "cpu" or "host": the machine that this process runs on.
    - Names joined with "+": several devices at once.
    - A processor and a system, "cortex-a76-android", or LLVM's triple of them: see `targets.systems`.
    - A target under another usual name, such as "cortex-m0+".
    - None: the name in the environment variable JANGIN_TARGET, else "cpu".

    Raises ValueError for an unknown name.
    """
    if target is None:
        return _default()
    if isinstance(target, Target):
        return target
    target = OTHER_NAMES.get(target, target)
    if target in HOST:
        return host()
    from jangin.targets import systems
    from jangin.targets.several import SEPARATOR, several

    if SEPARATOR in target:
        return several(target, [resolve(name) for name in target.split(SEPARATOR)])
    if (kind := target.partition(":")[0]) in DEVICES:
        device_target: Target = import_module(f"jangin.targets.{kind}").named(target)
        return device_target
    named = _named()
    if target in named:
        return named[target]
    processor, system = systems.split(target) or ("", systems.LINUX)
    processor = OTHER_NAMES.get(processor, processor)
    if processor in named:
        return systems.on(named[processor], system)
    raise ValueError(
        f"unknown target {target!r}{_nearest(target)} known: cpu, {', '.join(named)}, "
        f"{', '.join(DEVICES)}, {', '.join(_cuda())}; "
        f"after a processor, -{', -'.join(systems.SYSTEMS)}"
    )


def _cuda() -> Iterable[str]:
    """Return the names of CUDA's targets that need no device."""
    from jangin.targets.cuda import CUDA

    return CUDA


def _default() -> Target:
    name = environment.target_name()
    try:
        return resolve(name or "cpu")
    except (LoadError, ValueError) as error:
        if name is None:
            raise
        raise type(error)(f"the environment's {environment.TARGET}: {error}") from None


def _nearest(name: str) -> str:
    """Return the suggestion for an unknown target: similar names, or the targets that have a feature of this
    name."""
    from difflib import get_close_matches

    if near := get_close_matches(name, ["cpu", *_named(), *_cuda()], 2):
        return f", did you mean {' or '.join(near)}?"
    features = {f.lstrip("+") for t in _named().values() for f in t.features.split(",")}
    for feature in get_close_matches(name, sorted(features), 1):
        have = " or ".join(t.name for t in _named().values() if t.has(feature))
        return f": features come with targets ({feature}: {have});"
    return ";"


__all__ = ["NAMED", "Target", "resolve"]
