"""Writes basic blocks of LLVM IR: instructions by name, loops and branches."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from jangin.backends.llvm.addresses import Addresses
from jangin.backends.llvm.registers import Registers
from jangin.backends.llvm.several import SeveralLoads
from jangin.backends.llvm.types import vector_type
from jangin.backends.walk.writer import Pointer, Value, Writer
from jangin.ir.dtype import BOOL, I64, DType
from jangin.targets.target import Target

_NAMES = re.compile(r"%\w+").findall


@dataclass
class _Loop:
    """A loop under construction.

    `before`: loop-invariant instructions, which are put in the `line` before it. `multiples`: multiples of
    its counter by name. `scopes`: the number of scopes outside it. `inner`: whether it has loops in it.
    """

    line: int
    scopes: int
    before: list[str] = field(default_factory=list)
    multiples: dict[int, str] = field(default_factory=dict)
    inner: bool = False


class BlockWriter(Writer):
    """Writes blocks of instructions.

    `hoists`: address computations are put before the loops in which they don't change, and in innermost loops
    multiples of the counter are added up. LLVM's loop strength reduction would find the same, but takes a
    third of its time. An opaque instruction keeps LLVM from it."""

    def __init__(self, target: Target, hoists: bool = False) -> None:
        super().__init__(target)
        self._hoists = hoists
        self._processor = processor = target.processor
        self._loops: list[_Loop] = []
        self._depths: dict[str, int] = {}
        self._counts: dict[str, _Loop] = {}
        self.allocas: list[str] = []
        self._registers = Registers(self._store)
        self.label = "entry"
        self._several = SeveralLoads(target, self.lines, self._name) if processor.several_loads else None
        walked = not (processor.offsets or processor.several_loads)
        self._addresses = Addresses(self.allocas, self.lines, self._name) if walked else None

    @abstractmethod
    def _store(self, at: Pointer, v: Value) -> None:
        """Write the store of a value that was held in a register."""

    def _name(self) -> str:
        return "%" + self.fresh()

    def named(self, text: str, state: str = "") -> str:
        """Write an instruction, unless it was written before, and return the name of its value."""
        key = text + state
        name = self._known.get(key)
        if name is None:
            self._count += 1
            name = self._known[key] = f"%v{self._count}"
            self._scopes[-1].append(key)
            self.lines.append(f"  {name} = {text}")
        return name

    def op(self, text: str, dtype: DType, lanes: int = 1, state: str = "") -> Value:
        return Value(self.named(text, state), dtype, lanes)

    def _hoisted(self, text: str, *operands: str) -> str:
        """Write an instruction that may be computed even if it isn't needed, before the loops in which it
        doesn't change. Return the name of its value."""
        if not self._hoists:
            return self.named(text)
        name = self._known.get(text)
        if name is None:
            depths = self._depths
            inside = len(self._loops)
            depth = max([depths.get(o, inside) if o[:2] == "%v" else 0 for o in operands])
            if depth == inside:
                name = self.named(text)
                depths[name] = depth
                return name
            loop = self._loops[depth]
            self._count += 1
            name = self._known[text] = f"%v{self._count}"
            self._scopes[loop.scopes - 1].append(text)
            loop.before.append(f"  {name} = {text}")
            depths[name] = depth
        return name

    def new(self, text: str, dtype: DType, lanes: int = 1) -> Value:
        """Write an instruction that must not be shared, and return its value."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Value(name, dtype, lanes)

    def effect(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def _multiple(self, count: str, by: int) -> str:
        """Return a loop's counter times a number."""
        loop = self._counts[count]
        name = loop.multiples.get(by)
        if name is None:
            name = loop.multiples[by] = "%" + self.fresh()
            self._depths[name] = self._depths[count]
        return name

    # --- blocks

    def _start(self, label: str) -> None:
        if known := self._several or self._addresses:
            known.begin_block()
        self.lines.append(f"{label}:")
        self.label = label

    def _jump(self, label: str) -> None:
        self._registers.end_block()
        self.effect(f"br label %{label}")

    def _jump_if(self, cond: Value, then: str, other: str) -> None:
        self._registers.end_block()
        self.effect(f"br i1 {cond.ref}, label %{then}, label %{other}")

    def loop(self, first: Value, end: Value, body: Callable[[Value], None], *, entered: bool) -> None:
        done = self.fresh("done")
        if entered:
            self._loop(first, end, body, done)
        else:
            before = self.fresh("before")
            self._jump_if(self.compare("lt", first, end), before, done)
            self._start(before)
            with self.scope():  # code before the loop isn't known if the loop doesn't run
                self._loop(first, end, body, done)
        self._start(done)

    def _loop(self, first: Value, end: Value, body: Callable[[Value], None], done: str) -> None:
        """Write a loop that is known to run, up to the jump out of it."""
        head, latch, came_from = self.fresh("loop"), self.fresh("latch"), self.label
        self._registers.end_block()
        loop = _Loop(len(self.lines), len(self._scopes))
        self.lines.append("")
        self._jump(head)
        self._start(head)
        bits = self._processor.index_bits
        short = end.number is not None and end.number < 1 << (bits - 1) and first.number == 0
        bits = bits if short else I64.bits
        count, step, top = "%" + self.fresh(), "%" + self.fresh("next"), len(self.lines)
        self.lines.append("")
        if self._loops:
            self._loops[-1].inner = True
        self._loops.append(loop)
        if self._hoists:
            self._depths[count], self._counts[count] = len(self._loops), loop
        with self.scope():
            i = Value(count, I64)
            body(i if bits == I64.bits else self.new(f"zext nneg i{bits} {count} to i64", I64))
            self._jump(latch)
        self._loops.pop()
        self._start(latch)
        moving, multiples, last = {count: (first.ref, step, 1)}, list[str](), (step, end.ref)
        for by, name in loop.multiples.items():
            if loop.inner:
                multiples.append(f"  {name} = mul i64 {count}, {by}")
            else:
                moving[name] = self._times(loop, first, by), "%" + self.fresh("next"), by
        if len(moving) > 1 and not any(count in line and count in _NAMES(line) for line in self.lines[top:]):
            del moving[count]  # another multiple tells when the loop is done
            by, name = next(iter(loop.multiples.items()))
            last = moving[name][1], self._times(loop, end, by)
        phis = list[str]()
        for name, (start, following, by) in moving.items():
            phis.append(f"  {name} = phi i{bits} [ {start}, %{came_from} ], [ {following}, %{latch} ]")
            if self._hoists:
                after = self.new(f"add i{bits} {name}, {by}", I64).ref
                self.effect(f'{following} = call i{bits} asm "", "=r,0"(i{bits} {after}) #1')
            else:
                self.effect(f"{following} = add nuw nsw i{bits} {name}, {by}")
        self.lines[top] = "\n".join([*phis, *multiples])
        self.lines[loop.line] = "\n".join(loop.before)
        # counting down to 0 sets the flag for free
        again = self.new(f"icmp ne i{bits} {', '.join(last)}", BOOL)
        self._jump_if(again, head, done)

    def _times(self, loop: _Loop, first: Value, by: int) -> str:
        """Return a multiple of the number at which a loop's counter begins or ends, as an operand."""
        if first.number is not None:
            return str(int(first.number) * by)
        name = "%" + self.fresh()
        loop.before.append(f"  {name} = mul i64 {first.ref}, {by}")
        return name

    def when(self, cond: Value, then: Callable[[], None], other: Callable[[], None] | None = None) -> None:
        yes, no, done = self.fresh("then"), self.fresh("else"), self.fresh("done")
        self._jump_if(cond, yes, no if other else done)
        for label, body in ((yes, then), (no, other)):
            if body is not None:
                self._start(label)
                with self.scope():
                    body()
                self._jump(done)
        self._start(done)

    def choose(self, cond: Value, then: Callable[[], Value], other: Callable[[], Value]) -> Value:
        yes, no, done = self.fresh("then"), self.fresh("else"), self.fresh("done")
        self._jump_if(cond, yes, no)
        incoming = []
        for label, body in ((yes, then), (no, other)):
            self._start(label)
            with self.scope():
                value = body()
            incoming.append(f"[ {value.ref}, %{self.label} ]")
            self._jump(done)
        self._start(done)
        phi = f"phi {vector_type(value.dtype, value.lanes)} {', '.join(incoming)}"
        return self.new(phi, value.dtype, value.lanes)
