"""OpenCL devices of this machine: which there are, what they are called, and why there are none.

A device is named by a text that says which it was, and of which driver, when a model was compiled for it
(`identity`): code that was built for it is only taken by the same.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from jangin.environment import opencl_vendors, tell_drivers
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError

PREFIX = "opencl"
"""What the names of targets and devices begin with; then ":" and a number or a part of a name."""
VENDORS = Path("/etc/OpenCL/vendors")
"""Where systems keep a file for each driver, which names its library."""
INTEL = "libintelocl.so"
"""The library of Intel's driver for processors, whose package for Python names a folder that isn't there."""
KINDS = ("CPU", "GPU", "ACCELERATOR")
POCL = "Portable Computing Language"
KNOWN = frozenset({(POCL, "CPU"), ("Intel(R) OpenCL", "CPU")})
"""Platforms, and kinds of their devices, with which the whole of Jangin is tested."""
EXTENSIONS = {"fp64": "cl_khr_fp64", "fp16": "cl_khr_fp16"}
"""What a target calls its features."""


@dataclass(frozen=True)
class Found:
    """An OpenCL device. `number`: its place among all; `handle`: pyopencl's. `features`: those of EXTENSIONS
    that it has; `unified`: its memory is the host's; `lanes`: floats of a vector; sizes are bytes."""

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
    handle: Any

    @property
    def model(self) -> str:
        """What it is, whatever its driver."""
        return f"{_plain(self.platform)}, {_plain(self.name)}"

    @property
    def identity(self) -> str:
        return f"{self.model}, {_plain(self.driver)}"

    @property
    def target(self) -> str:
        """As a plan has it."""
        return f"{PREFIX}/{self.identity}/{','.join(f'+{f}' for f in self.features)}"

    @property
    def known(self) -> bool:
        """Whether Jangin's kernels are tested with its driver."""
        return (self.platform, self.kind) in KNOWN

    @property
    def linker(self) -> str:
        """The program that its driver ends the process without; "" where there is none."""
        brought = self.platform == POCL and not self.driver.endswith("debian")
        return "ld" if brought and find_spec("pocl_binary_distribution") is not None else ""

    def __str__(self) -> str:
        return f"{PREFIX}:{self.number} ({self.identity})"


def devices() -> tuple[Found, ...]:
    """All of them, in the order of their drivers. Raises LoadError where there are none, with the reason and
    what to do about it."""
    found = _devices(library())
    if not found:
        raise LoadError(f"there is no OpenCL device here: {_why_none()}")
    return found


def select(which: str) -> Found:
    """The device of a number, or the first whose platform, name, driver or version has a text in it, in any
    case; "" is number 0. Raises LoadError with those that there are."""
    there = devices()
    if which.isdigit() or not which:
        chosen = [d for d in there if d.number == int(which or 0)]
    else:
        words = [(d, f"{d.platform} {d.name} {d.driver} {d.version}".lower()) for d in there]
        chosen = [d for d, text in words if which.lower() in text]
    if not chosen:
        raise LoadError(f"no OpenCL device is {which!r}; here are {_listed(there)}")
    return chosen[0]


def of_target(target: str) -> Found:
    """The device that a plan was made for, whatever the version of its driver. Raises LoadError."""
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


def library() -> ModuleType:
    """pyopencl. Raises LoadError where it isn't installed."""
    first = "pyopencl" not in sys.modules
    if first:
        _prepare_drivers()
    try:
        import pyopencl
    except ImportError as error:
        raise LoadError(
            f"OpenCL devices need pyopencl ({error}): pip install 'jangin[opencl]', and a driver: your "
            "system's, or for processors pip install pocl-binary-distribution or intel-opencl-rt"
        ) from None
    if first:
        warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)  # of code that nobody wrote
    made: ModuleType = pyopencl
    return made


@cache
def _devices(cl: Any) -> tuple[Found, ...]:
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # there are none
        return ()
    found: list[Found] = []
    names: Counter[str] = Counter()
    for platform in platforms:
        try:
            handles = platform.get_devices()
        except cl.Error:
            continue
        for handle in handles:
            one = _found(cl, len(found), platform, handle, names)
            found.append(one)
    return tuple(found)


def _found(cl: Any, number: int, platform: Any, d: Any, names: Counter[str]) -> Found:
    name = d.name.strip()
    names[f"{platform.name} {name}"] += 1
    same = names[f"{platform.name} {name}"]
    known = d.extensions.split()
    lanes = d.native_vector_width_float or d.preferred_vector_width_float or 1
    config = d.single_fp_config
    return Found(
        number, platform.name.strip(), name if same == 1 else f"{name} #{same}", d.driver_version.strip(),
        d.version.strip(), next((k for k in KINDS if d.type & getattr(cl.device_type, k)), "other"),
        tuple(f for f, extension in EXTENSIONS.items() if extension in known),
        d.max_compute_units, d.max_clock_frequency, lanes, d.global_mem_cache_size, d.local_mem_size,
        d.global_mem_size, d.max_mem_alloc_size, max(64, d.mem_base_addr_align // 8), d.max_work_group_size,
        bool(d.host_unified_memory),
        bool(config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT), d,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Without what separates the parts of a target."""
    return " ".join(text.replace("/", "-").replace(",", " ").split())


def _listed(there: Sequence[Found]) -> str:
    """Devices, and the drivers that might have offered others."""
    return "; ".join([*map(str, there), *_broken()])


# --- drivers


def _prepare_drivers() -> None:
    """Let the loader of drivers find Intel's, where Python's package has it: that is named by the wrong path.
    PoCL is told to run the code that it was given: it would build each kernel once more where it first runs.
    What the environment says, or a program that has loaded pyopencl itself, stands."""
    tell_drivers({"POCL_WORK_GROUP_SPECIALIZATION": "0"})
    intel = Path(sys.prefix) / "lib" / INTEL
    if opencl_vendors() or not intel.exists():
        return
    folder = _vendors_folder()
    for file in VENDORS.glob("*.icd"):
        (folder / file.name).write_text(file.read_text())
    (folder / "jangin-intel.icd").write_text(f"{intel}\n")
    tell_drivers({"OCL_ICD_VENDORS": str(folder)})


@cache
def _vendors_folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="jangin-opencl-")
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Temporary folders, which go with the process."""


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
    """What is wrong with where the environment says that drivers are listed."""
    folder = opencl_vendors()
    if folder is None or folder.is_dir():
        return ""
    return ", which OCL_ICD_VENDORS names and which isn't a folder"


def _driver_files() -> list[Path]:
    """Those that each name a driver's library."""
    folder = opencl_vendors() or VENDORS
    return sorted(folder.glob("*.icd")) if folder.is_dir() else [folder] * (folder.suffix == ".icd")


def _broken() -> list[str]:
    """What is wrong with drivers that are listed and can't be loaded."""
    found = []
    for file in _driver_files():
        try:
            named = file.read_text(errors="replace").strip()
            if "/" in named and not Path(named).exists():
                found.append(f"{file} names {named}, which isn't there: write the library's path into it")
                continue
            ctypes.CDLL(named)
        except OSError as error:
            found.append(f"the driver of {file} can't be loaded ({error}): install it again")
    return found
