"""The functions that a farm's device runs: it tells its kind and the model's kernels, races candidates, and
signs its answers."""

from __future__ import annotations

import json
import pickle
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from jangin.compiler.pipeline import tuning_graph
from jangin.environment import farm_key
from jangin.farm.jobs import Job
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.runtime.profile import LaunchTime
from jangin.runtime.signing import sign_bytes
from jangin.runtime.system import renew_lock
from jangin.runtime.threads import default_threads
from jangin.targets.target import Target
from jangin.templates.template import Candidate
from jangin.tune import tuner
from jangin.tune.contest import Contest
from jangin.tune.measure import random_feeds
from jangin.tune.store import place_of
from jangin.tune.tuner import TuningKernel, TuningModel, profiled, side_by_side, sizes_of

Measured = tuple[list[float | None], float, list[str]]
"""The shares of candidates, the seconds of the untuned one, and sentences about defects."""
CONTEXT = b"Jangin measurement, signature 1\0"
"""Bytes that are signed before an answer, so that a signature made for another purpose isn't valid for it."""
LOOP = 50_000
"""The iterations of the calibration loop. They take 0.4 to 2 ms, much longer than the clock's steps and much
less than a race."""
LOOPS = 8
"""The least number of times that the loop is run beside a race. The quickest run counts, because other work
slows single runs."""
DISTURBED = 0.05
"""The loop is repeated for up to so many seconds while it takes longer than usual. Other work seldom keeps a
core for so long, but heat does."""
USUAL = 1.17
"""A loop takes as long as usual up to this factor of the median in the process. The coordinator allows 1.2
(`THROTTLED`), so that a loop within this factor is never taken for heat."""


class Task(NamedTuple):
    """A model to tune, with its options and number of threads. `data` is their pickle, which each device
    receives once, and `digest` identifies it."""

    digest: str
    data: bytes


class Found(NamedTuple):
    """A kernel of the model, as one kind of machine compiles it. `candidates` are the candidates to measure,
    as texts."""

    digest: str
    name: str
    sources: Any
    launches: int
    before: float
    bound: float
    first: str
    candidates: tuple[str, ...]
    pruned: int


class About(NamedTuple):
    """A device's description. Figures are valid on machines with the same `place`.
    `lacks` is the reason why the device can't compile, or ""."""

    place: str
    target: Target
    threads: int
    lacks: str


class _Prepared(NamedTuple):
    model: TuningModel
    untuned: Any
    kernels: dict[str, TuningKernel]


_LOOPS: list[float] = []
"""The seconds of this process's calibration loops."""
_LOCK = threading.Lock()
renew_lock(globals(), "_LOCK", threading.Lock)


@lru_cache(1)
def _prepared(task: Task) -> _Prepared:
    """Return the model's kernels on this device. A process prepares a task once."""
    model, options, threads = pickle.loads(task.data)
    graph = tuning_graph(model, options)
    tuning = TuningModel(graph, options, threads or default_threads(), sizes_of(graph, options.sizes or {}))
    untuned = tuning.executable(options)
    return _Prepared(
        tuning, untuned, {k.digest: k for k in tuning.kernels(profiled(untuned, tuning.sizes), {})}
    )


def about(task: Task) -> About:
    """Return this device's description. A device can't compile if LLVM's package lacks there."""
    _, options, threads = pickle.loads(task.data)
    lacks = "" if find_spec("llvmlite") else "llvmlite isn't installed there"
    return About(_place(task), options.target, threads or default_threads(), lacks)


def _place(task: Task) -> str:
    _, options, threads = pickle.loads(task.data)
    return place_of(options.target, threads or default_threads(), options.libraries, options.objective)


def prepare(task: Task) -> None:
    """Compile the model's kernels untuned on this device in advance, while another device lists them
    (`survey`)."""
    with _LOCK:
        _prepared(task)


def survey(task: Task) -> list[Found]:
    """Return the model's kernels on this device, with their candidates."""
    with _LOCK:
        prepared = _prepared(task)
    return [*map(described, prepared.kernels.values())]


def described(k: TuningKernel) -> Found:
    return Found(
        k.digest, k.report.name, k.report.sources, k.report.launches, k.report.before, k.report.bound,
        written(k.report.first), tuple(map(written, k.queue)), k.report.pruned,
    )  # fmt: skip


def race(task: Task, job: Job, device: str) -> tuple[bytes, bytes]:
    """Race a job's candidates, and return the answer as JSON, with the worker's signature or b""."""
    with _LOCK:  # a device measures one thing at a time
        prepared = _prepared(task)
        kernel, candidates = prepared.kernels[job.kernel], [read(c) for c in job.candidates]
        return _answer(task, job, device, lambda: prepared.model.measure(kernel, candidates))


def race_built(task: Task, built: bytes, job: Job, device: str) -> tuple[bytes, bytes]:
    """Do as `race` does, with candidates that another machine has built (`crossed.Builder.contests`)."""
    contests: list[Contest | str] = pickle.loads(built)
    with _LOCK:
        return _answer(task, job, device, lambda: _measured(contests))


def _measured(contests: Sequence[Contest | str]) -> Measured:
    """Race the candidates of some contests. A text stands for a candidate that couldn't be built."""
    parts: list[Measured] = []
    for contest in contests:
        if isinstance(contest, str):
            parts.append(([None], 0.0, [contest]))
            continue
        try:
            parts.append(contest.run(tuner.SCREEN_SECONDS, tuner.RACE_SECONDS))
        except Exception as error:  # a defective candidate may raise anything
            if len(contest.places) > 1:
                raise  # the coordinator lets each candidate race alone then
            parts.append(([None], 0.0, [f"{type(error).__name__}: {error}"]))
    return [r for p in parts for r in p[0]], max(p[1] for p in parts), [d for p in parts for d in p[2]]


def _answer(task: Task, job: Job, device: str, measure: Callable[[], Measured]) -> tuple[bytes, bytes]:
    before = loop_seconds()
    ratios, seconds, defects = measure()
    after = loop_seconds()
    told = {
        "task": task.digest, "kernel": job.kernel, "candidates": job.candidates, "place": _place(task),
        "device": device, "ratios": ratios, "seconds": seconds, "before": before, "after": after,
        "defects": defects,
    }  # fmt: skip
    message = json.dumps(told, sort_keys=True).encode()
    key = farm_key()
    return message, b"" if key is None else sign_bytes(CONTEXT + message, key)


def profile_built(task: Task, built: bytes) -> list[LaunchTime]:
    """Return the times of a model's kernels, given the model as another machine has built it."""
    artifact, threads, sizes = pickle.loads(built)
    with _LOCK:
        return profiled(Executable(artifact, threads), sizes)


def final(task: Task, winners: dict[str, str], share: float) -> tuple[float, float]:
    """Run the model with the winners and without them, side by side. Return the seconds of an untuned run,
    and the tuned one's part of them. The comparison takes a `share` of its usual time, because other devices
    compare too."""
    with _LOCK:
        prepared = _prepared(task)
        options: Options = prepared.model.options
        choices = {**options.choices, **{k: read(c) for k, c in winners.items()}}
        tuned = prepared.model.executable(options.but(choices=choices))
        feeds = random_feeds(prepared.untuned, prepared.model.sizes)
        before, after = side_by_side(prepared.untuned, tuned, feeds, share)
    return before.least, after.ratio


def final_built(task: Task, built: bytes) -> tuple[float, float]:
    """Do as `final` does, with two models that another machine has built."""
    artifacts, threads, sizes = pickle.loads(built)
    with _LOCK:
        untuned, tuned = (Executable(artifact, threads) for artifact in artifacts)
        before, after = side_by_side(untuned, tuned, random_feeds(untuned, sizes))
    return before.least, after.ratio


def loop_seconds() -> float:
    """Return the seconds of the calibration loop. The loop takes the same time whenever the processor has its
    full speed."""
    usual = USUAL * statistics.median(_LOOPS) if _LOOPS else float("inf")
    best, end, count = float("inf"), time.perf_counter() + DISTURBED, 0
    while count < LOOPS or (best > usual and time.perf_counter() < end):
        best, count = min(best, _one_loop()), count + 1
    _LOOPS.append(best)
    return best


def _one_loop() -> float:
    start = time.perf_counter()
    for _ in range(LOOP):
        pass
    return time.perf_counter() - start


def written(candidate: Candidate) -> str:
    """Return a candidate as a text that `read` reads."""
    return json.dumps([candidate.template, dict(candidate.params)], sort_keys=True)


def read(text: str) -> Candidate:
    template, params = json.loads(text)
    return Candidate(template, params)
