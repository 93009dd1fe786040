"""The NVIDIA GPUs of this machine: their names and properties, or why there are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices import cuda_library as cu

PREFIX = "cuda"
"""The prefix of targets' and devices' names. A ":" follows, with a number or a part of a name."""
TEGRA = frozenset({(6, 2), (7, 2), (8, 7)})
"""The compute capabilities of Jetsons. They run no machine code for other GPUs, and other GPUs run none for
them."""

_UNITS, _CLOCK, _MEMORY_CLOCK, _BUS, _L2, _COOPERATES = 16, 13, 36, 37, 38, 95
_INTEGRATED, _REGISTERS = 18, 99
_MAJOR, _MINOR = 75, 76
"""The driver's numbers of device attributes (CUdevice_attribute in cuda.h)."""


@dataclass(frozen=True)
class Found:
    """A GPU.

    - `number` is its index among all GPUs.
    - `major` and `minor` are its compute capability.
    - `units` is the number of its multiprocessors.
    - `clock` is in kHz.
    - `bandwidth` is in bytes a second.
    - `memory` and `l2` are in bytes.
    - `version` is the driver's version of CUDA.
    - `handle` is the driver's handle.
    - `cooperates` tells whether all groups of a launch can be made to run at one time.
    - `maps` tells whether its memory is the host's, and it can access the host's arrays.

    A figure is 0 if the driver doesn't tell it."""

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
    cooperates: bool = False
    maps: bool = False

    def __str__(self) -> str:
        return f"{PREFIX}:{self.number} ({self.name})"

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor

    def takes(self, architecture: str) -> bool:
        """Tell if machine code for an architecture runs on this GPU. The major numbers of both capabilities
        must be equal, and the GPU's minor number must not be smaller.

        Code for "sm_90a" runs only on this very capability. This is also so for code of Jetsons."""
        own = capability(architecture)
        if architecture.endswith("a") or TEGRA & {own, self.capability}:
            return own == self.capability
        return own[0] == self.major and own[1] <= self.minor

    def runs(self, architecture: str) -> bool:
        """Tell if code for an architecture runs on this GPU, as machine code or as PTX, which the driver
        compiles."""
        return capability(architecture) <= self.capability


def capability(architecture: str) -> tuple[int, int]:
    """Return the compute capability of an architecture: (9, 0) for "sm_90a"."""
    number = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    if number is None:
        raise LoadError(f"{architecture!r} is no architecture of NVIDIA's GPUs")
    return int(number[1]), int(number[2])


def devices() -> Sequence[Found]:
    """Return all GPUs, in the driver's order. If there are none, raise LoadError with the reason and a
    remedy."""
    every_device = _devices()
    if not every_device:
        raise LoadError(
            "there is no NVIDIA GPU here: the driver finds none; is one built in, may you use it, and does "
            "CUDA_VISIBLE_DEVICES hide it?"
        )
    return every_device


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
        cu.device_memory(handle), said(_L2), cu.version(), handle, bool(said(_COOPERATES)),
        bool(said(_INTEGRATED) and said(_REGISTERS)),
    )  # fmt: skip


def select(which: str) -> Found:
    """Return the GPU with this number, or the first GPU with this text in its name, in upper or lower case.
    "" selects number 0. Raises LoadError with a list of the GPUs."""
    there = devices()
    if which.isdigit() or not which:
        chosen = [d for d in there if d.number == int(which or 0)]
    else:
        chosen = [d for d in there if which.lower() in d.name.lower()]
    if not chosen:
        raise LoadError(f"no NVIDIA GPU is {which!r}; here are {'; '.join(map(str, there))}")
    return chosen[0]


def of_target(target: str) -> Found:
    """Return the first GPU that runs code for a plan's target. GPUs that run the machine code are preferred.
    Raises LoadError if there is none."""
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
