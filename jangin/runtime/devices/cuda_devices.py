"""NVIDIA's GPUs of this machine: which there are, what they are called, and why there are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices import cuda_library as cu

PREFIX = "cuda"
"""The begin of targets' and devices' names; ":" and a number or a part of a name follow."""
TEGRA = frozenset({(6, 2), (7, 2), (8, 7)})
"""Capabilities of Jetsons, which take no machine code of other devices, nor others theirs."""

_UNITS, _CLOCK, _MEMORY_CLOCK, _BUS, _L2 = 16, 13, 36, 37, 38
_MAJOR, _MINOR = 75, 76
"""The driver's numbers of questions (CUdevice_attribute)."""


@dataclass(frozen=True)
class Found:
    """A GPU.

    - `number`: its place among all.
    - `clock`: in kHz.
    - `bandwidth`: in bytes a second.
    - `memory`, `l2`: in bytes.
    - `version`: of CUDA, as the driver has it.
    - `handle`: the driver's.

    Figures are 0 if the driver doesn't say them."""

    number: int
    name: str
    major: int
    minor: int
    units: int
    clock: int
    bandwidth: float
    memory: int
    l2: int
    version: tuple[int, int]
    handle: int

    def __str__(self) -> str:
        return f"{PREFIX}:{self.number} ({self.name})"

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor

    def takes(self, architecture: str) -> bool:
        """Whether machine code for an architecture runs here: that of the same capability, or of one of the
        same major number that isn't newer. Code for "sm_90a" is for that capability alone, and code of
        Jetsons is for themselves."""
        own = capability(architecture)
        if architecture.endswith("a") or TEGRA & {own, self.capability}:
            return own == self.capability
        return own[0] == self.major and own[1] <= self.minor

    def runs(self, architecture: str) -> bool:
        """Whether code for an architecture runs here, if need be by its text, which the driver compiles."""
        return capability(architecture) <= self.capability


def capability(architecture: str) -> tuple[int, int]:
    """The numbers of an architecture: "sm_90a" has (9, 0)."""
    number = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    if number is None:
        raise LoadError(f"{architecture!r} is no architecture of NVIDIA's GPUs")
    return int(number[1]), int(number[2])


def devices() -> Sequence[Found]:
    """All of them, in the driver's order. Raises LoadError if there are none, with the reason and what to do
    about it."""
    found = _devices()
    if not found:
        raise LoadError(
            "there is no NVIDIA GPU here: the driver finds none; is one built in, may you use it, and does "
            "CUDA_VISIBLE_DEVICES hide it?"
        )
    return found


@cache
def _devices() -> Sequence[Found]:
    try:
        return [_found(number) for number in range(cu.count())]
    except cu.Error as error:
        if error.name == "CUDA_ERROR_NO_DEVICE":
            return []
        raise LoadError(f"NVIDIA's driver can't be used: {error}") from error


def _found(number: int) -> Found:
    handle = cu.device(number)

    def said(question: int) -> int:
        return cu.attribute(handle, question)

    # two transfers a cycle of memory's clock, which is in kHz; the bus is so many bits wide
    bandwidth = 2 * 1e3 * said(_MEMORY_CLOCK) * said(_BUS) / 8
    return Found(
        number, cu.device_name(handle), said(_MAJOR), said(_MINOR), said(_UNITS), said(_CLOCK), bandwidth,
        cu.device_memory(handle), said(_L2), cu.version(), handle,
    )  # fmt: skip


def select(which: str) -> Found:
    """The device of a number, or the first that has a text, in any case, in its name. "" is number 0. Raises
    LoadError with those that there are."""
    there = devices()
    if which.isdigit() or not which:
        chosen = [d for d in there if d.number == int(which or 0)]
    else:
        chosen = [d for d in there if which.lower() in d.name.lower()]
    if not chosen:
        raise LoadError(f"no NVIDIA GPU is {which!r}; here are {'; '.join(map(str, there))}")
    return chosen[0]


def of_target(target: str) -> Found:
    """The first device that runs code for a plan's target, one that takes the machine code before others.
    Raises LoadError."""
    architecture = target.split("/")[1] if target.count("/") >= 2 else target
    there = devices()
    able = [d for d in there if d.takes(architecture)] or [d for d in there if d.runs(architecture)]
    if not able:
        listed = "; ".join(f"{d}, of capability {d.major}.{d.minor}" for d in there)
        raise LoadError(
            f"the model was compiled for {architecture}, which no GPU here runs; here are {listed}: compile "
            "it again for one of them"
        )
    return able[0]
