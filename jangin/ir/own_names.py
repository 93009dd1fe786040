"""The model's names for its symbols, and the names of the same symbols during compilation.

A name is marked if the compiler might make the same name itself (x0, i1, acc, ...), or if it isn't an
identifier. The mark keeps a loop's variable from being taken for a size. It is removed when the plan or
program is made. Users see only the model's names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from jangin.ir.checks import Check
from jangin.ir.expr import Expr, Var
from jangin.ir.graph import Value
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ir.program import Bind, Branch, HostCall, Loop, Program, Region
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars, substitute
from jangin.ir.types import Type
from jangin.ir.words import quote

MARK = "_"
_MADE = re.compile(r"[a-z]{1,2}\d+|[a-z]|acc|out")
"""Names that the compiler makes."""
_SIZED = (Plan, PlanBuffer, Launch, Check, Program, Region, HostCall, Bind, Branch, Loop, Value, Type)
"""The classes whose fields contain sizes."""
T = TypeVar("T")


def marked(name: str) -> Var:
    """Return the symbol that stands for the model's symbol `name` during compilation."""
    plain = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and not _MADE.fullmatch(name)
    return Var(name if plain else MARK + name)


def own_name(symbol: Var) -> str:
    return symbol.name.removeprefix(MARK)


def own_sizes(e: Expr) -> Expr:
    """Return an expression with its symbols under the model's names."""
    others = {v: Var(own_name(v)) for v in free_vars(e) if v.name.startswith(MARK)}
    return substitute(e, others) if others else e


def own_text(text: str, symbols: Iterable[Var]) -> str:
    """Return a message in which symbols have the model's names."""
    own = {quote(v.name): quote(own_name(v)) for v in symbols if v.name.startswith(MARK)}
    if not own:
        return text
    names = "|".join(map(re.escape, sorted(own, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.])({names})(?![\w.])", lambda found: own[found[0]], text)


def with_own_names(made: T, symbols: Iterable[Var]) -> T:
    """Return a plan or a program in which sizes have the model's names. Inside kernels, sizes keep their
    names."""
    named: T = _named(made) if any(v.name.startswith(MARK) for v in symbols) else made
    return named


def _named(value: Any) -> Any:
    if isinstance(value, Expr):
        return own_sizes(value)
    if isinstance(value, Sources):  # these are names of nodes, not of sizes
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(map(_named, value))
    if isinstance(value, Mapping):
        return {_named(k): _named(v) for k, v in value.items()}
    if isinstance(value, _SIZED):
        return replace(value, **{f.name: _named(getattr(value, f.name)) for f in fields(value)})
    return value
