"""Report why each part of a model got its kind of numbers, as a table and as an HTML page without other
files."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template

from rich import box
from rich.table import Table

from jangin.bench.report import milliseconds
from jangin.quantization.decide import FLOAT, Decision, Report


def kinds(found: Report) -> list[str]:
    """Return the names of the kinds of numbers that were measured, float32 first."""
    return list(dict.fromkeys(k for d in found.decisions for k in (FLOAT, *d.options)))


def table(found: Report) -> Table:
    """Return a table with a row for each part, and its milliseconds a run in each kind."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in (*kinds(found), "gain", "cost"):
        result.add_column(heading, justify="right", no_wrap=True)
    for heading in ("chosen", "part", "why"):
        result.add_column(heading)
    for d in found.decisions:
        result.add_row(*figures(found, d), d.kind, d.source, d.reason)
    return result


def figures(found: Report, d: Decision) -> list[str]:
    """Return the cells of a part's times in each kind, of the seconds gained by the chosen kind, and of its
    cost."""
    times = [milliseconds(d.options[k].seconds) if k in d.options else "" for k in kinds(found)]
    if d.kind == FLOAT:
        return [*times, "", ""]
    gain = d.gain(d.kind)
    sign = "+" if gain >= 0 else ""
    return [*times, f"{sign}{milliseconds(gain)}", f"{d.options[d.kind].cost:.1e}"]


def summary(found: Report) -> str:
    """Return a line about the whole model."""
    if not any(d.kind != FLOAT for d in found.decisions):
        return f"{found.note} ({milliseconds(found.before)} ms a run)"
    note = f"; {found.note}" if found.note else ""
    return (
        f"a run {milliseconds(found.before)} ms in float32, {milliseconds(found.after)} ms as chosen "
        f"({found.before / found.after:.2f}x); drop {found.drop:.3%} of {found.allowed:.3%} allowed "
        f"({found.quality}){note}"
    )


def page(title: str, found: Report) -> str:
    """Return the text of the HTML page."""
    most = max((o.seconds for d in found.decisions for o in d.options.values()), default=0.0) or 1.0
    template = Template(files(__package__).joinpath("quantize.html").read_text("utf-8"))
    return template.substitute(
        title=escape(title),
        summary=escape(summary(found)),
        kinds="".join(f'<th class="number">{k}</th>' for k in kinds(found)),
        rows="\n".join(_row(found, d, most) for d in found.decisions),
    )


def _row(found: Report, d: Decision, most: float) -> str:
    *times, gain, cost = figures(found, d)
    bars = "".join(
        f'<span class="bar{" small" if k != FLOAT else ""}" '
        f'style="width:{100 * d.options[k].seconds / most:.1f}%"></span>'
        for k in dict.fromkeys((FLOAT, d.kind))
    )
    kind = f'<td class="{"chosen" if d.kind != FLOAT else ""}">{d.kind}</td>'
    numbers = "".join(f'<td class="number">{t}</td>' for t in times)
    rest = "".join(f'<td class="number">{t}</td>' for t in (gain, cost))
    return (
        f"<tr><td>{escape(d.source)}</td>{kind}{numbers}<td>{bars}</td>{rest}<td>{escape(d.reason)}</td></tr>"
    )
