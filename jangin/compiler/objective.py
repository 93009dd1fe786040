"""Choose a model's device and threads by an objective: by what a run costs in seconds and in joules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from jangin.compiler.cache import key
from jangin.compiler.pipeline import tune_model, tuning_graph
from jangin.compiler.request import parse_seconds, winners_of, with_winners
from jangin.compiler.source import Source
from jangin.energy import Wanted
from jangin.environment import meter as environment_meter
from jangin.environment import target_name
from jangin.frontends.format import paired
from jangin.ir.limits import within
from jangin.ir.records import dataclass
from jangin.options import LATENCY, Options
from jangin.runtime.device import device_of
from jangin.runtime.executable import Executable
from jangin.runtime.threads import counted, default_threads
from jangin.targets import Target, resolve
from jangin.tune.joules import Cost, Meter, measuring, middle
from jangin.tune.measure import random_feeds
from jangin.tune.outcome import Outcome
from jangin.tune.store import Point, Store, place_of
from jangin.tune.tuner import FINAL_ROUNDS, FINAL_SECONDS, executable_of, sizes_of

if TYPE_CHECKING:
    from jangin.frontends.format import ModelSource
    from jangin.ir.graph import Array
    from jangin.tune.tuner import Progress

Run = Callable[[], dict[str, "Array"]]


@dataclass(frozen=True)
class Trial:
    """A device and a number of threads, with the outcome of tuning for them and the cost of a tuned run.
    `options` have what tuning chose."""

    options: Options
    outcome: Outcome
    point: Point


def settle(model: ModelSource, options: Options) -> Options:
    """Return the options with the device, threads and candidates that are best by the options' objective.

    If the options ask for tuning, it is measured now; otherwise, what an earlier tuning measured counts.
    Raises EnergyError without a source of joules, and ValueError if nothing was measured."""
    objective = options.objective
    if len(options.target.each) > 1:
        raise ValueError(
            f"objective={objective!r} chooses a device by itself: name one device as the target, or none"
        )
    store = winners_of(options)
    if options.tune is not None:
        budget = parse_seconds(options.tune)
        with within(options.limits, budget), opened(options, None) as meter:
            trials = measure(model, options, [options.asked], counts(options), budget, meter, store)
        best = min(trials, key=lambda t: t.point.figure(objective))
        return best.options.but(tune=None)
    name = _key(model, options)
    points = [
        p for p in ([] if store is None or name is None else store.points(name))
        if options.threads in (None, p.threads) and (options.asked is None or p.target == _device(options))
    ]  # fmt: skip
    if not points:
        raise ValueError(
            f"nothing was measured for objective={objective!r} on this machine with this model, its sizes "
            f"and options: first run `jangin tune MODEL --objective {objective}`, or compile with tune='60s'"
        )
    point = min(points, key=lambda p: p.figure(objective))
    device = {} if options.asked is not None else {"target": point.target}
    return options.but(threads=point.threads, **device)


def opened(options: Options, external: str | None) -> AbstractContextManager[Meter]:
    """Return the context of a meter for the options' objective. `external` is an external meter, by default
    the environment's. The context raises EnergyError, with a reason for each kind of source, if there is
    none."""
    named = external or environment_meter()
    return measuring(Wanted((named,) if named else ()), options.objective)


def counts(options: Options) -> list[int]:
    """Return the numbers of threads to compare. They are the options' own, or else the powers of 2 below what
    the process may use, and all that it may use."""
    if options.threads is not None:
        return [counted(options.threads)]
    most = default_threads()
    return [*(1 << n for n in range((most - 1).bit_length())), most]


def measure(
    model: ModelSource,
    options: Options,
    devices: Sequence[str | Target | None],
    counts: Sequence[int],
    budget: float,
    meter: Meter | None,
    store: Store | None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Tune a model for each device and number of threads, measure runs of all beside each other, and store
    what they cost. The budget of seconds is divided among them.

    Threads are compared on processors only. Without a meter, points have no joules. An interrupt (Ctrl-C)
    ends the tuning, and what was tuned is compared."""
    settings = [o for name in devices for o in _settings(options.but(target=name, tune=None), counts)]
    tuned: list[tuple[Options, Outcome]] = []
    for one in settings:
        with_known = with_winners(one, counted(one.threads))
        share = budget / len(settings)
        outcome = tune_model(model, with_known, counted(one.threads), share, store, progress, meter)
        tuned.append((with_known.but(choices={**with_known.choices, **outcome.choices}), outcome))
        if outcome.stopped:
            break
    if progress is not None:
        progress(budget, budget, "runs of the model")
    points = _points(model, [o for o, _ in tuned], meter)
    name = None if store is None or meter is None else _key(model, options)
    if store is not None and name is not None:
        unkept = store.try_put_points(name, points)
        tuned = [(o, replace(outcome, unkept=outcome.unkept or unkept)) for o, outcome in tuned]
    return [Trial(o, outcome, p) for (o, outcome), p in zip(tuned, points, strict=True)]


def _settings(options: Options, counts: Sequence[int]) -> list[Options]:
    target = options.target
    if device_of(target.device).is_processor(str(target)):
        return [options.but(threads=n) for n in counts]
    return [options.but(threads=max(counts))]


def _points(model: ModelSource, each: Sequence[Options], meter: Meter | None) -> list[Point]:
    """Measure a run of the model with each of the options, in turns."""
    loaded, runs = [], list[Run]()
    for options in each:
        graph = tuning_graph(model, options)
        exe = executable_of(graph, options, counted(options.threads))
        loaded.append(exe)
        runs.append(partial(exe.run, random_feeds(exe, sizes_of(graph, options.sizes or {}))))
    rounds = _timed(runs) if meter is None else meter.rounds(runs)
    points = []
    for n, (options, exe) in enumerate(zip(each, loaded, strict=True)):
        objective = LATENCY if meter is None else options.objective
        cost = middle(rounds, n, objective)
        joules = None if meter is None else cost.joules
        points.append(Point(_device(options), exe.threads, cost.seconds, joules, _bytes(exe)))
    return points


def _timed(runs: Sequence[Run]) -> list[list[Cost]]:
    """Return the seconds of all runs in some rounds. Joules aren't known."""
    rounds: list[list[Cost]] = []
    start = time.perf_counter()
    while len(rounds) < FINAL_ROUNDS or time.perf_counter() - start < FINAL_SECONDS:
        costs = []
        for run in runs:
            run()
            began = time.perf_counter()
            run()
            costs.append(Cost(time.perf_counter() - began, 0.0))
        rounds.append(costs)
    return rounds


def _device(options: Options) -> str:
    """Return the name by which the options' target was given, or would be."""
    asked = options.asked
    return asked.name if isinstance(asked, Target) else asked or target_name() or "cpu"


def _bytes(exe: Executable) -> int | None:
    """Return the bytes of weights and of working memory, or None if sizes are open."""
    weights = sum(a.nbytes for a in exe.plan.constants.values())
    return None if exe.working is None else weights + exe.working


def _key(model: ModelSource, options: Options) -> str | None:
    """Return the key of a model's costs, which are valid on this machine, for these sizes and options, and by
    this objective. It is None for a model whose files can't be read."""
    source = Source.of(paired(model, options.weights))
    if source is None:
        return None
    here = place_of(resolve("cpu"), 0, options.libraries, options.objective)
    plain = options.but(target="cpu", choices={})
    return key([here, plain.key(), *source.digests])
