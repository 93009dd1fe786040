"""LLVM IR text of one function body, written front to back, equal instructions written once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jangin.ir.dtype import BF16, BOOL, F16, F32, I64, DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jangin.targets.target import Target

_TYPES = {"f64": "double", "f32": "float", "f16": "i16", "bf16": "i16", "bool": "i1"}


def scalar_type(dtype: DType) -> str:
    """The LLVM type of a value in a register: bool is i1, 16-bit floats are their bits."""
    return _TYPES.get(dtype.name) or f"i{dtype.bits}"


def vector_type(dtype: DType, lanes: int) -> str:
    return scalar_type(dtype) if lanes == 1 else f"<{lanes} x {scalar_type(dtype)}>"


def suffix(dtype: DType, lanes: int) -> str:
    """How an overloaded intrinsic's name ends: f32, v8f32, i64..."""
    kind = f"f{dtype.bits}" if dtype.name in ("f32", "f64") else scalar_type(dtype)
    return kind if lanes == 1 else f"v{lanes}{kind}"


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name or a constant. With one lane it is the same for every lane of a vector loop."""

    ref: str
    dtype: DType
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.dtype, self.lanes)

    @property
    def is_const(self) -> bool:
        return not self.ref.startswith("%")

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A scalar constant as LLVM writes it."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype in (F16, BF16):
        return str(int(np.asarray(value, dtype.numpy).view(np.int16)))
    if dtype.is_float:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value)) if dtype is F32 else float(value)
        return f"0x{struct.unpack('>Q', struct.pack('>d', rounded))[0]:016X}"
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return str(wrapped - (1 << dtype.bits) if wrapped >> (dtype.bits - 1) else wrapped)


def constant(value: float | int | bool, dtype: DType) -> Value:
    return Value(literal(value, dtype), dtype)


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

    def declare(self, name: str, result: str, args: Sequence[str]) -> str:
        """Declare a function; gives its name to call."""
        pure = "" if name.startswith("llvm.") else " #1"
        self.declarations[name] = f"declare {result} @{name}({', '.join(args)}){pure}"
        return f"@{name}"

    def call(self, name: str, args: Sequence[Value], dtype: DType, lanes: int = 1, extra: str = "") -> Value:
        """Call a pure function; `extra`: further constant arguments with their types."""
        types = [a.type for a in args]
        more = [extra.split()[0]] if extra else []
        fn = self.declare(name, vector_type(dtype, lanes), [*types, *more])
        given = ", ".join([*map(str, args), *([extra] if extra else [])])
        return self.op(f"call {vector_type(dtype, lanes)} {fn}({given})", dtype, lanes)

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
        wide = vector_type(v.dtype, lanes)
        if v.is_const:
            return Value(f"splat ({v})", v.dtype, lanes)
        one = self.name(f"insertelement {wide} poison, {v}, i64 0")
        return self.op(
            f"shufflevector {wide} {one}, {wide} poison, <{lanes} x i32> zeroinitializer", v.dtype, lanes
        )

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
