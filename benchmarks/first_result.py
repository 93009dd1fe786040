"""Measure how soon programs that import onnxruntime have a first result, with ONNX Runtime and with Jangin in
its place. Processes are fresh, and the cache is empty.

    python benchmarks/first_result.py [PACKAGE...] [--turns N] [--save]

The programs are those of tests/ort/test_onnxruntime_packages.py, ended after their first printed result.
Seconds count from the start of the process. Engines take turns, and medians are compared. Bytecode is
made before, as pip makes it of what it installs.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "ort"), str(ROOT / "examples"), str(ROOT)]

from packages import package  # noqa: E402
from sections import FOLDER, Section, Table  # noqa: E402
from test_onnxruntime_packages import HEAD, IMAGES, PROGRAMS  # noqa: E402

WAYS = {"ONNX Runtime": [], "Jangin": ["-m", "jangin.onnxruntime"]}
ASKED = 1.5
"""The first result should come within this many times ONNX Runtime's time."""


COLUMNS = ["package", *WAYS, "ratio", "turns"]
TITLE = "First results"
ABOUT = (
    "`python benchmarks/first_result.py --save`: seconds from the start of a process to its first result, "
    "medians, with an empty cache of Jangin. A ratio of at most 1.5 is asked. The machine had two "
    "cores of an AMD EPYC, and was mostly quiet."
)


def saved() -> dict[str, Sequence[str]]:
    """Return the stored rows by package."""
    path = FOLDER / "first_result.json"
    tables = [p for p in Section.load(path).parts if isinstance(p, Table)] if path.exists() else []
    return {row[0]: row for table in tables for row in table.rows}


def seconds(command: list[str], path: list[Path], cache: str) -> float:
    """Return the seconds until the program prints its first result. The program is then ended."""
    places = os.pathsep.join(map(str, [ROOT, *path]))
    where = {**os.environ, "PYTHONPATH": places, "JANGIN_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"}
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=where, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("RESULT "):
                found = time.perf_counter() - start
                process.kill()
                return found
    raise RuntimeError(f"{' '.join(command)} printed no result")


def measured(name: str, turns: int) -> dict[str, float]:
    """Return the median seconds of a package's program by engine."""
    requirements, text = PROGRAMS[name]
    path, images = [*map(package, requirements)], package(IMAGES)
    for folder in (ROOT / "jangin", *path):
        compileall.compile_dir(folder, quiet=2)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as made:
        program = Path(made) / "program.py"
        program.write_text(HEAD + text)
        for turn in range(turns):
            for way, options in WAYS.items():
                command = [sys.executable, *options, str(program), str(images), str(ROOT)]
                found[way].append(seconds(command, path, f"{made}/cache{turn}"))
    return {way: median(times) for way, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(PROGRAMS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="in results; rows of other packages stay there")
    given = parser.parse_args()
    rows = saved() if given.save else {}
    for name in given.packages or PROGRAMS:
        times = measured(name, given.turns)
        ratio = times["Jangin"] / times["ONNX Runtime"]
        rows[name] = [name, *(f"{t:.2f}" for t in times.values()), f"{ratio:.2f}", str(given.turns)]
        print(" | ".join(rows[name]), "" if ratio <= ASKED else f"more than {ASKED}", flush=True)
        if given.save:
            table = Table(COLUMNS, [rows[n] for n in PROGRAMS if n in rows])
            Section(TITLE, [ABOUT, table]).save("first_result")


if __name__ == "__main__":
    main()
