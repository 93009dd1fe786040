"""The place of the benchmark of NVIDIA GPUs, and kernels that are made before, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import jangin

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


def without_models(folder: Path) -> str:
    """Remove compiled models, which have weights, from a folder of kernels. Say how much is left to carry."""
    for file in folder.rglob("*.jgn"):
        file.unlink()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder} has {size / 2**20:.1f} MiB to carry"
