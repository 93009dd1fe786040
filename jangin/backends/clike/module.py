"""Kernels in Loop IR to one file of a C-like language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from jangin.backends.clike.dialect import Dialect, type_name
from jangin.backends.clike.narrow import narrowed
from jangin.backends.clike.tidy import needed, tidy, unused
from jangin.backends.clike.writer import ClikeWriter
from jangin.backends.walk.kernel import Kernel
from jangin.backends.walk.memory import in_memory
from jangin.backends.walk.parts import parts
from jangin.ir.graph import CompileError
from jangin.ir.groups import grouped, launch_buffer, per_thread
from jangin.ir.kernel import sizes
from jangin.ir.loop import Func
from jangin.targets.target import Target


def emit_kernels(
    funcs: Sequence[Func],
    target: Target,
    dialect: Dialect,
    overlapping: Mapping[str, Collection[int]] | None = None,
) -> str:
    """Return a file that exports each kernel under the name of `exported`.

    `overlapping` has, by a kernel's name, the numbers of the parameters whose memory may overlap. Raises
    CompileError, which names the kernel, if something in it has no code."""
    names = Counter(exported(func) for func in funcs)
    for func in funcs:
        if names[exported(func)] > 1:
            raise CompileError(f"{func.name}: another kernel is {exported(func)} in C too; rename one")
    definitions: dict[str, str] = {}
    bodies = []
    for func in funcs:
        bodies += kernel_texts(func, target, dialect, definitions, (overlapping or {}).get(func.name, ()))
    return file_of(definitions, bodies, dialect)


def file_of(definitions: Mapping[str, str], bodies: Iterable[str], dialect: Dialect) -> str:
    """Return the text of a file: the head, those definitions that are used, and the kernels `bodies`."""
    bodies = [*bodies]
    texts = (dialect.head(), *needed(definitions, bodies), dialect.kernels(), *bodies)
    return "\n".join([text for text in texts if text] + [""])


def exported(func: Func) -> str:
    """Return a kernel's name as a C identifier."""
    return re.sub(r"\W", "_", func.name)


def kernel_texts(
    func: Func,
    target: Target,
    dialect: Dialect,
    definitions: dict[str, str],
    overlapping: Collection[int] = (),
) -> list[str]:
    """Return a kernel's functions. The types and functions that they use are added to the definitions.
    `overlapping` has the numbers of the parameters whose memory may overlap."""
    pieces, texts = parts(narrowed(func, target, dialect.most_lanes), target), []
    for part in pieces:
        writer = ClikeWriter(target, dialect, definitions)
        Kernel(per_thread(part) if dialect.groups else part, writer).run()
        lines = tidy([*writer.arrays, *writer.lines], writer.loaded, dialect.keep)
        ignored = [f"  (void){name};" for name in unused(_names(func), lines)]
        texts += [f"{_head(part, dialect, overlapping)} {{", *ignored, *lines, "}"]
    if len(pieces) > 1:  # the parts of one task run one after another
        names = [n for n in _names(func) if n not in ("lo", "hi", "scratch")]
        args = ", ".join([*names, "t", "t + 1", "scratch"])
        calls = "".join(f"    {exported(part)}_body({args});\n" for part in pieces)
        loop = f"  for (i64 t = lo; t < hi; ++t) {{\n{calls}  }}"
        texts += [f"{_head(func, dialect, overlapping)} {{", loop, "}"]
    return [*texts, dialect.entry(func, exported(func), f"{exported(func)}_body")]


def _names(func: Func) -> list[str]:
    """Return the names of an internal function's parameters."""
    buffers, symbols = range(len(func.params)), range(len(sizes(func)))
    return [*(f"p{n}" for n in buffers), *(f"s{n}" for n in symbols), "lo", "hi", "scratch"]


def _head(func: Func, dialect: Dialect, overlapping: Collection[int]) -> str:
    """Return an internal function's name and parameters."""
    alone = ["" if n in overlapping else dialect.restrict for n in range(len(func.params))]
    params = [
        f"{dialect.shared}{type_name(in_memory(p.dtype))} *{alone[n]} p{n}" for n, p in enumerate(func.params)
    ]
    params += [f"i64 s{n}" for n in range(len(sizes(func)))]
    own = dialect.restrict if launch_buffer(func) is None else ""  # other groups store there
    params += ["i64 lo", "i64 hi", f"{dialect.shared}u8 *{own} scratch"]
    if dialect.groups is not None and grouped(func):
        params.append(f"{dialect.groups.local}u8 *{dialect.restrict} shared")
    return f"static void {exported(func)}_body({', '.join(params)})"
