"""Functions that compiled code exports (`runtime.functions`), written as LLVM IR."""

from __future__ import annotations

from jangin.runtime.functions import Function


def declared(function: Function, name: str = "") -> str:
    """Return a function's declaration, optionally under another name, as LLVM IR text."""
    return f'declare {function.result} @"{name or function.name}"({", ".join(function.types)})'


def head(function: Function, name: str = "") -> str:
    """Return the text that follows `define`. Parameters have the names of the description."""
    params = (f"{t} %{n}" for t, n in zip(function.types, function.names, strict=True))
    return f'{function.result} @"{name or function.name}"({", ".join(params)})'


def called(function: Function, callee: str, *operands: object) -> str:
    """Return a call of `callee` (`%f`, `@f`) with an operand for each parameter, as LLVM IR text."""
    arguments = ", ".join(f"{t} {o}" for t, o in zip(function.types, operands, strict=True))
    return f"call {function.result} {callee}({arguments})"
