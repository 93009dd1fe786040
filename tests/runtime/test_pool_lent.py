"""Runs on another library's threads give what runs on Jangin's own give, however many threads come."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import in_a_fork
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ir.checks import IndexOutOfRange
from jangin.runtime.addressed import Lender

WIDTH, ROWS = 193, 157
GUARD, UNTOUCHED = 256, 7.5
"""The floats before and after an output, some sixteen of the widest vectors, and their value."""
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int32)
PRELOADED = """
#define _GNU_SOURCE
#include <dlfcn.h>
int regions;
int omp_get_thread_num(void) { return ((int (*)(void))dlsym(RTLD_NEXT, "omp_get_thread_num"))(); }
void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
  regions++;
  void *next = dlsym(RTLD_NEXT, "GOMP_parallel");
  ((void (*)(void (*)(void *), void *, unsigned, unsigned))next)(body, data, threads, flags);
}
"""
SAME = """
import ctypes
import torch
from jangin.frontends.torch.openmp import lender
preloaded = ctypes.CDLL(None)
torch.set_num_threads(2)
torch.ones(1 << 20).add_(1)
assert ctypes.c_int.in_dll(preloaded, "regions").value
assert lender()[0] == ctypes.cast(preloaded.GOMP_parallel, ctypes.c_void_p).value
"""
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Parallel = Callable[[Callable[[int], None], int], None]


def sets_of_cores() -> dict[int, set[int]]:
    """Return the cores that each thread of this process may use."""
    return {int(t): os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")}


@pytest.fixture(scope="module")
def exe() -> jangin.Executable:
    """Products on two threads, and a gather whose indices may be out of range."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5 for _ in range(4)]
    names = ["x", "a", "b", "c", "d"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(4)]
    nodes.append(helper.make_node("Gather", ["d", "i"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [5]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, WIDTH])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled: jangin.Executable = jangin.compile(model, threads=2)
    return compiled


class Lent:
    """A library whose regions are run by a function of Python. It gets the region's body, which takes a
    thread's number, and the number of threads that were asked for."""

    def __init__(self, regions: Parallel) -> None:
        self._own = threading.local()
        self.regions = 0

        def parallel(body: int, data: int, threads: int, flags: int) -> None:
            def as_thread(number: int) -> None:
                self._own.number = number
                BODY(body)(data)

            self.regions += 1
            regions(as_thread, threads)

        self._parallel, self._number = PARALLEL(parallel), NUMBER(lambda: self._own.number)

    @property
    def lender(self) -> Lender:
        parallel, number = (ctypes.cast(f, ctypes.c_void_p) for f in (self._parallel, self._number))
        return parallel.value or 0, number.value or 0


def together(body: Callable[[int], None], threads: int) -> None:
    """All threads are there from the beginning."""
    others = [threading.Thread(target=body, args=(n,)) for n in range(1, threads)]
    for other in others:
        other.start()
    body(0)
    for other in others:
        other.join()


def late(body: Callable[[int], None], threads: int) -> None:
    """The others come when the run is done."""
    body(0)
    together(lambda n: body(n) if n else None, threads)


def early(body: Callable[[int], None], threads: int) -> None:
    """The others wait so long for the caller that they sleep."""
    others = [threading.Thread(target=body, args=(n,)) for n in range(1, threads)]
    for other in others:
        other.start()
    time.sleep(0.01)
    body(0)
    for other in others:
        other.join()


def runner(exe: jangin.Executable, lender: Lender | None) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    addressed = exe.addressed(lender)
    assert addressed is not None

    def run(x: np.ndarray, i: np.ndarray) -> np.ndarray:
        around = np.full(5 * WIDTH + 2 * GUARD, UNTOUCHED, np.float32)
        y = around[GUARD:-GUARD]
        y[:] = np.nan
        addressed([a.ctypes.data for a in (x, i, y)])
        assert (around[:GUARD] == UNTOUCHED).all() and (around[-GUARD:] == UNTOUCHED).all()
        return y.reshape(5, WIDTH)

    return run


def feeds(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((ROWS, WIDTH)).astype(np.float32), rng.integers(0, ROWS, 5)


@pytest.mark.parametrize("regions", [lambda body, _: body(0), together, late, early])
def test_results_are_the_same_whoever_comes(exe: jangin.Executable, regions: Parallel) -> None:
    lent = Lent(regions)
    run, own = runner(exe, lent.lender), runner(exe, None)
    for seed in range(20):
        np.testing.assert_array_equal(run(*feeds(seed)), own(*feeds(seed)))
    assert lent.regions == 20


def test_a_failed_check_ends_the_region(exe: jangin.Executable) -> None:
    run = runner(exe, Lent(early).lender)
    x, i = feeds(0)
    for _ in range(3):
        with pytest.raises(IndexOutOfRange, match=str(ROWS)):
            run(x, np.full_like(i, ROWS))
        np.testing.assert_array_equal(run(x, i), runner(exe, None)(x, i))


def test_one_thread_asks_for_no_region() -> None:
    one = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([one], "one", values[:1], values[1:])
    small = jangin.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), threads=2
    )
    lent, x, y = Lent(together), np.array([1, -1, 2, -2], np.float32), np.empty(4, np.float32)
    addressed = small.addressed(lent.lender)
    assert addressed is not None
    addressed([x.ctypes.data, y.ctypes.data])
    assert y.tolist() == [1, 0, 2, 0] and lent.regions == 0


class TestOpenMP:
    """PyTorch's own library."""

    @pytest.fixture
    def lender(self) -> Iterator[Lender]:
        pytest.importorskip("torch", reason="PyTorch isn't installed")
        from jangin.frontends.torch.openmp import lender

        found = lender()
        if found is None:
            pytest.skip("this PyTorch has no OpenMP library, whose threads the test lends")
        yield found

    def test_callers_at_once_and_between_operators(self, exe: jangin.Executable, lender: Lender) -> None:
        import torch

        run, own, faults = runner(exe, lender), runner(exe, None), list[Any]()
        wanted = [own(*feeds(seed)) for seed in range(4)]

        def call(seed: int) -> None:
            try:
                for _ in range(30):
                    np.testing.assert_array_equal(run(*feeds(seed)), wanted[seed])
                    torch.ones(1 << 16).add_(1)
            except BaseException as error:  # the test tells of it
                faults.append(error)

        callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not faults

    def test_in_a_region(self, exe: jangin.Executable, lender: Lender) -> None:
        """Each thread of a region runs the model. The library then lends no others."""
        run, found, (x, i) = runner(exe, lender), list[np.ndarray](), feeds(1)
        body = BODY(lambda _: found.append(run(x, i)))
        PARALLEL(lender[0])(ctypes.cast(body, ctypes.c_void_p).value, None, 2, 0)
        wanted = runner(exe, None)(x, i)
        assert len(found) in (1, 2)
        for y in found:
            np.testing.assert_array_equal(y, wanted)

    def test_threads_keep_their_cores(self, exe: jangin.Executable, lender: Lender) -> None:
        """A caller may narrow the set of cores of a thread that it wakes. The set is whole after the run."""
        run, (x, i) = runner(exe, lender), feeds(2)
        run(x, i)
        before = sets_of_cores()  # other pools of this process may have narrowed their threads' sets
        for _ in range(30):
            run(x, i)
            time.sleep(0.001)
            assert all(before.get(t, before[os.getpid()]) == now for t, now in sets_of_cores().items())

    @pytest.mark.slow
    def test_a_preloaded_library_serves_both(self, lender: Lender, tmp_path: Path) -> None:
        """PyTorch's operators run on a preloaded library, and so do compiled graphs."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler, which makes the preloaded library")
        source, library = tmp_path / "preloaded.c", tmp_path / "preloaded.so"
        source.write_text(PRELOADED)
        subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
        found = {**os.environ, "LD_PRELOAD": str(library)}
        subprocess.run([sys.executable, "-c", SAME], env=found, check=True)

    def test_a_forked_process_takes_its_own_threads(self, exe: jangin.Executable, lender: Lender) -> None:
        from jangin.frontends.torch import openmp

        run, (x, i) = runner(exe, lender), feeds(3)
        wanted = run(x, i)
        in_a_fork(lambda: (run(x, i) == wanted).all() and openmp.lender() is None)
