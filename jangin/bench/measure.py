"""Runs the workers of a comparison in turns and makes figures of their times."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.engines import Job
from jangin.ir.graph import Array

CALIBRATION_SECONDS = 0.004
SLOW = 0.8
"""A turn counts where the core ran at this share or more of the speed it was seen to have."""
FEWEST_KEPT = 5

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Options:
    """`peers`: engines to compare with, the first the reference for errors; `seconds`: of a turn;
    `inputs`: arrays by name, the others are random; `symbolic`: keep the size symbols in the
    compiled models, and give the sizes of `shapes` only when they run."""

    peers: tuple[str, ...] = ("onnxruntime",)
    rounds: int = 15
    seconds: float = 0.2
    shapes: Mapping[str, int] = field(default_factory=dict)
    symbolic: bool = False
    target: str = "cpu"
    inputs: Mapping[str, Array] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """One engine's figures. Times are milliseconds a call: the median of the kept turns' medians,
    and their quartiles. `problem` says why there are none. `error`: the largest difference to
    the first peer's outputs, as a share of their largest value."""

    engine: str
    version: str = ""
    problem: str = ""
    absent: bool = False
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    kept: int = 0
    turns: int = 0
    compile_seconds: float = 0.0
    peak_bytes: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    error: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One model at one thread count. `flops`: operations a call; `sgemm`: the operations a second
    that NumPy's SGEMM reached beside it (its best turn); `core`: of FMAs in one core's registers."""

    model: str
    threads: int
    shapes: Mapping[str, int]
    flops: int
    sgemm: float
    core: float
    results: tuple[Result, ...]

    def result(self, engine: str) -> Result:
        return next(r for r in self.results if r.engine == engine)

    def ratio(self, engine: str) -> float | None:
        """How many times as fast Jangin is as `engine`; None where either has no time."""
        ours, theirs = self.result("jangin").median, self.result(engine).median
        return theirs / ours if ours and theirs else None


class Worker:
    """A worker process and the line of JSON it answers each request with."""

    def __init__(self, job: Job) -> None:
        threads = {f"{p}_NUM_THREADS": str(job.threads) for p in ("OMP", "OPENBLAS", "MKL")}
        self.job = job
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jangin.bench.worker", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **threads},
        )
        self.ready = self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process ended"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"error": f"the process ended with status {self.process.wait()}", "absent": False}


def compare(
    model: Path, threads: int, options: Options, flops: int = 0, progress: Progress | None = None
) -> Comparison:
    """Measure Jangin and the peers on one model. Raises ValueError for inputs that don't fit it."""
    name, tell = model.stem, progress or (lambda done, total, what: None)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        inputs = Path(folder, "inputs.npz")
        np.savez(inputs, **make_inputs(model, options))  # type: ignore[arg-type]
        fixed = {} if options.symbolic else dict(options.shapes)
        workers = []
        for engine in ("jangin", *options.peers, "sgemm"):
            tell(0, options.rounds, f"{name}: {engine}, {threads} threads: compiling")
            job = Job(engine, threads, str(model), str(inputs), fixed, options.target)
            workers.append(stack.enter_context(Worker(job)))
        core = stack.enter_context(Worker(Job("fma", 1)))
        alive = [w for w in workers if "error" not in w.ready]
        times, speeds = _turns(alive, core, options, lambda i: tell(i, options.rounds, f"{name}: rounds"))
        outputs = {w.job.engine: _outputs(w, Path(folder)) for w in alive if w.job.engine != "sgemm"}
    fastest = max((s for turn in speeds.values() for s in turn), default=0.0)
    results = [
        _result(
            w, times.get(w.job.engine, []), _kept(speeds.get(w.job.engine, []), fastest), outputs, options
        )
        for w in workers
        if w.job.engine != "sgemm"
    ]
    products = [w.ready["work"] / t * 1e9 for w in alive if w.job.engine == "sgemm" for t in times["sgemm"]]
    shapes = dict(options.shapes)
    return Comparison(name, threads, shapes, flops, max(products, default=0.0), fastest, tuple(results))


def make_inputs(model: Path, options: Options) -> dict[str, Array]:
    """The given arrays, and for the other inputs random ones: floats in -1..1, integers 0 or 1
    (right for any table), ones for a mask."""
    from jangin.frontends import onnx as frontend

    graph = frontend.load(model, options.shapes)
    rng = np.random.default_rng(options.seed)
    arrays = {}
    for name in graph.inputs:
        if name in options.inputs:
            arrays[name] = options.inputs[name]
            continue
        value = graph.value(name)
        try:
            shape = tuple(int(str(d)) for d in graph.shape(name))
        except ValueError:
            raise ValueError(f"input {name!r} is {value}: give its sizes with --shape name=number") from None
        arrays[name] = random_array(rng, graph.dtype(name).numpy, shape, mask="mask" in name.lower())
    return arrays


def random_array(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], mask: bool = False
) -> Array:
    if mask:
        return np.ones(shape, dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return (rng.random(shape, np.float32) * 2 - 1).astype(dtype)


def _turns(
    workers: Sequence[Worker], core: Worker, options: Options, tell: Callable[[int], None]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Nanoseconds a call (a median) of each turn by engine, and the core's speed around each."""
    times: dict[str, list[float]] = {w.job.engine: [] for w in workers}
    speeds: dict[str, list[float]] = {w.job.engine: [] for w in workers}
    for i in range(options.rounds):
        tell(i)
        before = _speed(core)
        for k in range(len(workers)):
            worker = workers[(i + k) % len(workers)]
            answer = worker.ask(op="turn", seconds=options.seconds)
            after = _speed(core)
            if "error" not in answer:
                times[worker.job.engine].append(statistics.median(answer["nanoseconds"]))
                speeds[worker.job.engine].append(min(before, after))
            before = after
    return times, speeds


def _speed(core: Worker) -> float:
    """FMA operations a second now; 1 where the loop can't be built, which keeps every turn."""
    if "error" in core.ready:
        return 1.0
    times = core.ask(op="turn", seconds=CALIBRATION_SECONDS)["nanoseconds"]
    work: float = core.ready["work"]
    return work / float(statistics.median(times)) * 1e9


def _kept(speeds: Sequence[float], fastest: float) -> list[int]:
    """The turns to count; all of them where too few were quick."""
    quick = [i for i, speed in enumerate(speeds) if speed >= SLOW * fastest]
    return quick if len(quick) >= FEWEST_KEPT else list(range(len(speeds)))


def _outputs(worker: Worker, folder: Path) -> tuple[dict[str, Array], int]:
    path = folder / f"{worker.job.engine}.npz"
    answer = worker.ask(op="outputs", path=str(path))
    if "error" in answer:
        return {}, 0
    with np.load(path) as stored:
        return {n: stored[n] for n in stored.files}, answer["peak_bytes"]


def _result(
    worker: Worker,
    times: Sequence[float],
    kept: Sequence[int],
    outputs: Mapping[str, tuple[dict[str, Array], int]],
    options: Options,
) -> Result:
    engine, ready = worker.job.engine, worker.ready
    if "error" in ready or not times:
        problem = ready.get("error", "the process ended while it was timed")
        return Result(engine, problem=problem, absent=ready.get("absent", False))
    good = [times[i] / 1e6 for i in kept]
    low, median, high = np.percentile(good, (25, 50, 75))
    arrays, peak = outputs[engine]
    reference = next((outputs[p][0] for p in options.peers if p in outputs), None)
    error = None if reference is None or arrays is reference else _error(arrays, reference)
    return Result(
        engine,
        version=ready["version"],
        median=float(median),
        low=float(low),
        high=float(high),
        kept=len(kept),
        turns=len(times),
        compile_seconds=ready["compile_seconds"],
        peak_bytes=peak,
        memory=ready["memory"],
        error=error,
    )


def _error(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float:
    """The largest difference of any output, as a share of that output's largest value."""
    worst = 0.0
    for name, reference in theirs.items():
        if name not in ours or ours[name].shape != reference.shape:
            return float("inf")
        if reference.size:
            want, have = (a.astype(np.float64) for a in (reference, ours[name]))
            scale = float(np.abs(want).max()) or 1.0
            worst = max(worst, float(np.abs(have - want).max()) / scale)
    return worst
