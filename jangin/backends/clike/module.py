"""Kernels in Loop IR to one file of a C-like language."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jangin.backends.clike.dialect import Dialect, type_name
from jangin.backends.clike.writer import ClikeWriter
from jangin.backends.walk.kernel import Kernel
from jangin.backends.walk.memory import in_memory
from jangin.backends.walk.parts import parts
from jangin.ir.kernel import sizes
from jangin.ir.loop import Func
from jangin.targets.target import Target


def emit_kernels(funcs: Sequence[Func], target: Target, dialect: Dialect) -> str:
    """A file that exports each kernel under the name of `exported`. CompileError
    names the kernel where there is no code for something in it."""
    definitions: dict[str, str] = {}
    bodies = [text for func in funcs for text in _kernel(func, target, dialect, definitions)]
    return "\n".join([dialect.head(), *definitions.values(), *bodies, ""])


def exported(func: Func) -> str:
    """A kernel's name as C's identifiers are."""
    return re.sub(r"\W", "_", func.name)


def _kernel(func: Func, target: Target, dialect: Dialect, definitions: dict[str, str]) -> list[str]:
    made, texts = parts(func, target), []
    for part in made:
        writer = ClikeWriter(target, dialect, definitions)
        Kernel(part, writer).run()
        texts += [f"{_head(part, dialect)} {{", *writer.arrays, *writer.lines, "}"]
    given = [*(f"p{n}" for n in range(len(func.params))), *(f"s{n}" for n in range(len(sizes(func))))]
    if len(made) > 1:  # the parts of one task run one after the other
        args = ", ".join([*given, "t", "t + 1", "scratch"])
        calls = "".join(f"    {exported(part)}_body({args});\n" for part in made)
        loop = f"  for (i64 t = lo; t < hi; ++t) {{\n{calls}  }}"
        texts += [f"{_head(func, dialect)} {{", loop, "}"]
    return [*texts, dialect.entry(func, exported(func), f"{exported(func)}_body")]


def _head(func: Func, dialect: Dialect) -> str:
    """An internal function's name and parameters."""
    params = [
        f"{dialect.shared}{type_name(in_memory(p.dtype))} *{dialect.restrict} p{n}"
        for n, p in enumerate(func.params)
    ]
    params += [f"i64 s{n}" for n in range(len(sizes(func)))]
    params += ["i64 lo", "i64 hi", f"{dialect.shared}u8 *{dialect.restrict} scratch"]
    return f"static void {exported(func)}_body({', '.join(params)})"
