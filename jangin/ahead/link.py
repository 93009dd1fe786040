"""Link objects into a shared library by a linker on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from jangin.ahead.model import Model
from jangin.files import writing
from jangin.runtime.system.processor import architecture

_GNU = {"armv7": "arm-linux-gnueabihf"}
"""The names that GNU's tools use for an architecture and its system, if it isn't ARCHITECTURE-linux-gnu."""


class LinkError(OSError):
    """Objects couldn't be linked. The message has the reason."""


def shared_library(model: Model, objects: Sequence[bytes]) -> bytes:
    """Link objects to a shared library, and return its bytes. Raises LinkError if there is no linker for the
    target, or if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{n}.o" for n in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            with writing(path):
                path.write_bytes(data)
        made = Path(folder) / f"lib{model.prefix}.so"
        command = linker(model.target.triple)
        named = ["-soname", made.name] if command[-1].endswith("ld.lld") else [f"-Wl,-soname,{made.name}"]
        command += ["-shared", *named, "-o", str(made), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise LinkError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[:2000]}")
        return made.read_bytes()


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
