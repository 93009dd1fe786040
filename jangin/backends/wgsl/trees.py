"""Finds the trees in which a group's work-items combine their values (`schedule.threads.tree`).

A shader calls one function for a tree. The driver or a package's loader chooses the function's form
(`runtime.devices.wgsl_trees`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.backends.walk import kernel
from jangin.backends.wgsl.rows import RowWriter
from jangin.ir.dtype import F32, I32, U32
from jangin.ir.expr import Binary, Buffer, Load, binary, const
from jangin.ir.loop import Block, For, Func, If, Stmt, Store, block
from jangin.ir.records import dataclass

OPERATIONS, TYPES = ("add", "mul", "min", "max"), (F32, I32, U32)
"""The operations and the types that WGSL's subgroups combine."""


@dataclass(frozen=True)
class Found:
    """The `steps` statements of a block that combine the elements of `buffer`. `end` is the thread loop in
    which the first work-item then finishes the result."""

    buffer: Buffer
    op: str
    steps: int
    end: For


def found(body: Sequence[Stmt]) -> Found | None:
    """Return the tree that a block's statements begin with, or None."""
    first = _step(body[0])
    if first is None:
        return None
    buffer, op, half, _ = first
    steps = half.bit_length()
    if half & (half - 1) or buffer.shape != (const(2 * half),) or len(body) < steps:
        return None
    for n, s in enumerate(body[1:steps], 1):
        step = _step(s)
        if step is None or step[:3] != (buffer, op, half >> n) or (step[3] and n < steps - 1):
            return None
    last = body[steps - 1]
    assert isinstance(last, For) and isinstance(last.body, If)
    rest = first[3] if steps == 1 else step[3] if (step := _step(last)) else []
    return Found(buffer, op, steps, replace(last, body=replace(last.body, then=block(*rest))))


def _step(s: Stmt) -> tuple[Buffer, str, int, Sequence[Stmt]] | None:
    """Return the array that a thread loop combines, the operation, how many work-items combine, and the
    statements after it. Return None for other statements."""
    if not (isinstance(s, For) and s.kind == "thread" and isinstance(s.body, If) and s.body.orelse is None):
        return None
    inside = s.body.then.body if isinstance(s.body.then, Block) else [s.body.then]
    store, cond, v = inside[0], s.body.cond, s.var
    if not (isinstance(cond, Binary) and cond.op == "lt" and isinstance(store, Store)):
        return None
    p, e = store.buffer, store.value
    if p.memory != "shared" or p.dtype not in TYPES or not isinstance(e, Binary) or e.op not in OPERATIONS:
        return None
    half = getattr(cond.b, "value", 0)
    combined = binary(e.op, Load(p, (v,)), Load(p, (v + half,)))
    if store.index != (v,) or cond != (v < half) or e != combined or s.extent != p.shape[0] or not half:
        return None
    return p, e.op, int(half), inside[1:]


class Kernel(kernel.Kernel):
    """Writes a kernel's statements. A tree becomes one call."""

    def __init__(self, func: Func, writer: RowWriter) -> None:
        super().__init__(func, writer)
        self._writer = writer

    def statement(self, s: Stmt) -> None:
        if not isinstance(s, Block) or self._item is None:
            super().statement(s)
            return
        rest = [*s.body]
        while rest:
            tree = found(rest)
            if tree is None:
                self.statement(rest.pop(0))
                continue
            self._writer.combined(self.memory.bases[tree.buffer.name], 1 << tree.steps, tree.op,
                                  tree.buffer.dtype)  # fmt: skip
            for name in self.memory.bases:
                self.memory.written(name)
            self.statement(tree.end)
            del rest[: tree.steps]
