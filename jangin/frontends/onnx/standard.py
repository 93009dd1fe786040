"""The ONNX standard's descriptions of operators, from the table `standard.txt`.

ONNX's library has them too, but takes 12 ms to load them, a tenth of a small model's first answer. It is
asked for newer versions than the table's, and for operators that a caller declared in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jangin.frontends.onnx import library
from jangin.ir.records import dataclass

DEPRECATED, BODY = "d", "f"
"""Marks of a version that is deprecated, and of one that the standard defines by other operators."""
SINGLE = "S"
"""The option of an input that must be given. `O` marks an optional one, and `V` any number."""
VARIED = "*"
"""The mark of an input whose several values may have different types."""
REQUIRED = "!"


class Formal(NamedTuple):
    """An input as the standard describes it. `type` is a type, or the name of a set of types."""

    name: str
    type: str
    option: str
    homogeneous: bool


@dataclass(frozen=True)
class Schema:
    """A version of an operator, from the opset `since` on.

    - `attributes` has the number of each attribute's kind in `AttributeProto`.
    - `required` names the attributes that must be given.
    - `inputs` and `outputs` are the least and the most that a node has.
    - `types` has the types in each set that `formals` name.
    - `has_body` tells whether the standard defines the operator by other operators."""

    since: int
    attributes: Mapping[str, int]
    required: tuple[str, ...]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    formals: tuple[Formal, ...]
    types: Mapping[str, frozenset[str]]
    has_body: bool
    deprecated: bool


def find(domain: str, name: str, opset: int) -> Schema | None:
    """Return the version of an operator at an opset, or None if the standard has none. Deprecated versions
    are returned too."""
    table = _table()
    lines = [*_versions(table.text, domain, name)]
    if opset > table.last.get(domain, opset) or (not lines and "onnx.defs" in sys.modules):
        return _from_library(domain, name, opset)
    known = [line for line in lines if int(line[2]) <= opset]
    return _read(known[-1]) if known else None


class _Table(NamedTuple):
    text: str
    types: list[str]
    last: dict[str, int]


@cache
def _table() -> _Table:
    text = (Path(__file__).parent / "standard.txt").read_text("ascii")
    types, domains = text.split("\n", 2)[:2]
    last = (entry.rpartition("=") for entry in domains.split("|"))
    return _Table(text, types.split("|"), {domain: int(version) for domain, _, version in last})


def _versions(text: str, domain: str, name: str) -> Iterator[list[str]]:
    """Yield the table's lines of an operator, which are in ascending order of versions."""
    begin = f"\n{domain}\t{name}\t"
    place = text.find(begin)
    while place >= 0:
        end = text.index("\n", place + 1)
        line = text[place + 1 : end].split("\t")
        if line[1] == name:  # else the name itself has a tab
            yield line
        place = end if text.startswith(begin, end) else -1


def _read(line: list[str]) -> Schema:
    _, _, since, marks, counts, attributes, formals, sets = line
    low, high, least, most = map(int, counts.split())
    kinds = [entry.rpartition(":") for entry in _entries(attributes)]
    return Schema(
        int(since),
        {name: int(kind.rstrip(REQUIRED)) for name, _, kind in kinds},
        tuple(name for name, _, kind in kinds if kind.endswith(REQUIRED)),
        (low, high), (least, most),
        tuple(
            Formal(name, type, option.rstrip(VARIED), not option.endswith(VARIED))
            for name, type, option in (entry.split(":") for entry in _entries(formals))
        ),
        {name: _set(int(bits, 16)) for name, _, bits in (entry.rpartition(":") for entry in _entries(sets))},
        BODY in marks, DEPRECATED in marks,
    )  # fmt: skip


def _entries(text: str) -> list[str]:
    return text.split("|") if text else []


@cache
def _set(bits: int) -> frozenset[str]:
    """Return the types whose numbers are the set bits."""
    types = _table().types
    return frozenset(types[n] for n in range(bits.bit_length()) if bits >> n & 1)


def _from_library(domain: str, name: str, opset: int) -> Schema | None:
    schemas = library.schemas()
    try:
        known = schemas.get_schema(name, opset, domain)
    except (schemas.SchemaError, OverflowError, TypeError):
        return None
    return described(known)


def described(known: Any) -> Schema:
    """Return what ONNX's library tells about a version of an operator."""
    attributes = {name: int(a.type.value) for name, a in known.attributes.items()}
    formals = (
        Formal(f.name, f.type_str, f.option.name[0], f.is_homogeneous) for f in known.inputs
    )  # fmt: skip
    return Schema(
        known.since_version, attributes, tuple(n for n, a in known.attributes.items() if a.required),
        (known.min_input, known.max_input), (known.min_output, known.max_output), tuple(formals),
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in known.type_constraints},
        known.has_function or known.has_context_dependent_function, known.deprecated,
    )  # fmt: skip


def written() -> str:
    """Return the table of all operators that ONNX's library knows."""
    schemas = library.schemas()
    operators = sorted(
        schemas.get_all_schemas_with_history(), key=lambda s: (s.domain, s.name, s.since_version)
    )
    types = sorted({t for s in operators for c in s.type_constraints for t in c.allowed_type_strs})
    last = schemas.schema_version_map()
    lines = ["|".join(types), "|".join(f"{domain}={high}" for domain, (_, high) in sorted(last.items()))]
    for operator in operators:
        known = described(operator)
        marks = BODY * known.has_body + DEPRECATED * known.deprecated
        kinds = (f"{n}:{kind}{REQUIRED * (n in known.required)}" for n, kind in known.attributes.items())
        formals = (f"{f.name}:{f.type}:{f.option}{VARIED * (not f.homogeneous)}" for f in known.formals)
        sets = (f"{n}:{sum(1 << types.index(t) for t in ts):x}" for n, ts in known.types.items())
        lines.append(
            "\t".join((
                operator.domain, operator.name, str(known.since), marks,
                " ".join(map(str, (*known.inputs, *known.outputs))), "|".join(kinds), "|".join(formals),
                "|".join(sets),
            ))
        )  # fmt: skip
    return "\n".join(lines) + "\n"
