"""Writes one function body as C-like text (see `backends.walk.writer`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from jangin.backends.clike.dialect import KEPT, Dialect, in_register, type_name, width
from jangin.backends.clike.lanes import function_name, row_function
from jangin.backends.walk.writer import Pointer, Value, Writer
from jangin.ir.dtype import BOOL, F32, I16, I32, I64, DType, dtype_of
from jangin.ir.expr import Scalar
from jangin.targets.rows import Row
from jangin.targets.target import Target

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
          "shl": "<<", "shr": ">>", "udiv": "/", "urem": "%"}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "ule": "<="}

ROLLED = "  #pragma unroll 1"
"""The line before a loop around products of matrices. The schedule has unrolled the products already.
NVIDIA's compiler would unroll some of these loops whole, to thousands of instructions, and then spill
registers."""
_WRAPPING = frozenset({"add", "sub", "mul", "shl"})

_POWER = """{inline} i64 int_power(i64 base, i64 exponent) {{
  u64 b = base, e = exponent, r = 1;
  for (; e; e >>= 1, b *= b) if (e & 1) r *= b;
  return r;
}}"""


class ClikeWriter(Writer):
    """Writes statements, each of which defines one name. `definitions`, by name, are the types and functions
    that they use, in a legal order."""

    def __init__(self, target: Target, dialect: Dialect, definitions: dict[str, str]) -> None:
        super().__init__(target)
        self.dialect, self.definitions = dialect, definitions
        self.arrays: list[str] = []
        self._spaces: dict[Pointer, str] = {}
        self.lo, self.hi = Value("lo", I64), Value("hi", I64)
        self.most_lanes = dialect.most_lanes
        self._multiplied = 0
        self.loaded: set[str] = set()
        """Vectors that were loaded from memory into a register."""
        self._widened: dict[tuple[str, DType], Value] = {}
        """Loaded vectors in a wider type, by their name and this type."""
        self._narrowed: dict[str, Value] = {}
        """Values in the wider type from which the named vectors were converted."""
        self._local: dict[Pointer, str] = {}
        """The local arrays in which addresses lie."""
        self._of_vectors: set[str] = set()
        """The local arrays to which vectors were stored."""

    def type(self, dtype: DType, lanes: int = 1) -> str:
        """Return the name of a type, and add a vector type's definition to `definitions`."""
        kind = type_name(dtype, lanes)
        if lanes > 1 and kind not in self.definitions:
            self.definitions[kind] = self.dialect.vector_type(KEPT.get(dtype, dtype), lanes)
        return kind

    def _name(self, text: str, kind: str, state: str = "") -> str:
        def make() -> str:
            name = self.fresh()
            self.lines.append(f"  {kind}{name} = {text};")
            return name

        return self.remembered(text + state, make)

    def op(self, text: str, dtype: DType, lanes: int = 1, state: str = "") -> Value:
        return Value(self._name(text, f"const {self.type(dtype, lanes)} ", state), dtype, lanes)

    def effect(self, text: str) -> None:
        self.lines.append(f"  {text};")

    def has_text(self, row: Row) -> bool:
        """A row without C is its reference, lane by lane. A lane of a table reads any element of its operand,
        so a table is gathered from memory instead."""
        return row.expansion is None and (bool(row.c) or row.name != "table")

    def parameter(self, number: int) -> Pointer:
        name = f"p{number}"
        self._spaces[name] = self.dialect.shared
        return name

    def size(self, number: int) -> Value:
        return Value(f"s{number}", I64)

    # --- work-groups

    def work_item(self) -> Value | None:
        groups = self.dialect.groups
        return None if groups is None else self.op(f"(i64){groups.item}", I64)

    def shared(self, dtype: DType, at: Value) -> Pointer:
        assert self.dialect.groups is not None
        return self._cast("shared", self.dialect.groups.local, dtype, at)

    def barrier(self) -> None:
        assert self.dialect.groups is not None
        self.effect(self.dialect.groups.barrier)

    def when_last(self, tile: Value, shares: int, then: Callable[[], None]) -> None:
        assert self.dialect.arrival, "the target has no meetings"
        self.definitions["is_last"] = self.dialect.arrival
        self.when(Value(f"is_last((u32 *)scratch + {tile.ref}, {shares})", BOOL), then)

    @property
    def asynchronous(self) -> bool:
        return bool(self.dialect.waits) and bool(self.target.fragment_rows)

    def copy_apart(self, to: Pointer, at: Pointer, whole: Value, ahead: Sequence[int]) -> None:
        self.effect(f"copy_apart<{ahead[0]}, {ahead[1]}>({to}, {at}, {whole.ref})")

    def wait_at_barriers(self) -> None:
        assert self.dialect.groups is not None
        barrier, wait = (f"  {text};" for text in (self.dialect.groups.barrier, self.dialect.waits))
        self.lines[:] = [part for s in self.lines for part in ((wait, s) if s == barrier else (s,))]
        self.lines.append(wait)

    # --- values of lanes

    def literal(self, number: Scalar, dtype: DType) -> str:
        if dtype is BOOL:
            return "1" if number else "0"
        if dtype in KEPT:
            return str(int(np.asarray(number, dtype.numpy).view(f"u{dtype.bytes}")))
        if dtype.is_float:
            if not math.isfinite(number):
                text = "NAN" if number != number else "INFINITY"
            else:
                text = float(abs(number)).hex() + ("f" if dtype is F32 else "")
            return f"(-{text})" if math.copysign(1, number) < 0 and number == number else text
        suffix = ("u" if dtype.kind == "u" else "") + (self.dialect.long if dtype.bits == 64 else "")
        if number == -1 << (dtype.bits - 1):
            return f"({int(number) + 1}{suffix} - 1)"
        return f"({int(number)}{suffix})" if number < 0 else f"{int(number)}{suffix}"

    def _vector(self, dtype: DType, items: Sequence[str], lanes: int) -> str:
        room = [*items, *["0"] * (width(lanes) - len(items))]
        return self.dialect.vector(self.type(dtype, lanes), room)

    def _in_lanes(self, v: Value) -> str:
        """Return a scalar as an element of a vector."""
        return f"-{v.ref}" if v.dtype is BOOL else v.ref

    def zeros(self, dtype: DType, lanes: int) -> Value:
        return self.op(self._vector(dtype, (), lanes), dtype, lanes)

    def iota(self, lanes: int, dtype: DType, step: int = 1) -> Value:
        items = [str(n * step) for n in range(width(lanes))]
        return self.op(self._vector(dtype, items, lanes), dtype, lanes)

    def broadcast(self, v: Value, lanes: int) -> Value:
        if v.lanes == lanes:
            return v
        wide = self.op(self._vector(v.dtype, [self._in_lanes(v)] * width(lanes), lanes), v.dtype, lanes)
        return wide._replace(number=v.number)

    def lane(self, v: Value, number: int) -> Value:
        if v.lanes == 1:
            return v
        return self.op(self.dialect.lane(v.ref, number) + (" & 1" if v.dtype is BOOL else ""), v.dtype)

    def from_lanes(self, parts: Sequence[Value]) -> Value:
        dtype, lanes = parts[0].dtype, len(parts)
        return self.op(self._vector(dtype, [self._in_lanes(p) for p in parts], lanes), dtype, lanes)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        room, lanes = width(a.lanes), len(picks)
        moved = [p if p < a.lanes else p - a.lanes + room for p in picks]
        moved += [-1] * (width(lanes) - lanes)
        text = self.dialect.shuffle(self.type(a.dtype, lanes), a.ref, (b or a).ref, room, moved)
        return self.op(text, a.dtype, lanes)

    def any_lane(self, mask: Value) -> Value:
        if mask.lanes == 1:
            return mask
        lanes = " | ".join(self.dialect.lane(mask.ref, n) for n in range(mask.lanes))
        return self.op(f"({lanes}) & 1", BOOL)

    # --- arithmetic

    def _as(self, dtype: DType, x: Value) -> str:
        """Return the bits of an integer as another integer type of the same size."""
        kind = self.type(dtype, x.lanes)
        return f"({kind}){x.ref}" if x.lanes == 1 else self.dialect.reinterpret(kind, x.ref, scalar=False)

    def _bits(self, dtype: DType, text: str, lanes: int) -> Value:
        """Return the bits of the written expression as another type."""
        kind = self.type(dtype, lanes)
        return self.op(self.dialect.reinterpret(kind, text, scalar=lanes == 1), dtype, lanes)

    def binary(self, op: str, x: Value, y: Value) -> Value:
        if op == "rem" and x.dtype.is_float:
            return self.by_lane(lambda a, b: self.function("fmod", a, b), x, y)
        a, b = x.ref, y.ref
        if op in ("min", "max"):
            return self.extreme(op, x, y)
        if op in ("udiv", "urem"):
            a, b = self._as(_unsigned(x.dtype), x), self._as(_unsigned(x.dtype), y)
            return self._bits(x.dtype, f"({a} {_INFIX[op]} {b})", x.lanes)
        if op in _WRAPPING and x.lanes == 1 and x.dtype.is_int and not self.dialect.wraps:
            wide = f"u{max(x.dtype.bits, I32.bits)}"  # of smaller ones the language makes signed integers
            return self.op(f"({x.dtype})(({wide}){a} {_INFIX[op]} ({wide}){b})", x.dtype)
        return self.op(f"{a} {_INFIX[op]} {b}", x.dtype, x.lanes)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        a, b = x.ref, y.ref
        if x.lanes > 1 and self.target.row(f"compare_{op}", x.dtype, x.lanes) is not None:
            return self.instruction(f"compare_{op}", x.dtype, BOOL, x, y)
        if x.lanes > 1 and not self.target.machine.compares:
            return self.by_lane(lambda v, w: self.compare(op, v, w), x, y)
        if op == "lt" and x.dtype.kind == "u" and y.number == 0:  # never: compilers warn of it
            return self.like(False, Value("", BOOL, x.lanes))
        if op == "ule" or x.dtype is BOOL:
            a, b = self._as(_unsigned(x.dtype), x), self._as(_unsigned(x.dtype), y)
        if op == "unordered":
            text = f"({a} != {a}) | ({b} != {b})"
        elif op == "apart":
            text = f"({a} < {b}) | ({a} > {b})"
        else:
            text = f"{a} {_COMPARE[op]} {b}"
        if x.lanes > 1 and KEPT.get(x.dtype, x.dtype).bits != I32.bits:
            text = self.dialect.convert(self.type(BOOL, x.lanes), text)
        return self.op(text, BOOL, x.lanes)

    def select(self, cond: Value, x: Value, y: Value) -> Value:
        if cond.lanes == 1:
            return self.op(f"{cond.ref} ? {x.ref} : {y.ref}", x.dtype, x.lanes)
        bits, mask = dtype_of(f"i{KEPT.get(x.dtype, x.dtype).bits}"), cond
        if bits is not I32:
            mask = self.op(self.dialect.convert(self.type(bits, x.lanes), cond.ref), bits, x.lanes)
        a, b = self._as(bits, x), self._as(bits, y)
        return self._bits(x.dtype, f"(({mask.ref} & {a}) | (~{mask.ref} & {b}))", x.lanes)

    def extreme(self, op: str, x: Value, y: Value) -> Value:
        if x.lanes > 1 and self.target.row(op, x.dtype, x.lanes) is not None:
            return self.instruction(op, x.dtype, x.dtype, x, y)
        if not self.dialect.extremes:
            return super().extreme(op, x, y)
        kind = self.type(x.dtype, x.lanes)
        return self.op(f"{op}(({kind}){x.ref}, ({kind}){y.ref})", x.dtype, x.lanes)

    def negate(self, x: Value) -> Value:
        return self.op(f"-{x.ref}", x.dtype, x.lanes)

    def absolute(self, x: Value) -> Value:
        if x.lanes == 1:
            return self.function("fabs", x)
        bits = dtype_of(f"i{x.dtype.bits}")
        all_but_sign = self.constant((1 << (x.dtype.bits - 1)) - 1, bits)
        rest = self.broadcast(all_but_sign, x.lanes).ref
        return self._bits(x.dtype, f"({self._as(bits, x)} & {rest})", x.lanes)

    def cast(self, dtype: DType, x: Value) -> Value:
        if (loaded := self._widened.get((x.ref, dtype))) is not None:
            return loaded
        kind = self.type(dtype, x.lanes)
        if x.lanes == 1:
            return self.op(f"({kind}){x.ref}", dtype)
        if self.target.row(f"to_{dtype}", x.dtype, x.lanes) is not None and not x.dtype.is_float:
            return self.instruction(f"to_{dtype}", x.dtype, dtype, x)
        if dtype.is_float and (whole := self._whole(x)) is not None:
            return self.cast(dtype, whole)
        source = f"{x.ref} & 1" if x.dtype is BOOL else x.ref
        v = self.op(self.dialect.convert(kind, source), dtype, x.lanes)
        if self.target.row(f"store_{x.dtype}", dtype, x.lanes) is not None:
            self._narrowed[v.ref] = x
        return v

    def _whole(self, x: Value) -> Value | None:
        """Return a vector of small integers as i32, if instructions have widened it already, or it was made
        of i32."""
        if (loaded := self._widened.get((x.ref, I32))) is not None:
            return loaded
        wide = self._narrowed.get(x.ref)
        if wide is None or wide.dtype is not I32 or x.dtype.kind != "i":
            return None
        beyond = self.like(I32.bits - x.dtype.bits, wide)
        return self.binary("shr", self.binary("shl", wide, beyond), beyond)

    def bitcast(self, dtype: DType, x: Value) -> Value:
        old, new = KEPT.get(x.dtype, x.dtype), KEPT.get(dtype, dtype)
        if old is new:
            return Value(x.ref, dtype, x.lanes)
        if x.lanes == 1 and old.is_int and new.is_int:
            return self.op(self._as(dtype, x), dtype)
        return self._bits(dtype, x.ref, x.lanes)

    def _call(
        self, name: str, dtype: DType, lanes: int, *operands: str, at: Pointer = "", known: bool = False
    ) -> str:
        """Return a call of the target's row for an operation, whose function is added to `definitions`.

        `at`: the address, for rows that access memory. `known`: the call is only compared with calls that are
        written already, so its function isn't added.
        """
        row, space = self.row(name, dtype, lanes), self._spaces[at] if at else ""
        called = function_name(row, dtype, lanes, space)
        if called not in self.definitions and not known:
            for p in row.func(dtype).params:
                self.type(p.dtype, lanes)
            text = row_function(row, dtype, lanes, self.target, self.dialect, space)
            self.definitions[called] = text
        return f"{called}({', '.join(operands)})"

    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        lanes = values[0].lanes
        text = self._call(name, dtype, lanes, *(v.ref for v in values))
        return self.op(text, result, 1 if self.row(name, dtype, lanes).across else lanes)

    def function(self, name: str, *args: Value) -> Value:
        called = self.dialect.function(name, args[0].dtype)
        return self.op(f"{called}({', '.join(a.ref for a in args)})", args[0].dtype)

    def power(self, base: Value, exponent: Value) -> Value:
        self.definitions["int_power"] = _POWER.format(inline=self.dialect.inline)
        return self.op(f"int_power({base.ref}, {exponent.ref})", I64)

    # --- memory

    def registers(self, dtype: DType, count: int) -> Pointer:
        name = self.fresh("a")
        self.arrays.append(f"  {self.dialect.array(dtype, name, count)}")
        self._spaces[name], self._local[name] = "", name
        return name

    def scratch(self, dtype: DType, at: Value) -> Pointer:
        return self._cast("scratch", self.dialect.shared, dtype, at)

    def _cast(self, memory: str, space: str, dtype: DType, at: Value) -> Pointer:
        """Return the address `at` bytes into a memory, in the memory's address space."""
        kind = f"{space}{type_name(dtype)} *"
        name = self._name(f"({kind})({memory} + {at.ref})", kind)
        self._spaces[name] = space
        return name

    def step(self, dtype: DType, start: Pointer, by: Value) -> Pointer:
        space = self._spaces[start]
        name = self._name(f"{start} + {by.ref}", f"{space}{type_name(dtype)} *")
        self._spaces[name] = space
        if start in self._local:
            self._local[name] = self._local[start]
        return name

    def load(
        self,
        dtype: DType,
        lanes: int,
        at: Pointer,
        state: str,
        masks: Sequence[Value] = (),
        *,
        aligned: bool = False,
    ) -> Value:
        if lanes == 1:
            return self.op(f"*{at}", dtype, 1, state)
        if width(lanes) == lanes and not self._of_scalars(at):
            plain = self.dialect.load(self.type(dtype, lanes), at, self._spaces[at], aligned=aligned)
        else:
            plain = self._vector(dtype, [f"{at}[{n}]" for n in range(lanes)], lanes)
        masked = [
            self._call("masked_load", dtype, lanes, at, m.ref, at=at, known=n < len(masks))
            for n, m in enumerate(masks, 1)
        ]
        v = self.weakest([plain, *masked], dtype, lanes, state)
        if in_register(dtype, lanes, self.target):
            self.loaded.add(v.ref)
        if not masks:
            self._widen(v, at, state)
        return v

    def _of_scalars(self, at: Pointer) -> bool:
        """Return whether an address is in a local array that no vector was stored to. Compilers keep its
        elements in registers as long as no vector is read from it as a whole."""
        return at in self._local and self._local[at] not in self._of_vectors

    def _widen(self, v: Value, at: Pointer, state: str) -> None:
        """Write the loads that also widen a row of small integers, if the target has such instructions. A
        later conversion takes their value, and unused loads are left out."""
        for wide in (I16, I32):
            if self.target.row(f"load_{wide}", v.dtype, v.lanes) is not None and at not in self._local:
                text = self._call(f"load_{wide}", v.dtype, v.lanes, at, at=at)
                self._widened[v.ref, wide] = self.op(text, wide, v.lanes, state)

    def gather(
        self, dtype: DType, at: Pointer, index: Value, state: str, masks: Sequence[Value] = ()
    ) -> Value:
        lanes = index.lanes
        plain, places = self.target.row("gather", dtype) is not None, (at, index.ref)
        texts = [self._call("gather", dtype, lanes, *places, at=at, known=bool(masks))] if plain else []
        texts += [
            self._call("masked_gather", dtype, lanes, *places, m.ref, at=at, known=n < len(masks))
            for n, m in enumerate(masks, 1)
        ]
        return self.weakest(texts, dtype, lanes, state)

    def store(self, at: Pointer, v: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        if mask is not None:
            self.effect(self._call("masked_store", v.dtype, v.lanes, mask.ref, v.ref, at, at=at))
        elif v.lanes == 1:
            self.effect(f"*{at} = {v.ref}")
        elif (wide := self._narrowed.get(v.ref)) is not None:
            self._of_vectors.add(self._local.get(at, ""))
            self.effect(self._call(f"store_{wide.dtype}", v.dtype, v.lanes, wide.ref, at, at=at))
        elif width(v.lanes) == v.lanes:
            self._of_vectors.add(self._local.get(at, ""))
            kind, space = self.type(v.dtype, v.lanes), self._spaces[at]
            self.effect(self.dialect.store(kind, at, v.ref, space, aligned=aligned))
        else:
            for n in range(v.lanes):
                self.effect(f"{at}[{n}] = {self.dialect.lane(v.ref, n)}")

    def scatter(self, at: Pointer, index: Value, v: Value, mask: Value) -> None:
        self.effect(self._call("masked_scatter", v.dtype, v.lanes, index.ref, mask.ref, v.ref, at, at=at))

    def prefetch(self, dtype: DType, at: Pointer) -> None:
        self.effect(self.dialect.prefetch(at))

    # --- matrices that the lanes of a warp share

    def multiply(self, row: Row, total: Pointer, left: Pointer, right: Pointer) -> None:
        self._multiplied += 1
        self.effect(f"{row.c}({total}, {left}, {right})")

    def load_matrices(self, count: int, to: Pointer, at: Pointer, *, transposed: bool) -> None:
        self.effect(f"load_matrices<{count}, {str(transposed).lower()}>({to}, {at})")

    # --- blocks

    def loop(self, first: Value, end: Value, body: Callable[[Value], None], *, entered: bool) -> None:
        i, at, before = self.fresh("n"), len(self.lines), self._multiplied
        self.lines += [self.dialect.loop, ""] if self.dialect.loop else [""]
        head = len(self.lines) - 1
        with self.scope():
            body(Value(i, I64))
        matrices = self._multiplied > before
        kind = "i32" if self._short(first, end, matrices) else "i64"
        ends = [v.ref if v.number is None or kind == "i64" else str(v.number) for v in (first, end)]
        self.lines[head] = f"  for ({kind} {i} = {ends[0]}; {i} < {ends[1]}; ++{i}) {{"
        self.lines.append("  }")
        if matrices:
            self.lines.insert(at, ROLLED)

    def _short(self, first: Value, end: Value, matrices: bool) -> bool:
        """Return whether a loop's counter can be an i32, on machines where an i64 takes two registers. Both
        ends must be constants, or those of a processor's tasks.

        On a GPU, only loops that multiply matrices count so. NVRTC gives some others more instructions."""
        if self.target.machine.index_bits >= I64.bits:
            return False
        known = all(v.number is not None and 0 <= v.number < 1 << 31 for v in (first, end))
        if self.dialect.groups is not None:
            return known and matrices
        return known or (first.ref, end.ref) == (self.lo.ref, self.hi.ref)

    def when(self, cond: Value, then: Callable[[], None], other: Callable[[], None] | None = None) -> None:
        self.lines.append(f"  if ({cond.ref}) {{")
        with self.scope():
            then()
        if other is not None:
            self.lines.append("  } else {")
            with self.scope():
                other()
        self.lines.append("  }")

    def choose(self, cond: Value, then: Callable[[], Value], other: Callable[[], Value]) -> Value:
        name, at = self.fresh(), len(self.lines)

        values: list[Value] = []

        def assigned(piece: Callable[[], Value]) -> Callable[[], None]:
            def write() -> None:
                values.append(piece())
                v = values[-1]
                kind = self.type(v.dtype, v.lanes)
                self.lines.append(f"  {name} = {self._kept(v.ref, kind, self.dialect.held(kind))};")

            return write

        self.when(cond, assigned(then), assigned(other))
        value = values[0]
        kind = self.type(value.dtype, value.lanes)
        held = self.dialect.held(kind)
        self.lines.insert(at, f"  {held} {name};")
        chosen = Value(name, value.dtype, value.lanes)
        return chosen if held == kind else self.op(self._kept(name, held, kind), value.dtype, value.lanes)

    def _kept(self, text: str, kind: str, other: str) -> str:
        """Return the bits of a value of type `kind` as the type `other`."""
        return text if kind == other else self.dialect.reinterpret(other, text, scalar=False)


def _unsigned(dtype: DType) -> DType:
    return dtype_of(f"u{KEPT.get(dtype, dtype).bits}")
