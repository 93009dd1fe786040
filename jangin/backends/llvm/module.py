"""Turns a kernel in Loop IR into LLVM IR text.

The exported function loads the buffers' addresses and the symbols' values, and passes them to an internal
function. LLVM then knows which buffers don't overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.backends.llvm.functions import head
from jangin.backends.llvm.writer import LlvmWriter
from jangin.backends.walk.kernel import Kernel
from jangin.backends.walk.parts import parts
from jangin.ir.expr import Const
from jangin.ir.kernel import SCRATCH_ALIGN, sizes
from jangin.ir.loop import Func, task_loops
from jangin.runtime.functions import KERNEL
from jangin.targets.target import Target


def emit_kernel(func: Func, target: Target, name: str = "") -> str:
    """Return the LLVM IR module of a kernel, which exports the function `runtime.functions.KERNEL` under
    `name`, or else the kernel's own.

    Raises CompileError, which names the kernel, if something in it has no code.
    """
    whole, pieces = replace(func, name=name or func.name), parts(func, target)
    named = [replace(part, name=whole.name + part.name.removeprefix(func.name)) for part in pieces]
    bodies, declared = list[str](), set[str]()
    for part, header in zip(pieces, map(_head, named), strict=True):
        writer = LlvmWriter(target, hoists=_hoists(target))
        Kernel(part, writer).run()
        writer.finish()
        bodies.append("\n".join([header, "entry:", *writer.allocas, *writer.lines, "  ret void", "}", ""]))
        declared.update(writer.declarations.values())
    if len(pieces) > 1:
        bodies.append(_in_turn(whole, named))
    return "\n".join([f'source_filename = "{_escaped(whole.name)}"', f'target triple = "{target.triple}"', "",
                      *bodies, _entry(whole), *sorted(declared), "", _attributes(target), ""])  # fmt: skip


def is_fixed(func: Func, target: Target) -> bool:
    """Return whether LLVM's loop passes are left out for a kernel.

    Its sizes must be constant, and it must have no rounds, which are loops within its tasks. Its processor
    must issue enough instructions a cycle to hide one more for each address.
    """
    constant = all(isinstance(d, Const) for b in func.params for d in b.shape)
    return constant and not target.processor.issue and task_loops(func.body)[0] is None


def _hoists(target: Target) -> bool:
    """Return whether addressing with base, index and offset costs nothing, as on x86."""
    return target.triple.startswith("x86_64")


def _escaped(name: str) -> str:
    return "".join(
        c if c.isprintable() and c.isascii() and c not in '"\\' else f"\\{ord(c) & 255:02X}" for c in name
    )


def _attributes(target: Target) -> str:
    common = (
        f'"target-cpu"="{target.cpu}" "target-features"="{target.features}" '
        f'"prefer-vector-width"="{target.processor.vector_bytes * 8}"'
    )
    return (
        f'attributes #0 = {{ nounwind "no-builtins" {common} }}\n'
        f"attributes #1 = {{ nounwind willreturn memory(none) {common} }}"
    )


def _entry(func: Func) -> str:
    """Return the exported function, which unpacks its arguments."""
    name = _escaped(func.name)
    lines = [f"define {head(KERNEL, name)} #0 {{"]
    arguments = []
    for array, kind, count in (("args", "ptr", len(func.params)), ("sizes", "i64", len(sizes(func)))):
        for n in range(count):
            at, value = f"%{array}.{n}.at", f"%{array}.{n}"
            lines.append(f"  {at} = getelementptr {kind}, ptr %{array}, i64 {n}")
            lines.append(f"  {value} = load {kind}, ptr {at}")
            arguments.append(f"{kind} {value}")
    arguments += ["i64 %lo", "i64 %hi", "ptr %scratch"]
    lines += [f'  call void @"{name}.body"({", ".join(arguments)})', "  ret void", "}", ""]
    return "\n".join(lines)


def _head(func: Func) -> str:
    """Return an internal function's name and parameters."""
    inputs = len(func.inputs)
    params = [f"ptr noalias{' readonly' if n < inputs else ''} %p{n}" for n in range(len(func.params))]
    params += [f"i64 %s{n}" for n in range(len(sizes(func)))]
    params += ["i64 %lo", "i64 %hi", f"ptr noalias align {SCRATCH_ALIGN} %scratch"]
    return f'define internal void @"{_escaped(func.name)}.body"({", ".join(params)}) #0 {{'


def _in_turn(func: Func, parts: Sequence[Func]) -> str:
    """Return the internal function that runs the parts of one task one after another."""
    operands = [f"ptr %p{n}" for n in range(len(func.params))] + [
        f"i64 %s{n}" for n in range(len(sizes(func)))
    ]
    args = ", ".join([*operands, "i64 %t", "i64 %next", "ptr %scratch"])
    return "\n".join([
        _head(func), "entry:", "  br label %task", "task:",
        "  %t = phi i64 [ %lo, %entry ], [ %next, %task ]", "  %next = add nuw nsw i64 %t, 1",
        *(f'  call void @"{_escaped(part.name)}.body"({args})' for part in parts),
        "  %again = icmp slt i64 %next, %hi", "  br i1 %again, label %task, label %done",
        "done:", "  ret void", "}", "",
    ])  # fmt: skip
