"""Link objects into a shared library by a linker on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from jangin.ahead.elf import defined, undefined
from jangin.ahead.model import Model
from jangin.backends.llvm.objects import compile_modules
from jangin.files import writing
from jangin.runtime.system.processor import architecture
from jangin.targets.systems import ANDROID, system_of
from jangin.targets.target import Target

_GNU = {"armv7": "arm-linux-gnueabihf"}
"""The names that GNU's tools use for an architecture and its system, if it isn't ARCHITECTURE-linux-gnu."""

PAGES = ("-z", "max-page-size=16384")
"""The alignment of segments. Android devices have pages of 4 or 16 KiB (Android 15)."""
MATHEMATICAL = frozenset({"fmod", "fmodf", "pow", "powf"})
"""The functions that code for Android takes from libm.so."""


class LinkError(OSError):
    """Objects couldn't be linked. The message has the reason."""


def shared_library(model: Model, objects: Sequence[bytes]) -> bytes:
    """Link objects to a shared library, and return its bytes. Raises LinkError if there is no linker for the
    target, or if it fails."""
    system = system_of(model.target)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{n}.o" for n in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            with writing(path):
                path.write_bytes(data)
        library = Path(folder) / system.library.format(model.prefix)
        if system.elf:
            command = linker(model.target.triple)
            named = (
                ["-soname", library.name]
                if command[-1].endswith("ld.lld")
                else [f"-Wl,-soname,{library.name}"]
            )
            command += named
            if system is ANDROID:
                paths += _android_libraries(model, command[:-2], paths, Path(folder))
                command += PAGES
        else:
            command = _zig(model.target)
        _run([*command, "-shared", "-o", str(library), *map(str, paths)])
        return library.read_bytes()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LinkError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[:2000]}")


def _zig(target: Target) -> list[str]:
    """Return the command that links for macOS or Windows, whose system libraries come with Zig."""
    if find_spec("ziglang") is None:
        raise LinkError(
            f"nothing here links shared libraries for {target.name}: pip install 'jangin[aot]'; "
            "--emit object needs no linker"
        )
    architecture, system = target.triple.split("-")[0], system_of(target).name
    zig = f"{architecture}-{system}" + ("-gnu" if system == "windows" else "")
    return [sys.executable, "-m", "ziglang", "cc", "-target", zig, "-s"]


def _android_libraries(
    model: Model, linker: Sequence[str], paths: Sequence[Path], folder: Path
) -> list[Path]:
    """Return stand-ins for Android's C library and mathematical library, which define what objects need.

    Android's loader looks for a function only in libraries that the file names. The NDK isn't needed to name
    them, because a linker needs nothing of a library but its name and its functions."""
    objects = [path.read_bytes() for path in paths]
    needed = {n for data in objects for n in undefined(data)} - {n for data in objects for n in defined(data)}
    if own := sorted(n for n in needed if n.startswith("__")):
        raise LinkError(
            f"{', '.join(own)} come with the NDK's compiler: make an object file (--emit object) and link it "
            "by the NDK"
        )
    stubs = []
    for library, names in (("libc.so", needed - MATHEMATICAL), ("libm.so", needed & MATHEMATICAL)):
        if not names:
            continue
        text = "".join(f"define void @{name}() {{\n  ret void\n}}\n" for name in sorted(names))
        path = folder / f"{library}.o"
        path.write_bytes(compile_modules([(library, text)], model.target))
        _run([*linker, "-shared", "-soname", library, "-o", str(folder / library), str(path)])
        stubs.append(folder / library)
    return stubs


def linker(triple: str) -> list[str]:
    """Return the command of a linker for a target, without its arguments. Raises LinkError if there is
    none."""
    machine = triple.split("-")[0]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    if lld := shutil.which("ld.lld"):
        return [lld]
    gnu = _GNU.get(machine, f"{machine}-linux-gnu")
    names = (f"{gnu}-gcc", *(("cc", "gcc", "clang") if machine == architecture() else ()))
    for name in names:
        if path := shutil.which(name):
            return [path]
    raise LinkError(
        f"nothing here links shared libraries for {machine}: pip install 'jangin[aot]', or install "
        f"lld or {gnu}-gcc; --emit object needs no linker"
    )
