"""The package on other operating systems: it imports, and compiled models are read and described. Models are
compiled, and one error tells why one can't be run."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import kind

import jangin

NAMES = {"win32": "Windows", "darwin": "macOS"}


@pytest.mark.slow
def test_what_every_system_can_do() -> None:
    """The script that the workflow runs on other systems works on this one."""
    program = Path(__file__).with_name("elsewhere.py")
    around = {**os.environ, "PYTHONPATH": str(Path(jangin.__file__).parent.parent)}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=around, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the model runs here" in done.stdout or sys.platform != "linux", done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("system", NAMES)
def test_what_only_linux_has_is_not_needed(system: str, tmp_path: Path) -> None:
    """The process lacks everything that only Linux has (see `other_system`)."""
    files = {}
    for name in ("plan", "variants", "flow"):
        files[name] = str(tmp_path / f"{name}.jgn")
        jangin.build(kind(name).model, "x86-64-v3", 2, cache=False, isolated=False).save(files[name])
    model = tmp_path / "model.onnx"
    model.write_bytes(kind("plan").model)
    program = Path(__file__).with_name("other_system.py")
    command = [sys.executable, str(program), system, str(model), *files.values()]
    around = {**os.environ, "PYTHONPATH": str(Path(jangin.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=around, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["modules"] > 400
    for path in files.values():
        said = found["files"][path]
        assert "input" in said["summary"] and "float32[" in said["summary"], said
        assert "bytes" in said["summary"], "what its sizes are, too"
        wrong = f"its code is for Linux, and this machine runs {NAMES[system]}"
        assert said["loading"].startswith("LoadError: ") and wrong in said["loading"], said
        assert "\n" not in said["loading"]
    assert found["build"] == ""
    lacks = f"{NAMES[system]} has no groups of processes that Jangin knows how to use"
    assert found["apart"] == f"Lacking: [Errno {errno.ENOSYS}] {lacks}: compile with isolated=False"
    which = kind("plan")
    which.check(jangin.load(f"{model}.jgn"), which.feeds[0])  # this system can run the code
