"""Engines that Jangin is compared with, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import small_model
from ml_dtypes import bfloat16

from jangin.bench import board, measure
from jangin.bench.arrays import load_arrays, save_arrays
from jangin.bench.emitted import emit_library
from jangin.bench.engine import Job
from jangin.bench.engines import PEERS, _factors
from jangin.bench.measure import Options, Worker, compare, difference, make_jobs, settle
from jangin.bench.peers import _sized
from jangin.runtime.system.usage import busy_seconds

OPTIONS = Options(tuple(PEERS), rounds=1, seconds=0.001, shapes={"batch": 2})


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    folder = tmp_path_factory.mktemp("peers")
    (folder / "small.onnx").write_bytes(small_model().SerializeToString())
    return {job.engine: job for job in make_jobs(folder / "small.onnx", 1, OPTIONS, folder)}


@pytest.mark.parametrize("engine", [name for name, peer in PEERS.items() if peer.reads == ".onnx"])
def test_peer_computes_what_the_reference_does(engine: str, jobs: dict[str, Job], tmp_path: Path) -> None:
    with Worker(jobs[engine]) as worker, Worker(jobs["reference"]) as reference:
        if worker.ready.get("absent"):
            pytest.skip(f"{engine} is not installed")
        assert "error" not in worker.ready, worker.ready["error"]
        assert worker.ready["version"] and worker.ready["compile_seconds"] > 0
        assert min(worker.ask(op="turn", seconds=0.001)["nanoseconds"]) > 0
        results = []
        for asked in (worker, reference):
            path = tmp_path / f"{asked.job.engine}.npz"
            assert asked.ask(op="outputs", path=str(path))["peak_bytes"] > 1 << 20
            with np.load(path) as stored:
                assert stored.files == list(asked.job.outputs)
                results.append(stored[stored.files[0]])
        np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_free_sizes_are_fixed_for_an_engine_that_takes_them_for_1(
    jobs: dict[str, Job], tmp_path: Path
) -> None:
    """OpenCV returned one picture's scores of a batch of 8, because it reads a free size as 1."""
    read = onnx.load(_sized(jobs["opencv"], tmp_path))
    ends = [
        [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*read.graph.input, *read.graph.output)
    ]
    assert ends == [[2, 3, 8, 8], [2, 12]]


def test_a_library_of_products_takes_one_product_alone(jobs: dict[str, Job]) -> None:
    with pytest.raises(ValueError, match="only models that are one matrix product of two inputs"):
        _factors(jobs["opencv"])


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in Linux's /proc")
def test_an_emitted_model_takes_the_threads_that_it_is_given(jobs: dict[str, Job], tmp_path: Path) -> None:
    """An emitted model ran on one thread however many were asked for."""
    options = jobs["jangin"].options.but(shapes={"batch": 256})
    job = replace(jobs["jangin"], shapes={"batch": 256}, compiling=Job.packed(options))
    path, prefix, sizes = emit_library(job, tmp_path)
    path.with_suffix(".so.inputs").write_bytes(bytes(256 * 3 * 8 * 8 * 4))
    for threads in (1, 2):
        command = [sys.executable, board.__file__, str(path), prefix, str(threads), ",".join(map(str, sizes))]
        with Worker(job, command=command) as worker:
            assert "error" not in worker.ready, worker.ready["error"]
            watching = 1  # ends the process with its starter
            tasks = [*Path(f"/proc/{worker.process.pid}/task").iterdir()]
            assert len(tasks) == threads + watching


@pytest.mark.sampled(3)
def test_an_engine_that_fails_is_told_and_the_others_go_on(tmp_path: Path, jobs: dict[str, Job]) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    options = Options(
        ("onnxruntime",),
        1,
        0.001,
        {"batch": 2},
        files={"onnxruntime": broken},
        pythons={"jangin": sys.executable},
    )
    ours, theirs = compare(Path(jobs["jangin"].model), 1, options).results
    assert not ours.problem and ours.error is not None and ours.error < 1e-5
    assert "broken.onnx" in theirs.problem and not theirs.absent


def test_models_are_converted_for_peers_that_read_other_formats(jobs: dict[str, Job]) -> None:
    """The row tells how the file was made, or why there is none."""
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert isn't installed (the extra `peers`)")
    pytest.importorskip("tflite", reason="tflite isn't installed (the extra `tflite`)")
    options = Options(("inductor", "litert"), 1, 0.001, {"batch": 2})
    _, litert, inductor = compare(Path(jobs["jangin"].model), 1, options).results
    assert litert.how == "made by jangin convert from .onnx"
    assert not litert.problem and litert.error is not None and litert.error < 1e-5
    assert inductor.problem.endswith("put small.pt2 beside the model") and not inductor.absent


@pytest.mark.parametrize(
    ("have", "error"),
    [
        ([1.0, 2.0, 4.0], 0.0),
        ([1.0, 2.0, 3.0], 0.25),
        ([1.0, 2.0, np.nan], np.inf),
        ([1.0, 2.0, np.inf], np.inf),
        ([1.0, 2.0], np.inf),
    ],
)
def test_no_number_is_no_small_error(have: list[float], error: float) -> None:
    assert difference({"y": np.array(have)}, {"y": np.array([1.0, 2.0, 4.0])}) == error
    assert difference({}, {"y": np.zeros(1)}) == np.inf


def test_infinities_and_nan_of_both_are_equal() -> None:
    want = np.array([np.inf, np.nan, 2.0])
    assert difference({"y": want + np.array([0, 0, 1])}, {"y": want}) == 0.5
    assert difference({"y": -want}, {"y": want}) == np.inf


@pytest.mark.parametrize("name", ["file", "path/x", "ü.npy", "0"])
def test_arrays_of_any_name_come_back(tmp_path: Path, name: str) -> None:
    arrays = {name: np.arange(3, dtype=bfloat16), "other": np.float32(1)[()]}
    save_arrays(tmp_path / "arrays.npz", arrays)
    back = load_arrays(tmp_path / "arrays.npz")
    assert [*back] == [*arrays]
    for key, array in arrays.items():
        assert back[key].dtype == array.dtype and np.array_equal(back[key], array)


def test_a_worker_ends_if_its_start_is_interrupted(jobs: dict[str, Job]) -> None:
    started = []

    class Interrupted(Worker):
        def _answer(self, more: float = 0.0) -> dict[str, Any]:
            started.append(self.process)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted(jobs["onnxruntime"])
    assert started[0].poll() is not None


STARTER = """
import sys
from jangin.bench.engine import Job
from jangin.bench.measure import Worker
sys.path.insert(0, sys.argv[1])
Worker(Job("slow_engines:sleeping", 1))
"""
SLEEPING = """
import os, sys, time
def sleeping(job):
    with open(__file__ + ".pid.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(__file__ + ".pid.part", __file__ + ".pid")
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its starter")
def test_a_worker_ends_with_its_starter_even_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_engines.py").write_text(SLEEPING)
    own = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), own]))
    told = tmp_path / "slow_engines.py.pid"
    with subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)]) as starter:
        for _ in range(600):
            if told.exists():
                break
            time.sleep(0.05)
        starter.kill()
    worker = int(told.read_text())
    for _ in range(100):
        state = Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    raise AssertionError("the worker compiles on without anybody who asks for it")


SPIN = "import time; print(flush=True)\nwhile time.process_time() < 0.4: pass\ntime.sleep(60)"


@pytest.mark.skipif(not busy_seconds(), reason="the system doesn't tell what time processes use")
def test_the_next_engine_waits_until_one_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling may take long if other programs use the cores."""
    monkeypatch.setattr(measure, "SETTLE_TRIES", 4000)
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        settle(process.pid)
        used = busy_seconds(process.pid)
        process.kill()
    assert used >= 0.35, "of 0.4 s, counted in hundredths"
