"""A hook of MkDocs: the pages that are made from the code, the measurements and the root's documents."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "packaging/README.md": "PACKAGES.md",
}
"""Documents outside docs/, and their pages."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages. MkDocs calls it with all files of docs/."""
    pages = {page: (ROOT / path).read_text(encoding="utf-8") for path, page in DOCUMENTS.items()}
    pages["reference/commands.md"] = commands()
    pages["reference/benchmarks.md"] = benchmarks()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between documents into links between pages. A link to another file of the repository, such
    as an example, becomes the file's path."""
    source = next((path for path, name in DOCUMENTS.items() if name == page.file.src_uri), None)
    home = ROOT / (f"docs/{page.file.src_uri}" if source is None else source)

    def led(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target:
            return link[0]
        goal = (home.parent / target).resolve()
        if source is None and goal.is_relative_to(ROOT / "docs"):
            return link[0]
        path = str(goal.relative_to(ROOT))
        name = DOCUMENTS.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(name) is None:
            return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"
        up = "../" * page.file.src_uri.count("/")
        return f"[{text}]({up}{name}{anchor})"

    return LINK.sub(led, markdown)


def commands() -> str:
    """Return a page of all commands: their help, an example and their options."""
    import typer

    from jangin.cli import app

    group: Any = typer.main.get_command(app)
    parts = ["# The command line", *_described(group, "jangin")]
    parts += [
        "Options of every command stand before its name. The environment may set those with a variable."
    ]
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        parts += [f"## jangin {name}", *_described(command, f"jangin {name}")]
    return "\n\n".join(parts) + "\n"


def _described(command: Any, path: str) -> Iterator[str]:
    """Yield the paragraphs of a command's help, and a table of its options."""
    context = command.make_context(path, [], resilient_parsing=True)
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```"
    yield from (_escaped(" ".join(part.split())) for part in (command.help or "").split("\n\n"))
    if command.epilog:
        yield f"`{command.epilog.removeprefix('Example: ')}`"
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [f"| `{_in_code(shown)}` | {_escaped(told)} |" for shown, told in filter(None, records)]
    if rows:
        yield "\n".join(["| Option | Meaning |", "|---|---|", *rows])


def _in_code(text: str) -> str:
    """Return a text for a code span in a table's cell, which no bar may end."""
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """Return a text for a table's cell or a paragraph, without marks of Markdown."""
    return re.sub(r"([|<*_\[])", r"\\\1", " ".join(text.split()))


def benchmarks() -> str:
    """Return a page of all measurements in benchmarks/results, each with its tables."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from sections import FOLDER, Section
    finally:
        sys.path.pop(0)
    found = [Section.load(path) for path in sorted(FOLDER.glob("*.json"))]
    intro = (
        "# Benchmarks\n\nEach section is one measurement. Its JSON file has all figures, and "
        "`benchmarks/RESULTS.md` says which command makes it again. All times of a measurement come from "
        "one run, in which the engines took turns. Ratios are of medians, and over 1 Jangin is the faster."
    )
    return "\n\n".join([intro, *(section.markdown() for section in found)]) + "\n"
