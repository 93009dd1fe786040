"""`jangin tune`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.progress import BarColumn
from rich.table import Table

from jangin.bench.layers import computes, made_by
from jangin.commands.common import Settings, alarm, bar_with, fixed_sizes, terminal
from jangin.compiler.local import device_for
from jangin.compiler.pipeline import tune_model
from jangin.compiler.request import parse_seconds, winners_of, with_winners
from jangin.files import write_text
from jangin.ir.limits import within
from jangin.options import Options
from jangin.runtime.libraries import FINDERS, TITLES, find
from jangin.runtime.threads import default_threads
from jangin.tune.tuner import Outcome, Tuned

ROWS = 30
"""The most kernels that the table lists."""
DEFECTS = 3
"""The most defective candidates that are described in full."""


def tune(
    model: Path,
    settings: Settings,
    budget: str,
    shapes: Sequence[str],
    symbolic: bool,
    threads: int | None,
    target: str | None,
    output: Path | None,
) -> Outcome:
    """Measure candidates for a model's kernels, store the winners, print the results and return them. They
    are also written to `output` as JSON."""
    if model.suffix == ".jgn":
        raise ValueError(f"{model} is compiled already: tune the model that it came from")
    options = settings.options(target, shapes, threads)
    sizes, bound = fixed_sizes(options.shapes), options.shapes
    kept = {name: size for name, size in bound.items() if name not in sizes} if symbolic else bound
    device_for(options.target)  # measuring runs the code
    count, store, seconds = threads or default_threads(), winners_of(options), parse_seconds(budget)
    options = with_winners(options.but(shapes=kept, sizes=sizes, tune=seconds), count)
    console = terminal()
    with bar_with("{task.description:<40}", BarColumn(), "{task.fields[time]}") as bar:
        task = bar.add_task("import", total=1.0, time="")

        def tell(done: float, total: float, what: str) -> None:
            clock = f"{done:.0f} of {total:.0f} s"
            bar.update(task, completed=done, total=total, description=what[-40:], time=clock)

        with within(options.limits, seconds):
            found = tune_model(model, options, count, seconds, store, tell)
    console.print(table(found))
    console.print(summary(found, count, libraries(options)))
    for defect in found.defects[:DEFECTS]:
        console.print(alarm("a defect of Jangin", f"(please report): {defect}"), soft_wrap=True)
    if len(found.defects) > DEFECTS:
        console.print(f"{len(found.defects) - DEFECTS} more such candidates; --json lists them")
    if store is None:
        console.print("nothing is kept, as there is no cache (--no-cache)")
    elif found.unkept:
        console.print(f"nothing is kept: {store.path} can't be written ({found.unkept})", soft_wrap=True)
    else:
        console.print(
            f"kept in {store.path}: compiling for this machine and as many threads uses it, "
            "tuning again goes on from it",
            soft_wrap=True,
        )
    if output is not None:
        write_text(output, json.dumps(as_json(found, count), indent=1) + "\n")
    return found


def libraries(options: Options) -> list[str]:
    """Return the names of the installed libraries whose kernels compete."""
    return [n for n in FINDERS if options.libraries in ("auto", n) and find(n) is not None]


def table(found: Outcome) -> Table:
    """Return a table of the slowest kernels. It has the numbers of tried candidates, the winner, and the
    share of the processor's full speed that is reached."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("ms", "tuned", "gain", "of bound", "times", "tried", "earlier", "pruned"):
        result.add_column(heading, justify="right", no_wrap=True)
    for heading in ("chosen", "computes"):
        result.add_column(heading)
    for r in found.kernels[:ROWS]:
        result.add_row(
            f"{r.before * 1e3:.3f}",
            f"{r.after * 1e3:.3f}" if r.gain < 1 else "",
            f"{1 - r.gain:.1%}" if r.gain < 1 else "",
            f"{min(1.0, r.bound / r.after):.0%}" if r.after else "",
            str(r.launches),
            str(r.tried.total()),
            str(r.earlier),
            str(r.pruned),
            made_by(str(r.best)),
            computes(r.sources),
        )
    return result


def summary(found: Outcome, threads: int, libraries: Sequence[str]) -> str:
    """Return a few lines with the totals of a tuning."""
    tried = sum(r.tried.total() for r in found.kernels)
    pruned, earlier = (sum(getattr(r, what) for r in found.kernels) for what in ("pruned", "earlier"))
    changed = sum(r.gain < 1 for r in found.kernels)
    lines = [
        f"{len(found.kernels)} kernels: {tried} candidates tried ({earlier} before this), {pruned} pruned, "
        f"{changed} kernels changed; {found.spent:.0f} s" + (", stopped" if found.stopped else "")
    ]
    for name in libraries:
        with_it = sum(name in r.tried for r in found.kernels)
        won = sum(r.best.template == name for r in found.kernels)
        lines.append(f"{TITLES[name]} raced for {with_it} kernels and makes {won}")
    before = f"a run on {threads} thread{'s' * (threads != 1)}: {found.before * 1e3:.3f} ms before, "
    tuned = found.tuned
    if tuned is None:
        return "\n".join([*lines, before + "not measured tuned"])
    after = f"{found.before * tuned.ratio * 1e3:.3f} ms tuned"
    doubt = f"{1 / tuned.ratio:.3f}x, in doubt {1 / tuned.high:.3f}x to {1 / tuned.low:.3f}x"
    return "\n".join([*lines, f"{before}{after} ({doubt})" if changed else f"{before}nothing to change"])


def as_json(found: Outcome, threads: int) -> dict[str, object]:
    """Return the whole outcome as plain data for JSON, with times in seconds."""
    kernels = [_plain(r) for r in found.kernels]
    tuned = asdict(found.tuned) if found.tuned else None
    totals = {"before": found.before, "tuned": tuned, "spent": found.spent, "stopped": found.stopped}
    return {"threads": threads, **totals, "defects": list(found.defects), "kernels": kernels}


def _plain(r: Tuned) -> dict[str, object]:
    plain = {
        **vars(r),
        "first": str(r.first),
        "best": str(r.best),
        "tried": dict(r.tried),
        "sources": [s._asdict() for s in r.sources],
    }
    return {**plain, "after": r.after}
