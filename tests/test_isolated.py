"""The compiler in its own process, and the processes that it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler.processes import handed, isolated
from jangin.compiler.processes.forked import sendable
from jangin.compiler.processes.interrupts import kept_interrupts


def layers(count: int) -> onnx.ModelProto:
    """Return a chain of matrix products of different sizes. Each is a separate kernel."""
    rng = np.random.default_rng(count)
    weights = [
        numpy_helper.from_array(rng.random((16 + i, 17 + i), np.float32) / 16, f"w{i}") for i in range(count)
    ]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, w])
        for n, w in (("x0", 16), (f"x{count}", 16 + count))
    ]
    return helper.make_model(helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights))


X = np.random.default_rng(0).random((4, 16), np.float32)


@pytest.mark.sampled(2)
def test_it_computes_the_same_and_says_how_far_it_is(tmp_path: Path) -> None:
    model, steps = layers(9), []
    apart = jangin.compile(
        model, cache=tmp_path, isolated=True, progress=lambda done, total, what: steps.append(what)
    )
    assert {"lower", "kernels", "compile"} <= set(steps)
    assert np.array_equal(apart(X), jangin.compile(model, cache=False, isolated=False)(X))
    assert len([*tmp_path.rglob("*.jgn")]) == 1, "what it made is in the cache"
    steps.clear()
    again = jangin.compile(
        model, cache=tmp_path, isolated=True, progress=lambda done, total, what: steps.append(what)
    )
    assert not steps, "and is taken from there"
    assert np.array_equal(again(X), apart(X))


def test_a_caller_that_has_no_compiler_gets_none(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(2), path)
    code = (
        "import sys, numpy as np, jangin; exe = jangin.compile(sys.argv[1], cache=False);"
        "print(exe(np.zeros((4, 16), np.float32)).shape);"
        "print([m for m in ('llvmlite', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(4, 18)", "[]"]


def test_weights_come_whole_where_memory_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights arrive whole: in several batches if the process's memory can be read, else in a file."""
    model = layers(9)
    expected = jangin.compile(model, cache=False, isolated=False)(X)
    monkeypatch.setattr(handed, "BATCH", 3000)
    assert np.array_equal(jangin.compile(model, cache=False, isolated=True)(X), expected)
    asked = []

    def refused(*where: object) -> None:
        asked.append(where)
        raise PermissionError

    monkeypatch.setattr(handed, "_read", refused)
    assert np.array_equal(jangin.compile(model, cache=False, isolated=True)(X), expected)
    assert asked


@pytest.mark.sampled(2)
def test_its_errors_are_the_callers(tmp_path: Path) -> None:
    with pytest.raises(jangin.CompileError, match=r"nowhere\.onnx"):
        jangin.compile(tmp_path / "nowhere.onnx", cache=False, isolated=True)
    with pytest.raises(ValueError, match="unknown target 'abacus'"):
        jangin.compile(layers(1), "abacus", isolated=True)
    with pytest.raises(ValueError, match="isolated"):
        operator = jangin.operator("Mine", "mine")(lambda b, x: x)
        jangin.compile(layers(1), operators=[operator], isolated=True)


def test_its_death_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for end, said in (("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "SIGKILL.*out of memory")):
        monkeypatch.setattr(isolated, "_START", f"import os; {end}")
        with pytest.raises(jangin.CompileError, match=said):
            jangin.compile(layers(1), cache=False, isolated=True)


CALLER = r"""
import signal, sys, time, onnx, jangin
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells' background jobs lack
try:
    jangin.compile(sys.argv[1], cache=False, progress=lambda *step: print("compiling", flush=True))
except KeyboardInterrupt:
    print("", time.monotonic(), sep="\n")
"""


def children(process: int) -> set[int]:
    """Return the processes that a process started, and theirs. One may end meanwhile."""
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for tasks in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, tasks.read_text().split()):
                found |= {child, *children(child)}
    return found


ENDED = 10.0
"""Seconds until processes must have ended. Idle processes take longer to end by themselves, and the limit is
enough on a busy machine."""


def runs(process: int) -> bool:
    """Return whether a process still runs. A zombie doesn't count."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the test finds processes by Linux's /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_caller_that_is_ended_leaves_nothing(end: signal.Signals, tmp_path: Path) -> None:
    """Neither processes nor files are left, whether the caller is asked to end or killed.

    The test waits for the compiler before. Python drops an interrupt while it frees something, as after each
    import."""
    model, temporary = tmp_path / "model.onnx", tmp_path / "temporary"
    onnx.save(layers(160), model)
    temporary.mkdir()
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(model)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert caller.stdout is not None and caller.stdout.readline() == "compiling\n"
    left = children(caller.pid)  # the compiler, and what it forked
    start = time.monotonic()
    caller.send_signal(end)
    while any(map(runs, left)) and time.monotonic() < start + ENDED:
        time.sleep(0.01)
    assert len(left) > 1 and not [p for p in left if runs(p)]
    said, errors = caller.communicate(timeout=600)
    if end is signal.SIGINT:
        last = said.split()[-1:]
        assert last not in ([], ["compiling"]), errors
        assert float(last[0]) - start < ENDED, "0.06 s at most where it was measured"
    assert not [*temporary.iterdir()]


def test_an_interrupt_in_what_frees_something_is_not_lost() -> None:
    """An interrupt isn't lost in a weak reference's function, from which Python raises nothing."""

    class Freed:
        pass

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    freed = Freed()
    reference = weakref.ref(freed, interrupted)
    # a shell's background jobs ignore SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), kept_interrupts():
            del freed
            time.sleep(ENDED)
    finally:
        signal.signal(signal.SIGINT, before)
    assert reference() is None


class Odd(Exception):
    def __reduce__(self) -> str:
        raise TypeError("is not to be sent")


def test_an_exception_that_cannot_be_sent_is_told() -> None:
    assert str(sendable(Odd("so it is"))) == "Odd: so it is"
    assert isinstance(sendable(KeyError(1)), KeyError)


@pytest.mark.sampled(2)
def test_forked_processes_make_identical_bytes(tmp_path: Path) -> None:
    onnx.save(layers(9), tmp_path / "model.onnx")
    code = (
        "import sys; from pathlib import Path; from jangin.options import Options;"
        "from jangin.compiler.build import start_workers; from jangin.targets import resolve;"
        "workers = start_workers(resolve('x86-64-v2'));"
        "from jangin.compiler.pipeline import build_artifact; folder = Path(sys.argv[1]);"
        "options = Options(resolve('x86-64-v2'));"
        "[build_artifact(folder / 'model.onnx', options, workers=w).save(folder / str(n))"
        " for n, w in ((2, workers), (1, None))]"
    )
    # this process may have threads, so another one forks
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


WORK = """
from functools import partial
import os
from jangin.compiler.processes.forked import Workers
told = []
with Workers(2, lambda: 1 / 0) as workers:
    squares = workers.do([partial(pow, n, 2) for n in range(9)], 2, lambda *step: told.append(step))
    assert squares == [n * n for n in range(9)]
    assert told == [(n + 1, 9) for n in range(9)]
    assert workers.do([], 2) == []
    assert len({*workers.do([os.getpid] * 3, 1)}) == 1, "where one is asked for, one does it"
for job, error in ((partial(divmod, 1, 0), ZeroDivisionError), (partial(os._exit, 1), ChildProcessError)):
    try:
        with Workers(2, dict) as workers:
            workers.do([job] * 2, 2)
    except error:
        continue
    raise AssertionError(job)
try:
    os.wait()
except ChildProcessError:
    print("none left")
"""


def test_workers_give_results_in_order_and_end() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True)
    assert done.stdout == "none left\n", done.stderr
