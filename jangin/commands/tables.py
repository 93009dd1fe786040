"""Lay out tables for a terminal's width without cutting a word."""

from __future__ import annotations

import textwrap
from copy import copy

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

INDENT = 4
"""Columns by which the further lines of a row are indented, so that each row's begin stands out."""
ENDLESS = 1 << 20
"""A width that exceeds every table's, in columns. A table's natural width is found by it."""


def laid_out(table: Table, console: Console) -> Table | Text:
    """Return a table in a form that fits the console's width.

    A table that fits stays unchanged. Otherwise texts are broken between words. If there is no room for the
    longest word of each column, each row becomes a paragraph of headings and cells."""
    room = console.options.update(width=ENDLESS, max_width=ENDLESS)
    widest, words = [], []
    for column in table.columns:
        cells = [*([column.header] if table.show_header else []), *column.cells]
        lines = [line for cell in cells for line in _text(cell).splitlines()]
        pieces = lines if column.no_wrap else [word for line in lines for word in line.split()]
        widest.append(max(map(cell_len, lines), default=0))
        words.append(max(map(cell_len, pieces), default=0))
    edges = Measurement.get(console, room, table).maximum - sum(widest)
    left = console.width - edges - sum(words)
    if left < 0:
        return _paragraphs(table, console.width)
    if edges + sum(widest) <= console.width:
        return table
    wanted = sum(widest) - sum(words)
    layout = copy(table)
    layout.columns = [copy(column) for column in table.columns]
    for column, wide, word in zip(layout.columns, widest, words, strict=True):
        column.width = word + left * (wide - word) // wanted
    return layout


def tabbed(table: Table) -> str:
    """Return a table's text for other programs: a line for each row, with tabs between cells. Title and
    caption are lines that begin with `#`."""
    rows = zip(*(column.cells for column in table.columns), strict=True)
    heads = [[column.header for column in table.columns]] if table.show_header else []
    lines = ["\t".join(" ".join(_text(cell).split()) for cell in row) for row in (*heads, *rows)]
    before, after = ([f"# {_text(text)}"] if text else [] for text in (table.title, table.caption))
    return "\n".join([*before, *lines, *after]) + "\n"


def _paragraphs(table: Table, width: int) -> Text:
    """Return the table's rows as paragraphs of pieces `heading cell`."""
    paragraphs = Text()
    for line in _text(table.title or "").splitlines():
        paragraphs.append(f"{_wrapped(line, width)}\n", style="bold")
    headings = [_text(column.header) if table.show_header else "" for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        pairs = zip(headings, map(_text, row), strict=True)
        lines = _paragraph([f"{heading} {cell}".strip() for heading, cell in pairs if cell], width)
        paragraphs.append("".join(f"{line}\n" for line in lines))
    for line in _text(table.caption or "").splitlines():
        paragraphs.append(f"{_wrapped(line, width)}\n")
    paragraphs.right_crop(1)
    return paragraphs


def _paragraph(pieces: list[str], width: int) -> list[str]:
    """Return the lines that hold the pieces, as few as possible. A long piece is wrapped between words."""
    lines = [""]
    for piece in pieces:
        apart = " · " if lines[-1].strip() else ""
        if cell_len(lines[-1]) + cell_len(apart + piece) <= width:
            lines[-1] += apart + piece
            continue
        room = max(width - INDENT, 1)
        lines += [" " * INDENT + line for line in _wrapped(piece, room).splitlines()]
    return [line for line in lines if line]


def _wrapped(text: str, width: int) -> str:
    """Return a text with its lines broken between words."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
