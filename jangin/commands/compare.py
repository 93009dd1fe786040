"""`jangin compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape as xml
from pathlib import Path

from rich import box
from rich.table import Table

from jangin.commands.common import Settings, parse_shapes, terminal
from jangin.commands.quantize import bar
from jangin.files import write_text
from jangin.quantization.compare import Comparison, compare
from jangin.visible import visible

ROWS = 40
"""The most values that the table lists. More lines than fit in a terminal aren't read."""
WIDTH, HEIGHT, EDGE = 900, 360, 60
"""The width and height of the plot and the margin around it, in pixels. A page of a browser shows the plot
whole, and the margin has the labels."""
FLOOR = 1e-9
"""The smallest difference on the plot's scale. Smaller differences are drawn as if they had this value."""


def run(
    a: Path, b: Path, settings: Settings, data: Path, engines: str, tolerance: float, replay: bool,
    plot: Path | None,
    shapes: Sequence[str], threads: int | None, pixels: str, crop: float, tokenizer: Path | None,
    limit: int | None,
) -> Comparison:  # fmt: skip
    """Compare two models, and return the comparison. Print the values that differ most, in their order, and
    draw all values to the SVG file `plot` if it is given."""
    named = tuple(engines.split(","))
    if len(named) == 1:
        named = (named[0], named[0])
    if len(named) != 2:
        raise ValueError(f"--engines {engines!r}: write one, or two as in jangin,onnxruntime")
    with bar() as tell:
        comparison = compare(
            a, b, data, engines=(named[0], named[1]),
            tolerance=tolerance, replay=replay, shapes=parse_shapes(shapes), threads=threads, progress=tell,
            pixels=pixels, crop=crop, tokenizer=tokenizer, limit=limit, **settings.given,
        )  # fmt: skip
    console = terminal()
    console.print(table(comparison))
    console.print(summary(comparison), soft_wrap=True)
    if plot is not None:
        write_text(plot, visible(svg(comparison, f"{a.name} against {b.name}")))
        console.print(f"{plot}: the differences by depth")
    return comparison


def table(found: Comparison) -> Table:
    """Return a table of the values that differ most and of the first value beyond the tolerance. They are in
    the order of the model's computation."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("depth", "largest", "typical"):
        result.add_column(heading, justify="right", no_wrap=True)
    for heading in ("value", "node", "shape"):
        result.add_column(heading)
    places = {d.name: i for i, d in enumerate(found.differences)}
    shown = sorted(found.differences, key=lambda d: -d.largest)[:ROWS]
    shown += [d for d in (found.first, found.differences[-1]) if d is not None and d not in shown]
    for d in sorted(shown, key=lambda d: places[d.name]):
        style = "bold red" if d is found.first else ""
        result.add_row(
            str(places[d.name]), f"{d.largest:.2e}", f"{d.typical:.2e}", d.name, d.source,
            "x".join(map(str, d.shape)), style=style,
        )  # fmt: skip
    return result


def summary(found: Comparison) -> str:
    """Return a line that tells at which value the models first differ by more than the tolerance."""
    many = f"{len(found.differences)} values compared"
    if found.first is None:
        return f"{many}: none differs by more than {found.tolerance:g} of its largest number"
    at = [d.name for d in found.differences].index(found.first.name)
    return (
        f"{many}: the first to differ by more than {found.tolerance:g} is '{found.first.name}' "
        f"({found.first.source}), at depth {at}, by {found.first.largest:.2e} of its largest number"
    )


def svg(found: Comparison, title: str) -> str:
    """Return an SVG picture of the largest and the typical difference of each value, by depth, on a
    logarithmic scale."""
    ends = [d.largest for d in found.differences if 0 < d.largest < math.inf]
    top = math.ceil(math.log10(max([*ends, found.tolerance, FLOOR * 10])))
    low = math.floor(math.log10(max(FLOOR, min([*ends, found.tolerance or 1.0]))))

    def height(value: float) -> float:
        level = math.log10(min(max(value, 10.0**low), 10.0**top))
        return EDGE + (top - level) / max(top - low, 1) * (HEIGHT - 2 * EDGE)

    def across(i: int) -> float:
        return EDGE + i / max(len(found.differences) - 1, 1) * (WIDTH - 2 * EDGE)

    parts = [f'<text x="{EDGE}" y="24" font-size="15">{xml(title)}</text>']
    for level in range(low, top + 1):
        y = height(10.0**level)
        parts.append(f'<path d="M{EDGE} {y:.1f}H{WIDTH - EDGE}" stroke="#ccc"/>')
        parts.append(f'<text x="8" y="{y + 4:.1f}">1e{level}</text>')
    y = height(found.tolerance)
    parts.append(f'<path d="M{EDGE} {y:.1f}H{WIDTH - EDGE}" stroke="#d97706" stroke-dasharray="6 4"/>')
    for what, colour in (("typical", "#4477aa"), ("largest", "#ee6677")):
        for i, d in enumerate(found.differences):
            told = f"{d.name} ({d.source}): {what} {getattr(d, what):.2e}"
            parts.append(
                f'<circle cx="{across(i):.1f}" cy="{height(getattr(d, what)):.1f}" r="3" fill="{colour}">'
                f"<title>{xml(told)}</title></circle>"
            )
    parts.append(
        f'<text x="{EDGE}" y="{HEIGHT - 16}">depth, 0 to {len(found.differences) - 1}; red: the largest '
        f"difference, blue: the typical one, as shares; dashed: the tolerance</text>"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return (
        f'{head} font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
