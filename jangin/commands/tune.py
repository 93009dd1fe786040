"""`jangin tune`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from jangin.bench.layers import computes, made_by
from jangin.bench.report import milliseconds, threads_text
from jangin.commands.choices import FLOATS, Choice, Goal, compared, costs, shown
from jangin.commands.common import Settings, alarm, fixed_sizes, terminal
from jangin.compiler.local import device_for
from jangin.compiler.objective import Trial
from jangin.compiler.pipeline import tune_model
from jangin.compiler.request import parse_seconds, winners_of, with_winners
from jangin.files import write_text
from jangin.ir.limits import within
from jangin.options import LATENCY, Options
from jangin.runtime.libraries import FINDERS, TITLES, find
from jangin.runtime.threads import counted
from jangin.targets import resolve
from jangin.tune.outcome import NEAR, Outcome, Tuned
from jangin.tune.store import Point

if TYPE_CHECKING:
    from jangin.farm.tuning import Place

UNITS = {"latency": "ms", "energy": "mJ", "edp": "mJ·s"}
"""The units of a thousandth of each objective's figure."""
ROWS = 30
"""The most kernels that the table lists. The rest takes little time."""
DEFECTS = 3
"""The most defective candidates that are described in full. Others probably have the same cause."""


def tune(
    model: Path,
    settings: Settings,
    budget: str,
    shapes: Sequence[str],
    symbolic: bool,
    threads: int | None,
    target: str | None,
    output: Path | None,
    goal: Goal,
    pruned: bool,
) -> None:
    """Measure candidates for a model's kernels, store the winners and print the results. They are also
    written to `output` as JSON. `pruned`: those that estimates leave out are measured too."""
    goal.check()
    if pruned and not goal.alone:
        raise ValueError("--pruned measures on one device, by the time alone")
    if goal.devices and target is not None:
        raise ValueError("give --target for one device, or --devices for some, not both")
    options = _asked(model, settings, shapes, symbolic, threads, target, goal.objective)
    seconds = parse_seconds(budget)
    for name in goal.devices or (options.asked,):
        device_for(resolve(name))  # measuring runs the code
    if goal.alone:
        outcome = _alone(model, options, seconds, pruned)
        point = Point("", counted(threads), outcome.before)
        choices = [Choice(FLOATS, model, 0.0, Trial(options, outcome, point))]
        plain = as_json(outcome, counted(threads))
    else:
        choices, note = compared(model, options, seconds, goal)
        plain = {"objective": goal.objective, "points": [_plain_choice(c) for c in choices]}
    for choice in choices:
        _print(choice, goal)
    if not goal.alone:
        terminal().print(costs(choices, note))
    _print_kept(options, choices)
    if output is not None:
        write_text(output, json.dumps(plain, indent=1) + "\n")


def _alone(model: Path, options: Options, seconds: float, pruned: bool) -> Outcome:
    """Tune for the time on one device with one number of threads."""
    count = counted(options.threads)
    known = with_winners(options.but(tune=seconds), count)
    with shown() as tell, within(options.limits, seconds):
        return tune_model(model, known, count, seconds, winners_of(options), tell, every=pruned)


def _print(choice: Choice, goal: Goal) -> None:
    """Print what tuning for one device and one number of threads found."""
    console, trial = terminal(), choice.trial
    if not goal.alone:
        console.print(f"{choice.precision}, {choice.place}")
    _print_outcome(console, trial.outcome, trial.point.threads, libraries(trial.options), goal.objective)


def _print_kept(options: Options, found: Sequence[Choice]) -> None:
    """Print where the findings are kept, and what uses them."""
    console, store, objective = terminal(), winners_of(options), options.objective
    unkept = next((c.trial.outcome.unkept for c in found if c.trial.outcome.unkept), "")
    if store is None:
        console.print("nothing is kept, as there is no cache (--no-cache)")
    elif unkept:
        console.print(f"nothing is kept: {store.path} can't be written ({unkept})", soft_wrap=True)
    else:
        uses = "compiling for this machine and as many threads uses it"
        if objective != LATENCY:
            best = min(found, key=lambda c: c.trial.point.figure(objective))
            uses = f"compiling {best.path} with the objective {objective} uses {best.place}"
        console.print(f"kept in {store.path}: {uses}, tuning again goes on from it", soft_wrap=True)


def tune_on_farm(
    model: Path,
    settings: Settings,
    budget: str,
    shapes: Sequence[str],
    symbolic: bool,
    threads: int | None,
    target: str | None,
    output: Path | None,
    address: str,
    trust: Path | None,
) -> list[Place]:
    """Tune a model on the workers of a Dask cluster as `tune` does here, for each kind of machine there.
    Raises RuntimeError if no kind could be tuned."""
    from jangin.farm.tuning import tune_on

    options = _asked(model, settings, shapes, symbolic, threads, target, LATENCY)
    options = options.but(tune=parse_seconds(budget))
    store, console, seconds = winners_of(options), terminal(), parse_seconds(budget)
    with shown() as tell:
        contents = model.read_bytes() if model.is_file() else model
        places = tune_on(address, contents, options, threads, seconds, store, trust, tell)
    for place in places:
        console.print(f"{place.name}: {', '.join(place.devices)}", soft_wrap=True, markup=False)
        for said in dict.fromkeys(place.said):
            console.print(f"  {said}", soft_wrap=True, markup=False)
        if place.outcome is not None:
            _print_outcome(console, place.outcome, counted(threads), [], LATENCY)
            for signer, count in sorted(place.signers.items()):
                console.print(f"signed by {signer}: {count} of the figures that won", markup=False)
        else:
            console.print(alarm("not tuned", place.problem), soft_wrap=True)
    if all(p.outcome is None for p in places):
        raise RuntimeError(f"the farm tuned nothing: {places[0].problem}")
    if output is not None:
        told = [
            {
                "place": p.name,
                "devices": p.devices,
                "said": p.said,
                "problem": p.problem,
                **(as_json(p.outcome, counted(threads)) if p.outcome else {}),
            }
            for p in places
        ]
        write_text(output, json.dumps(told, indent=1) + "\n")
    return places


def _asked(
    model: Path,
    settings: Settings,
    shapes: Sequence[str],
    symbolic: bool,
    threads: int | None,
    target: str | None,
    objective: str,
) -> Options:
    """Return the options of a tuning. Raises ValueError for a model that is compiled already."""
    if model.suffix == ".jgn":
        raise ValueError(f"{model} is compiled already: tune the model that it came from")
    options = settings.options(target, shapes, threads, objective=objective)
    sizes, bound = fixed_sizes(options.shapes), options.shapes
    kept = {name: size for name, size in bound.items() if name not in sizes} if symbolic else bound
    return options.but(shapes=kept, sizes=sizes)


def _print_outcome(
    console: Console, found: Outcome, threads: int, libraries: Sequence[str], objective: str
) -> None:
    """Print a tuning's table, its totals and the first defects."""
    console.print(table(found, objective))
    console.print(summary(found, threads, libraries, objective))
    for defect in found.defects[:DEFECTS]:
        console.print(alarm("a defect of Jangin", f"(please report): {defect}"), soft_wrap=True)
    if len(found.defects) > DEFECTS:
        console.print(f"{len(found.defects) - DEFECTS} more such candidates; --json lists them")


def libraries(options: Options) -> list[str]:
    """Return the names of the installed libraries whose kernels compete."""
    asked = options.libraries.split(",")
    return [n for n in FINDERS if ("auto" in asked or n in asked) and find(n) is not None]


def table(found: Outcome, objective: str) -> Table:
    """Return a table of the slowest kernels. It has the numbers of tried candidates, the winner, and the
    share of the processor's full speed that is reached."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    timed = objective == LATENCY  # joules of single kernels aren't known, only their ratios
    for heading in ("ms", "tuned", "gain", "of bound", "times", "tried", "earlier", "pruned"):
        result.add_column(heading, justify="right", no_wrap=True)
    for heading in ("chosen", "computes"):
        result.add_column(heading)
    for r in found.kernels[:ROWS]:
        result.add_row(
            milliseconds(r.before),
            milliseconds(r.after) if r.gain < 1 and timed else "",
            f"{1 - r.gain:.1%}" if r.gain < 1 else "",
            f"{min(1.0, r.bound / r.after):.0%}" if r.after and timed else "",
            str(r.launches),
            str(r.tried.total()),
            str(r.earlier),
            str(r.pruned),
            made_by(str(r.best)),
            computes(r.sources),
        )
    return result


def summary(found: Outcome, threads: int, libraries: Sequence[str], objective: str) -> str:
    """Return a few lines with the totals of a tuning."""
    tried = sum(r.tried.total() for r in found.kernels)
    pruned, earlier = (sum(getattr(r, what) for r in found.kernels) for what in ("pruned", "earlier"))
    changed = sum(r.gain < 1 for r in found.kernels)
    lines = [
        f"{len(found.kernels)} kernels: {tried} candidates tried ({earlier} before this), {pruned} pruned, "
        f"{changed} kernels changed; {found.spent:.0f} s" + (", stopped" if found.stopped else "")
    ]
    if tried:
        lines.append(
            f"the estimate's first choice is within {1 / NEAR - 1:.0%} of the best for {found.near} of "
            f"{len(found.measured)} kernels that were measured"
        )
    if found.lost:
        lost, most = geometric_mean(found.lost) - 1, max(found.lost) - 1
        lines.append(
            f"pruning leaves out {found.pruned:.0%} of the candidates, and loses {lost:.1%} on "
            f"{len(found.lost)} kernels, at most {most:.1%}"
        )
    for name in libraries:
        with_it = sum(name in r.tried for r in found.kernels)
        won = sum(r.best.template == name for r in found.kernels)
        lines.append(f"{TITLES[name]} raced for {with_it} kernels and makes {won}")
    run, unit = f"a run on {threads_text(threads)}: ", UNITS[objective]
    tuned = found.tuned
    if math.isnan(found.before):
        return "\n".join([*lines, run + "not measured"])
    before = run + f"{found.before * 1e3:.4g} {unit} before, "
    if tuned is None:
        return "\n".join([*lines, before + "not measured tuned"])
    after = f"{found.before * tuned.ratio * 1e3:.4g} {unit} tuned"
    doubt = f"{1 / tuned.ratio:.3f}x, in doubt {1 / tuned.high:.3f}x to {1 / tuned.low:.3f}x"
    return "\n".join([*lines, f"{before}{after} ({doubt})" if changed else f"{before}nothing to change"])


def as_json(found: Outcome, threads: int) -> dict[str, object]:
    """Return the whole outcome as plain data for JSON, with figures in seconds, joules or their product."""
    kernels = [_plain(r) for r in found.kernels]
    tuned = asdict(found.tuned) if found.tuned else None
    totals = {"before": found.before, "tuned": tuned, "spent": found.spent, "stopped": found.stopped}
    return {"threads": threads, **totals, "defects": list(found.defects), "kernels": kernels}


def _plain_choice(choice: Choice) -> dict[str, object]:
    point, how = choice.trial.point, {"precision": choice.precision, "drop": choice.drop}
    return {**how, **asdict(point), **as_json(choice.trial.outcome, point.threads)}


def _plain(r: Tuned) -> dict[str, object]:
    plain = {
        **vars(r),
        "first": str(r.first),
        "best": str(r.best),
        "tried": dict(r.tried),
        "attempts": [asdict(a) for a in r.attempts],
        "sources": [s._asdict() for s in r.sources],
    }
    return {**plain, "after": r.after, "lost": r.lost}
