"""Measure the engines of one group of a study side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.engine import Job
from jangin.bench.measure import (
    Options,
    Turn,
    Worker,
    difference,
    kept_turns,
    outputs_of,
    settle,
    take_turns,
)
from jangin.energy import EnergyError, Idle, Sampler, Wanted, joules_per_call, rest
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.study.host import Host, NotEmitted, started
from jangin.study.quiet import quiet
from jangin.study.rows import Group, Row

WRONG = {"float32": 1e-2, "float16": 0.1, "int8": 0.5}
"""An engine's numbers are wrong if an output's error is a larger share of its largest value than this.

Sums in another order differ by 1e-5. Small numbers lose more, and int8 much on random weights."""
BEYOND = 2.0
"""An engine's numbers are right if their error is at most this many times that of the quantized model itself.
Engines round otherwise, and LiteRT has another file."""
REST_SECONDS = 2.0
"""The least seconds for which the power at rest is measured before each group. In a shorter time, most
sensors give too few samples."""

Tell = Callable[[float, str], None]
"""A function that is told the share of a group that is done, and what is being done."""


@dataclass(frozen=True)
class Asked:
    """One engine's job in a group. `how` tells how its file was made. If there is no job, `problem` tells
    why."""

    engine: str
    job: Job | None
    how: str = ""
    problem: str = ""


@dataclass(frozen=True)
class How:
    """The settings by which a group is measured.

    - `rounds`, `seconds`: the number of turns of each engine, and the length of a turn.
    - `limit`: the most seconds that an engine may take to compile or to run once.
    - `wanted`: the sources of energy to sample, or None to measure no energy.
    - `folder`: the folder for the engines' outputs.
    - `host`: the machine that measures, if it isn't this one.
    - `own_error()`: returns the error that quantizing itself makes, as a share of an output's largest value.
    - `quiet`: a command that makes the machine quiet while engines are timed.
    """

    rounds: int
    seconds: float
    limit: float
    wanted: Wanted | None
    folder: Path
    host: Host | None = None
    own_error: Callable[[], float] = lambda: 0.0
    quiet: str = ""


def measure_group(
    group: Group,
    asked: Sequence[Asked],
    reference: tuple[Mapping[str, Array], str],
    how: How,
    keep: Callable[[Row], None],
    tell: Tell,
) -> None:
    """Measure all engines of a group, and call `keep` with each engine's row. If the user interrupts, the
    turns so far are kept, as rows that aren't `whole`."""
    with ExitStack() as stack:
        alive = _started(stack, group, asked, reference, how, keep, tell)
        if not alive:
            return
        core = stack.enter_context(Worker(Job("fma", 1))) if how.host is None else None
        tell(0.2, "turns")
        stack.enter_context(quiet(how.quiet))
        turns: dict[str, list[Turn]] = {}
        options = Options(rounds=how.rounds, seconds=how.seconds)
        workers = [worker for worker, _ in alive.values()]
        share = 0.5 if how.wanted else 1.0
        try:
            take_turns(
                workers, core, options, lambda i: tell(0.2 + share * 0.8 * i / how.rounds, "turns"), turns
            )
        except KeyboardInterrupt:
            for _, row in _timed(alive, turns):
                keep(replace(row, whole=False))
            raise
        timed = _timed(alive, turns)
        if how.wanted is None:
            for _, row in timed:
                keep(row)
            return
        _with_energy(timed, how.wanted, keep, lambda done, what: tell(0.6 + 0.4 * done, what))


def _started(
    stack: ExitStack,
    group: Group,
    asked: Sequence[Asked],
    reference: tuple[Mapping[str, Array], str],
    how: How,
    keep: Callable[[Row], None],
    tell: Tell,
) -> dict[str, tuple[Worker, Row]]:
    """Start a group's engines, and return those that can be timed, each with its row so far. `keep` is called
    with the rows of all others. The engines end when `stack` is closed."""
    base = asdict(group)
    alive: dict[str, tuple[Worker, Row]] = {}
    for number, one in enumerate(asked):
        row = Row(**base, engine=one.engine, how=one.how, problem=one.problem)
        if one.job is None:
            keep(row)
            continue
        tell(0.2 * number / len(asked), f"{one.engine}: compiling")
        try:
            worker = stack.enter_context(started(how.host, one.job, how.limit))
        except NotEmitted as error:
            keep(replace(row, problem=str(error)))
            continue
        row = _checked(worker, row, reference, how)
        if row.problem:
            keep(row)
        else:
            alive[one.engine] = worker, row
    return alive


def _checked(worker: Worker, row: Row, reference: tuple[Mapping[str, Array], str], how: How) -> Row:
    """Return the row of a worker that has just started. Its error and memory are filled in, or the problem
    because of which it can't be timed."""
    ready = worker.ready
    if worker.problem:
        return replace(row, problem=worker.problem, absent=ready.get("absent", False))
    row = replace(row, version=ready["version"], first=ready["first_seconds"])
    safe = replace(worker.job, engine=worker.job.engine.replace(os.sep, "_"))
    outputs, peak = outputs_of(worker, how.folder)
    if worker.problem:
        return replace(row, problem=worker.problem)
    (how.folder / f"{safe.engine}.npz").unlink(missing_ok=True)
    row = replace(row, peak_bytes=peak, reference=reference[1])
    if ready.get("layers"):
        row = replace(row, layers=worker.ask(op="layers").get("layers", {}))
        worker.problem = ""  # times need no layers, and a dead process is told by the next request
    if not reference[0]:
        return row
    error = difference(outputs, reference[0])
    row = replace(row, error=error)
    if not error <= WRONG[row.precision] and not error <= BEYOND * how.own_error():
        return replace(row, problem=f"wrong numbers: an output differs by {error:.1g} of its largest value")
    return row


def _timed(alive: Mapping[str, tuple[Worker, Row]], turns: Mapping[str, Sequence[Turn]]) -> list[Any]:
    """Return the workers whose turns have been timed, each with its row and times. A worker that failed
    during its turns has a problem and no times. A worker that had no turn and didn't fail is left out."""
    fastest = max((t.speed for taken in turns.values() for t in taken), default=0.0)
    timed = []
    for engine, (worker, row) in alive.items():
        taken = turns.get(engine, [])
        if worker.problem:
            timed.append((worker, replace(row, problem=worker.problem, turns=len(taken))))
        elif taken:
            kept = kept_turns(taken, fastest)
            calls = np.concatenate([t.calls for t in kept]) / 1e6
            low, median, high, p95, p99 = (float(q) for q in np.percentile(calls, (25, 50, 75, 95, 99)))
            crowd = float(np.median([t.others for t in kept]))
            figures = {"median": median, "low": low, "high": high, "p95": p95, "p99": p99}
            counts = {"calls": calls.size, "kept": len(kept), "turns": len(taken), "crowd": crowd}
            timed.append((worker, replace(row, **figures, **counts)))  # type: ignore[arg-type]
    return timed


def _with_energy(
    timed: Sequence[tuple[Worker, Row]], wanted: Wanted, keep: Callable[[Row], None], tell: Tell
) -> None:
    """Measure the energy of each worker's calls, and call `keep` with its row. If there is no source, or if
    it ends, the row has the reason in place of joules."""
    waiting = [*timed]
    try:
        with Sampler(wanted) as sampler:
            for worker, _ in timed:
                settle(worker.process.pid)
            tell(0.0, "power at rest")
            idle = rest(sampler, 0, REST_SECONDS)
            while waiting:
                worker, row = waiting[0]
                tell(1 - len(waiting) / len(timed), f"{row.engine}: energy")
                if not row.problem:
                    row = _used(worker, row, sampler, idle)
                waiting.pop(0)
                keep(row)
    except EnergyError as error:
        for _, row in waiting:
            keep(row if row.problem else replace(row, no_energy=str(error)))
    except KeyboardInterrupt:
        for _, row in waiting:
            keep(replace(row, whole=False))
        raise


class _Failed(Exception):
    """The engine failed while its energy was measured."""


def _used(worker: Worker, row: Row, sampler: Sampler, idle: Idle) -> Row:
    def work(seconds: float) -> tuple[float, float, int]:
        answer = worker.ask(op="turn", seconds=seconds)
        if "error" in answer:
            raise _Failed(answer["error"])
        return answer["began"], answer["ended"], len(answer["nanoseconds"])

    try:
        return replace(row, energy=asdict(joules_per_call(sampler, 0, work, idle)))
    except _Failed as error:
        return replace(row, no_energy=f"the engine failed: {error}")
    finally:
        settle(worker.process.pid)
