"""Measure cold compilation: `jangin.compile(path, cache=False)` in fresh processes, with trees of the source
in turns.

    python benchmarks/cold.py MODEL.onnx... [--trees TREE,TREE] [--turns N]

The figures for each model and tree are the wall seconds from `import jangin` to the end of the call, and the
seconds of all processes. Both are medians with the least value. The third figure is the most memory (MiB) of
one process.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
"""The option of prctl(2) by which orphaned grandchildren become this process's children, so that their
seconds are counted."""
CODE = """
import os, sys, time
start = time.perf_counter()
import jangin
made = jangin.compile(sys.argv[1], cache=False)
print(time.perf_counter() - start, flush=True)
os._exit(0)
"""


class Cold(NamedTuple):
    """Wall seconds, processor seconds, and MiB."""

    wall: float
    cpu: float
    memory: float


def compiled(model: Path, tree: Path) -> Cold:
    """Compile once by the package in `tree`. Raises RuntimeError if the compilation fails."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(tree)
    command = [sys.executable, "-c", CODE, str(model)]
    with subprocess.Popen(command, env=env, cwd=tree, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said, cpu, memory = process.stdout.read(), 0.0, 0
        while True:
            try:
                _, _, used = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu, memory = cpu + used.ru_utime + used.ru_stime, max(memory, used.ru_maxrss)
    if not said:
        raise RuntimeError(f"{model} wasn't compiled by {tree}")
    return Cold(float(said), cpu, memory / 1024)


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--trees", default=str(here), help="folders with a package jangin, with commas")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    trees = [Path(t).resolve() for t in given.trees.split(",")]
    print("| model | tree | wall s (least) | processor s (least) | MiB |\n| --- | --- | --- | --- | --- |")
    for model in given.models:
        found = {tree: list[Cold]() for tree in trees}
        for _ in range(given.turns):
            for tree in trees:
                found[tree].append(compiled(model.resolve(), tree))
        for tree, runs in found.items():
            seconds = [
                f"{median(values):.2f} ({min(values):.2f})"
                for values in ([r.wall for r in runs], [r.cpu for r in runs])
            ]
            memory = max(r.memory for r in runs)
            print(f"| {model.stem} | {tree.name} | {' | '.join(seconds)} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
