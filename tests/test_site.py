"""The site is built without a warning and without a network, and it has every page and every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings") if find_spec(name) is None]
OFFLINE = """
import socket, sys

def refused(*given, **named):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
from mkdocs.__main__ import cli
sys.argv[0] = "mkdocs"
cli()
"""
"""MkDocs's command without a network."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(f"{', '.join(MISSING)} of the extra `docs` isn't installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", folder]
    around = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=around, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def text(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_page_is_built_and_asks_nobody(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    for page in pages - {Path("index")}:
        assert (site / page / "index.html").is_file(), page
    for page in site.rglob("*.html"):
        asked = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(https?:[^\"]*)\"", page.read_text()
        )
        assert not asked, f"{page} asks {asked}"


@pytest.mark.slow
def test_generated_pages_have_their_subjects(site: Path) -> None:
    import typer

    import jangin
    from jangin.cli import app

    commands = text(site / "reference" / "commands" / "index.html")
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"jangin {name}" in commands
        for param in command.params:
            flags = [o for o in param.opts if o.startswith("--")]
            assert all(f in commands for f in flags) or param.hidden, (name, flags)
    python = text(site / "reference" / "python" / "index.html")
    doors = ("compile", "build", "emit", "load", "quantize", "compare", "train", "value_and_grad")
    for name in (*doors, "operator", "hosted", "Executable", "Limits"):
        assert re.search(rf"\b{name}\b", python) and name in jangin.__all__
    assert "winograd" in python and "isolated" in python, "options are taken from their record"
    measured = text(site / "reference" / "benchmarks" / "index.html")
    assert len(re.findall(r"geometric mean", measured)) > 3
