"""PyTorch's own tests of Inductor pass with Jangin in its place, except for those that look into Inductor.

PYTORCH_SOURCE names a folder with PyTorch's source, such as Debian's source package. A sample is drawn of the
tests on the CPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = Path(__file__).resolve().parents[3]
FILE = Path(os.environ.get("PYTORCH_SOURCE", "pytorch")) / "test" / "inductor" / "test_torchinductor.py"
FOLDER = Path(__file__).parent
FAILS: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "inductor.toml").read_text("utf-8"))
COUNT = 25
"""The number of tests in a sample. They take half a minute, half of which is PyTorch's import."""


def failures(how: str, *which: str | int) -> dict[str, str]:
    """Run tests by `inductor_runner`: those that are named, or a sample by its seed and count. Return the
    errors of those that fail, by name."""
    path = os.pathsep.join([str(ROOT), str(FILE.parent)])
    done = subprocess.run(
        [sys.executable, str(FOLDER / "inductor_runner.py"), how, *map(str, which)], capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": path}, timeout=1800, cwd=FILE.parent,
    )  # fmt: skip
    lines = [x.removeprefix("RESULT ") for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    errors = dict(map(json.loads, lines))
    assert len(errors) == (COUNT if which[-1] == COUNT else len(which)), done.stderr[-4000:]
    return {name: error for name, error in errors.items() if error}


@pytest.mark.slow
@pytest.mark.skipif(not FILE.is_file(), reason="PYTORCH_SOURCE names no folder of PyTorch's source")
def test_inductors_tests_pass() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    listed = {name for table in FAILS.values() for name in table}
    wrong = failures("whole", seed, COUNT)
    assert {*wrong} <= listed, {n: e for n, e in wrong.items() if n not in listed}


@pytest.mark.slow
@pytest.mark.skipif(not FILE.is_file(), reason="PYTORCH_SOURCE names no folder of PyTorch's source")
@pytest.mark.parametrize("how", ["looks", "rounds"])
def test_results_of_failing_tests_are_right(how: str) -> None:
    """The tests that fail only because they look into Inductor compare right results. If we round
    otherwise, we are as near to float64's results."""
    assert not failures(how, *FAILS[how])
