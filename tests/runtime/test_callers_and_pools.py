"""Callers of several models at once, which come, go, fail, fork and change their cores."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import numpy as np
import onnx
import pytest
from forks import in_a_fork
from onnx import TensorProto, helper, numpy_helper

import jangin

CALLERS = 16
CHILD_SECONDS = 60.0
"""A forked child that takes longer hangs. It runs one small model on a machine that may be busy."""


def gathering(width: int, rng: np.random.Generator) -> onnx.ModelProto:
    """Return a model of a product whose rows are taken by indices. An index may be out of range."""
    weights = rng.standard_normal((width, width)).astype(np.float32)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width]),
        helper.make_tensor_value_info("i", TensorProto.INT64, ["taken"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["taken", width])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Tanh", ["m"], ["t"]),
        helper.make_node("Gather", ["t", "i"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Callers:
    """Threads that run models at random. `faults` are what went wrong, and `runs` counts the runs."""

    def __init__(self, executables: list[Any], seed: int, seconds: float) -> None:
        rng = np.random.default_rng(seed)
        self.cores, self.seed, self.end = os.sched_getaffinity(0), seed, time.monotonic() + seconds
        self.faults: list[object] = []
        self.runs = 0
        self.cases = []
        for exe, width in executables:
            for rows in (1, 40, 200):
                x = rng.standard_normal((rows, width)).astype(np.float32)
                feeds = {"x": x, "i": rng.integers(0, rows, 5)}
                self.cases.append((exe, feeds, exe.run(feeds)["y"].copy()))

    def run(self) -> None:
        threads = [threading.Thread(target=self._call, args=(n,)) for n in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _call(self, number: int) -> None:
        draw = random.Random(f"{self.seed} {number}")
        events = (self._pin, self._unpin, self._release, self._fail, self._pause)
        while time.monotonic() < self.end and not self.faults:
            case = draw.choice(self.cases)
            try:
                if draw.random() < 0.2:
                    draw.choice(events)(case, draw)
                elif draw.random() < 0.003:
                    self._fork(case)
                self._check(case)
            except BaseException as error:  # the test tells of it
                self.faults.append(error)

    def _check(self, case: Any) -> None:
        exe, feeds, want = case
        np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=0, atol=1e-5)  # sums in another order
        self.runs += 1

    def _pin(self, case: Any, draw: random.Random) -> None:
        os.sched_setaffinity(0, {draw.choice(sorted(self.cores))})

    def _unpin(self, case: Any, draw: random.Random) -> None:
        os.sched_setaffinity(0, self.cores)

    def _release(self, case: Any, draw: random.Random) -> None:
        case[0].release()

    def _fail(self, case: Any, draw: random.Random) -> None:
        with pytest.raises(Exception, match="Gather"):
            case[0].run({**case[1], "i": np.full(5, 10**6)})

    def _pause(self, case: Any, draw: random.Random) -> None:
        time.sleep(draw.random() * 0.01)

    def _fork(self, case: Any) -> None:
        in_a_fork(lambda: np.allclose(case[0].run(case[1])["y"], case[2], atol=1e-5), CHILD_SECONDS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux lets threads choose cores")
def test_callers_that_pin_pause_fail_fork_and_release() -> None:
    """Results stay right, nothing hangs, and workers may use all cores afterwards."""
    before, seed = set(os.listdir("/proc/self/task")), random.getrandbits(32)
    rng = np.random.default_rng(seed)
    made = [(width, threads) for width in (64, 160) for threads in (None, 2, 5)]
    executables = [(jangin.compile(gathering(w, rng), threads=t), w) for w, t in made]
    callers = Callers(executables, seed, 6.0)
    callers.run()
    assert not callers.faults and callers.runs > 100, callers.faults[:3]
    workers = {int(t) for t in set(os.listdir("/proc/self/task")) - before}
    assert workers, "the models have threads"
    deadline = time.monotonic() + 20
    while any(os.sched_getaffinity(worker) != callers.cores for worker in workers):
        assert time.monotonic() < deadline, "a worker stays off a core"
        for case in callers.cases:  # a worker restores its cores when it wakes
            case[0].run(case[1])
        time.sleep(0.01)
