"""The code is made by a checked version of LLVM. Without a usable one, an error has a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from jangin.llvm import CHECKED, is_checked, version

ROOT = Path(__file__).resolve().parents[2]


def test_this_llvm_was_checked() -> None:
    """An unchecked version may store more than it is told to, as 22.1.0 does."""
    assert is_checked(), (
        f"LLVM {version()} isn't one of those that were checked ({CHECKED}): run all of what makes and runs "
        'kernels, pytest -m "slow or not slow" tests/instr tests/backends, and add it to jangin.llvm.CHECKED'
    )


MAKES = "llvmlite, which makes the code for processors,"
STUBS = {
    "missing": (
        "raise ModuleNotFoundError('No module named llvmlite', name='llvmlite')", "",
        f'{MAKES} isn\'t installed: python -m pip install --upgrade "llvmlite>=0.50"',
    ),
    "old": (
        "__version__ = '0.43.0'", "llvm_version_info = 14, 0, 6",
        "llvmlite 0.43.0 brings LLVM 14.0.6, and Jangin needs LLVM 22 or later: "
        'python -m pip install --upgrade "llvmlite>=0.50"',
    ),
    "unloadable": (
        "__version__ = '0.50.0'", "raise OSError('libllvmlite.so: no such file')",
        f"{MAKES} can't be loaded (libllvmlite.so: no such file): install it anew, "
        'python -m pip install --force-reinstall "llvmlite>=0.50"',
    ),
}  # fmt: skip
"""Replacements of llvmlite and of its binding, and the expected messages."""
COMPILE = """
import jangin, sys
try:
    jangin.compile(sys.argv[1], isolated=sys.argv[2] == "True")
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(("stub", "isolated"), [("missing", True), *((stub, False) for stub in STUBS)])
def test_llvm_that_cant_be_used(stub: str, isolated: bool, tmp_path: Path) -> None:
    """One line tells the remedy, whichever process compiles."""
    package, binding, said = STUBS[stub]
    folder, model = tmp_path / "llvmlite", tmp_path / "m.onnx"
    folder.mkdir()
    (folder / "__init__.py").write_text(package)
    (folder / "binding.py").write_text(binding)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    places = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "JANGIN_CACHE_DIR": str(tmp_path / "cache")
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, model, str(isolated)], env={**os.environ, **places},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout.splitlines() == [said], done.stdout + done.stderr
