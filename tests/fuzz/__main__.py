"""`python -m tests.fuzz --minutes 10` runs mutants for that time and prints the outcomes. It exits with 1 if
any was wrong."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .run import Tally, campaign


def table(tallies: dict[str, Tally]) -> Table:
    made = Table("kind", title="mutants")
    for heading in ("count", "fine", "refused", "over", "long", "wrong", "seconds", "peak MB"):
        made.add_column(heading, justify="right")
    for kind, t in tallies.items():
        ends = (str(t.ends[e]) for e in ("fine", "refused", "over", "long", "WRONG"))
        made.add_row(kind, str(t.count), *ends, f"{t.seconds:.0f}", f"{t.peak / 1024:.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", default="", help="the same mutants again (default: others each time)")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="where wrong ones are kept")
    given = parser.parse_args()
    seed = given.seed or secrets.token_hex(4)
    console, folder = Console(), given.folder.resolve()
    console.print(f"seed {seed}, in {folder}")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("mutants", total=60 * given.minutes)

        def tell(past: float, tallies: dict[str, Tally]) -> None:
            count = sum(t.count for t in tallies.values())
            wrong = sum(len(t.wrong) for t in tallies.values())
            bar.update(task, completed=past, description=f"{count} mutants, {wrong} wrong")

        tallies = campaign(folder, seed, 60 * given.minutes, tell, whole=True)
    console.print(table(tallies))
    wrong = [text for t in tallies.values() for text in t.wrong]
    for text in wrong:
        console.print(text, markup=False, soft_wrap=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
