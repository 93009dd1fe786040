"""Loads several vectors by one instruction, if a target has one (`Processor.several_loads`).

The instruction has no offset, but increments its address. A load that begins at the end of another load in
the same block uses the incremented address, whose computation is hidden from LLVM. LLVM must not load earlier
either, because this would take more registers than there are. A fence therefore stops its scheduler. On
64-bit Arm processors the fence is a label. Elsewhere LLVM has no such label, so the fence is the end of a
block that isn't joined to the next. Fences become block ends after LLVM's passes, which would move sums
between blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

from jangin.backends.llvm.types import literal, vector_type
from jangin.ir.dtype import F32
from jangin.targets.target import Target

MOST = 4
"""Most vectors of a load that is made by multi-vector instructions. `Processor.several` limits the vectors of
one such instruction."""
_LABEL = "llvm.codeview.annotation"
FENCE = 'call void asm sideeffect "", ""()'


@dataclass
class _Group:
    """Constants that one instruction loads, by the names of their values, and the instruction's `line`."""

    line: int
    numbers: dict[str, float] = field(default_factory=dict)


class SeveralLoads:
    """Writes the loads of one function for a target that loads several vectors by one instruction. The
    function's instructions are in `lines`, and `fresh` makes names of values."""

    def __init__(self, target: Target, lines: list[str], fresh: Callable[[], str]) -> None:
        processor = target.processor
        self._name, self._most = processor.several_loads, processor.several
        self._labels = target.triple.startswith("aarch64")
        self._lines, self._fresh = lines, fresh
        self._type, self._bytes = vector_type(F32, processor.lanes(F32.bytes)), processor.vector_bytes
        self.declarations: dict[str, str] = {}
        self._steps: dict[str, tuple[str, int]] = {}
        self._ends: dict[tuple[str, int], str] = {}
        self._tables: list[list[_Group]] = []
        self._first: float | None = None

    def stepped(self, pointer: str, start: str, size: int) -> None:
        """Record that a pointer lies `size` bytes behind another."""
        self._steps[pointer] = start, size

    def begin_block(self) -> None:
        """Forget the addresses of the previous block."""
        self._ends.clear()
        self._first = None

    def load(self, at: str, count: int) -> list[str]:
        """Write loads of `count` vectors from an address, and return their names."""
        start, offset = self._steps.get(at, (at, 0))
        names = [self._fresh() for _ in range(count)]
        end = self._ends.get((start, offset), at)
        for first in range(0, count, self._most):
            lines, end = self._load(end, names[first : first + self._most])
            self._lines += lines
        self._ends[start, offset + self._bytes * count] = end
        return names

    def constant(self, number: float) -> str:
        """Return the name of a vector with a constant in all lanes, for a multiply-add that overwrites it.

        Later constants of the block are loaded with it, until the first one is asked for again.
        """
        if self._first in (None, number):
            self._first = number
            self._tables.append([])
        groups = self._tables[-1]
        if not groups or len(groups[-1].numbers) == self._most:
            groups.append(_Group(len(self._lines)))
            self._lines.append("")
        name = self._fresh()
        groups[-1].numbers[name] = number
        return name

    def finish(self) -> None:
        """Write the lines that load constants."""
        for groups in self._tables:
            at = self._fresh()
            table = self._table([n for group in groups for n in group.numbers.values()])
            # without the side effect, LLVM would keep the loaded vectors, and copy them for each use
            first = [f'  {at} = call ptr asm sideeffect "", "=r,0"(ptr {table})']
            for group in groups:
                lines, at = self._load(at, list(group.numbers))
                self._lines[group.line] = "\n".join([*first, *lines])
                first = []

    def _load(self, at: str, names: Sequence[str]) -> tuple[list[str], str]:
        """Return lines that load vectors from an address, and the address behind them."""
        loaded, end, hidden = self._fresh(), self._fresh(), self._fresh()
        parts = "{ " + ", ".join([self._type] * len(names)) + " }"
        if len(names) == 1:
            lines = [f"  {names[0]} = load {self._type}, ptr {at}, align 4"]
        else:
            name = self._name.format(count=len(names))
            self.declarations[name] = f"declare {parts} @{name}(ptr)"
            lines = [
                self._fence(),
                f"  {loaded} = call {parts} @{name}(ptr {at})",
                *(f"  {v} = extractvalue {parts} {loaded}, {n}" for n, v in enumerate(names)),
            ]
        lines += [
            f"  {end} = getelementptr i8, ptr {at}, i64 {self._bytes * len(names)}",
            f'  {hidden} = call ptr asm "", "=r,0"(ptr {end})',
        ]
        return lines, hidden

    def _fence(self) -> str:
        if not self._labels:
            return f"  {FENCE}"
        self.declarations[_LABEL] = f"declare void @{_LABEL}(metadata)"
        return f'  call void @{_LABEL}(metadata !{{!""}})'

    def _table(self, numbers: Sequence[float]) -> str:
        """Return the name of a table of constants in memory, each as a vector. Its definition is added to
        `declarations`."""
        items = ", ".join(f"{self._type} splat (float {literal(n, F32)})" for n in numbers)
        name = f"@constants.{sha256(items.encode()).hexdigest()[:16]}"
        table = f"[{len(numbers)} x {self._type}]"
        self.declarations[name] = f"{name} = private unnamed_addr constant {table} [{items}], align 16"
        return name


def end_blocks(module: str) -> str:
    """Return a module's text with its blocks divided at the fences, over which LLVM moves no load."""
    return "\ndefine ".join(map(_end_blocks, module.split("\ndefine ")))


def _end_blocks(function: str) -> str:
    lines, block, parts, last = list[str](), "", count(), dict[str, str]()
    for line in function.splitlines():
        if label := re.match(r"([\w.]+):", line):
            block = label[1]
        if line.startswith(f"  {FENCE}"):
            last[block] = after = f"fence.{next(parts)}"
            lines += [f"  callbr {FENCE[5:]} to label %{after} []", f"{after}:"]
        else:
            lines.append(line)
    renamed = (
        re.sub(r"%([\w.]+) \]", lambda m: f"%{last.get(m[1], m[1])} ]", line) if " = phi " in line else line
        for line in lines
    )
    return "\n".join(renamed)
