"""The routines on one target: `jangin.blas.on("opencl").dgemm(1.0, a, b)`."""

from __future__ import annotations

from typing import Any

import jangin.blas.batched as batched
import jangin.blas.calls as calls
from jangin.blas.calls import set_threads
from jangin.options import Options
from jangin.runtime.device import LoadError, device_of


class Routines:
    """All routines, as functions that run on one target. Their operands and results are arrays of the
    host."""

    def __init__(self, target: str | None) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        function = (batched.function if name in batched.NAMES else calls.found)(name, self._target)
        self.__dict__[name] = function
        return function

    def __dir__(self) -> list[str]:
        return sorted({*calls.all_routines(), *batched.NAMES})

    def __repr__(self) -> str:
        return f"jangin.blas.on({self._target!r})"


def on(target: str) -> Routines:
    """Return the routines on a target: a level of this processor, or a device such as "opencl", "cuda" or
    "webgpu". Raises LoadError if it can't run here, and ValueError for an unknown target or several."""
    chosen = Options(target=target).target
    if len(chosen.each) > 1:
        raise ValueError(f"the routines run on one device, and {target!r} names several")
    if reason := device_of(chosen.device).why_not(str(chosen)):
        raise LoadError(f"the routines can't run on {target!r} here: {reason}")
    return Routines(target)


__all__ = ["Routines", "on", "set_threads"]
