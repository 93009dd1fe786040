"""The compiler's process waits for the next compilation of its caller, and for nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_isolated import X, children, layers, runs

import jangin
from jangin.compiler.processes import isolated

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="the test finds processes by Linux's /proc"
)


@pytest.fixture(autouse=True)
def no_other() -> Iterator[None]:
    isolated._end_all()
    yield
    isolated._end_all()


def compiled(model: object, **options: object) -> object:
    return jangin.compile(model, cache=False, isolated=True, **options)  # type: ignore[call-overload]


def waiting() -> int:
    """Return the number of the waiting process."""
    (started,) = isolated._waiting
    return started.process.pid


def made(steps: list[tuple[int, int, str]]) -> int:
    """Return the expected milliseconds of making kernels, as progress reported it, and forget the report."""
    told = max([total for done, total, what in steps if what == "kernels" and done], default=0)
    steps.clear()
    return told


def family_of(process: int) -> set[int]:
    """Return the processes that make kernels. Others that it forked are about to end."""
    found = children(process)
    time.sleep(0.5)
    return found & children(process)


def test_the_second_compilation_is_by_the_same_process_and_makes_no_kernel_again() -> None:
    steps: list[tuple[int, int, str]] = []
    first = compiled(layers(5), progress=lambda *step: steps.append(step))
    each = made(steps) / 5
    process, family = waiting(), family_of(waiting())
    second = compiled(layers(5), progress=lambda *step: steps.append(step))
    assert waiting() == process
    assert family_of(process) == family, "and those that make kernels are the same"
    assert made(steps) == 0
    assert np.array_equal(first(X), second(X))  # type: ignore[operator]
    third = compiled(layers(7), progress=lambda *step: steps.append(step))
    assert made(steps) == pytest.approx(2 * each), "the others it has"
    alone = jangin.compile(layers(7), cache=False, isolated=False)
    assert np.array_equal(third(X), alone(X))  # type: ignore[operator]


@pytest.mark.sampled(2)
def test_it_sees_what_the_caller_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process sees the caller's folder and environment, as a process started now would."""
    for name in "ab":
        (tmp_path / name).mkdir()
        onnx.save(layers(1 if name == "a" else 2), tmp_path / name / "model.onnx")
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path / name / "cache"))
        made = np.asarray(jangin.compile("model.onnx", isolated=True)(X))
        assert made.shape == (4, 17 if name == "a" else 18)
        assert len([*(tmp_path / name / "cache").rglob("*.jgn")]) == 1


@pytest.mark.sampled(3)
def test_it_ends_when_nothing_is_asked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    start = isolated._START.replace(
        "server import serve;",
        "server import serve; import jangin.compiler.processes.server as s; s.IDLE = 0.1;",
    )
    assert start != isolated._START
    monkeypatch.setattr(isolated, "_START", start)
    compiled(layers(1))
    process, family = waiting(), children(waiting())
    deadline = time.monotonic() + 30
    while any(map(runs, {process, *family})) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [p for p in {process, *family} if runs(p)]
    compiled(layers(1))
    assert waiting() != process, "another one starts"


@pytest.mark.sampled(2)
def test_where_it_was_ended_another_starts() -> None:
    compiled(layers(1))
    process = waiting()
    os.kill(process, signal.SIGKILL)
    while runs(process):
        time.sleep(0.01)
    assert compiled(layers(1))(X).shape == (4, 17)  # type: ignore[operator]


def test_what_fails_ends_it(tmp_path: Path) -> None:
    compiled(layers(1))
    process = waiting()
    with pytest.raises(jangin.CompileError, match="nowhere"):
        compiled(tmp_path / "nowhere.onnx")
    assert not isolated._waiting and not runs(process)


@pytest.mark.sampled(3)
def test_it_holds_nothing_of_a_model() -> None:
    """Weights of 64 MB leave no trace in the process, nor in those that make kernels."""
    rng = np.random.default_rng(0)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = onnx.numpy_helper.from_array(rng.random((4096, 4096), np.float32), "w")
    x, y = (onnx.helper.make_tensor_value_info(n, 1, [8, 4096]) for n in "xy")
    compiled(layers(1))
    everyone = {waiting(), *family_of(waiting())}
    before = {p: memory(p) for p in everyone}
    compiled(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], [weights])))
    for p in everyone:
        assert memory(p) < before[p] + (24 << 20)


def memory(process: int) -> int:
    """Return the bytes of a process's own memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


FORKING = """
import os, sys, numpy as np, jangin
def shape(): return jangin.compile(sys.argv[1], cache=False)(np.zeros((4, 16), np.float32)).shape
print(shape(), flush=True)
if os.fork():
    print(os.wait()[1], shape())
else:
    ok = shape() == (4, 18)
    from jangin.compiler.processes.isolated import _end_all
    _end_all()
    os._exit(0 if ok else 1)
"""


@pytest.mark.sampled(3)
def test_a_forked_caller_has_one_of_its_own(tmp_path: Path) -> None:
    onnx.save(layers(2), tmp_path / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "(4, 18)\n0 (4, 18)\n", done.stderr


LEAVING = (
    "import os, sys, jangin; jangin.compile(sys.argv[1], cache=False); print('done', flush=True); input()"
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("end", ["input", "SIGKILL"])
def test_it_ends_with_its_caller(end: str, tmp_path: Path) -> None:
    onnx.save(layers(2), tmp_path / "model.onnx")
    caller = subprocess.Popen(
        [sys.executable, "-c", LEAVING, str(tmp_path / "model.onnx")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert caller.stdout is not None and caller.stdin is not None
    assert caller.stdout.readline() == "done\n"
    left = children(caller.pid)
    assert left
    if end == "input":
        caller.stdin.write("\n")
        caller.stdin.close()
    else:
        caller.send_signal(signal.Signals[end])
    caller.wait(timeout=600)
    deadline = time.monotonic() + 10
    while any(map(runs, left)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [p for p in left if runs(p)]
    caller.stdout.close()
