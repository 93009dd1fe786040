"""Stored results: each is a JSON file in benchmarks/results. This command draws them as a page.

python benchmarks/sections.py --out measured     # all of them as measured/RESULTS.md, with pictures
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Table:
    """A table. Each of its rows has a text for each column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if odd := next((row for row in self.rows if len(row) != len(self.columns)), None):
            raise ValueError(f"a row of {len(odd)} cells in a table of {len(self.columns)} columns: {odd}")

    def __str__(self) -> str:
        lines = (self.columns, ["---"] * len(self.columns), *self.rows)
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def json(self) -> str:
        """Return the table as JSON with a line for each row, so that a changed figure is one changed line."""
        rows = ",\n  ".join(map(_json, self.rows))
        return f'{{"columns": {_json(self.columns)},\n "rows": [\n  {rows}]}}'


@dataclass(frozen=True)
class Section:
    """The results of one command: paragraphs and tables, in the order in which people read them.

    `ratios`: how many times as fast Jangin is as each peer, by peer, number of threads (as text) and model's
    title. If there are any, a picture is drawn of them."""

    title: str
    parts: Sequence[str | Table]
    ratios: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None

    def save(self, name: str, folder: Path = FOLDER) -> Path:
        """Write NAME.json at once. After an interruption the old file or the new one is there."""
        path = folder / f"{name}.json"
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        parts = ",\n".join(part.json() if isinstance(part, Table) else _json(part) for part in self.parts)
        title, ratios = _json(self.title), _json(self.ratios or {})
        unfinished.write_text(f'{{"title": {title},\n"parts": [\n{parts}\n],\n"ratios": {ratios}}}\n')
        unfinished.rename(path)
        return path

    @classmethod
    def load(cls, path: Path) -> Section:
        content: dict[str, Any] = json.loads(path.read_text())
        parts = [part if isinstance(part, str) else Table(**part) for part in content["parts"]]
        return cls(content["title"], parts, content["ratios"])

    def markdown(self, picture: str = "") -> str:
        """Return the section as Markdown. `picture` is the file that shows its ratios."""
        pictures = [f"![ratios]({picture})"] if picture else []
        return "\n\n".join([f"## {self.title}", *pictures, *map(str, self.parts)])


def rows_of(name: str) -> list[list[str]]:
    """Return the rows of all tables that were saved under a name before."""
    path = FOLDER / f"{name}.json"
    parts = Section.load(path).parts if path.exists() else []
    return [[*map(str, r)] for part in parts if isinstance(part, Table) for r in part.rows]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def render(paths: Iterable[Path], out: Path) -> Path:
    """Write a page of the sections, and a picture for each section with ratios, to a folder."""
    from plot import draw

    out.mkdir(parents=True, exist_ok=True)
    texts = ["# Measured"]
    for path in sorted(paths):
        section = Section.load(path)
        picture = f"{path.stem}.svg" if section.ratios else ""
        if section.ratios:
            draw(section.ratios, section.title, out / picture)
        texts.append(section.markdown(picture))
    page = out / "RESULTS.md"
    page.write_text("\n\n".join(texts) + "\n")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for the page and its pictures")
    parser.add_argument("names", nargs="*", help="results to draw; default: all")
    args = parser.parse_args()
    paths = [FOLDER / f"{name}.json" for name in args.names] or list(FOLDER.glob("*.json"))
    if missing := [path.stem for path in paths if not path.is_file()]:
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.json")))
        parser.error(f"no results {', '.join(missing)}; known: {known}")
    print(f"written to {render(paths, args.out)}")


if __name__ == "__main__":
    main()
