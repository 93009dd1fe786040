"""The tables of a study's report, from its rows. Each is a page's table, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from jangin.bench.engines import TITLES
from jangin.bench.report import threads_text
from jangin.ir.records import dataclass
from jangin.study.pareto import frontier
from jangin.study.products import Product
from jangin.study.rows import CPU, Group, Row

ALL = "All figures"
"""The title of the table that has every row."""
TFLITE = "litert"
"""The engine that is a baseline beside the chosen one: TensorFlow Lite under its new name."""
LISTED = 5
"""The most operators that are listed for a model in an engine, so that a row stays one line. They usually
take most of the time."""
MEANS = "Compare means of equally many cases only, because engines that fail lack cases."
"""A note on the geometric means of ratios."""
FEW = 100
"""The fewest calls of which one is a hundredth. The p99 of fewer calls lies at the slowest."""
CROWDED = 0.1
"""Other processes are told of if they kept more cores busy than this during the turns that count. It is
`bench.measure.CROWDED`, up to which turns count."""


@dataclass(frozen=True)
class Table:
    """A table. `numbers` tells if all columns but the first are numbers, and `note` says how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown under its title."""
        lines = [f"## {self.title}", "", *([plain(self.note), ""] if self.note else [])]
        lines.append(_line(self.columns))
        lines.append(_line(["---"] * len(self.columns)))
        return "\n".join([*lines, *map(_line, self.rows), ""])


def tables(
    rows: Sequence[Row], engines: Sequence[str], baseline: str, products: Mapping[str, Product]
) -> list[Table]:
    """Return all tables that have figures. `products` are the matrix products by the names of their models.
    They have tables of their own."""
    figures = [r for r in rows if r.median and not r.problem]
    timed = [r for r in figures if r.model not in products]
    all_tables = [
        _by_engine("Milliseconds a call", timed, engines, lambda r: f"{r.median:.3g}",
                   "The median of all calls in undisturbed turns."),
        *(_speedups(timed, engines, base) for base in dict.fromkeys((baseline, TFLITE))),
        _best(timed, engines, "median", "Best engine by time",
              "The gain is what choosing it saves over the median engine and over the slowest."),
    ]  # fmt: skip
    measured = [r for r in timed if r.joules is not None]
    if measured:
        all_tables.append(_joules(measured, engines))
        all_tables += [_savings(measured, engines, base) for base in dict.fromkeys((baseline, TFLITE))]
        all_tables.append(
            _best(measured, engines, "joules", "Best engine by energy", "Energy is that above rest.")
        )
        all_tables.append(_rails(measured))
    all_tables.append(_pareto(timed))
    multiplied = [r for r in figures if r.model in products]
    all_tables.append(
        _by_engine("GFLOP/s of matrix products", multiplied, [*dict.fromkeys(r.engine for r in multiplied)],
                   lambda r: f"{gigaflops(r, products):.1f}", "Matrices of float32, not packed before.")
    )  # fmt: skip
    all_tables += [_shares(timed), _details(figures), _problems(rows)]
    return [t for t in all_tables if t.rows]


def label(group: Group) -> str:
    """Return a group's name as tables and plots show it."""
    return f"{group.model}, {group.precision}, batch {group.batch}, {place(group)}"


def place(of: Group | Row) -> str:
    """Return the text that tells where a group's model runs: the number of threads, or the device."""
    return threads_text(of.threads) if of.device == CPU else of.device


def title(engine: str) -> str:
    """Return an engine's name as tables show it."""
    return TITLES.get(engine, engine)


def groups(rows: Iterable[Row]) -> dict[Group, dict[str, Row]]:
    """Return rows by group and engine, in their order."""
    by_group: dict[Group, dict[str, Row]] = {}
    for row in rows:
        by_group.setdefault(row.group, {})[row.engine] = row
    return by_group


def as_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return all rows by column, with a column for each plain figure and for the main figures of energy."""
    plain = [f.name for f in fields(Row) if f.name not in ("energy", "layers")]
    energy = ("source", "joules", "low", "high", "gross", "watts", "idle", "doubt", "warning")
    return [
        {**{n: getattr(row, n) for n in plain}, **{f"energy_{n}": row.energy.get(n) for n in energy}}
        for row in rows
    ]


def as_csv(rows: Sequence[Row]) -> str:
    """Return all rows as CSV."""
    text, records = io.StringIO(), as_records(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(records[0] if records else [])
    writer.writerows(["" if v is None else v for v in record.values()] for record in records)
    return text.getvalue()


def gigaflops(row: Row, products: Mapping[str, Product]) -> float:
    """Return the speed of a product in GFLOP/s."""
    return products[row.model].work / row.median / 1e6


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _by_engine(
    heading: str, rows: Sequence[Row], engines: Sequence[str], show: Callable[[Row], str], note: str
) -> Table:
    """Return a table with a line for each group and a column for each engine that has a figure."""
    there = [e for e in engines if any(r.engine == e for r in rows)]
    lines = [
        (label(group), *(show(by_engine[e]) if e in by_engine else "" for e in there))
        for group, by_engine in groups(rows).items()
    ]
    return Table(heading, ("model", *map(title, there)), tuple(lines), note)


def _ratios(
    heading: str, rows: Sequence[Row], engines: Sequence[str], baseline: str,
    figure: Callable[[Row], float], note: str,
) -> Table:  # fmt: skip
    """Return a table that tells how many times as good as the baseline each engine is. Its last rows
    have the geometric means and the numbers of cases in them, because an engine may lack some."""
    both = {g: by_engine for g, by_engine in groups(rows).items() if baseline in by_engine}
    there = [e for e in engines if any(e in by_engine for by_engine in both.values())]
    ratios: dict[str, list[float]] = {e: [] for e in there}
    lines = []
    for group, by_engine in both.items():
        cells = []
        for engine in there:
            base = figure(by_engine[baseline])
            own = figure(by_engine[engine]) if engine in by_engine else 0.0
            if own > 0 and base > 0:
                ratios[engine].append(base / own)
            cells.append(f"{base / own:.2f}×" if own > 0 and base > 0 else "")
        lines.append((label(group), *cells))
    if len(lines) > 1:
        means = (f"{geometric_mean(r):.2f}×" if r else "" for r in ratios.values())
        lines += [("geometric mean", *means), ("cases in the mean", *(str(len(r)) for r in ratios.values()))]
        note = f"{note} {MEANS}"
    return Table(heading, ("model", *map(title, there)), tuple(lines), note)


def _speedups(rows: Sequence[Row], engines: Sequence[str], baseline: str) -> Table:
    note = f"How many times as fast as {title(baseline)} each engine is."
    return _ratios(f"Speed-up over {title(baseline)}", rows, engines, baseline, lambda r: r.median, note)


def _savings(rows: Sequence[Row], engines: Sequence[str], baseline: str) -> Table:
    note = f"How many times the energy of each engine {title(baseline)} takes, above rest."
    heading = f"Energy saving over {title(baseline)}"
    return _ratios(heading, rows, engines, baseline, lambda r: r.joules or 0.0, note)


def _joules(rows: Sequence[Row], engines: Sequence[str]) -> Table:
    def show(row: Row) -> str:
        e = row.energy
        return f"{e['joules'] * 1e3:.3g} ({e['low'] * 1e3:.3g}–{e['high'] * 1e3:.3g}); {e['gross'] * 1e3:.3g}"

    note = "Above rest, with quartiles over the windows in brackets; then with the power at rest included."
    return _by_engine("Millijoules a call", rows, engines, show, note)


def _best(rows: Sequence[Row], engines: Sequence[str], figure: str, heading: str, note: str) -> Table:
    lines = []
    for group, by_engine in groups(rows).items():
        order = sorted((getattr(r, figure), e) for e, r in by_engine.items() if getattr(r, figure) > 0)
        if order:
            middle = statistics.median(value for value, _ in order) / order[0][0]
            worst = order[-1][0] / order[0][0]
            gains = (f"{middle:.2f}×", f"{worst:.2f}×") if len(order) > 1 else ("", "")
            lines.append((label(group), title(order[0][1]), *gains))
    return Table(heading, ("model", "best", "over the median", "over the worst"), tuple(lines), note)


def _pareto(rows: Sequence[Row]) -> Table:
    """Return a table of the choices on the Pareto frontier of each model and batch, over engines, numbers of
    threads and precisions."""
    cases: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.model, row.batch), []).append(row)
    lines = []
    for (model, batch), choices in cases.items():
        marks = frontier([(r.median, r.joules, r.peak_bytes or None, r.error) for r in choices])
        best = sorted((r for r, mark in zip(choices, marks, strict=True) if mark), key=lambda r: r.median)
        lines += [
            (f"{model}, batch {batch}", f"{title(r.engine)}, {r.precision}, {place(r)}",
             f"{r.median:.3g}", "" if r.joules is None else f"{r.joules * 1e3:.3g}",
             f"{r.peak_bytes / 1e6:.0f}", "" if r.error is None else f"{r.error:.0e}")
            for r in best
        ]  # fmt: skip
    note = "No other choice for the model is as good in time, energy, memory and error, and better in one."
    return Table("Pareto frontier", ("model", "choice", "ms", "mJ", "peak MB", "error"), tuple(lines), note)


def _shares(rows: Sequence[Row]) -> Table:
    """Return a table of the operators that take most of each engine's time, for engines that report them."""
    lines = []
    for row in (r for r in rows if r.layers):
        total = sum(row.layers.values()) or 1.0
        most = sorted(row.layers.items(), key=lambda item: -item[1])[:LISTED]
        shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in most)
        lines.append((label(row.group), title(row.engine), shares))
    note = "The shares of a run's time, operator by operator. A kernel may compute several, joined by +."
    return Table("Time by operator", ("model", "engine", "shares"), tuple(lines), note)


def _rails(rows: Sequence[Row]) -> Table:
    """Return the power of each rail, if a source has several."""
    rails = [*dict.fromkeys(name for r in rows for name in r.energy["rails"])]
    lines = [
        (label(r.group), title(r.engine), f"{r.energy['watts']:.2f}", f"{r.energy['idle']:.2f}",
         *(f"{r.energy['rails'].get(name, math.nan):.2f}" for name in rails))
        for r in rows
    ]  # fmt: skip
    sources = ", ".join(dict.fromkeys(str(r.energy["source"]) for r in rows))
    most = max(r.energy["cost"] for r in rows)
    note = f"Measured by {sources}. Sampling took at most {most:.1%} of one core."
    warnings = dict.fromkeys(str(r.energy["warning"]) for r in rows if r.energy["warning"])
    told = " ".join([note, *(f"Warning: {w}." for w in warnings)])
    return Table("Watts by rail", ("model", "engine", "all", "at rest", *rails), tuple(lines), told)


def _details(rows: Sequence[Row]) -> Table:
    columns = (
        "model", "engine", "version", "median ms", "p95", "p99", "calls", "first result s", "peak MB",
        "error", "remarks",
    )  # fmt: skip
    lines = []
    measured = any(r.energy for r in rows)  # otherwise the report's beginning has the reason
    for r in rows:
        remarks = [r.how, "" if r.whole else "interrupted"]
        if measured and r.no_energy:
            remarks.append(f"no energy: {r.no_energy}")
        if r.crowd > CROWDED:
            remarks.append(f"other processes kept {r.crowd:.1f} cores busy")
        if r.error is None:
            remarks.append(r.reference)
        lines.append(
            (label(r.group), title(r.engine), r.version, f"{r.median:.3g}", f"{r.p95:.3g}", f"{r.p99:.3g}",
             str(r.calls), f"{r.first:.2f}", f"{r.peak_bytes / 1e6:.0f}",
             "" if r.error is None else f"{r.error:.0e}", "; ".join(filter(None, remarks)))
        )  # fmt: skip
    references = ", ".join(dict.fromkeys(r.reference for r in rows if r.error is not None))
    note = f"Errors are shares of an output's largest value, against {references}." if references else ""
    if any(r.calls < FEW for r in rows):
        note = f"The p99 of fewer than {FEW} calls is about the slowest call. {note}".strip()
    return Table(ALL, columns, tuple(lines), note)


def _problems(rows: Sequence[Row]) -> Table:
    lines = [(label(r.group), title(r.engine), r.problem) for r in rows if r.problem]
    return Table("Engines without figures", ("model", "engine", "reason"), tuple(lines))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(plain(c).replace('|', chr(92) + '|') for c in cells)} |"


def plain(text: str) -> str:
    """Return text as Markdown shows it: in one line, and not as elements of HTML."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
