"""The place of the benchmark of NVIDIA GPUs, and kernels that are made before, without a GPU."""

from __future__ import annotations

import json
import lzma
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import jangin
from jangin.compiler import cache

TF32 = "tf32"
"""Products of float32 whose numbers are rounded to tf32."""
REFERENCE = "x86-64-v3"
"""The target of networks in float64 if kernels are carried. Most processors beside a GPU run its code."""


@dataclass(frozen=True)
class Place:
    """A device by its target's name, and the target that models are compiled for. `carried` is the folder of
    kernels, if any. If the place `prepares`, models are only compiled."""

    device: str
    target: str
    carried: str = ""
    prepares: bool = False

    @property
    def command(self) -> list[str]:
        """The command of benchmarks/cuda.py for this place, without a job."""
        script = str(Path(__file__).with_name("cuda.py"))
        command = [sys.executable, script, "--device", self.device, "--carried", self.carried]
        if self.target != self.device:
            command += ["--architecture", self.target.removeprefix("cuda:")]
        return [*command, "--prepare"] if self.prepares else command

    @property
    def reference(self) -> str:
        return REFERENCE if self.carried else "cpu"

    def compiled(self, *wanted: tuple[onnx.ModelProto, str, str]) -> list[Any]:
        """Return models compiled for a target and a kind of numbers, of which tf32 is float32 with another
        option. Raises Prepared instead if this place prepares."""
        if not self.prepares:
            return [jangin.compile(model, target, tf32=kind == TF32) for model, target, kind in wanted]
        for model, target, kind in wanted:
            jangin.build(model, target, tf32=kind == TF32)
        raise Prepared


class Prepared(Exception):
    """A job's kernels are in the folder now, and nothing ran."""


def compiled(model: onnx.ModelProto, on: Place, kind: str) -> Any:
    """Return a model compiled for the device."""
    return on.compiled((model, on.target, kind))[0]


PACKAGES = "llvmlite", "numpy", "onnx"
"""Packages whose versions are a part of kernels' names in the cache."""
VERSIONS = "versions.json"
KERNELS, PACKED = Path("kernels", "kernels.sqlite"), "kernels.xz"
"""The file of kernels in the cache's folder, and the compressed one that is carried."""


def unpack(folder: Path) -> None:
    """Make the file of kernels from the compressed one that was carried here, if there is none yet."""
    kernels = folder / KERNELS
    if (folder / PACKED).exists() and not kernels.exists():
        kernels.parent.mkdir(parents=True, exist_ok=True)
        kernels.write_bytes(lzma.decompress((folder / PACKED).read_bytes()))


def as_prepared(folder: Path, prepares: bool) -> None:
    """Name kernels as the machine does that prepares them, whose packages may have other versions. Only this
    user may write the file with kernels, or else it isn't read. A copy may have lost this."""
    file = folder / VERSIONS
    if prepares:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({name: cache.installed(name) for name in PACKAGES}))
    elif file.exists():
        versions = json.loads(file.read_text())
        cache.installed = lambda package: versions[package]
        for path in (folder, folder / "kernels", *(folder / "kernels").glob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)


def without_models(folder: Path) -> str:
    """Remove compiled models, which have weights, from a folder of kernels, and compress the kernels. Say how
    much is left to carry."""
    for file in folder.rglob("*.jgn"):
        file.unlink()
    kernels, packed = folder / KERNELS, folder / PACKED
    if kernels.exists():
        packed.write_bytes(lzma.compress(kernels.read_bytes()))
        for file in kernels.parent.iterdir():
            file.unlink()
    for place in folder.iterdir():
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder} has {size / 2**20:.1f} MiB to carry"
