"""Files that change while a model that was loaded from them runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jangin
from jangin.runtime import compiled
from jangin.runtime.artifact import ArtifactError

COUNT = 1 << 20


def saved(folder: Path) -> Path:
    """Save a model of y = x + 1, 2, 3..., in a file of 4 MB."""
    weights = numpy_helper.from_array(np.arange(COUNT, dtype=np.float32), "w")
    x = helper.make_tensor_value_info("x", 1, [COUNT])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [helper.make_empty_tensor_value_info("y")], [weights])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    path = folder / "m.jgn"
    jangin.build(onnx.ModelProto.FromString(m.SerializeToString()), cache=False, isolated=False).save(path)
    return path


RUN = """
import os, sys
import numpy as np, jangin
path, mapped, what = sys.argv[1], {"True": True, "False": False, "None": None}[sys.argv[2]], sys.argv[3]
exe = jangin.load(path, mapped=mapped)
x = np.zeros(1 << 20, np.float32)
exe(x)
if what == "truncated":
    os.truncate(path, 100)
else:
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(bytes([255]) * 4096)
right = np.array_equal(exe(x), np.arange(1 << 20, dtype=np.float32))
print("right" if right else "wrong")
"""


def outcome(path: Path, mapped: bool | None, what: str) -> str:
    command = [sys.executable, "-c", RUN, str(path), str(mapped), what]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    return done.stdout.strip() or f"ended by {done.returncode}"


@pytest.mark.parametrize("what", ["truncated", "overwritten"])
@pytest.mark.parametrize("mapped", [None, False])
def test_what_was_copied_stays(tmp_path: Path, mapped: bool | None, what: str) -> None:
    assert outcome(saved(tmp_path), mapped, what) == "right"


def test_the_risk_of_mapping_is_as_stated(tmp_path: Path) -> None:
    assert outcome(saved(tmp_path), True, "truncated") == "ended by -7"
    assert outcome(saved(tmp_path), True, "overwritten") == "wrong"


def test_large_files_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)

    def copied(file: object) -> None:
        raise OSError("it was copied")

    monkeypatch.setattr(compiled, "copied", copied)
    with pytest.raises(ArtifactError, match="it was copied"):
        jangin.load(path)
    monkeypatch.setattr(compiled, "COPIED", 1 << 20)
    jangin.load(path)
    with pytest.raises(ArtifactError, match="it was copied"):
        jangin.load(path, mapped=False)
