"""Systems other than Linux for which programs are compiled ahead of time: Android, iOS, macOS and Windows.

A target's name is a processor's and a system's, "cortex-a76-android". LLVM's triples are taken too,
"arm64-apple-ios". A system decides the calling convention, the format of object files, and how a shared
library is linked and named.

Sources of the oldest versions: Android 9 (API level 28, the first with aligned_alloc), Xcode 16 (iOS 12), Zig
0.15 (macOS 13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from jangin.ir.records import dataclass
from jangin.targets.target import Target

OUTPUTS = ("object", "shared", "c")


@dataclass(frozen=True)
class System:
    """An operating system.

    - `triples`: LLVM's triples by architecture, as Linux's triples begin with it.
    - `library`: the name of a shared library, with {} for the model's.
    - `elf`: whether its object files are in the format ELF.
    - `outputs`: the kinds of output that can be made.
    """

    name: str
    triples: Mapping[str, str] = field(repr=False)
    library: str = "lib{}.so"
    elf: bool = True
    outputs: tuple[str, ...] = OUTPUTS


LINUX = System("linux", {})
ANDROID = System(
    "android",
    {
        "aarch64": "aarch64-unknown-linux-android28", "armv7": "armv7-unknown-linux-androideabi28",
        "x86_64": "x86_64-unknown-linux-android28",
    },
)  # fmt: skip
IOS = System("ios", {"aarch64": "aarch64-apple-ios12.0.0"}, "lib{}.dylib", False, ("object", "c"))
MACOS = System(
    "macos", {"aarch64": "aarch64-apple-macosx13.0.0", "x86_64": "x86_64-apple-macosx13.0.0"},
    "lib{}.dylib", False,
)  # fmt: skip
WINDOWS = System(
    "windows", {"aarch64": "aarch64-pc-windows-gnu", "x86_64": "x86_64-pc-windows-gnu"}, "{}.dll", False,
)  # fmt: skip
MSVC = System(
    "windows-msvc", {"aarch64": "aarch64-pc-windows-msvc", "x86_64": "x86_64-pc-windows-msvc"}, "{}.dll",
    False, ("object", "c"),
)  # fmt: skip
SYSTEMS: Mapping[str, System] = {s.name: s for s in (ANDROID, IOS, MACOS, WINDOWS, MSVC)}

_NAME = re.compile(
    r"(?P<processor>.+?)(-unknown|-pc|-apple|-linux)*-(?P<system>android|ios|macos|darwin|windows)"
    r"(?P<kind>eabi|x|-msvc|-gnu)?[0-9.]*"
)
"""A name with a system: a target's, or a triple, which has words for the maker and a version too."""


def split(name: str) -> tuple[str, System] | None:
    """Return the processor's name and the system that a target's name gives, or None for a name without a
    system."""
    if not (match := _NAME.fullmatch(name)):
        return None
    processor, system = match["processor"], match["system"]
    if system == "windows":
        system += "-msvc" if match["kind"] == "-msvc" else ""
    return processor, SYSTEMS["macos" if system == "darwin" else system]


def on(target: Target, system: System) -> Target:
    """Return a processor's target for programs of another system. Raises ValueError if the system doesn't run
    on the processor."""
    architecture = target.triple.split("-")[0]
    if "linux" not in target.triple or architecture not in system.triples:
        raise ValueError(f"{target.name} doesn't run {system.name}: that is for {', '.join(system.triples)}")
    return replace(
        target, name=f"{target.name}-{system.name}", triple=system.triples[architecture],
        outputs=system.outputs, c_compiler="",
    )  # fmt: skip


def system_of(target: Target) -> System:
    """Return the system that a target's programs run on. Linux stands for programs without a system too."""
    return next((s for s in SYSTEMS.values() if target.triple in s.triples.values()), LINUX)
