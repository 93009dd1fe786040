"""`jangin tune`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jangin.commands.common import Settings, fixed_sizes, parse_shapes, terminal
from jangin.options import Options
from jangin.pipeline import parse_seconds, tune_model, with_winners
from jangin.runtime.threads import default_threads
from jangin.targets import resolve
from jangin.tune.store import Store
from jangin.tune.tuner import Outcome, Tuned

ROWS = 30
"""Kernels that the table lists."""


def tune(
    model: Path,
    settings: Settings,
    budget: str,
    shapes: Sequence[str],
    symbolic: bool,
    threads: int | None,
    target: str,
    output: Path | None,
) -> Outcome:
    """Measure candidates for a model's kernels, keep the winners, and say what was found."""
    bound = parse_shapes(shapes)
    sizes = fixed_sizes(bound)
    kept = {name: size for name, size in bound.items() if name not in sizes} if symbolic else bound
    options = Options(resolve(target), kept, settings.winograd)
    count = threads or default_threads()
    store = None if settings.cache is False else Store(None if settings.cache is True else settings.cache)
    if store is not None:
        options = with_winners(options, count, store)
    console, bar_console = terminal(), terminal(error=True)
    columns = (TextColumn("{task.description:<40}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=bar_console, transient=True, disable=not bar_console.is_terminal) as bar:
        task = bar.add_task("import", total=1.0)

        def tell(done: float, total: float, what: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(what[:40]))

        found = tune_model(model, options, count, parse_seconds(budget), sizes, store, tell)
    console.print(table(found))
    console.print(summary(found, count))
    if store is None:
        console.print("nothing is kept, as there is no cache (--no-cache)")
    elif found.winners:
        console.print(f"kept in {store.path}: compiling for this machine and as many threads uses it")
    if output is not None:
        output.write_text(json.dumps(as_json(found, count), indent=1) + "\n")
    return found


def table(found: Outcome) -> Table:
    """The kernels that take longest: what was tried, what won, and how far it is from its bound."""
    result = Table("kernel", "launches", "ms", "tuned", "gain", "of bound", "tried", "pruned", "chosen")
    for r in found.kernels[:ROWS]:
        share = f"{r.bound / r.after:.0%}" if r.after else ""
        result.add_row(
            escape(r.name[-40:]),
            str(r.launches),
            f"{r.before * 1e3:.3f}",
            f"{r.after * 1e3:.3f}",
            f"{1 - r.gain:.1%}" if r.gain < 1 else "",
            share,
            str(r.tried),
            str(r.pruned),
            str(r.best),
        )
    return result


def summary(found: Outcome, threads: int) -> str:
    """The totals, in a line."""
    gain = found.before / found.after if found.after else 1.0
    tried, pruned = (sum(getattr(r, what) for r in found.kernels) for what in ("tried", "pruned"))
    counts = f"{len(found.kernels)} kernels: {tried} candidates tried, {pruned} pruned, "
    return (
        f"{counts}{len(found.winners)} changed; {found.spent:.0f} s\n"
        f"a run on {threads} thread{'s' * (threads != 1)}: "
        f"{found.before * 1e3:.3f} ms before, {found.after * 1e3:.3f} ms tuned ({gain:.3f}x)"
    )


def as_json(found: Outcome, threads: int) -> dict[str, object]:
    """The whole outcome, as plain data; times in seconds."""
    kernels = [_plain(r) for r in found.kernels]
    totals = {"before": found.before, "after": found.after, "spent": found.spent}
    return {"threads": threads, **totals, "kernels": kernels}


def _plain(r: Tuned) -> dict[str, object]:
    return {**asdict(r), "first": str(r.first), "best": str(r.best), "after": r.after}
