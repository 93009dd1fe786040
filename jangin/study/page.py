"""The page of a study: tables, and plots by Plotly that can be hovered, in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from jangin.bench.report import threads_text
from jangin.study.products import Product
from jangin.study.rows import Row
from jangin.study.tables import Table, gigaflops, groups, label, title

COLOURS = (
    "#3b6fb6", "#d9822b", "#3d9a50", "#c23b3b", "#8a63b8", "#8c6d4f", "#d46bb0", "#7a7f87", "#b3a125",
    "#2ba3b5", "#6b8e23", "#e07a6e", "#5a5fd0", "#a03f6f", "#4fb38a", "#b0772f", "#6f93c9", "#946b9e",
    "#6a8f8a",
)  # fmt: skip
"""Colours of engines, which can be told apart on light and on dark ground. There is one for each engine."""
ROW_PIXELS, FEWEST_PIXELS, AROUND_PIXELS = 16, 180, 120
"""Heights in a plot, in pixels: of one bar, of the smallest plot, and of what is around its bars. A bar has
room for a line of text of 12 pixels, and around are title, axis and legend."""

SPREAD = 30.0
"""Bars have a logarithmic axis if the longest is this many times the shortest. On an even axis the shortest
would have fewer pixels than differences of a tenth need."""


def page(
    about: str,
    tables: Sequence[Table],
    rows: Sequence[Row],
    engines: Sequence[str],
    products: Mapping[str, Product],
) -> str:
    """Return the study's report as an HTML page. Raises ModuleNotFoundError with a remedy if Plotly isn't
    installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the page's plots need Plotly: pip install 'jangin[study]' and give the command again, which "
            "measures nothing twice; Markdown and CSV are written"
        ) from None
    shown = [p for p in plots(rows, engines, products) if p["data"]]
    template = files("jangin.study").joinpath("page.html").read_text(encoding="utf-8")
    pieces = {
        "ABOUT": escape(about),
        "PLOTS": "\n".join(_section(n, p) for n, p in enumerate(shown)),
        "TABLES": "\n".join(map(_table, tables)),
        "FIGURES": json.dumps(shown).replace("<", "\\u003c"),
        "PLOTLY": get_plotlyjs().replace("</script", "<\\/script"),
    }
    for name, text in pieces.items():
        template = template.replace(f"<!--{name}-->", text)
    return template


def plots(
    rows: Sequence[Row], engines: Sequence[str], products: Mapping[str, Product]
) -> list[dict[str, Any]]:
    """Return the plots as Plotly's data: milliseconds and joules by model and engine, power over time, and
    the speed of matrix products by size."""
    figures = [r for r in rows if r.median and not r.problem]
    timed = [r for r in figures if r.model not in products]
    measured = [r for r in timed if r.joules is not None]
    names = dict.fromkeys((*engines, *(r.engine for r in rows)))
    colours = {e: COLOURS[n % len(COLOURS)] for n, e in enumerate(names)}
    times = _bars(timed, colours, lambda r: (r.median, r.low, r.high), "milliseconds", "ms")
    return [
        {"title": "Time of a call", **times},
        {"title": "Energy of a call above rest",
         **_bars(measured, colours, _millijoules, "millijoules", "mJ")},
        *_curves(measured, colours),
        *_speeds([r for r in figures if r.model in products and products[r.model].square], colours, products),
    ]  # fmt: skip


def _millijoules(row: Row) -> tuple[float, float, float]:
    joules, low, high = (1e3 * float(row.energy[name]) for name in ("joules", "low", "high"))
    return joules, low, high


def _bars(
    rows: Sequence[Row],
    colours: Mapping[str, str],
    figures: Callable[[Row], tuple[float, float, float]],
    axis: str,
    unit: str,
) -> dict[str, Any]:
    """Return horizontal bars by group, one trace for each engine, with the quartiles as whiskers."""
    names = [*dict.fromkeys(label(r.group) for r in rows)]
    data: list[dict[str, Any]] = []
    for engine, colour in colours.items():
        own = [r for r in rows if r.engine == engine]
        values = [figures(r) for r in own]
        if own:
            data.append(
                {
                    "type": "bar", "orientation": "h", "name": title(engine), "marker": {"color": colour},
                    "y": [label(r.group) for r in own], "x": [v[0] for v in values],
                    "error_x": {"type": "data", "symmetric": False, "thickness": 1,
                                "array": [v[2] - v[0] for v in values],
                                "arrayminus": [v[0] - v[1] for v in values]},
                    "customdata": [[r.p95, r.p99, r.threads] for r in own],
                    "hovertemplate": f"%{{y}}<br>%{{x:.4g}} {unit}<br>p95 %{{customdata[0]:.4g}} ms, "
                                     "p99 %{customdata[1]:.4g} ms",
                }
            )  # fmt: skip
    height = max(FEWEST_PIXELS, ROW_PIXELS * len(rows) + 8 * len(names)) + AROUND_PIXELS
    lengths = [length for trace in data for length in trace["x"]]
    spread = bool(lengths) and 0 < SPREAD * min(lengths) < max(lengths)
    return {
        "data": data, "height": height, "threads": sorted({r.threads for r in rows}),
        "axis": f"{axis}, logarithmic" if spread else axis,
        "from": math.log10(min(lengths) / 2) if spread else None,
        "to": math.log10(max(lengths) * 1.2) if spread else None,
    }  # fmt: skip


def _curves(rows: Sequence[Row], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a plot of power over time for each group, a line for each engine."""
    figures = []
    for group, by_engine in groups(rows).items():
        data = [
            {"type": "scatter", "mode": "lines", "name": title(e), "line": {"color": colours[e]},
             "x": [t for t, _ in r.energy["power"]], "y": [w for _, w in r.energy["power"]],
             "hovertemplate": "%{x:.2f} s, %{y:.2f} W"}
            for e, r in by_engine.items()
        ]  # fmt: skip
        heading = f"Power over time: {label(group)}"
        figures.append({"title": heading, "axis": "seconds", "upright": "watts", "data": data, "height": 320})
    return figures


def _speeds(
    rows: Sequence[Row], colours: Mapping[str, str], products: Mapping[str, Product]
) -> list[dict[str, Any]]:
    """Return a plot of square products' GFLOP/s by size for each number of threads, a line for each
    engine."""
    figures = []
    for threads in dict.fromkeys(r.threads for r in rows):
        data = []
        for engine, colour in colours.items():
            own = [r for r in rows if (r.engine, r.threads) == (engine, threads)]
            own.sort(key=lambda r: products[r.model].rows)
            if own:
                data.append(
                    {"type": "scatter", "mode": "lines+markers", "name": title(engine),
                     "line": {"color": colour}, "x": [products[r.model].rows for r in own],
                     "y": [gigaflops(r, products) for r in own], "hovertemplate": "%{x}: %{y:.1f} GFLOP/s"}
                )  # fmt: skip
        heading = f"Square matrix products, {threads_text(threads)}"
        figures.append({"title": heading, "axis": "size", "upright": "GFLOP/s", "log": True, "data": data,
                      "height": 380})  # fmt: skip
    return figures


def _section(number: int, plot: Mapping[str, Any]) -> str:
    return f'<section><h2>{escape(plot["title"])}</h2><div class="plot" id="plot{number}"></div></section>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in table.columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return (
        f'<section><h2>{escape(table.title)}</h2>{note}<div class="wide" tabindex="0"><table><thead><tr>'
        f"{head}</tr></thead><tbody>\n{body}\n</tbody></table></div></section>"
    )
