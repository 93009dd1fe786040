"""The files of jangin-runtime load and run compiled models without any package but NumPy."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from kinds import KINDS, Kind

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "packaging" / "runtime" / "pyproject.toml").read_text())
FILES = SETTINGS["tool"]["hatch"]["build"]["hooks"]["custom"]["files"]
"""The package's files and folders, from the repository's root."""
PROGRAM = """
import pickle, sys

class NumpyAlone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "jangin"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NumpyAlone())
import numpy as np
import jangin

@jangin.hosted("Median", domain="mine", infer=lambda x, **_: [(x.dtype, x.shape[:-1])])
def median(x):
    return np.median(x, -1).astype(x.dtype)

with open(sys.argv[2], "rb") as file:
    feeds = pickle.load(file)
exe = jangin.load(sys.argv[1], threads=2, operators=[median])
with open(sys.argv[3], "wb") as file:
    pickle.dump([exe.run(one) for one in feeds], file)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package's files."""
    folder = tmp_path_factory.mktemp("alone")
    for name in FILES:
        source, goal = ROOT / name, folder / name
        goal.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, goal, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, goal)
    return folder


def run(folder: Path, program: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    around = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=around, timeout=100, cwd=folder)


QUICK = ("variants", "own operators")


@pytest.mark.parametrize(
    "which", [pytest.param(k, marks=() if k.name in QUICK else pytest.mark.slow, id=k.name) for k in KINDS]
)
def test_each_kind_runs_with_numpy_alone(which: Kind, alone: Path, tmp_path: Path) -> None:
    if which.missing:
        pytest.skip(which.missing)
    model, feeds, results = (tmp_path / name for name in ("model.jgn", "feeds", "results"))
    which.compiled(isolated=False).save(model)
    feeds.write_bytes(pickle.dumps(which.feeds[:1]))
    done = run(alone, PROGRAM, model, feeds, results)
    if which.name == "small types":
        said = "need the package ml_dtypes, which isn't installed: pip install ml_dtypes"
        assert done.returncode == 1 and said in done.stderr.splitlines()[-1]
        return
    assert done.returncode == 0, done.stderr
    for given, found in zip(which.feeds[:1], pickle.loads(results.read_bytes()), strict=True):
        which.confirm(found, given)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import jangin; jangin.compile", "compiler"),
        ("import jangin; jangin.OnnxFormat", "frontends"),
        ("import jangin; jangin.onnxruntime", "onnxruntime"),
        ("import jangin.onnxruntime as onnxruntime", "onnxruntime"),
        ("from jangin.onnxruntime import InferenceSession", "onnxruntime"),
        ("import jangin.targets.x86", "targets"),
    ],
)
def test_a_compilers_name_says_what_to_install(program: str, name: str, alone: Path) -> None:
    done = run(alone, program)
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"ModuleNotFoundError: jangin.{name} belongs to the compiler"), done.stderr
    assert error.endswith(": pip install jangin")


def test_a_misspelt_module_of_the_whole_package_is_just_missing() -> None:
    done = run(ROOT, "import jangin.onnxruntim")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'jangin.onnxruntim'"


def test_the_error_of_another_makers_missing_package_stays() -> None:
    done = run(ROOT, "import sys; sys.modules['numpy'] = None; import jangin; jangin.OnnxFormat")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of numpy halted")
