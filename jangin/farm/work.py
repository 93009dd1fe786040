"""The functions that a farm's device runs: it tells its kind and the model's kernels, races candidates, and
signs its answers."""

from __future__ import annotations

import json
import pickle
import threading
import time
from functools import lru_cache
from typing import Any, NamedTuple

from jangin.compiler.pipeline import tuning_graph
from jangin.environment import farm_key
from jangin.farm.jobs import Job
from jangin.options import Options
from jangin.runtime.signing import sign_bytes
from jangin.runtime.system import renew_lock
from jangin.runtime.threads import default_threads
from jangin.templates.template import Candidate
from jangin.tune.store import place_of
from jangin.tune.tuner import TuningKernel, TuningModel, sizes_of

CONTEXT = b"Jangin measurement, signature 1\0"
"""Bytes that are signed before an answer, so that a signature made for another purpose isn't valid for it."""
LOOP = 50_000
"""The iterations of the calibration loop beside each race. They take about 2 ms, much longer than the clock's
steps and much less than a race."""
LOOPS = 16
"""The number of times that the loop is run, about 30 ms in all. The quickest run counts, so that other work
isn't taken for heat."""


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


class _Prepared(NamedTuple):
    model: TuningModel
    untuned: Any
    kernels: dict[str, TuningKernel]


_LOCK = threading.Lock()
renew_lock(globals(), "_LOCK", threading.Lock)


@lru_cache(1)
def _prepared(task: Task) -> _Prepared:
    """Return the model's kernels on this device. A process prepares a task once."""
    model, options, threads = pickle.loads(task.data)
    graph = tuning_graph(model, options)
    tuning = TuningModel(graph, options, threads or default_threads(), sizes_of(graph, options.sizes or {}))
    untuned = tuning.executable(options)
    return _Prepared(tuning, untuned, {k.digest: k for k in tuning.kernels(untuned, {})})


def place(task: Task) -> str:
    """Return the text that identifies this device's kind of machine. Figures are valid on machines with the
    same text."""
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
    return [
        Found(
            k.digest, k.report.name, k.report.sources, k.report.launches, k.report.before, k.report.bound,
            written(k.report.first), tuple(map(written, k.queue)), k.report.pruned,
        )
        for k in prepared.kernels.values()
    ]  # fmt: skip


def race(task: Task, job: Job, device: str) -> tuple[bytes, bytes]:
    """Race a job's candidates, and return the answer as JSON, with the worker's signature or b""."""
    with _LOCK:  # a device measures one thing at a time
        prepared = _prepared(task)
        kernel = prepared.kernels[job.kernel]
        before = loop_seconds()
        ratios, seconds, defects = prepared.model.measure(kernel, [read(c) for c in job.candidates])
        after = loop_seconds()
    told = {
        "task": task.digest, "kernel": job.kernel, "candidates": job.candidates, "place": place(task),
        "device": device, "ratios": ratios, "seconds": seconds, "before": before, "after": after,
        "defects": defects,
    }  # fmt: skip
    message = json.dumps(told, sort_keys=True).encode()
    key = farm_key()
    return message, b"" if key is None else sign_bytes(CONTEXT + message, key)


def final(task: Task, winners: dict[str, str]) -> tuple[float, float]:
    """Run the model with the winners and without them, side by side. Return the seconds of an untuned run,
    and the tuned one's share."""
    with _LOCK:
        prepared = _prepared(task)
        options: Options = prepared.model.options
        choices = {**options.choices, **{k: read(c) for k, c in winners.items()}}
        tuned = prepared.model.executable(options.but(choices=choices))
        before, after = prepared.model.compare(prepared.untuned, tuned)
    return before.least, after.ratio


def loop_seconds() -> float:
    """Return the seconds of the calibration loop. The loop takes the same time whenever the processor has its
    full speed."""
    best = float("inf")
    for _ in range(LOOPS):
        start = time.perf_counter()
        for _ in range(LOOP):
            pass
        best = min(best, time.perf_counter() - start)
    return best


def written(candidate: Candidate) -> str:
    """Return a candidate as a text that `read` reads."""
    return json.dumps([candidate.template, dict(candidate.params)], sort_keys=True)


def read(text: str) -> Candidate:
    template, params = json.loads(text)
    return Candidate(template, params)
