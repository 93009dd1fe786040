"""Sentences of comments, docstrings and documents that are too long, or lean on the sentence before them.

`python -m tests.words FOLDER_OR_FILE...` lists the sentences of a folder's Python files, or of one file
(Python or Markdown), so that they can be rewritten."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

LONGEST = 25
"""Words of a sentence at most. Readers lose the thread of longer ones; the limit is that of plain-language
guides."""
HANGING = re.compile(r"(And|Of|To|What|Where|That|Which)\b")
"""Words that no sentence begins with, because such a sentence leans on the one before it."""
DIRECTIVES = ("noqa", "fmt:", "type:", "ruff:", "mypy:", "!", "pragma", "%%")
"""Beginnings of comments that tools read, which are no sentences."""
INDENTED = re.compile(r"\n\n(?: {4}.*\n*)+")
"""A block of commands in a docstring, which is no sentence."""
CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
"""A code block of a Markdown text."""
ROOT = Path(__file__).parents[1]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text. Code in backquotes counts as one word, and a list's item ends a
    sentence."""
    text = re.sub(r"``.*?``|`[^`]*`", "code", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. |>>> |\w+: )", text):
        yield from re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", paragraph).strip())


def fault(text: str) -> str:
    """Return the first fault of a text, with its sentence. Empty if there is none."""
    for sentence in sentences(text):
        if (count := len(sentence.split())) > LONGEST:
            return f"{count} words: {sentence}"
        if beginning := HANGING.match(sentence):
            return f"begins with {beginning[1]}: {sentence}"
    return ""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, also those of constants and fields."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield statement.lineno, re.sub(INDENTED, "\n\n", cleandoc(text))


def unexplained(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each number of a module that no docstring or comment explains. A docstring
    explains all assignments of numbers directly above it."""
    body, lines = ast.parse(source).body, source.splitlines()
    waiting: list[ast.Assign] = []
    for statement in body:
        if isinstance(statement, ast.Assign) and _is_number(statement):
            commented = "#" in lines[statement.lineno - 1] or lines[statement.lineno - 2].startswith("#")
            waiting += [] if commented else [statement]
            continue
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        yield from [] if is_text else [(s.lineno, ast.unparse(s.targets[0])) for s in waiting]
        waiting = []
    yield from [(s.lineno, ast.unparse(s.targets[0])) for s in waiting]


def _is_number(statement: ast.Assign) -> bool:
    """Tell if a statement gives numbers to names."""
    target, value = statement.targets[0], statement.value
    values = value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value]
    parts = [part for v in values for part in ast.walk(v)]
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    numbers = (type(p.value) in (int, float) for p in parts if isinstance(p, ast.Constant))
    return all(isinstance(p, kinds) for p in parts) and all(numbers)


def unreasoned(source: str) -> Iterator[int]:
    """Yield the lines that catch every error, and neither raise one nor tell in a comment why."""
    commented = {line for line, _ in comments(source)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            kinds = {"Exception"} if node.type is None else {ast.unparse(n) for n in ast.walk(node.type)}
            told = commented & {*range(node.lineno, (node.body[-1].end_lineno or 0) + 1)}
            raises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
            if kinds & {"Exception", "BaseException"} and not told and not raises:
                yield node.lineno


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and text of each comment. Consecutive lines of comment are one text."""
    start, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("#:")
        if token.type != tokenize.COMMENT or text.strip().startswith(DIRECTIVES):
            continue
        alone = not token.line[: token.start[1]].strip()
        if not (alone and token.start[0] == last + 1):
            if lines:
                yield start, "\n".join(lines)
            start, lines = token.start[0], []
        lines.append(text)
        last = token.start[0] if alone else -1
    if lines:
        yield start, "\n".join(lines)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each paragraph, list item and table cell of a Markdown text.

    Code blocks, headings and HTML comments are left out. A link counts as its text."""
    source = re.sub(r"<!--.*?-->", _blank, CODE.sub(_blank, source), flags=re.DOTALL)
    source = re.sub(r"\]\([^)\s]*\)|\*\*|[\[\]!](?=\[)|(?<!\w)\[", "", source)
    start, lines = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        apart = not line.strip() or line.startswith(("#", "|")) or re.match(r"\s*([-*]|\d+\.) ", line)
        if apart and lines:
            yield start, "\n".join(lines)
            lines = []
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line) if cell.strip(" -:"))
        elif line.strip() and not line.startswith("#"):
            start = start if lines else number
            lines.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line))


def _blank(match: re.Match[str]) -> str:
    """Return as many empty lines as the matched text has."""
    return "\n" * match[0].count("\n")


def faults(path: Path) -> Iterator[str]:
    """Yield each faulty comment and docstring of a Python file, or paragraph of a Markdown file, with its
    line."""
    source = path.read_text(encoding="utf-8")
    texts = prose(source) if path.suffix == ".md" else sorted([*docstrings(source), *comments(source)])
    for line, text in texts:
        if found := fault(text):
            yield f"{path.relative_to(ROOT)}:{line}: {found}"


def files(folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder, or the file itself."""
    path = ROOT / folder
    yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


if __name__ == "__main__":
    listed = [text for folder in sys.argv[1:] for path in files(folder) for text in faults(path)]
    print(*listed, f"{len(listed)} to rewrite", sep="\n")
