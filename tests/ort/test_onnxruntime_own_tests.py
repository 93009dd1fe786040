"""ONNX Runtime's own tests in Python pass on Jangin, except for those that are listed with their reasons.

ONNXRUNTIME_SOURCE names a folder with ONNX Runtime's source, such as Debian's source package. A copy of the
tests is run, with the models of `own_models`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from own_models import write_models

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(os.environ.get("ONNXRUNTIME_SOURCE", "onnxruntime")) / "onnxruntime" / "test" / "python"
PLUGIN = """
import sys, types
import onnx
from onnx import helper

class Entry:
    def __init__(self, code):
        self.np_dtype = helper.tensor_dtype_to_np_dtype(code)

old = types.ModuleType("onnx.mapping")  # onnx had this module until 2024, and the tests read it
old.TENSOR_TYPE_MAP = {int(code): Entry(code) for code in helper.get_all_tensor_dtypes()}
sys.modules["onnx.mapping"] = old

import jangin.onnxruntime
jangin.onnxruntime.install()
"""
BUILT = "the test needs a library that ONNX Runtime's build makes of C++"
FAILS = {"test_register_custom_e_ps_library": BUILT, "test_register_custom_ops_library": BUILT}
ADAPTER = Path("lora") / "two_params_lora_model.onnx_adapter"
FILES = (
    "", "_mlops", "_backend", "_backend_mlops", "_iobinding", "_nested_control_flow_op", "_sparse_matmul",
)  # fmt: skip
"""Ends of the files' names. The others are for CUDA, DirectML, Azure and Keras, or don't run models."""


@pytest.mark.slow
@pytest.mark.skipif(not SOURCE.is_dir(), reason="ONNXRUNTIME_SOURCE names no folder of ONNX Runtime's source")
def test_their_tests_pass(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "python", ignore=shutil.ignore_patterns("transformers"))
    (tmp_path / "testdata").mkdir()
    write_models(tmp_path / "testdata")
    shutil.copy(SOURCE.parent / "testdata" / ADAPTER, tmp_path / "testdata" / ADAPTER)
    (tmp_path / "python" / "in_place.py").write_text(PLUGIN)
    names = [f"python/onnxruntime_test_python{end}.py" for end in FILES]
    path = os.pathsep.join([str(ROOT), str(tmp_path / "python")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "in_place", "-p", "no:cacheprovider", *names],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    failed = re.findall(r"^(?:SUB)?FAILED.* \S+::(\w+)", done.stdout, re.M)
    assert {*failed} == {*FAILS}, done.stdout[-6000:]
    assert all(FAILS.values()), "each has its reason"
    assert "error" not in done.stdout.splitlines()[-1]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 80
