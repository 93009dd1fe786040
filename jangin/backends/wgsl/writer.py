"""Write one kernel's body as WGSL text (see `backends.walk.writer`).

WGSL has no pointers, so an address is an array and the index of an element. Values are scalars, because
devices run work-items side by side and divide vectors anyway (see `backends.wgsl.rows`).

Buffers are arrays of 32-bit words. Functions in the shader's head access them (see `runtime.devices.wgsl`).
`r0(i)` reads word i of buffer 0, and `w0(i, v)` stores it. `h0` and `b0` store 16 and 8 bits of a word. `e0`
reads a 16-bit float, and `g0` stores one (see `runtime.devices.wgsl_halves`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jangin.backends.clike.dialect import KEPT
from jangin.backends.walk.writer import Pointer, Value
from jangin.backends.wgsl.functions import Functions
from jangin.backends.wgsl.longs import FITS, INFIX
from jangin.ir.dtype import BOOL, F16, F32, I32, I64, U32, DType
from jangin.ir.expr import Scalar
from jangin.ir.graph import CompileError
from jangin.runtime.devices.wgsl import SCRATCH
from jangin.runtime.devices.wgsl_halves import ACCESS
from jangin.runtime.devices.wgsl_trees import Tree
from jangin.targets.target import Target

_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "ule": "<="}
_ROWS: Mapping[str, tuple[str, str]] = {
    "fma": ("fma({0}, {1}, {2})", ""),
    "min": ("least({0}, {1})", "least"), "max": ("greatest({0}, {1})", "greatest"),
    "min_number": ("select({1}, {0}, {0} < {1})", ""), "max_number": ("select({1}, {0}, {0} > {1})", ""),
    "floor": ("floor({0})", ""), "ceil": ("ceil({0})", ""), "trunc": ("trunc({0})", ""),
    "round": ("round({0})", ""), "sqrt": ("sqrt({0})", ""),
    "to_i32": ("i32_of({0})", "i32_of"), "to_i32_held": ("i32({0})", ""),
    "to_i64": ("long_of_float({0})", "long_of_float"),
    "to_i64_held": ("long_of_float({0})", "long_of_float"),
}  # fmt: skip
"""Instruction rows as text with their operands, and the helper function that the text calls."""
_STORES = {1: "b", 2: "h", 4: "w", 8: "w"}
"""The letter of the function that stores an element, by the element's bytes."""

STORED = "storageBarrier(); "
"""The barrier for what work-items read of each other's buffers. Kernels that read none of their results leave
it out."""


@dataclass(frozen=True)
class Place:
    """The element `index` of an array.

    - `words` ends the names of the functions that access a buffer's words: the buffer's number, or "s" for
      scratch memory. A local array has "".
    - `base` is the word at which a buffer in scratch memory begins, or "".
    - `rows` tells if the array has an element for each row of four."""

    array: str
    index: Value
    words: str = ""
    base: str = ""
    rows: bool = False

    def text(self, i: str) -> str:
        """Return the text of element `i` of a local array."""
        if not self.rows:
            return f"{self.array}[{i}]"
        if i.isdigit():
            return f"{self.array}[{int(i) // 4}].{'xyzw'[int(i) % 4]}"
        return f"{self.array}[({i}) >> 2u][({i}) & 3]"


class WgslWriter(Functions):
    """Writes statements, each of which defines one name.

    - `helpers` has the functions of `prelude` that the body calls.
    - `accesses` has the letters of the functions that the body calls for each buffer's words.
    - `trees` has the functions that combine work-items' values, by name.
    - `places` has the element of each address.
    - `rows` has the lanes of each value with several (see `backends.wgsl.rows`).
    - `rooms` has the number of elements of each shared buffer, by its first byte."""

    def __init__(
        self,
        target: Target,
        kernel: str,
        sizes: Sequence[tuple[int, int]],
        threads: int,
        rooms: Mapping[int, int],
    ) -> None:
        super().__init__(target, kernel)
        self.arrays: list[str] = []
        self.shareds: dict[str, str] = {}
        self.trees: dict[str, Tree] = {}
        self.accesses: dict[str, set[str]] = {}
        self.places: dict[Pointer, Place] = {}
        self.rows: dict[tuple[str, DType], Sequence[Value]] = {}
        self.sums: dict[str, tuple[str, ...]] = {}  # what was added, by the name of the sum
        self.factors: dict[str, set[str]] = {}  # what was multiplied, by the name of a product's sum
        self.signs: dict[str, str] = {}  # the name with a "-" of what was negated, by the negative's name
        self._sizes, self._threads, self._rooms = sizes, threads, rooms
        self.lo, self.hi = self.leaf("lo", *FITS), self.leaf("hi", *FITS)

    def parameter(self, number: int) -> Pointer:
        return self._placed(Place(f"p{number}", self.index(0), str(number)))

    def size(self, number: int) -> Value:
        return self.leaf(f"s{number}", *self._sizes[number])

    # --- work-groups

    def work_item(self) -> Value:
        return self.leaf("item", 0, self._threads - 1)

    def shared(self, dtype: DType, at: Value) -> Pointer:
        assert at.number is not None
        name, count = f"shared{int(at.number)}", self._rooms[int(at.number)]
        self.shareds[name] = f"var<workgroup> {name}: array<{self.type(dtype)}, {max(1, count)}>;"
        return self._placed(Place(name, self.index(0)))

    def barrier(self) -> None:
        self.lines.append(f"  {STORED}workgroupBarrier();")

    def combined(self, array: Pointer, count: int, op: str, dtype: DType) -> None:
        """Write the call that combines a shared array's elements to its first (see `Tree`)."""
        op = {"min": "least", "max": "greatest"}.get(op, op) if dtype is F32 else op
        if op in ("least", "greatest"):
            self.helper(op)
        tree = Tree(self.places[array].array, count, op, self.type(dtype), True)
        self.trees[tree.name] = tree
        self.effect(f"{tree.name}(item)")

    # --- constants

    def literal(self, number: Scalar, dtype: DType) -> str:
        if dtype is BOOL:
            return "true" if number else "false"
        if dtype in KEPT:
            return f"{int(np.asarray(number, dtype.numpy).view(f'u{dtype.bytes}'))}u"
        if dtype is F32:
            return self._float(float(number))
        self.type(dtype)  # or an error
        if dtype.bits == 64:
            return self.long_literal(int(number), dtype)
        if dtype.kind == "u":
            return f"{int(number)}u"
        if number == I32.limits[0]:
            return "i32(-2147483647 - 1)"
        return f"({int(number)})" if number < 0 else f"{int(number)}"

    def _float(self, number: float) -> str:
        """Return an f32 number as text.

        Infinity and NaN have no literals, and no constant expression may give them. Subnormal numbers and the
        sign of zero may get lost. The text of all these contains a word that is unknown before the run."""
        plain = math.isfinite(number) and (abs(number) >= 2.0**-126 or str(number) == "0.0")
        if not plain:
            bits = int(np.float32(number).view(np.uint32))
            return f"bitcast<f32>({bits}u | u.zero)"
        return f"({number!r}f)" if number < 0 else f"{number!r}f"

    def _varied(self, v: Value) -> str:
        """Return a value as text that is no constant expression. Compilers evaluate constant expressions, and
        refuse some."""
        if v.number is None:
            return v.ref
        if v.dtype is F32:
            bits = int(np.float32(v.number).view(np.uint32))
            return f"bitcast<f32>({bits}u | u.zero)"
        return v.ref if v.dtype is BOOL else f"({v.ref} | {self.type(v.dtype)}(u.zero))"

    # --- arithmetic

    def _cut(self, dtype: DType, text: str) -> str:
        """Return the text of a 32-bit result, cut to a smaller integer type."""
        if dtype.bits >= 32:
            return text
        if dtype.kind == "i":
            return f"extractBits({text}, 0u, {dtype.bits}u)"
        return f"({text}) & {(1 << dtype.bits) - 1}u"

    def binary(self, op: str, x: Value, y: Value) -> Value:
        if op in ("min", "max"):
            return self.extreme(op, x, y)
        if x.dtype.bits == 64 and x.dtype.is_int:
            return self.long_binary(op, x, y)
        if x.dtype is BOOL:
            return self.op(f"{x.ref} {'!=' if op == 'xor' else INFIX[op]} {y.ref}", BOOL)
        if x.dtype is F32 and op in ("add", "sub"):
            return self._sum(op, x, y)
        a, b = (self._varied(x) if y.is_const else self._factor(x)), self._factor(y)
        if op == "rem" and x.dtype is F32:
            return self.op(f"{self.helper('remainder')}({a}, {b})", F32)
        if op in ("shl", "shr"):
            b = f"u32({b})"
        if op in ("udiv", "urem"):
            text = f"bitcast<i32>(bitcast<u32>({a}) {INFIX[op]} bitcast<u32>({b}))"
        else:
            text = f"{a} {INFIX[op]} {b}"
        wraps = x.dtype.is_int and op not in ("and", "or", "xor", "shr", "rem")
        value = self.op(self._cut(x.dtype, text) if wraps else text, x.dtype)
        if op == "mul" and -1 in (x.number, y.number):
            self.signs[value.ref] = self._opposite(y if x.is_const else x)
        return value

    def _sum(self, op: str, x: Value, y: Value) -> Value:
        """Return a sum or difference that compilers compute in the order given.

        Compilers may simplify (a + b) - a to b. They may also turn a * b + (a * c + d) into a * (b + c) + d.
        Both break sums that round a number, or that subtract a product in parts. So the inner sum is hidden
        from compilers."""
        a, b = (self._varied(x) if y.is_const else x.ref), y.ref
        if y.ref in self.sums.get(x.ref, ()):
            a = self.hidden(x)
        if x.ref in self.sums.get(y.ref, ()) or self.cancels(op, x, y):
            b = self.hidden(y)
        total = self.op(f"{a} {INFIX[op]} {b}", F32)
        self.sums[total.ref] = (x.ref, y.ref)
        return total

    def cancels(self, op: str, x: Value, y: Value) -> bool:
        """Return whether compilers may take a sum or difference for 0. It is NaN for infinity and NaN."""
        subtracted = self._opposite(y) if op == "add" else self.signs.get(y.ref, y.ref)
        return not y.is_const and subtracted == self.signs.get(x.ref, x.ref)

    def _opposite(self, x: Value) -> str:
        """Return the name of a value's opposite in `signs`."""
        name = self.signs.get(x.ref, x.ref)
        return name[1:] if name[0] == "-" else f"-{name}"

    def _factor(self, x: Value) -> str:
        """Return a factor as text. Compilers may take a product with a constant 0 for 0, though it may be
        NaN."""
        return self._varied(x) if x.dtype is F32 and x.number == 0 else x.ref

    def hidden(self, x: Value) -> str:
        return self.name(f"bitcast<f32>(bitcast<u32>({x.ref}) | u.zero)")

    def compare(self, op: str, x: Value, y: Value) -> Value:
        if x.dtype.bits == 64 and x.dtype.is_int:
            return self.long_compare(op, x, y)
        a, b = (self._varied(x) if y.is_const else x.ref), y.ref
        if op == "unordered":
            is_nan = self.helper("is_nan")
            return self.op(f"{is_nan}({a})" if a == b else f"{is_nan}({a}) | {is_nan}({b})", BOOL)
        if op == "apart":
            return self.op(f"({a} < {b}) | ({a} > {b})", BOOL)
        if op == "ne" and x.dtype is F32:  # some compilers take NaN to equal all there is
            return self.op(f"!({a} == {b})", BOOL)
        if x.dtype is BOOL and op not in ("eq", "ne"):
            a, b = f"u32({a})", f"u32({b})"
        elif op == "ule" and x.dtype.kind == "i":
            a, b = (f"bitcast<u32>({v})" for v in (a, b))  # a negative number of any width is large
        return self.op(f"{a} {_COMPARE[op]} {b}", BOOL)

    def select(self, cond: Value, x: Value, y: Value) -> Value:
        if x.dtype.bits == 64 and x.dtype.is_int:
            return self.long_select(cond, x, y)
        return self.op(f"select({y.ref}, {x.ref}, {cond.ref})", x.dtype)

    def extreme(self, op: str, x: Value, y: Value) -> Value:
        if x.dtype.bits == 64:
            return self.long_extreme(op, x, y)
        return self.op(f"{op}({x.ref}, {y.ref})", x.dtype)

    def negate(self, x: Value) -> Value:
        value = self.op(f"-{self._varied(x)}", x.dtype)
        self.signs[value.ref] = self._opposite(x)
        return value

    def absolute(self, x: Value) -> Value:
        """Return |x|, by clearing the sign bit. Compilers leave out `abs` of a `sqrt`, though the root of -0
        is -0."""
        return self.op(f"bitcast<f32>(bitcast<u32>({x.ref}) & 0x7fffffffu)", x.dtype)

    def cast(self, dtype: DType, x: Value) -> Value:
        kind = self.type(dtype)
        if x.number is not None:
            return self.constant(x.number, dtype)
        if x.dtype is BOOL:
            small = self.op(f"select(0u, 1u, {x.ref})", U32)
            return self.cast(dtype, small) if dtype is not U32 else small
        if dtype.bits == 64:
            return self.to_long(dtype, x)
        if x.dtype.bits == 64:
            return self.from_long(dtype, x)
        return self.op(self._cut(dtype, f"{kind}({self._varied(x)})"), dtype)

    def bitcast(self, dtype: DType, x: Value) -> Value:
        old, new = KEPT.get(x.dtype, x.dtype), KEPT.get(dtype, dtype)
        kind = self.type(new)
        if old is new:
            return Value(x.ref, dtype)
        if dtype.bits == 64:
            return self.cast(dtype, x)
        return self.op(self._cut(new, f"bitcast<{kind}>({x.ref})"), dtype)

    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        if name not in _ROWS:
            raise CompileError(f"{self.kernel}: WGSL has no text for {name} of {dtype}")
        text, helper = _ROWS[name]
        if helper:
            self.helper(helper)
        a, *rest = (v.ref for v in values)
        if all(v.is_const for v in values):
            a = self._varied(values[0])
        if name != "fma":
            return self.op(text.format(a, *rest), result)
        x, y, z = values
        a, rest[0] = (self._factor(x) if a == x.ref else a), self._factor(y)
        if {x.ref, y.ref} & self.factors.get(z.ref, set()):
            rest[1] = self.hidden(z)
        operation = self.op(text.format(a, *rest), result)
        self.sums[operation.ref], self.factors[operation.ref] = (z.ref,), {x.ref, y.ref}
        return operation

    # --- memory

    def _placed(self, place: Place) -> Pointer:
        name = f"{place.array}{place.base}@{place.index.ref}"
        self.places[name] = place
        return name

    def registers(self, dtype: DType, count: int) -> Pointer:
        name = self.fresh("a")
        rows = dtype is F32 and count % 4 == 0
        kind, many = ("vec4<f32>", count // 4) if rows else (self.type(dtype), count)
        self.arrays.append(f"  var {name}: array<{kind}, {max(1, many)}>;")
        return self._placed(Place(name, self.index(0), rows=rows))

    def scratch(self, dtype: DType, at: Value) -> Pointer:
        base = self.name(f"group * (u.stride / 4) + {self.narrow(at)} / 4")
        return self._placed(Place("scratch", self.index(0), SCRATCH, base))

    def step(self, dtype: DType, start: Pointer, by: Value) -> Pointer:
        place = self.places[start]
        if self.is_wide(by):
            by = self.leaf(self.narrow(by), *FITS)
        index = by if place.index.number == 0 else self.binary("add", place.index, by)
        return self._placed(replace(place, index=index))

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
        place, i = self.places[at], self.narrow(self.places[at].index)
        if not place.words:
            return self.op(place.text(i), dtype, 1, state)
        if dtype.bytes == 8:
            low, high = (self._word(place, self._scaled(i, 2, n)) for n in (0, 1))
            return self.op(f"vec2<u32>({low}, {high})", dtype, 1, state)
        if dtype.bytes == 4:
            return self.op(f"bitcast<{self.type(dtype)}>({self._word(place, i)})", dtype, 1, state)
        if dtype is F16:
            self.helper(ACCESS["e"])
            self.accesses.setdefault(place.words, set()).add("e")
            return self.op(f"e{place.words}({self._part(place, dtype, i)})", dtype, 1, state)
        word, shift = self._word(place, f"({i} >> {2 - dtype.bytes // 2}u)"), self._shift(dtype, i)
        kind = "i32" if dtype.kind == "i" else "u32"
        text = f"extractBits(bitcast<{kind}>({word}), {shift}, {8 * dtype.bytes}u)"
        return self.op(text, dtype, 1, state)

    @staticmethod
    def _part(place: Place, dtype: DType, i: str) -> str:
        """Return the number of an element that is a part of a word, from the memory's beginning."""
        return f"{place.base} * {4 // dtype.bytes} + {i}" if place.base else i

    def _word(self, place: Place, i: str) -> str:
        self.accesses.setdefault(place.words, set()).add("r")
        return f"r{place.words}({place.base} + {i})" if place.base else f"r{place.words}({i})"

    @staticmethod
    def _scaled(i: str, by: int, plus: int) -> str:
        return str(by * int(i) + plus) if i.isdigit() else f"{by} * {i} + {plus}"

    @staticmethod
    def _shift(dtype: DType, i: str) -> str:
        """Return the text of the bit at which an element begins in its word."""
        return f"(u32({i}) & {4 // dtype.bytes - 1}u) * {8 * dtype.bytes}u"

    def gather(
        self, dtype: DType, at: Pointer, index: Value, state: str, masks: Sequence[Value] = ()
    ) -> Value:
        return self.load(dtype, 1, self.step(dtype, at, index), state)

    def store(self, at: Pointer, v: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        place, dtype = self.places[at], v.dtype
        i = self.narrow(place.index)
        value = self.wide(v) if dtype.bits == 64 else v.ref
        if not place.words:
            self.effect(f"{place.text(i)} = {value}")
            return
        call = "g" if dtype is F16 else _STORES[dtype.bytes]
        if call == "g":
            self.helper(ACCESS["g"])
        self.accesses.setdefault(place.words, set()).add(call)
        stored, base = f"{call}{place.words}", place.base
        if dtype.bytes == 8:
            for n, half in enumerate("xy"):
                word = self._scaled(i, 2, n)
                self.effect(f"{stored}({f'{base} + ' if base else ''}{word}, {value}.{half})")
            return
        if call != "g":
            value = f"bitcast<u32>({value})"
        self.effect(f"{stored}({self._part(place, dtype, i)}, {value})")

    def scatter(self, at: Pointer, index: Value, v: Value, mask: Value) -> None:
        self.when(mask, lambda: self.store(self.step(v.dtype, at, index), v))

    def prefetch(self, dtype: DType, at: Pointer) -> None:
        """Do nothing, because WGSL has no prefetching."""

    # --- blocks

    def loop(self, first: Value, end: Value, body: Callable[[Value], None], *, entered: bool) -> None:
        i = self.fresh("n")
        low, high = self.range(first)[0], self.range(end)[1] - 1
        begin, stop = self.narrow(first), self.narrow(end)
        self.lines.append(f"  for (var {i}: i32 = {begin}; {i} < {stop}; {i}++) {{")
        with self.scope():
            body(self.leaf(i, low, max(low, high)))
        self.lines.append("  }")

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
        branches: list[tuple[int, Value, str]] = []

        def assigned(piece: Callable[[], Value]) -> Callable[[], None]:
            def write() -> None:
                value = piece()
                wide = self.wide(value) if value.dtype.bits == 64 else value.ref
                branches.append((len(self.lines), value, wide))
                self.lines.append("")

            return write

        self.when(cond, assigned(then), assigned(other))
        values = [value for _, value, _ in branches]
        if values[0].lanes > 1:
            return self._chosen_row(at, [(line, value) for line, value, _ in branches])
        dtype, narrow = values[0].dtype, not any(map(self.is_wide, values))
        for line, value, wide in branches:
            self.lines[line] = f"  {name} = {value.ref if narrow else wide};"
        exact = narrow and dtype is I64 and all(map(self.is_exact, values))
        if narrow and dtype is I64 and not exact:  # which may not fit: the pair of words does
            for line, _, wide in branches:
                self.lines[line] = f"  {name} = {wide};"
        kind = "i32" if exact else self.type(dtype)
        self.lines.insert(at, f"  var {name}: {kind};")
        if exact:
            lows, highs = zip(*map(self.range, values), strict=True)
            return self.leaf(name, min(lows), max(highs))
        return Value(name, dtype)

    def _chosen_row(self, at: int, branches: Sequence[tuple[int, Value]]) -> Value:
        """Return a row whose lanes are set at the lines of both branches, and declared before them."""
        row = branches[0][1]
        names = [self.fresh() for _ in range(row.lanes)]
        for line, value in reversed(branches):
            parts = [self.lane(value, n).ref for n in range(row.lanes)]
            self.lines[line : line + 1] = [f"  {n} = {p};" for n, p in zip(names, parts, strict=True)]
        self.lines[at:at] = [f"  var {name}: {self.type(row.dtype)};" for name in names]
        return self.from_lanes([Value(name, row.dtype) for name in names])
