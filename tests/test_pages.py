"""The documents' paths, names and links exist, and their sentences are short."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import words

ROOT = Path(__file__).resolve().parent.parent
NAMED = ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY")
FIRST = ROOT / "docs" / "index.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
INSIDE = [p for p in (ROOT / "docs").glob("*.md") if p != FIRST]
"""Pages that describe the compiler. The others are for its users."""
PACKAGES = [ROOT / "packaging" / "README.md", ROOT / "packaging" / "runtime" / "README.md"]
DOCUMENTS = [*(ROOT / f"{n}.md" for n in NAMED), *PAGES, *PACKAGES]
DESCRIPTIONS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *INSIDE]
"""Documents whose code spans name parts of this repository. Code spans of the others may name a user's files,
or past names."""
PAGE_WORDS = 1200
"""The most words of a page of docs/, without code blocks: what a reader takes in at one sitting."""


def _prose(document: Path) -> str:
    """Return a document without its code blocks."""
    return re.sub(words.CODE, "", document.read_text(encoding="utf-8"))


def _spans(document: Path) -> list[str]:
    """Return the code spans in a document's sentences."""
    return re.findall(r"`([^`\n]+)`", _prose(document))


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_faults_are_found_where_sentences_are() -> None:
    """Code blocks, headings and addresses are no sentences. Each paragraph, item and cell is a text."""
    long = "word " * words.LONGEST
    short = "Of [one](a.md#of-one).\n"
    text = (
        f"# Of {long}too\n\nA [word](https://x.org/{'y' * 99}) and `{long}` here.\nOne {long}more.\n\n"
        f"```sh\n{long * 2}\n```\n- item {long}\n- {short}  1. {short}| cell | **To** be |\n|---|---|\n"
    )
    found = [(line, words.fault(part)[:8]) for line, part in words.prose(text)]
    lines = {3: "27 words", 9: "26 words", 10: "begins w", 11: "begins w"}
    assert found == [*lines.items(), (12, ""), (12, "begins w")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_sentences_are_short_and_stand_alone(document: Path) -> None:
    assert [*words.faults(document)] == []


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_a_page_is_read_at_one_sitting(page: Path) -> None:
    assert len(_prose(page).split()) < PAGE_WORDS


def test_every_page_is_found_from_the_first_one() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert {_named(p) for p in INSIDE} == set(re.findall(r"\((docs/\w[\w-]*\.md)\)", text))
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", settings, re.MULTILINE))
    assert {str(p.relative_to(ROOT / "docs")) for p in PAGES} <= listed
    guides = {f"guides/{p.name}" for p in (ROOT / "docs" / "guides").iterdir()}
    assert guides <= set(re.findall(r"\]\(([\w/-]+\.md)\)", FIRST.read_text(encoding="utf-8")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if target.startswith("https:"):
            continue
        name, _, anchor = target.partition("#")
        page = document.parent / name if name else document
        assert page.exists(), target
        assert not anchor or anchor in _anchors(page), target


def _anchors(page: Path) -> list[str]:
    """Return the names by which links reach a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings]


@pytest.mark.parametrize("document", DESCRIPTIONS, ids=_named)
def test_every_path_exists(document: Path) -> None:
    """A path in a document begins at the repository's root or in the package."""
    for span in _spans(document):
        if re.fullmatch(r"[\w.-]+/([\w.*-]+/?)*|[\w-]+\.(py|toml|md)", span):
            assert any(any(folder.glob(span.rstrip("/"))) for folder in (ROOT, ROOT / "jangin")), span


@pytest.mark.parametrize("document", DESCRIPTIONS, ids=_named)
def test_every_name_exists(document: Path) -> None:
    """A dotted name that begins with a module of the package exists. Every other name occurs in the code."""
    for span in _spans(document):
        name = span.removesuffix("()")
        first = name.split(".")[0]
        if "." in name and any((ROOT / "jangin" / f).exists() for f in (first, f"{first}.py")):
            if re.fullmatch(r"\w+(\.\w+)+", name) and not name.endswith(".py"):
                assert _leads_somewhere(f"jangin.{name}"), span
        elif re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name):
            assert set(name.split(".")) <= _names_in_code(), span


def _leads_somewhere(name: str) -> bool:
    """Return whether a dotted name is a module's, or that of something in a module."""
    module, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return hasattr(importlib.import_module(module), last)
    return True


@cache
def _names_in_code() -> frozenset[str]:
    """Return all words of the package, its tests and its settings."""
    code = [f for folder in ("jangin", "tests", "benchmarks") for f in _python(ROOT / folder)]
    texts = (file.read_text(encoding="utf-8") for file in (ROOT / "pyproject.toml", *code))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def _python(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.py")


def test_the_examples_of_adding_things_are_the_codes() -> None:
    code = {line.strip() for file in _python(ROOT / "jangin") for line in file.read_text().splitlines()}
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", (ROOT / "docs" / "adding.md").read_text(), re.S | re.M)
    assert len(blocks) >= 2
    for line in (line.strip() for block in blocks for line in block.splitlines()):
        assert line in code or f"{line}," in code, line
