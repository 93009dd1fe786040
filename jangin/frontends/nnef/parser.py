"""Parse NNEF's text by the package `nnef`, in a separate process (see `parsing`)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from jangin.frontends.nnef.fragments import FRAGMENTS, known
from jangin.frontends.nnef.operators import DEFINED, OPERATIONS, UNDECLARED
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass

MOST_SECONDS = 60
"""A parser that runs longer than this many seconds is stopped. Its processor time is limited to a third of
this (`parsing.MOST_SECONDS`), because other programs may keep the processor busy."""
DECLARED = ("external", "variable", "constant")
BUILTIN = (
    "scalar", "integer", "logical", "string", "shape_of", "length_of", "range_of", "graph", "fragment", "in",
    "if", "yield", "tensor", "else", "for",
)  # fmt: skip
"""Words that may precede a parenthesis and are no operations."""
_NOISE = re.compile(r"#[^\n]*|'[^'\n]*'|\"[^\"\n]*\"")
_FRAGMENT = re.compile(r"\bfragment\s+(\w+)[^;{]*([;{])")
_HEAD = re.compile(r"(?:\s|#[^\n]*\n)*version\s+[\d.]+\s*;(?:(?:\s|#[^\n]*\n)*extension\b[^;]*;)*")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<\s*\w*\s*>\s*)?\(")


_SIGN = re.compile(
    r"(?:(?<=[(\[{,=+*/^<>&|!:?-])|(?<=\b(?:in|if)\b)|(?<=\belse\b))\s*([-!])(?!=)\s*(?=[\w.(])"
)
_NAME = re.compile(r"(?:\d[\d.]*(?:[eE][-+]?\d+)?|\w+)?")
_OPENING = re.compile(r"\s*[(\[]")
_MORE = re.compile(r"\s*(?:[-+*/^<>&|]|[!=]=)")


@dataclass(frozen=True)
class Operation:
    """One operation, with its literal arguments, its tensor arguments and its results, in the form of JSON. A
    tensor is {"is": name}.

    `dtype` is the type that selects one variant of a generic operation."""

    name: str
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    dtype: str | None


@dataclass(frozen=True)
class Parsed:
    """A parsed graph. `tensors` has each tensor's type and quantization by name."""

    name: str
    inputs: list[str]
    outputs: list[str]
    operations: list[Operation]
    tensors: dict[str, tuple[str, dict[str, Any]]]


@lru_cache(maxsize=2)
def parse(what: str, graph: str, quantization: str) -> Parsed:
    """Parse the texts of a graph and of its quantization file ("" if there is none). `what` is the model's
    name in messages.

    Raises CompileError if the text is malformed. If operations are unknown, it lists all of them."""
    text = _NOISE.sub(" ", graph)
    fragments = dict(_FRAGMENT.findall(text))
    called = set(_CALL.findall(text))
    _refuse_unknown(what, text, called - fragments.keys())
    own = [name for name, end in fragments.items() if end == "{" and name not in known(graph)]
    lowered = [*DEFINED, *own]
    undeclared = [UNDECLARED[name] for name in sorted((called & UNDECLARED.keys()) - fragments.keys())]
    graph = _declaring(signs_first(graph), undeclared)
    asked = {"graph": graph, "quantization": quantization, "lowered": lowered, "path": sys.path}
    command = [sys.executable, "-I", str(Path(__file__).with_name("parsing.py"))]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked).encode(), capture_output=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"{what}: parsing it takes more than {MOST_SECONDS} seconds") from None
    if done.returncode or not done.stdout:
        raise CompileError(
            f"{what} is too large to parse, nested too deep, or has fragments that call themselves for ever: "
            f"NNEF's parser ended ({done.returncode})"
        )
    answer = json.loads(done.stdout)
    if "missing" in answer:
        raise CompileError(
            f"{what} is an NNEF model, which the package nnef reads: pip install 'jangin[nnef]'"
        )
    if "error" in answer:
        # the parser's name of an input whose file is missing
        answer["error"] = answer["error"].replace("'input' ", "")
        raise CompileError(f"{what}: {answer['error']}")
    operations = [Operation(*o) for o in answer["operations"]]
    tensors = {n: (t, q) for n, (t, q) in answer["tensors"].items()}
    return Parsed(answer["name"], answer["inputs"], answer["outputs"], operations, tensors)


def _declaring(graph: str, declarations: list[str]) -> str:
    """Return the text with declarations added to its head. The lines of the text keep their numbers."""
    head = _HEAD.match(graph)
    if head is None or not declarations:
        return graph
    added = " extension KHR_enable_fragment_definitions; " + " ".join(declarations)
    return graph[: head.end()] + added + graph[head.end() :]


def signs_first(graph: str) -> str:
    """Return the text with parentheses around each signed operand that another operand follows. The package's
    parser takes `-a + b` for -(a + b)."""
    plain = _NOISE.sub(lambda m: " " * len(m.group()), graph)
    added: list[tuple[int, str]] = []
    for sign in _SIGN.finditer(plain):
        end = _operand(plain, sign.end())
        if _MORE.match(plain, end):
            added += [(sign.start(1), "("), (end, ")")]
    parts, last = [], 0
    for at, bracket in sorted(added, key=lambda a: a[0]):
        parts += [graph[last:at], bracket]
        last = at
    return "".join([*parts, graph[last:]])


def _operand(text: str, at: int) -> int:
    """Return the end of the operand that begins at the position `at`. An operand is a name or a bracket, with
    all brackets that follow it."""
    name = _NAME.match(text, at)
    assert name is not None
    end = name.end()
    while (opened := _OPENING.match(text, end)) is not None:
        depth = 0
        for end in range(opened.end() - 1, len(text)):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            if not depth:
                break
        end += 1
        if depth:
            return len(text)
    return end


def _refuse_unknown(what: str, text: str, called: set[str]) -> None:
    """Raise CompileError if operations are called that aren't in the standard. It names all of them."""
    there = {*(OPERATIONS.keys() - FRAGMENTS.keys()), *DEFINED, *DECLARED, *BUILTIN}
    graph = re.search(r"\bgraph\s+(\w+)", text)
    unknown = sorted(called - there - ({graph.group(1)} if graph else set()))
    if unknown:
        many = f"{len(unknown)} operations are" if len(unknown) > 1 else "1 operation is"
        raise CompileError(
            f"{what}: {many} not supported: {', '.join(unknown)}; define what isn't standard as a fragment"
        )
