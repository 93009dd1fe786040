"""Writes one function body as LLVM IR text (see `backends.walk.writer`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from jangin.backends.llvm.addresses import Addresses
from jangin.backends.llvm.blocks import BlockWriter
from jangin.backends.llvm.instruction import Lines, lines
from jangin.backends.llvm.several import MOST
from jangin.backends.llvm.tiles import configured
from jangin.backends.llvm.types import half_type, literal, scalar_type, vector_type
from jangin.backends.walk.writer import Pointer, Value
from jangin.ir.dtype import BOOL, F16, F32, I16, I32, I64, DType
from jangin.ir.expr import Scalar
from jangin.ir.products import DOT1H, PRODUCTS
from jangin.targets.rows import Row
from jangin.targets.target import Target

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_SIGNED = {"div": "sdiv", "rem": "srem", "shr": "ashr"}
_UNSIGNED = {"div": "udiv", "rem": "urem", "shr": "lshr"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une",
                  "unordered": "uno", "apart": "one"}  # fmt: skip
_ORDER = frozenset({"lt", "le", "gt", "ge"})
_PLAIN = frozenset({"add", "sub", "mul", "and", "or", "xor"})
"""Integer operations that may be hoisted to where their result isn't needed."""

_POWER = """
define internal i64 @int.power(i64 %base, i64 %exponent) #1 {
entry:
  br label %loop
loop:
  %e = phi i64 [ %exponent, %entry ], [ %half, %more ]
  %b = phi i64 [ %base, %entry ], [ %square, %more ]
  %r = phi i64 [ 1, %entry ], [ %next, %more ]
  %done = icmp eq i64 %e, 0
  br i1 %done, label %out, label %more
more:
  %odd = trunc i64 %e to i1
  %times = mul i64 %r, %b
  %next = select i1 %odd, i64 %times, i64 %r
  %square = mul i64 %b, %b
  %half = lshr i64 %e, 1
  br label %loop
out:
  ret i64 %r
}
"""


def _typed(v: Value) -> str:
    return f"{vector_type(v.dtype, v.lanes)} {v.ref}"


class LlvmWriter(BlockWriter):
    """Writes instructions. `declarations`: the functions that they call, by name.

    `_halves`: f16 is loaded and stored as LLVM's half, because LLVM selects f16 multiply-adds by lane only
    for this type.

    `_terms`: the operands of sums with one product of words, to which a row may add the next at once.
    """

    def __init__(self, target: Target, hoists: bool = False) -> None:
        super().__init__(target, hoists)
        self._halves = target.product_row(DOT1H, self._processor.lanes(F16.bytes)) is not None
        self.declarations: dict[str, str] = {}
        self.lo, self.hi = Value("%lo", I64), Value("%hi", I64)
        self._terms: dict[str, dict[str, str]] = {}
        self._forms: dict[tuple[str, DType, int], Lines] = {}

    def finish(self) -> None:
        """Write the parts that weren't known before the end."""
        if self._several:
            self._several.finish()
            self.declarations |= self._several.declarations
        if self._addresses:
            self.declarations["addresses"] = Addresses.declaration

    def last(self, name: str, dtype: DType, lanes: int, **operands: str) -> str:
        """Write the instructions of the target's row for an operation but the last, and return the last one's
        text."""
        form = self._forms.get((name, dtype, lanes))
        if form is None:
            form = self._forms[name, dtype, lanes] = lines(self.row(name, dtype, lanes), dtype, lanes)
        for line, text in form[:-1]:
            operands[line] = self.named(text % operands)
        return form[-1][1] % operands

    def has_text(self, row: Row) -> bool:
        return bool(row.llvm)

    def parameter(self, number: int) -> Pointer:
        return f"%p{number}"

    def size(self, number: int) -> Value:
        return Value(f"%s{number}", I64)

    # --- values of lanes

    def literal(self, number: Scalar, dtype: DType) -> str:
        return literal(number, dtype)

    def zeros(self, dtype: DType, lanes: int) -> Value:
        return Value("zeroinitializer", dtype, lanes)

    def iota(self, lanes: int, dtype: DType, step: int = 1) -> Value:
        items = ", ".join(f"{scalar_type(dtype)} {n * step}" for n in range(lanes))
        return Value(f"<{items}>", dtype, lanes)

    def broadcast(self, v: Value, lanes: int) -> Value:
        if v.lanes == lanes:
            return v
        if v.number is not None:
            return Value(f"splat ({_typed(v)})", v.dtype, lanes, v.number)
        return self.op(self.last("broadcast", v.dtype, lanes, x=v.ref), v.dtype, lanes)

    def lane(self, v: Value, number: int) -> Value:
        return v if v.lanes == 1 else self.op(f"extractelement {_typed(v)}, i64 {number}", v.dtype)

    def from_lanes(self, parts: Sequence[Value]) -> Value:
        lanes, dtype = len(parts), parts[0].dtype
        wide, ref = vector_type(dtype, lanes), "poison"
        for n, part in enumerate(parts):
            ref = self.named(f"insertelement {wide} {ref}, {_typed(part)}, i64 {n}")
        return Value(ref, dtype, lanes)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        kind, other = vector_type(a.dtype, a.lanes), "poison" if b is None else b.ref
        mask = ", ".join(f"i32 {p}" for p in picks)
        text = f"shufflevector {kind} {a.ref}, {kind} {other}, <{len(picks)} x i32> <{mask}>"
        return self.op(text, a.dtype, len(picks))

    def any_lane(self, mask: Value) -> Value:
        if mask.lanes == 1:
            return mask
        bits = self.named(f"bitcast {_typed(mask)} to i{mask.lanes}")
        return self.op(f"icmp ne i{mask.lanes} {bits}, 0", BOOL)

    # --- arithmetic

    def binary(self, op: str, x: Value, y: Value) -> Value:
        kind = vector_type(x.dtype, x.lanes)
        if op in ("min", "max"):
            return self.op(f"call {kind} @llvm.s{op}({kind} {x.ref}, {kind} {y.ref})", x.dtype, x.lanes)
        words = _FLOAT if x.dtype.is_float else _SIGNED if x.dtype.kind == "i" else _UNSIGNED
        text = f"{words.get(op, op)} {kind} {x.ref}, {y.ref}"
        if op == "mul" and y.number is not None and x.ref in self._counts:
            return Value(self._multiple(x.ref, int(y.number)), I64)
        if x.dtype is I64 and x.lanes == 1 and (op in _PLAIN or y.number not in (None, 0, -1)):
            return Value(self._hoisted(text, x.ref, y.ref), I64)
        return self.op(text, x.dtype, x.lanes)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        if x.dtype.is_float:
            word = f"fcmp {_FLOAT_COMPARE[op]}"
        elif op in _ORDER:
            word = f"icmp {'s' if x.dtype.kind == 'i' else 'u'}{op}"
        else:
            word = f"icmp {op}"
        text = f"{word} {vector_type(x.dtype, x.lanes)} {x.ref}, {y.ref}"
        if x.dtype is I64 and x.lanes == 1:
            return Value(self._hoisted(text, x.ref, y.ref), BOOL)
        return self.op(text, BOOL, x.lanes)

    def select(self, cond: Value, x: Value, y: Value) -> Value:
        text = f"select {_typed(cond)}, {_typed(x)}, {_typed(y)}"
        if x.dtype is I64 and x.lanes == 1:
            return Value(self._hoisted(text, cond.ref, x.ref, y.ref), I64)
        return self.op(text, x.dtype, x.lanes)

    def negate(self, x: Value) -> Value:
        return self.op(f"fneg {_typed(x)}", x.dtype, x.lanes)

    def absolute(self, x: Value) -> Value:
        kind = vector_type(x.dtype, x.lanes)
        return self.op(f"call {kind} @llvm.fabs({kind} {x.ref})", x.dtype, x.lanes)

    def cast(self, dtype: DType, x: Value) -> Value:
        old, bits = x.dtype, 1 if x.dtype is BOOL else x.dtype.bits
        if old.is_float and dtype.is_float:
            word = "fpext" if dtype.bits > bits else "fptrunc"
        elif dtype.is_float:
            word = "sitofp" if old.kind == "i" else "uitofp"
        elif bits == dtype.bits:
            return self.bitcast(dtype, x)
        else:
            word = "trunc" if bits > dtype.bits else "sext" if old.kind == "i" else "zext"
        return self._cast(word, x, dtype)

    def _cast(self, word: str, x: Value, dtype: DType) -> Value:
        return self.op(f"{word} {_typed(x)} to {vector_type(dtype, x.lanes)}", dtype, x.lanes)

    def bitcast(self, dtype: DType, x: Value) -> Value:
        if scalar_type(dtype) != scalar_type(x.dtype):
            return self._cast("bitcast", x, dtype)
        if x.number is None:
            return Value(x.ref, dtype, x.lanes)
        return self.broadcast(self.constant(int(literal(x.number, x.dtype)), dtype), x.lanes)

    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        lanes, refs = values[0].lanes, [v.ref for v in values]
        whole = dtype is F32 and lanes == self._processor.lanes(dtype.bytes)
        if self._several and name == "fma" and whole and values[2].number is not None:
            refs[2] = self._several.constant(float(values[2].number))
        operands = dict(zip("xyzu", refs, strict=False))
        product = PRODUCTS.get(name)
        twice = self.target.product_row(product.by_lanes, lanes, words=2) if product else None
        if twice is None:
            return self.op(self.last(name, dtype, lanes, **operands), result, lanes)
        if first := self._terms.get(operands["z"]):
            again = {"u": operands["x"], "v": operands["y"]}
            return self.op(self.last(twice.name, dtype, lanes, **first, **again), result, lanes)
        out = self.op(self.last(name, dtype, lanes, **operands), result, lanes)
        self._terms[out.ref] = operands
        return out

    def function(self, name: str, *args: Value) -> Value:
        kind, name = scalar_type(args[0].dtype), name + ("f" if args[0].dtype is F32 else "")
        self.declarations[name] = f"declare {kind} @{name}({', '.join([kind] * len(args))}) #1"
        return self.op(f"call {kind} @{name}({', '.join(map(_typed, args))})", args[0].dtype)

    def power(self, base: Value, exponent: Value) -> Value:
        self.declarations["int.power"] = _POWER
        return self.op(f"call i64 @int.power({_typed(base)}, {_typed(exponent)})", I64)

    # --- memory

    def registers(self, dtype: DType, count: int) -> Pointer:
        name = "%" + self.fresh("a")
        self.allocas.append(f"  {name} = alloca [{count} x {scalar_type(dtype)}], align 64")
        if count * dtype.bytes <= self._processor.registers * self._processor.vector_bytes:
            self._registers.add(name)
        return name

    def scratch(self, dtype: DType, at: Value) -> Pointer:
        return self._hoisted(f"getelementptr i8, ptr %scratch, i64 {at.ref}", at.ref)

    def step(self, dtype: DType, start: Pointer, by: Value) -> Pointer:
        text = f"getelementptr {scalar_type(dtype)}, ptr {start}, i64 {by.ref}"
        # a constant is part of the instruction that uses the address
        stepped = self._hoisted(text, start, by.ref) if by.number is None else self.named(text)
        if start in self._registers:
            number = None if by.number is None else int(by.number)
            self._registers.stepped(stepped, start, number)
        elif (known := self._several or self._addresses) and by.number is not None:
            known.stepped(stepped, start, int(by.number) * dtype.bytes)
        return stepped

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
        held = [] if masks else self._registers.load(at, dtype, lanes)
        if held:
            return self._joined(held)
        plain = f"load {vector_type(dtype, lanes)}, ptr {at}, align {dtype.bytes}"
        vectors, rest = divmod(lanes, self._processor.lanes(dtype.bytes))
        fewest = 3 if self._processor.offsets else 1
        whole = dtype in (F32, F16, I16, I32, I64) and fewest <= vectors <= MOST and not (rest or masks)
        if self._several and whole and at not in self._registers:
            ref = self.remembered(plain + state, lambda: self._load_several(dtype, at, vectors))
            return Value(ref, dtype, lanes)
        if masks:
            self._registers.settle(at)
        elif dtype is F16 and self._halves:
            half = half_type(lanes)
            ref = self.named(plain.replace(vector_type(dtype, lanes), half), state)
            return self.op(f"bitcast {half} {ref} to {vector_type(dtype, lanes)}", dtype, lanes)
        elif not self._addresses:
            return self.op(plain, dtype, lanes, state)
        texts = [plain, *(self._masked_load(dtype, lanes, at, m) for m in masks)]
        place = at if any(t + state in self._known for t in texts) else self._reached(at, lanes)
        if place == at:
            return self.weakest(texts, dtype, lanes, state)
        text = self._masked_load(dtype, lanes, place, masks[-1]) if masks else plain.replace(at, place)
        return Value(self.remembered(texts[-1] + state, lambda: self.new(text, dtype).ref), dtype, lanes)

    def _masked_load(self, dtype: DType, lanes: int, at: Pointer, mask: Value) -> str:
        return self.last("masked_load", dtype, lanes, memory=at, mask=mask.ref)

    def _reached(self, at: Pointer, lanes: int) -> Pointer:
        """Return the address by which an element is accessed."""
        walks = self._addresses if at not in self._registers else None
        if walks is None:
            return at
        return walks.reached(at) if lanes > 1 else walks.near(at)

    def _load_several(self, dtype: DType, at: Pointer, count: int) -> str:
        assert self._several is not None
        one = self._processor.lanes(F32.bytes)
        names = self._several.load(at, count)
        if dtype is not F32:
            one = self._processor.lanes(dtype.bytes)
            whole, own = vector_type(F32, self._processor.lanes(F32.bytes)), vector_type(dtype, one)
            names = [self.named(f"bitcast {whole} {name} to {own}") for name in names]
        return self._joined([Value(name, dtype, one) for name in names]).ref

    def _joined(self, parts: list[Value]) -> Value:
        """Return the lanes of several values of equal width, side by side."""
        lanes = sum(v.lanes for v in parts)
        while len(parts) > 1:
            width = 2 * parts[0].lanes
            parts = [self.shuffle(a, b, range(width)) for a, b in zip_longest(parts[::2], parts[1::2])]
        return parts[0] if parts[0].lanes == lanes else self.shuffle(parts[0], None, range(lanes))

    def gather(
        self, dtype: DType, at: Pointer, index: Value, state: str, masks: Sequence[Value] = ()
    ) -> Value:
        self._registers.settle(at)
        lanes, places = index.lanes, {"memory": at, "index": index.ref}
        plain = self.target.row("gather", dtype) is not None
        texts = [self.last("gather", dtype, lanes, **places)] if plain else []
        texts += [self.last("masked_gather", dtype, lanes, **places, mask=m.ref) for m in masks]
        return self.weakest(texts, dtype, lanes, state)

    def store(self, at: Pointer, v: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        if mask is None:
            if not self._registers.store(at, v):
                self._store(at, v)
        else:
            self._registers.settle(at)
            at, x = self._reached(at, v.lanes), self._opaque(v).ref
            self.effect(self.last("masked_store", v.dtype, v.lanes, memory=at, mask=mask.ref, x=x))

    def _opaque(self, v: Value) -> Value:
        """Return a value to store under a mask, made opaque to LLVM if the target has a row for it. The value
        then fills a whole register."""
        sizes = (r.lanes for r in self.target.rows if r.name == "opaque" and v.dtype in r.dtypes)
        lanes = next((n for n in sorted(sizes) if n >= v.lanes), 0)
        if v.number is not None or not lanes or self.target.row("opaque", v.dtype, lanes) is None:
            return v
        filled = self.shuffle(v, None, [min(n, v.lanes) for n in range(lanes)])
        hidden = self.op(self.last("opaque", v.dtype, lanes, x=filled.ref), v.dtype, lanes)
        return self.shuffle(hidden, None, range(v.lanes))

    def _store(self, at: Pointer, v: Value) -> None:
        at = self._reached(at, v.lanes)
        value = _typed(v)
        if v.dtype is F16 and self._halves:
            half = half_type(v.lanes)
            value = f"{half} {self.named(f'bitcast {value} to {half}')}"
        self.effect(f"store {value}, ptr {at}, align {v.dtype.bytes}")

    def scatter(self, at: Pointer, index: Value, v: Value, mask: Value) -> None:
        self._registers.settle(at)
        operands = {"memory": at, "index": index.ref, "mask": mask.ref, "x": v.ref}
        self.effect(self.last("masked_scatter", v.dtype, v.lanes, **operands))

    def prefetch(self, dtype: DType, at: Pointer) -> None:
        self.declarations["llvm.prefetch"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.effect(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 3, i32 1)")

    # --- matrix registers

    def tile(self, name: str, dtype: DType, **operands: str) -> None:
        if "memory" in operands:
            self._registers.settle(operands["memory"])
        self.effect(self.last(name, dtype, 1, **operands))

    def tiles(self, shapes: Sequence[tuple[int, int]]) -> None:
        begin, end, declaration = configured(shapes)
        self.allocas.append(f"  {begin}")
        self.effect(end)
        self.declarations["tiles"] = declaration
