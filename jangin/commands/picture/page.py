"""Draw a graph as one HTML page without other files. A click on a node shows its details."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import Template

from jangin.commands.picture.layout import extent, layout
from jangin.ir.core import Kernel
from jangin.ir.graph import Graph, Node
from jangin.ir.graph_text import attribute_text
from jangin.ir.own_names import with_own_names
from jangin.ir.plan import Launch

HEIGHT = 40.0
"""The height in pixels of a box, which has two lines of text."""
LETTER, LEAST = 7.4, 90.0
"""The assumed width of a letter, and the smallest width of a box, in pixels. The page's font has 13 pixels,
and its letters are some 0.57 of this wide."""
LONGEST = 26
"""The most letters of a name that a box shows, so that boxes stay narrow."""
MOST_TEXT = 1500
"""The most letters that are shown of an attribute's text. Some attributes are whole tables."""
Rows = list[tuple[str, str]]


def page(title: str, graph: Graph, launches: Sequence[Launch], seconds: Mapping[str, float]) -> str:
    """Return the HTML page for a graph. `launches` are the launches of its plans. `seconds` has, for each
    measured kernel, the time of all its launches in a run."""
    boxes = [_Box(graph.value(n).name, "input", [("type", _type(graph, n))], "", 0.0) for n in graph.inputs]
    boxes += [_of_node(graph, node, launches, seconds) for node in graph.nodes]
    first = len(graph.inputs)
    producers = {name: i for i, name in enumerate(graph.inputs)}
    producers |= {name: first + i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    edges = [
        (producers[name], first + i)
        for i, node in enumerate(graph.nodes)
        for name in dict.fromkeys(node.inputs)
        if name in producers
    ]
    for name in graph.outputs:
        boxes.append(_Box(name, "output", [("type", _type(graph, name))], "", 0.0))
        if name in producers:
            edges.append((producers[name], len(boxes) - 1))
    data = json.dumps([{"title": b.title, "rows": b.rows} for b in boxes], ensure_ascii=False)
    template = Template(files(__package__).joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(title),
        summary=escape(_summary(graph, seconds)),
        drawing=_drawing(boxes, edges),
        graph=data.replace("<", "\\u003c"),
    )


class _Box:
    """A box: its name, its operator, the rows of its details, and its kernel's name and seconds."""

    def __init__(self, name: str, op: str, rows: Rows, kernel: str, seconds: float) -> None:
        self.name, self.op, self.rows = name, op, rows
        self.kernel, self.seconds = kernel, seconds
        self.shown = name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
        self.width = max(LEAST, LETTER * len(op) + 24, 0.8 * LETTER * len(self.shown) + 24)

    @property
    def title(self) -> str:
        return f"{self.op} {self.name}"


def _of_node(graph: Graph, node: Node, launches: Sequence[Launch], seconds: Mapping[str, float]) -> _Box:
    mine = {*node.source}
    op = node.op.rpartition(".")[2] or node.op
    if isinstance(node.attrs, Kernel):
        mine |= {source for n in node.attrs.body.nodes for source in n.source}
        op = f"kernel: {', '.join(dict.fromkeys(n.op for n in node.attrs.body.nodes))}"
    own = {x.kernel: x for x in launches if not mine.isdisjoint(x.sources)}
    measured = [seconds[k] for k in own if k in seconds]
    took = sum(measured)
    rows: Rows = [("node", str(node.source))] if node.source else []
    rows += [("input", _value(graph, n)) for n in node.inputs if n]
    rows += [("output", _value(graph, n)) for n in node.outputs if n]
    rows += [(k, _short(v)) for k, v in node.attrs.named().items()]
    rows += [("kernel", f"{k}, by {x.template}, for {x.sources}") for k, x in own.items()]
    rows += [("time", f"{took * 1e6:.1f} µs in all, with what is fused")] if measured else []
    return _Box(node.name, op, rows, " ".join(own), took)


def _type(graph: Graph, name: str) -> str:
    return str(with_own_names(graph.value(name), graph.symbols))


def _value(graph: Graph, name: str) -> str:
    held = f"{name}: {_type(graph, name)}" if name in graph.values else name
    return f"{held} (constant)" if name in graph.constants else held


def _short(value: object) -> str:
    text = f"a graph of {len(value.nodes)} nodes" if isinstance(value, Graph) else attribute_text(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _summary(graph: Graph, seconds: Mapping[str, float]) -> str:
    weights = sum(a.nbytes for a in graph.constants.values())
    text = f"{len(graph.nodes)} nodes, {weights / 1e6:.2f} MB of constants"
    return f"{text}, {sum(seconds.values()) * 1e3:.2f} ms in kernels" if seconds else text


def _drawing(boxes: Sequence[_Box], edges: Sequence[tuple[int, int]]) -> str:
    widths = [b.width for b in boxes]
    arrangement = layout(widths, edges)
    most = max((b.seconds for b in boxes), default=0.0)
    parts = []
    for (start, end), points in zip(edges, arrangement.lines, strict=True):
        parts.append(f'<path class="edge" data-from="{start}" data-to="{end}" d="{_curve(points)}"/>')
    for box, (x, y) in zip(boxes, arrangement.boxes, strict=True):
        heat = f";--heat:{60 * box.seconds / most:.0f}%" if box.seconds else ""
        hue = zlib.crc32(box.op.encode()) % 360  # all boxes of an operator have the same hue
        parts.append(
            f'<g class="node{" hot" if heat else ""}" tabindex="0" style="--hue:{hue}{heat}">'
            f"<title>{escape(box.title)}</title>"
            f'<rect x="{x - box.width / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{box.width:.1f}" '
            f'height="{HEIGHT}"/><text x="{x:.1f}" y="{y - 2:.1f}">{escape(box.op)}</text>'
            f'<text class="name" x="{x:.1f}" y="{y + 13:.1f}">{escape(box.shown)}</text></g>'
        )
    area = extent(arrangement, widths, HEIGHT)
    view = " ".join(f"{area[k]:.0f}" for k in ("x", "y", "width", "height"))
    return f'<svg viewBox="{view}" role="img" aria-label="The graph">{"".join(parts)}</svg>'


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path from the lower edge of the first box to the upper edge of the last. It is vertical
    in each layer."""
    (x, y), *rest = points
    ends = [(x, y + HEIGHT / 2), *rest[:-1], (rest[-1][0], rest[-1][1] - HEIGHT / 2)]
    text = f"M{ends[0][0]:.0f} {ends[0][1]:.0f}"
    for (x0, y0), (x1, y1) in pairwise(ends):
        middle = (y0 + y1) / 2
        text += f"C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"
    return text
