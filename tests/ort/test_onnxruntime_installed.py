"""Jangin in the place of `onnxruntime`, in separate processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "packaging" / "onnxruntime-shim"
PROGRAM = """
import sys
import onnxruntime
import onnxruntime as ort
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.quantization import CalibrationDataReader
import onnxruntime.quantization as q
import jangin.onnxruntime, jangin.onnxruntime.errors
assert onnxruntime is jangin.onnxruntime and C.get_available_providers() == ["CPUExecutionProvider"]
assert onnxruntime.__name__ == "jangin.onnxruntime" and onnxruntime.__spec__.name == "jangin.onnxruntime"
assert InvalidArgument is jangin.onnxruntime.errors.InvalidArgument is C.InvalidArgument
assert sys.modules["onnxruntime.quantization"] is sys.modules["jangin.onnxruntime.quantization"] is q
try:
    import onnxruntime.transformers
except ModuleNotFoundError as error:
    print(error)
print("arguments", sys.argv[1:], __name__)
"""
SAID = "Jangin, which stands in for onnxruntime, has no module 'onnxruntime.transformers'"


def run(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = f"import sys, runpy; sys.path.insert(0, {str(path)!r}); sys.path.insert(1, {str(ROOT)!r})\n"
    code = command + "sys.argv = sys.argv[1:]; sys.path.insert(0, '')\n" + arguments[0]
    found = [sys.executable, "-c", code, *arguments[1:]]
    return subprocess.run(found, capture_output=True, text=True, timeout=100)


MODULE = (
    "sys.argv.insert(0, 'x'); runpy.run_module('jangin.onnxruntime', run_name='__main__', alter_sys=True)"
)


@pytest.mark.sampled(2)
def test_a_script_runs_with_it(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = run(MODULE, str(script), "a", "-b")
    assert done.stdout == f"{SAID}\narguments ['a', '-b'] __main__\n", done.stderr
    assert run(MODULE).returncode == 2
    missing = run(MODULE, "no.py")
    assert missing.stderr == "python -m jangin.onnxruntime: there is no file no.py\n"
    assert missing.returncode == 2
    done = run(f"import os; os.chdir({str(tmp_path)!r}); {MODULE}", "-m", "program", "c")
    assert done.stdout == f"{SAID}\narguments ['c'] __main__\n", done.stderr


def test_install(tmp_path: Path) -> None:
    done = run(
        "import jangin.onnxruntime; jangin.onnxruntime.install(); jangin.onnxruntime.install()" + PROGRAM
    )
    assert done.stdout.startswith(SAID), done.stderr


def test_the_real_one_may_not_be_there_already() -> None:
    done = run("import onnxruntime, jangin.onnxruntime as j\nj.install()")
    assert "ImportError: onnxruntime is imported already" in done.stderr
    done = run(
        "import jangin.onnxruntime as j; j.install(); import onnxruntime.capi; j.uninstall()\n"
        "import onnxruntime; assert onnxruntime is not j and onnxruntime.capi._pybind_state; print('real')"
    )
    assert done.stdout == "real\n", done.stderr


@pytest.mark.parametrize("module", ["onnxruntime", "onnxruntime.capi._pybind_state"])
def test_the_shim(module: str) -> None:
    """The shim works, whichever of its modules is imported first."""
    done = run(f"import {module}\n" + PROGRAM, path=SHIM)
    assert done.stdout.startswith(SAID), done.stderr
