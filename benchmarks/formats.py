"""Compare one model's speed in several formats: `python benchmarks/formats.py a.onnx a.nnef a.pt2 ...`.

The default is MobileNetV2 as ONNX, as PyTorch's exported program, and in the formats that `jangin convert`
writes. All run in turns in one process. The exit status is 1 if a format's least time differs by more than 5
% from the first one's.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import jangin
from jangin.commands.common import Settings
from jangin.commands.convert import convert

MODELS = Path(__file__).parents[1] / ".cache" / "models"
MOST = 0.05


def converted(folder: Path) -> list[Path]:
    model, whole = MODELS / "mobilenetv2.onnx", folder / "whole.onnx"
    convert(model, Settings(), whole, [])
    convert(model, Settings(), folder / "net.nnef", [])
    return [model, whole, folder / "net.nnef", model.with_suffix(".pt2")]


def times(paths: list[Path], threads: int, rounds: int) -> list[float]:
    """Return each format's least time, in seconds."""
    ready = []
    for path in paths:
        exe, random = jangin.compile(path, threads=threads), np.random.default_rng(0)
        feeds = {
            s.name: random.standard_normal([int(d) for d in s.shape]).astype(s.dtype) for s in exe.inputs
        }
        ready.append((exe, feeds))
    found = [float("inf")] * len(paths)
    for _ in range(rounds):
        for i, (exe, feeds) in enumerate(ready):
            start = time.perf_counter()
            exe.run(feeds)
            found[i] = min(found[i], time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        paths = given.files or converted(Path(folder))
        found = times(paths, given.threads, given.rounds)
    for path, seconds in zip(paths, found, strict=True):
        print(f"{path.name:24} {seconds * 1e3:8.3f} ms  {seconds / found[0]:.3f}")
    sys.exit(any(abs(t / found[0] - 1) > MOST for t in found))


if __name__ == "__main__":
    main()
