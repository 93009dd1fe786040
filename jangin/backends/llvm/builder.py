"""LLVM IR text of one function body, written front to back, equal instructions written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jangin.backends.llvm.instruction import Lines, lines
from jangin.backends.llvm.values import Value, scalar_type, vector_type
from jangin.ir.dtype import BOOL, I64, DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jangin.targets.target import Target


class Builder:
    """Writes instructions. `op` numbers values: a pure instruction whose text (and memory state,
    for loads) was written before in a block that dominates this one gives the earlier value."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, str] = {}
        self.label = "entry"
        self._count = 0
        self._known: dict[str, str] = {}
        self._rows: dict[tuple[str, str, int], Lines] = {}
        self._scopes: list[list[str]] = [[]]

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def op(self, text: str, dtype: DType, lanes: int = 1, state: str = "") -> Value:
        """The value of an instruction; `state` tells apart equal loads of changed memory."""
        return Value(self.name(text, state), dtype, lanes)

    def known(self, text: str, state: str = "") -> str | None:
        return self._known.get(text + state)

    def name(self, text: str, state: str = "") -> str:
        key = text + state
        name = self._known.get(key)
        if name is None:
            name = "%" + self.fresh()
            self.lines.append(f"  {name} = {text}")
            self._known[key] = name
            self._scopes[-1].append(key)
        return name

    def new(self, text: str, dtype: DType, lanes: int = 1) -> Value:
        """The value of an instruction that must not be shared."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Value(name, dtype, lanes)

    def effect(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def alloca(self, text: str) -> str:
        name = "%" + self.fresh("a")
        self.allocas.append(f"  {name} = {text}")
        return name

    def call(self, name: str, args: Sequence[Value], dtype: DType, lanes: int = 1) -> Value:
        """Call a pure function: an intrinsic of LLVM (which declares its own), or the C library's."""
        result = vector_type(dtype, lanes)
        if not name.startswith("llvm."):
            self.declarations[name] = f"declare {result} @{name}({', '.join(a.type for a in args)}) #1"
        return self.op(f"call {result} @{name}({', '.join(map(str, args))})", dtype, lanes)

    def row(self, name: str, dtype: DType, lanes: int, **operands: str) -> str:
        """The last instruction of the target's row for an operation, those before it written."""
        key = (name, dtype.name, lanes)
        form = self._rows.get(key)
        if form is None:
            row = self.target.row(name, dtype)
            assert row is not None, f"{self.target.name} has no row for {name} of {dtype}"
            form = self._rows[key] = lines(row, dtype, lanes)
        for line, text in form[:-1]:
            operands[line] = self.name(text % operands)
        return form[-1][1] % operands

    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        """The target's row for an operation of a type on values called x, y and z."""
        wide = self.unify(*values)
        text = self.row(name, dtype, wide[0].lanes, **{n: v.ref for n, v in zip("xyz", wide, strict=False)})
        return self.op(text, result, wide[0].lanes)

    # --- blocks

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.effect(f"br label %{label}")

    def jump_if(self, cond: Value, then: str, other: str) -> None:
        self.effect(f"br i1 {cond.ref}, label %{then}, label %{other}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is written inside need not dominate what follows."""
        self._scopes.append([])
        yield
        for key in self._scopes.pop():
            del self._known[key]

    def loop(self, first: Value, end: Value, body: Callable[[Value], None], *, entered: bool) -> None:
        """`for i in [first, end)`; `entered`: it is known to run at least once."""
        head, latch, done = self.fresh("loop"), self.fresh("latch"), self.fresh("done")
        if not entered:
            before = self.fresh("before")
            self.jump_if(self.op(f"icmp slt i64 {first.ref}, {end.ref}", BOOL), before, done)
            self.start(before)
        came_from = self.label
        self.jump(head)
        self.start(head)
        step = self.fresh("next")
        with self.scope():
            i = self.new(f"phi i64 [ {first.ref}, %{came_from} ], [ %{step}, %{latch} ]", I64)
            body(i)
            self.jump(latch)
        self.start(latch)
        self.effect(f"%{step} = add nuw nsw i64 {i.ref}, 1")
        again = self.new(f"icmp slt i64 %{step}, {end.ref}", BOOL)
        self.jump_if(again, head, done)
        self.start(done)

    def when(self, cond: Value, then: Callable[[], None], other: Callable[[], None] | None = None) -> None:
        """Run one of two pieces."""
        yes, no, done = self.fresh("then"), self.fresh("else"), self.fresh("done")
        self.jump_if(cond, yes, no if other else done)
        for label, body in ((yes, then), (no, other)):
            if body is not None:
                self.start(label)
                with self.scope():
                    body()
                self.jump(done)
        self.start(done)

    def choose(self, cond: Value, then: Callable[[], Value], other: Callable[[], Value]) -> Value:
        """The value of one of two pieces; both give one type."""
        yes, no, done = self.fresh("then"), self.fresh("else"), self.fresh("done")
        self.jump_if(cond, yes, no)
        incoming = []
        for label, body in ((yes, then), (no, other)):
            self.start(label)
            with self.scope():
                value = body()
            incoming.append(f"[ {value.ref}, %{self.label} ]")
            self.jump(done)
        self.start(done)
        return self.new(f"phi {value.type} {', '.join(incoming)}", value.dtype, value.lanes)

    # --- lanes

    def broadcast(self, v: Value, lanes: int) -> Value:
        if v.lanes == lanes:
            return v
        if v.is_const:
            return Value(f"splat ({v})", v.dtype, lanes)
        return self.op(self.row("broadcast", v.dtype, lanes, x=v.ref), v.dtype, lanes)

    def unify(self, *values: Value) -> tuple[Value, ...]:
        lanes = max(v.lanes for v in values)
        return tuple(self.broadcast(v, lanes) for v in values)

    def lane(self, v: Value, index: int) -> Value:
        return v if v.lanes == 1 else self.op(f"extractelement {v}, i64 {index}", v.dtype)

    def gather_lanes(self, parts: Sequence[Value]) -> Value:
        """One vector of scalars."""
        lanes, dtype = len(parts), parts[0].dtype
        wide, ref = vector_type(dtype, lanes), "poison"
        for n, part in enumerate(parts):
            ref = self.name(f"insertelement {wide} {ref}, {part}, i64 {n}")
        return Value(ref, dtype, lanes)

    def iota(self, lanes: int, dtype: DType = I64, step: int = 1) -> Value:
        items = ", ".join(f"{scalar_type(dtype)} {n * step}" for n in range(lanes))
        return Value(f"<{items}>", dtype, lanes)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        other = "poison" if b is None else b.ref
        mask = ", ".join(f"i32 {p}" for p in picks)
        text = f"shufflevector {a}, {a.type} {other}, <{len(picks)} x i32> <{mask}>"
        return self.op(text, a.dtype, len(picks))

    def any_lane(self, mask: Value) -> Value:
        """Whether some lane of a mask is set."""
        if mask.lanes == 1:
            return mask
        bits = self.name(f"bitcast {mask} to i{mask.lanes}")
        return self.op(f"icmp ne i{mask.lanes} {bits}, 0", BOOL)
