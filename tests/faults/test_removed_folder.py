"""A removed working directory: absolute paths work, and relative ones raise an error with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import kind

HERE = Path(__file__).parent
START = """
import os, sys
folder = sys.argv[1] + "/gone"
os.mkdir(folder); os.chdir(folder); os.rmdir(folder)
sys.path.insert(0, sys.argv[2])
"""
LIBRARY = (
    START
    + """
import jangin
from kinds import kind
model, saved, text = sys.argv[1] + "/m.onnx", sys.argv[1] + "/m.jgn", kind("plan")
for isolated in (True, False):
    exe = jangin.compile(model, cache=sys.argv[1] + "/cache", isolated=isolated)
    exe.save(saved)
    for ready in (exe, jangin.load(saved), jangin.compile(text.model, cache=False, isolated=isolated)):
        text.check(ready, text.feeds[0])
    for act in (
        lambda: jangin.compile("m.onnx", cache=False, isolated=isolated),
        lambda: jangin.load("m.jgn"),
        lambda: exe.save("m.jgn"),
    ):
        try:
            act()
        except (OSError, jangin.CompileError) as error:
            assert "m.onnx" in str(error) or "m.jgn" in str(error), error
        else:
            raise AssertionError("it should fail")
print("right")
"""
)
COMMAND = START + "sys.argv[1:] = sys.argv[3:]\nfrom jangin.cli import main; main()"


def gone(code: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(folder), str(HERE), *map(str, arguments)]
    env = {**os.environ, "JANGIN_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(kind("plan").model)
    return tmp_path


@pytest.mark.sampled(3)
def test_of_the_library(folder: Path) -> None:
    done = gone(LIBRARY, folder)
    assert done.stdout.endswith("right\n"), done.stderr


@pytest.mark.slow
def test_of_the_command_line(folder: Path) -> None:
    model = folder / "m.onnx"
    for arguments in (("run", model), ("compile", model, "-o", folder / "m.jgn"), ("inspect", model)):
        done = gone(COMMAND, folder, *arguments)
        assert not done.returncode, done.stderr
    for arguments in (("run", "m.onnx"), ("compile", model, "-o", "m.jgn")):
        done = gone(COMMAND, folder, *arguments)
        assert done.returncode == 1 and "the working directory was removed" in done.stderr, done.stderr
