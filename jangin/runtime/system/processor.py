"""The processor's features, its caches, and this process's share of it, as the operating system reports
them."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

_AARCH64 = (
    {
        "fp-armv8": 0, "neon": 1, "aes": 3, "sha2": 6, "crc": 7, "lse": 8, "fullfp16": 10, "rdm": 12,
        "jsconv": 13, "complxnum": 14, "rcpc": 15, "sha3": 17, "sm4": 19, "dotprod": 20, "sve": 22,
        "fp16fml": 23,
    },
    {"sve2": 1, "f32mm": 10, "i8mm": 13, "bf16": 14, "sme": 23},
)  # fmt: skip
_AT_HWCAP, _AT_HWCAP2 = 16, 26
"""The numbers of the two words of processor features in a process's auxiliary vector (Linux's auxvec.h)."""
_RISCV64 = {letter: ord(letter) - ord("a") for letter in "macfdv"}
_HWCAP: Mapping[str, Sequence[Mapping[str, int]]] = {"aarch64": _AARCH64, "riscv64": (_RISCV64, {})}
"""For each architecture, the bits of LLVM's features in the two words that Linux gives each process (its
headers asm/hwcap.h)."""

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
"""x86-64's system call arch_prctl, its request to use a part of the processor's state, and the number of
AMX's part. (Linux's headers asm/unistd_64.h, asm/prctl.h and asm/fpu/types.h.)"""


def architecture() -> str:
    """Return this machine's architecture, as triples begin with it."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "armv7"}.get(machine, machine)


@cache
def refused() -> str:
    """Return the reason why Linux doesn't let this process use matrix registers, or "" if it does.

    The process requests them once, for all its threads and children. They are requested only when needed,
    because they make each thread's saved state 8 KB larger."""
    if _ask(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0:
        return ""
    return f"the system doesn't let this process use AMX's registers: {os.strerror(ctypes.get_errno())}"


def _ask(number: int, *args: int) -> int:
    """Make a system call, and return its result, or -1 if there is no function for system calls."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, OSError, TypeError):
        return -1
    call.restype, call.argtypes = ctypes.c_long, (ctypes.c_long,) * (1 + len(args))
    result: int = call(number, *args)
    return result


def processor_features() -> frozenset[str]:
    """Return the names of this processor's features. The result is empty if the system doesn't report them.
    The names are Linux's on x86-64 and LLVM's elsewhere, with only their letters and digits."""
    return _hardware_features() if architecture() in _HWCAP else _flags()


@cache
def _hardware_features() -> frozenset[str]:
    """Return the features that Linux's auxiliary vector has. Unlike /proc/cpuinfo, it is right in every
    container and emulator."""
    try:
        known = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError, TypeError):
        return frozenset()
    known.restype, known.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    words = (known(_AT_HWCAP), known(_AT_HWCAP2))
    names = zip(_HWCAP[architecture()], words, strict=True)
    return frozenset(plain(name) for bits, word in names for name, bit in bits.items() if word >> bit & 1)


@cache
def _flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the first processor's feature flags, with only their letters and digits. The result is empty if
    none are reported."""
    try:
        match = re.search(r"(?m)^flags\s*:(.*)$", path.read_text())
    except OSError:
        return frozenset()
    return frozenset(plain(f) for f in match[1].split()) if match else frozenset()


def processor_maker(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the x86-64 processor's maker, GenuineIntel or AuthenticAMD, or "" if the system doesn't report
    it."""
    try:
        match = re.search(r"(?m)^vendor_id\s*:(.*)$", path.read_text())
    except OSError:
        return ""
    return match[1].strip() if match else ""


def processor_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name, or Arm's numbers of its maker and part. If the system reports
    neither, return the architecture."""
    try:
        text = path.read_text()
    except OSError:
        text = ""
    match = re.search(r"(?m)^model name\s*:(.*)$", text)
    if match:
        return match[1].strip()
    maker, part = (re.search(rf"(?m)^CPU {word}\s*:(.*)$", text) for word in ("implementer", "part"))
    if maker and part:
        return f"Arm {maker[1].strip()}/{part[1].strip()}"
    return platform.processor() or platform.machine()


def plain(name: str) -> str:
    """Return a feature's name in the form in which `processor_features` returns names."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def cache_sizes() -> dict[int, int]:
    """Return the sizes of the data caches in bytes, by level, as Linux reports them. The result is empty on
    other systems."""
    sizes: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            size = re.fullmatch(r"(\d+)K", (index / "size").read_text().strip())
        except OSError:
            continue
        if kind != "Instruction" and size:
            sizes[level] = int(size[1]) << 10
    return sizes


def usable_processors(root: Path = Path("/")) -> int:
    """Return the number of processors in this process's affinity mask, limited by the CPU quotas of its
    control groups (rounded up). `root` is the folder that contains /proc and /sys."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(quota) for quota in _quotas(root))]))


@cache
def _quotas(root: Path) -> list[float]:
    """Return the CPU quotas, in CPUs, of the control groups from the process's own up to the root.

    The sources are admin-guide/cgroup-v2 (`cpu.max`) and scheduler/sched-bwc (`cpu.cfs_quota_us`) in the
    Linux kernel documentation. The quotas are read once in a process, because reading takes a dozen files."""
    quotas: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path)
        base = root / "sys/fs/cgroup"
        bases = [base / controllers, base / "cpu"] if controllers else [base, base / "unified"]
        for place in (group, *group.parents):
            for folder in (b / str(place).lstrip("/") for b in bases):
                quotas.extend(_quota(folder))
    return quotas


def _quota(folder: Path) -> list[float]:
    limit = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(limit) == 2 and limit[0].isdigit() and limit[1].isdigit() and int(limit[1]):
        return [int(limit[0]) / int(limit[1])]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
