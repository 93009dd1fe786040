"""The OpenCL devices of this machine: their names and properties, or why there are none.

`Found.identity` names a device and its driver when a model is compiled for it. Built code is only loaded by a
device of the same identity.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from jangin.environment import opencl_vendors, tell_drivers
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices import opencl_library as cl
from jangin.runtime.system import renew_lock

if TYPE_CHECKING:
    import tempfile

PREFIX = "opencl"
"""The prefix of targets' and devices' names. A ":" follows, with a number or a part of a name."""
VENDORS = Path("/etc/OpenCL/vendors")
"""The folder in which systems keep a file for each OpenCL driver. The file contains the name of the driver's
library."""
INTEL = "libintelocl.so"
"""The library of Intel's driver for processors. Its Python package names a folder that doesn't exist."""
KINDS = {"CPU": 2, "GPU": 4, "ACCELERATOR": 8}
"""OpenCL's flags for kinds of devices."""
POCL = "Portable Computing Language"
KNOWN = frozenset({(POCL, "CPU"), ("Intel(R) OpenCL", "CPU")})
"""Platforms and kinds of devices on which the whole test suite runs."""
EXTENSIONS = {"fp64": "cl_khr_fp64", "fp16": "cl_khr_fp16"}
"""OpenCL's extensions by a target's names of features."""

_PLATFORM_NAME = 0x0902
_TYPE, _UNITS, _GROUP, _CLOCK, _LARGEST = 0x1000, 0x1002, 0x1004, 0x100C, 0x1010
_PREFERRED_FLOATS, _NATIVE_FLOATS, _ALIGNMENT = 0x100A, 0x103A, 0x1019
_FLOAT_CONFIG, _CACHE, _MEMORY, _LOCAL, _UNIFIED = 0x101B, 0x101E, 0x101F, 0x1023, 0x1035
_NAME, _DRIVER, _VERSION, _EXTENSIONS = 0x102B, 0x102D, 0x102F, 0x1030
"""OpenCL's codes of queries for platforms and devices (cl.h)."""
_ROUNDED_QUOTIENTS = 1 << 7
"""The bit of _FLOAT_CONFIG that tells of divisions and roots that are rounded to the nearest
(CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)."""


@dataclass(frozen=True)
class Found:
    """An OpenCL device. Sizes are in bytes.

    - `number` is its index among all devices of this machine.
    - `handle` is OpenCL's handle.
    - `features` are the names in EXTENSIONS that it has.
    - `unified` tells whether it uses the host's memory.
    - `lanes` is the number of floats in a vector.
    - `rounded` tells whether it can round quotients correctly."""

    number: int
    platform: str
    name: str
    driver: str
    version: str
    kind: str
    features: tuple[str, ...]
    units: int
    clock: int
    lanes: int
    cache: int
    local: int
    memory: int
    largest: int
    alignment: int
    group: int
    unified: bool
    rounded: bool
    handle: int

    @property
    def model(self) -> str:
        """The device's name without its driver's version."""
        return f"{_plain(self.platform)}, {_plain(self.name)}"

    @property
    def identity(self) -> str:
        return f"{self.model}, {_plain(self.driver)}"

    @property
    def target(self) -> str:
        """The device as plans store it."""
        return f"{PREFIX}/{self.identity}/{','.join(f'+{f}' for f in self.features)}"

    @property
    def known(self) -> bool:
        """Whether Jangin's kernels are tested with its driver."""
        return (self.platform, self.kind) in KNOWN

    @property
    def linker(self) -> str:
        """The program that its driver needs; "" for none. If the program is missing, the driver ends the
        process."""
        brought = self.platform == POCL and not self.driver.endswith("debian")
        return "ld" if brought and find_spec("pocl_binary_distribution") is not None else ""

    def __str__(self) -> str:
        return f"{PREFIX}:{self.number} ({self.identity})"


def devices() -> tuple[Found, ...]:
    """Return all devices, in the order of their drivers. If there are none, raise LoadError with the reason
    and a remedy."""
    cl.functions()
    with _LOCK:
        handle = _devices()
    if not handle:
        raise LoadError(f"there is no OpenCL device here: {_why_none()}")
    return handle


def select(which: str) -> Found:
    """Return the device with this number or name. "" selects number 0.

    A name is a part of a platform's name, in upper or lower case. If no platform has it, it is a part of a
    device's name, driver or version. The first match is taken. Raises LoadError with a list of the
    devices."""
    there = devices()
    if which.isdigit() or not which:
        chosen = [d for d in there if d.number == int(which or 0)]
    else:
        chosen = [d for d in there if which.lower() in d.platform.lower()]
        chosen = chosen or [d for d in there if which.lower() in f"{d.name} {d.driver} {d.version}".lower()]
    if not chosen:
        raise LoadError(f"no OpenCL device is {which!r}; here are {_listed(there)}")
    return chosen[0]


def of_target(target: str) -> Found:
    """Return the device that a plan was made for. A device whose driver has another version is taken if there
    is no exact match. Raises LoadError if there is neither."""
    _, _, rest = target.partition("/")
    identity = rest.partition("/")[0]
    there = devices()
    same = [d for d in there if identity == d.identity]
    same = same or [d for d in there if identity.startswith(f"{d.model}, ")]
    if not same:
        raise LoadError(
            f"the model was compiled for the OpenCL device {identity!r}, which isn't here; here are "
            f"{_listed(there)}: load it with device= for one of them, or compile it again"
        )
    return same[0]


_LOCK = Lock()
"""Held during the first query of the drivers."""
renew_lock(globals(), "_LOCK", Lock)


@cache
def _devices() -> tuple[Found, ...]:
    _prepare_drivers()
    every_device: list[Found] = []
    names: Counter[str] = Counter()
    for platform in cl.platforms():
        name = cl.text("clGetPlatformInfo", platform, _PLATFORM_NAME)
        for handle in cl.devices(platform):
            every_device.append(_found(len(every_device), name, handle, names))
    return tuple(every_device)


def _found(number: int, platform: str, handle: int, names: Counter[str]) -> Found:
    def said(question: int) -> str:
        return cl.text("clGetDeviceInfo", handle, question)

    def count(question: int) -> int:
        return cl.number("clGetDeviceInfo", handle, question)

    name, known, kind = said(_NAME), said(_EXTENSIONS).split(), count(_TYPE)
    names[f"{platform} {name}"] += 1
    same = names[f"{platform} {name}"]
    lanes = count(_NATIVE_FLOATS) or count(_PREFERRED_FLOATS) or 1
    return Found(
        number, platform, name if same == 1 else f"{name} #{same}", said(_DRIVER), said(_VERSION),
        next((k for k, bit in KINDS.items() if kind & bit), "other"),
        tuple(f for f, extension in EXTENSIONS.items() if extension in known),
        count(_UNITS), count(_CLOCK), lanes, count(_CACHE), count(_LOCAL), count(_MEMORY), count(_LARGEST),
        max(64, count(_ALIGNMENT) // 8), count(_GROUP), bool(count(_UNIFIED)),
        bool(count(_FLOAT_CONFIG) & _ROUNDED_QUOTIENTS), handle,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Return the text without "/" and ",", which separate a target's parts."""
    return " ".join(text.replace("/", "-").replace(",", " ").split())


def _listed(there: Sequence[Found]) -> str:
    """Return a text that lists the devices, and the faults of drivers that can't be loaded."""
    return "; ".join([*map(str, there), *_broken()])


# --- drivers


def _prepare_drivers() -> None:
    """Set the environment of drivers before they are first queried.

    Intel's driver is added for the OpenCL loader, because its Python package names a wrong path. PoCL is told
    not to specialize work-groups, because it would rebuild each kernel at its first run. Settings in the
    environment have precedence, as has a program that loaded pyopencl before."""
    tell_drivers({"POCL_WORK_GROUP_SPECIALIZATION": "0"})
    intel = Path(sys.prefix) / "lib" / INTEL
    if opencl_vendors() or not intel.exists():
        return
    with suppress(OSError):  # no room for temporary files: the other drivers are still found
        folder = _vendors_folder()
        for file in VENDORS.glob("*.icd"):
            (folder / file.name).write_text(file.read_text())
        (folder / "jangin-intel.icd").write_text(f"{intel}\n")
        tell_drivers({"OCL_ICD_VENDORS": str(folder)})


@cache
def _vendors_folder() -> Path:
    import tempfile

    holder = tempfile.TemporaryDirectory(prefix="jangin-opencl-")
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Temporary folders, which are removed when the process ends."""


def _why_none() -> str:
    files = _driver_files()
    if not files:
        return (
            f"no driver is listed in {opencl_vendors() or VENDORS}{_meant()}; install your device's, or for "
            "processors pip install pocl-binary-distribution, or intel-opencl-rt"
        )
    return "; ".join(_broken()) or (
        f"the drivers that {', '.join(map(str, files))} name find none: is it there, and may you use it?"
    )


def _meant() -> str:
    """Return a text about a wrong folder in OCL_ICD_VENDORS, or ""."""
    folder = opencl_vendors()
    if folder is None or folder.is_dir():
        return ""
    return ", which OCL_ICD_VENDORS names and which isn't a folder"


def _driver_files() -> list[Path]:
    """Return the files that each contain the name of a driver's library."""
    folder = opencl_vendors() or VENDORS
    return sorted(folder.glob("*.icd")) if folder.is_dir() else [folder] * (folder.suffix == ".icd")


def _broken() -> list[str]:
    """Return a text for each listed driver that can't be loaded, with its fault and a remedy."""
    faults = []
    for file in _driver_files():
        try:
            named = file.read_text(errors="replace").strip()
            if "/" in named and not Path(named).exists():
                faults.append(f"{file} names {named}, which isn't there: write the library's path into it")
                continue
            ctypes.CDLL(named)
        except OSError as error:
            faults.append(f"the driver of {file} can't be loaded ({error}): install it again")
    return faults
