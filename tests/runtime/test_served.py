"""Models that serve many callers share threads and memory, give them back, and make them anew after a
fork."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jangin
from jangin import IndexOutOfRange
from jangin.runtime.executable import Executable
from jangin.runtime.idle import kept
from jangin.runtime.threads import default_threads

SIZE = 1 << 18
"""Elements of a row: several tasks for each thread."""
LOOP = """<ir_version: 10, opset_import: ["": 21]>
g (float[N, M] x, int64 n) => (float[N, M] y) <bool t = {1}> {
  y = Loop (n, t, x) <body = b (int64 i, bool c, float[N, M] a) => (bool d, float[N, M] e) {
    d = Identity(c)
    f = Sin(a)
    g = Cos(f)
    e = Add(f, g)
  }>
}"""
"""A loop that runs as native code, with memory of its own."""


def chain() -> onnx.ModelProto:
    """Return a model of a reduction between maps, so that a run needs memory of its own."""
    nodes = [
        helper.make_node("Sin", ["x"], ["a"]), helper.make_node("ReduceSum", ["a", "axis"], ["s"]),
        helper.make_node("Sub", ["a", "s"], ["b"]), helper.make_node("Cos", ["b"], ["y"]),
    ]  # fmt: skip
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", SIZE]) for n in "xy")
    graph = helper.make_graph(nodes, "chain", [x], [y], [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def picks() -> onnx.ModelProto:
    """Return a model that gathers columns, and whose run fails if an index is out of range."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[N, 8] x, int64[K] i) => (float[N, K] y) { a = Sin(x) y = Gather <axis = 1> (a, i) }""")


def tasks() -> set[str]:
    """Return the numbers of this process's threads."""
    return {*os.listdir("/proc/self/task")}


def new_threads(before: set[str], expected: int) -> int:
    """Return the number of threads that weren't there before.

    It waits up to ten seconds for the expected number, because the system lists a thread a little longer than
    it lives."""
    deadline = time.monotonic() + 10
    while (count := len(tasks() - before)) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


def in_child(work: Callable[[], object]) -> None:
    """Run `work` in a forked process, which must succeed within a minute."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    ended = threading.Timer(60, os.kill, (child, 9))
    ended.start()
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ended.cancel()


@contextmanager
def in_use(count: int, exe: Executable, x: np.ndarray) -> Iterator[None]:
    """Enter the context after `count` callers ran at once."""
    start = threading.Barrier(count)

    def call() -> None:
        start.wait()
        exe(x)

    callers = [threading.Thread(target=call) for _ in range(count)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    yield


def share_threads() -> None:
    """Run models that share their threads, in a process that has no other model."""
    artifact, x = jangin.build(chain(), cache=False), np.ones((1, SIZE), np.float32)
    before, most = tasks(), default_threads()
    first = Executable(artifact)
    expected = first(x)
    others = [Executable(artifact) for _ in range(3)]
    assert new_threads(before, most - 1) == most - 1
    del first
    for other in others:
        np.testing.assert_array_equal(other(x), expected)
    own = Executable(artifact, most + 1)
    assert new_threads(before, 2 * most - 1) == 2 * most - 1
    np.testing.assert_array_equal(own(x), expected)
    del own
    assert new_threads(before, most - 1) == most - 1
    del others, other
    assert new_threads(before, 0) == 0


@pytest.mark.sampled(2)
@pytest.mark.skipif(default_threads() < 2, reason="one processor needs no pool")
def test_models_share_their_threads() -> None:
    """A model of another test in this process may live on with the shared threads."""
    program = "import sys; sys.path[:] = sys.argv[1:]; import test_served; test_served.share_threads()"
    subprocess.run([sys.executable, "-c", program, str(Path(__file__).parent), *sys.path], check=True)


def callers(exe: Executable) -> int:
    """Return how many callers the executable's thread pool counts now, which is its first word."""
    return ctypes.c_int32.from_address(exe._module.pool).value  # type: ignore[attr-defined]


def test_runs_and_failed_runs_are_counted_while_they_last() -> None:
    exe, x = jangin.compile(picks(), threads=2, cache=False), np.ones((4, 8), np.float32)
    for index in (0, 8, 7, -9):
        try:
            exe(x, np.array([index]))
            assert -8 <= index < 8
        except IndexOutOfRange:
            assert not -8 <= index < 8
        assert callers(exe) == 0
    long = jangin.compile(chain(), threads=2, cache=False)
    rows, seen, deadline = np.ones((4, SIZE), np.float32), set(), time.monotonic() + 30

    def work() -> None:
        while 2 not in seen and time.monotonic() < deadline:
            long(rows)

    runs = [threading.Thread(target=work) for _ in range(2)]
    for run in runs:
        run.start()
    while any(run.is_alive() for run in runs):
        seen.add(callers(long))
    assert 2 in seen and seen <= {0, 1, 2} and callers(long) == 0


@pytest.mark.sampled(3)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_sixteen_callers_of_different_models_beside_forks() -> None:
    """Results stay right while the pool's threads are divided anew at each run, and in forked processes."""
    random = np.random.default_rng(0)
    x, few = random.standard_normal((2, SIZE), np.float32), random.standard_normal((3, 8), np.float32)
    calls = [
        (jangin.compile(chain(), cache=False), (x,)),
        (jangin.compile(chain(), threads=3, cache=False), (x,)),
        (jangin.compile(onnx.parser.parse_model(LOOP), cache=False), (x[:, :2048], np.int64(3))),
        (jangin.compile(picks(), cache=False), (few, np.array([1, 7]))),
    ]
    expected = [exe(*given) for exe, given in calls]
    wrong: list[int] = []
    stop = threading.Event()

    def check(turn: int) -> None:
        exe, given = calls[turn % len(calls)]
        if not np.array_equal(exe(*given), expected[turn % len(calls)]):
            wrong.append(turn)

    def work(turn: int) -> None:
        while not stop.is_set():
            check(turn)
            turn += 1

    def child() -> None:
        for turn in range(8):
            check(turn)
        assert not wrong

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(16)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert not any(callers(exe) for exe, _ in calls if isinstance(exe, Executable))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.parametrize("threads", [2, 3])
def test_forked_processes_have_threads_of_their_own(threads: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, SIZE), np.float32)
    exe = jangin.compile(chain(), threads=threads, cache=False)
    loop = jangin.compile(onnx.parser.parse_model(LOOP), threads=threads, cache=False)
    expected, looped = exe(x), loop(x, np.int64(3))

    def work() -> None:
        before = tasks()
        for _ in range(3):
            np.testing.assert_array_equal(exe(x), expected)
            np.testing.assert_array_equal(loop(x, np.int64(3)), looped)
        assert tasks() - before
        in_child(lambda: np.testing.assert_array_equal(exe(x), expected))

    in_child(work)
    np.testing.assert_array_equal(exe(x), expected)


def test_memory_is_given_back() -> None:
    x = np.ones((4, SIZE), np.float32)
    exe = jangin.compile(chain(), cache=False)
    expected = exe(x)
    with in_use(4 * kept(), exe, x):
        assert len(exe._idle) <= kept()
    exe.release()
    assert exe._idle == []
    np.testing.assert_array_equal(exe(x), expected)


def test_memory_of_loops_is_given_back() -> None:
    x = np.ones((2, 8), np.float32)
    loop = jangin.compile(onnx.parser.parse_model(LOOP), cache=False)
    expected = loop(x, np.int64(2))
    held = [flow for flow in loop._flows if flow._idle]
    assert held
    loop.release()
    assert not any(flow._idle for flow in held)
    np.testing.assert_array_equal(loop(x, np.int64(2)), expected)


@pytest.mark.sampled(2)
def test_arena_shrinkage_of_sessions() -> None:
    import jangin.onnxruntime as ort

    session = ort.InferenceSession(chain().SerializeToString())
    options, feeds = ort.RunOptions(), {"x": np.ones((1, SIZE), np.float32)}
    compiled = session.executable.wait()
    session.run(None, feeds)
    assert compiled._idle
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, feeds, options)
    assert not compiled._idle
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
    with pytest.raises(ValueError, match="no arena for 'gpu:0', only for 'cpu:0'"):
        session.run(None, feeds, options)
