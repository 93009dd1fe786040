"""Run the workers of a comparison in turns, and compute figures from their times."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from base64 import b85decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jangin import options
from jangin.bench.arrays import load_arrays, random_array, save_arrays
from jangin.bench.emitted import arrays_of
from jangin.bench.engine import Job
from jangin.bench.engines import PEERS
from jangin.bench.files import files_for
from jangin.ir.graph import Array, Graph
from jangin.ir.limits import within
from jangin.ir.records import dataclass
from jangin.runtime.system.processes import FORKS, end_of, kill_group
from jangin.runtime.system.usage import busy_seconds, runnable

CALIBRATION_SECONDS = 0.004
"""Seconds for which the core's speed is measured before a turn. The median of several loops is then steady,
and the turns take little longer."""
SLOW = 0.8
"""A turn counts if the core ran at this share or more of its fastest measured speed. The number is a choice:
a higher one would drop most turns on a machine whose clock follows heat and neighbours."""
CROWDED = 0.1
"""A turn counts if other processes kept at most this many cores busy during it. An engine that shares its
cores is measured too slow."""
SETTLE_SECONDS, SETTLE_TRIES = 0.03, 30
"""An engine is at rest if its process uses no processor time for this many seconds. The second number is the
most times that this is checked, so that an engine that never rests is measured after a second."""
LOOK_SECONDS = 0.5
"""A worker's time limit is counted in waits of this many seconds. The clock isn't asked, because it goes on
while all processes are stopped."""
FEWEST_KEPT = 5
"""If fewer turns than this are undisturbed, this many of the least disturbed ones count."""

BEHIND, LEAST_TURNS = 8.0, 2
"""An engine that takes this many times as long as the fastest one has no more turns once it has used its
time. It has at least the second number of turns."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Options:
    """The options of a benchmark.

    `peers` are the engines to compare with. `seconds` is the length of a turn. `inputs` has arrays by name;
    all other inputs are random. `symbolic` keeps the size symbols in the compiled models, so that `shapes`
    gives sizes only when the models run. `files` has an engine's own file of the model. Without one, the
    model is converted for an engine that doesn't read its format. `before` are options that stand before the
    converting command. `pythons` has an engine's own interpreter if the engine doesn't live in the common
    interpreter. `compiling` has the options of Jangin's compilation, except sizes and threads."""

    peers: tuple[str, ...] = ("onnxruntime",)
    rounds: int = 15
    seconds: float = 0.2
    shapes: Mapping[str, int] = field(default_factory=dict)
    symbolic: bool = False
    inputs: Mapping[str, Array] = field(default_factory=dict)
    seed: int = 0
    files: Mapping[str, Path] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    compiling: options.Options = field(default_factory=options.Options)


@dataclass(frozen=True)
class Result:
    """One engine's figures. Times are in milliseconds a call: the median of the kept turns' medians, and
    their quartiles.

    `how` tells how the engine's file was made, if it isn't the model's own. `problem` tells why there are no
    figures. `error` is the largest difference to the outputs of ONNX Runtime
    without optimizations, as a share of their largest value. `crowd` is the median number of cores that other
    processes kept busy during the kept turns.

    `peak_bytes` is the memory of the process that compiled and ran the model. `loaded_bytes` is the memory of
    a process that only loads and runs Jangin's saved model."""

    engine: str
    version: str = ""
    how: str = ""
    problem: str = ""
    absent: bool = False
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    kept: int = 0
    turns: int = 0
    crowd: float = 0.0
    compile_seconds: float = 0.0
    peak_bytes: int = 0
    loaded_bytes: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    error: float | None = None


@dataclass(frozen=True)
class Turn:
    """One turn of an engine: calls one after another for some seconds.

    - `nanoseconds` is the median time of a call, and `calls` has the times of all calls.
    - `speed` is the FMA operations a second of a core, measured before and after the turn.
    - `others` is the number of cores that other processes kept busy.
    """

    nanoseconds: float
    speed: float
    others: float
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The figures of one model on one number of threads.

    - `flops` is the number of operations of a call.
    - `sgemm` is the operations a second of NumPy's SGEMM in its best turn, measured in turns with the
      engines.
    - `core` is the operations a second of FMAs in one core's registers.
    - `tokens` is the number of tokens that a call of a language model reads, and 0 for other models.
    """

    model: str
    threads: int
    shapes: Mapping[str, int]
    flops: int
    sgemm: float
    core: float
    results: tuple[Result, ...]
    tokens: int = 0

    def result(self, engine: str) -> Result:
        return next(r for r in self.results if r.engine == engine)

    def ratio(self, engine: str) -> float | None:
        """Return how many times as fast as `engine` Jangin is, or None if either has no time."""
        ours, theirs = self.result("jangin").median, self.result(engine).median
        return theirs / ours if ours and theirs else None


class Worker:
    """A worker process, which answers each request with a line of JSON.

    - `python` is its interpreter, by default this one. `command` starts a worker in any other way.
    - A worker that takes longer than `limit` seconds for an answer is killed, with the processes that it
      started.
    - `problem` tells how a worker failed. Every later answer has this text too.
    """

    def __init__(
        self,
        job: Job,
        python: str | None = None,
        limit: float | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        settings = {f"{p}_NUM_THREADS": str(job.threads) for p in ("OMP", "OPENBLAS", "MKL")}
        if python is not None:
            settings["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        self.job, self.limit, self.problem = job, limit, ""
        self.process = subprocess.Popen(
            command or [python or sys.executable, "-m", "jangin.bench.worker", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **settings},
            start_new_session=True,
        )
        try:
            self.ready = self._answer()
        except BaseException:  # an interrupt while the engine compiles
            self._stop()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        if self.problem:
            return {"error": self.problem}
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            self.problem = "the process ended"
            return {"error": self.problem}
        return self._answer(float(request.get("seconds", 0.0)))

    def _answer(self, more: float = 0.0) -> dict[str, Any]:
        """Return the worker's next answer. The worker may take `more` seconds beyond the limit, because the
        request itself takes so long."""
        assert self.process.stdout is not None
        answered, expired = threading.Event(), threading.Event()

        def watch(left: float) -> None:
            while left > 0:
                if answered.wait(min(left, LOOK_SECONDS)):
                    return
                left -= LOOK_SECONDS
            expired.set()
            self._kill()

        if self.limit is not None:
            threading.Thread(target=watch, args=(self.limit + more,), daemon=True).start()
        try:
            line = self.process.stdout.readline()
        finally:
            answered.set()
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
        elif expired.is_set():
            answer = {"error": f"it gave no answer within {self.limit:g} s", "absent": False}
        else:
            answer = {"error": f"the process ended {self._end()}", "absent": False}
        self.problem = answer.get("error", "")
        return answer

    def _stop(self) -> None:
        """End the process, and those that it started."""
        self._kill()
        self.process.communicate()

    def _end(self) -> str:
        """Wait for the process's end, and return how it ended. Processes that it left are killed while its
        number still is its own."""
        if FORKS:
            end_of(self.process.pid, wait=True)
            kill_group(self.process.pid)
        return _ended(self.process.wait())

    def _kill(self) -> None:
        if FORKS and self.process.returncode is None:
            kill_group(self.process.pid)  # a converter that the engine started
        self.process.kill()


def _ended(status: int) -> str:
    """Return how a process ended, given its status as `subprocess` tells it."""
    if status >= 0:
        return f"with status {status}"
    return f"by {signal.Signals(-status).name}"


def compare(
    model: Path, threads: int, options: Options, flops: int = 0, progress: Progress | None = None
) -> Comparison:
    """Measure Jangin and the peers on one model with `threads` threads, and return the figures. `flops` is
    the model's operations a call, for its speed. Raises ValueError if inputs don't fit the model."""
    name, tell = model.stem, progress or (lambda done, total, what: None)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        tell(0, options.rounds, f"{name}: converting")
        engines = [e for e in options.peers if e not in options.files]
        files = files_for([*engines, "reference"], model, options.shapes, Path(folder), options.before)
        able = tuple(e for e in options.peers if e not in files or not files[e].problem)
        own = {engine: file.path for engine, file in files.items() if not file.problem}
        options = replace(options, files={**own, **options.files}, peers=able)
        workers = []
        jobs = make_jobs(model, threads, options, Path(folder))
        tokens = jobs[0].feeds()["tokens"].size if model.suffix == ".gguf" else 0
        for job in jobs[:-1]:
            tell(0, options.rounds, f"{name}: {job.engine}, {threads} threads: compiling")
            workers.append(stack.enter_context(Worker(job, options.pythons.get(job.engine))))
        core = stack.enter_context(Worker(Job("fma", 1)))
        alive = [w for w in workers if "error" not in w.ready]
        turns = take_turns(alive, core, options, lambda i: tell(i, options.rounds, f"{name}: rounds"))
        alive.append(stack.enter_context(Worker(jobs[-1])))
        outputs = {w.job.engine: outputs_of(w, Path(folder)) for w in alive if w.job.engine != "sgemm"}
        if "jangin" in outputs:
            outputs["loaded"] = _loaded_outputs(workers[0], Path(folder))
    fastest = max((t.speed for taken in turns.values() for t in taken), default=0.0)
    kept = {engine: kept_turns(taken, fastest) for engine, taken in turns.items()}
    results = []
    for w in workers[:-1]:
        engine = w.job.engine
        result = _result(w, kept.get(engine, []), len(turns.get(engine, [])), outputs)
        results.append(replace(result, how=files[engine].how if engine in files else ""))
    results += [Result(e, problem=files[e].problem) for e in engines if files[e].problem]
    yardstick = workers[-1].ready
    sgemm = max((yardstick["work"] / t.nanoseconds * 1e9 for t in kept.get("sgemm", [])), default=0.0)
    return Comparison(name, threads, dict(options.shapes), flops, sgemm, fastest, tuple(results), tokens)


def make_jobs(model: Path, threads: int, options: Options, folder: Path) -> list[Job]:
    """Return jobs for Jangin, each peer, SGEMM and the reference, in this order. The inputs are written to
    `folder`."""
    from jangin.frontends.format import paired
    from jangin.frontends.table import load

    how = options.compiling
    with within(how.limits):
        graph = load(paired(model, how.weights), options.shapes, how.formats).graph
    sizes = {} if options.symbolic else dict(options.shapes)
    how = how.but(shapes=sizes, threads=threads, cache=False)
    inputs = folder / "inputs.npz"
    save_arrays(inputs, make_inputs(graph, options))
    return [
        Job(
            engine,
            threads,
            str(options.files.get(engine, model)),
            str(inputs),
            tuple(graph.outputs),
            sizes,
            Job.packed(how),
        )
        for engine in ("jangin", *options.peers, "sgemm", "reference")
    ]


def make_inputs(graph: Graph, options: Options) -> dict[str, Array]:
    """Return the given arrays, and random arrays for the other inputs, by name.

    Floats are in -1..1. Integers are 0 or 1, which are valid indices of any table with two rows. Inputs with
    "mask" in their name are ones. Raises ValueError for an input whose sizes aren't known."""
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


def take_turns(
    workers: Sequence[Worker],
    core: Worker | None,
    options: Options,
    tell: Callable[[int], None] = lambda done: None,
    turns: dict[str, list[Turn]] | None = None,
) -> dict[str, list[Turn]]:
    """Run each engine once a round for `options.rounds` rounds, and return the turns by engine. Each round
    starts with another engine. `core` is a worker that times FMAs before and after each turn. It
    is None for workers on another machine, which tell the other processes' load themselves.

    The turns are added to `turns`, which has them even if this function is interrupted."""
    turns = {} if turns is None else turns
    turns |= {w.job.engine: [] for w in workers}
    spent = dict.fromkeys(turns, 0.0)
    for i in range(options.rounds):
        tell(i)
        before = _speed(core)
        for k in range(len(workers)):
            worker = workers[(i + k) % len(workers)]
            if spent[worker.job.engine] > options.rounds * options.seconds and _behind(worker, turns):
                continue
            start, busy, own = time.perf_counter(), busy_seconds(), busy_seconds(worker.process.pid)
            answer = worker.ask(op="turn", seconds=options.seconds)
            passed = time.perf_counter() - start
            spent[worker.job.engine] += passed
            others = busy_seconds() - busy - (busy_seconds(worker.process.pid) - own)
            settle(worker.process.pid)
            after = _speed(core)
            if "error" not in answer:
                median = float(statistics.median(answer["nanoseconds"]))
                crowd = answer.get("others", max(0.0, others) / passed)
                calls = tuple(answer["nanoseconds"])
                turns[worker.job.engine].append(Turn(median, min(before, after), crowd, calls))
            before = after
    return turns


def _behind(worker: Worker, turns: Mapping[str, Sequence[Turn]]) -> bool:
    """Return whether an engine is so much slower than the fastest one that more turns aren't worth their
    time."""
    own = turns[worker.job.engine]
    fastest = min((t.nanoseconds for taken in turns.values() for t in taken), default=0.0)
    return len(own) >= LEAST_TURNS and min(t.nanoseconds for t in own) > BEHIND * fastest


def settle(process: int) -> None:
    """Wait until all threads of an engine's process are at rest. Some threads spin for a tenth of a second
    after their work, and would occupy a core that the next engine needs."""
    for _ in range(SETTLE_TRIES):
        before = busy_seconds(process)
        time.sleep(SETTLE_SECONDS)
        if busy_seconds(process) == before and not runnable(process):
            return


def _speed(core: Worker | None) -> float:
    """Return the FMA operations a second that a core reaches now. Return 1 if there is no worker for FMAs or
    its loop can't be built, so that every turn counts."""
    if core is None or "error" in core.ready:
        return 1.0
    times = core.ask(op="turn", seconds=CALIBRATION_SECONDS)["nanoseconds"]
    work: float = core.ready["work"]
    return work / float(statistics.median(times)) * 1e9


def kept_turns(turns: Sequence[Turn], fastest: float) -> list[Turn]:
    """Return the turns that weren't disturbed, by the limits `SLOW` and `CROWDED`. If they are fewer than
    `FEWEST_KEPT`, return that many of the least disturbed turns."""
    quiet = [t for t in turns if t.speed >= SLOW * fastest and t.others <= CROWDED]
    if len(quiet) >= FEWEST_KEPT:
        return quiet
    return sorted(turns, key=lambda t: (t.others - t.speed / fastest, t.nanoseconds))[:FEWEST_KEPT]


def outputs_of(worker: Worker, folder: Path) -> tuple[dict[str, Array], int]:
    path = folder / f"{worker.job.engine}.npz"
    answer = worker.ask(op="outputs", path=str(path))
    if "error" in answer:
        return {}, 0
    if "data" in answer:
        data = [zlib.decompress(b85decode(text)) for text in answer["data"]]
        return arrays_of(worker.job.outputs, data, answer["shapes"], answer["types"]), answer["peak_bytes"]
    return load_arrays(path), answer["peak_bytes"]


def _loaded_outputs(worker: Worker, folder: Path) -> tuple[dict[str, Array], int]:
    """Have the worker save its compiled model, and run it in another process. Return that process's outputs
    and peak bytes of memory."""
    path = str(folder / "model.jgn")
    worker.ask(op="save", path=path)
    with Worker(replace(worker.job, engine="loaded", model=path)) as loaded:
        return outputs_of(loaded, folder)


def _result(
    worker: Worker,
    kept: Sequence[Turn],
    turns: int,
    outputs: Mapping[str, tuple[dict[str, Array], int]],
) -> Result:
    engine, ready = worker.job.engine, worker.ready
    if "error" in ready or not kept:
        problem = worker.problem or "the process ended while it was timed"
        return Result(engine, problem=problem, absent=ready.get("absent", False))
    low, median, high = np.percentile([t.nanoseconds / 1e6 for t in kept], (25, 50, 75))
    arrays, peak = outputs[engine]
    reference = outputs.get("reference", ({}, 0))[0]
    if engine in PEERS and PEERS[engine].partial:
        reference = {name: array for name, array in reference.items() if name in arrays}
    error = difference(arrays, reference) if reference else None
    return Result(
        engine,
        version=ready["version"],
        median=float(median),
        low=float(low),
        high=float(high),
        kept=len(kept),
        turns=turns,
        crowd=float(np.median([t.others for t in kept])),
        compile_seconds=ready["compile_seconds"],
        peak_bytes=peak,
        loaded_bytes=outputs["loaded"][1] if engine == "jangin" else 0,
        memory=ready["memory"],
        error=error,
    )


def difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float:
    """Return the largest difference of any output, as a share of the output's largest finite value. It is
    infinite if an output is missing, has another shape, or has an infinity or NaN where theirs hasn't."""
    worst = 0.0
    for name, reference in theirs.items():
        if name not in ours or ours[name].shape != reference.shape:
            return float("inf")
        if reference.size:
            want, have = (a.astype(np.float64) for a in (reference, ours[name]))
            finite = np.isfinite(want)
            if not np.array_equal(have[~finite], want[~finite], equal_nan=True):
                return float("inf")
            scale = float(np.abs(want[finite]).max(initial=0.0)) or 1.0
            apart = float(np.abs(have[finite] - want[finite]).max(initial=0.0))
            if not np.isfinite(apart):
                return float("inf")
            worst = max(worst, apart / scale)
    return worst
