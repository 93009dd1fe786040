"""Integers of 64 bits in WGSL, which has only 32-bit integers.

A value that is known to fit in an i32, as indices are, is an i32 (*narrow*). Any other value is a pair of
words, the low one first (*wide*). Narrow values have bounds.

Sums and products of indices may leave 32 bits, but only if sizes of a run do. No buffer is so large, so
addresses and conditions use the i32. A value that is stored or converted is computed again as a pair, unless
its bounds show that it fits."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jangin.backends.walk.writer import Value, Writer
from jangin.backends.wgsl.prelude import HELPERS
from jangin.ir.dtype import BOOL, F16, F32, I32, I64, U32, U64, DType
from jangin.ir.graph import CompileError
from jangin.targets.target import Target

FITS = I32.limits
"""The smallest and largest narrow value."""
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
         "shl": "<<", "shr": ">>", "udiv": "/", "urem": "%"}  # fmt: skip
_TYPES = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "bool"}
_SIGNED = {"lt": ("less", False), "ge": ("less", True), "gt": ("more", False), "le": ("more", True)}
_BITS = ("and", "or", "xor")
_FOLDED: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor,
}  # fmt: skip
"""Operations that are computed while compiling if both operands are constants."""


@dataclass(frozen=True)
class _Narrow:
    """A narrow value. `low` and `high` are its bounds, which may exceed 32 bits. `exact` tells if the i32
    certainly equals the value. `again` computes the value as a pair."""

    low: int
    high: int
    exact: bool
    again: Callable[[], str]


class Longs(Writer):
    """Writes names, types and operations on 64-bit integers."""

    def __init__(self, target: Target, kernel: str) -> None:
        super().__init__(target)
        self.kernel = kernel
        self.helpers: set[str] = set()
        self._narrow: dict[str, _Narrow] = {}

    # --- names

    def type(self, dtype: DType) -> str:
        if dtype.bits == 64 and dtype.is_int:
            return "vec2<u32>"
        if dtype.bits == 64:
            raise CompileError(f"{self.kernel}: WGSL has no {dtype}; cast to float32 in the model")
        if dtype is F16:
            return self.helper("Half")
        if dtype.bits < 32 and dtype.name not in _TYPES:
            return "i32" if dtype.kind == "i" and dtype.bits in (8, 16) else "u32"
        return _TYPES[dtype.name]

    def helper(self, name: str) -> str:
        """Return the name of a function of `prelude`, and add the function to the shader."""
        assert name in HELPERS, name
        self.helpers.add(name)
        return name

    def name(self, text: str, state: str = "") -> str:
        def make() -> str:
            name = self.fresh()
            self.lines.append(f"  let {name} = {text};")
            return name

        return self.remembered(text + state, make)

    def op(self, text: str, dtype: DType, lanes: int = 1, state: str = "") -> Value:
        return Value(self.name(text, state), dtype)

    def effect(self, text: str) -> None:
        self.lines.append(f"  {text};")

    # --- narrow and wide

    def leaf(self, name: str, low: int, high: int) -> Value:
        """Return an i32 as a narrow value with these bounds."""
        self._narrow[name] = _Narrow(low, high, True, lambda: self._widened(name))
        return Value(name, I64)

    def _widened(self, name: str) -> str:
        return self.name(f"{self.helper('widened')}({name})")

    def long_literal(self, number: int, dtype: DType) -> str:
        if dtype is I64 and FITS[0] < number <= FITS[1]:
            return f"({number})" if number < 0 else str(number)
        return _pair(number)

    def is_wide(self, v: Value) -> bool:
        if v.dtype is not I64:
            return v.dtype is U64
        if v.number is not None:
            return not FITS[0] < v.number <= FITS[1]
        return v.ref not in self._narrow

    def is_exact(self, v: Value) -> bool:
        """Tell if a narrow value's i32 certainly equals the value."""
        return v.number is not None or self._narrow[v.ref].exact

    def range(self, v: Value) -> tuple[int, int]:
        """Return a value's smallest and largest possible number. For a wide value these are the limits of
        i32."""
        if v.number is not None:
            return int(v.number), int(v.number)
        known = self._narrow.get(v.ref)
        return FITS if known is None else (known.low, known.high)

    def narrow(self, v: Value) -> str:
        """Return an index or a count as an i32. A wide value is clamped."""
        if v.dtype is I64 and not self.is_wide(v):
            return v.ref
        return self.name(f"{self.helper('clamped')}({self.wide(v)})")

    def wide(self, v: Value) -> str:
        """Return a 64-bit integer as a pair of words."""
        if v.number is not None:
            return _pair(int(v.number))
        known = self._narrow.get(v.ref)
        return v.ref if known is None else self._widened(v.ref) if known.exact else known.again()

    def _made(self, text: str, low: int, high: int, exact: bool, again: Callable[[], Value]) -> Value:
        """Return a new narrow value with its bounds."""
        name = self.name(text)
        fits = exact and FITS[0] <= low and high <= FITS[1]
        self._narrow[name] = _Narrow(low, high, fits, lambda: again().ref)
        return Value(name, I64)

    # --- operations

    def long_binary(self, op: str, x: Value, y: Value) -> Value:
        if x.number is not None and y.number is not None and op in _FOLDED:
            return self.constant(_FOLDED[op](int(x.number), int(y.number)), x.dtype)
        if self.is_wide(x) or self.is_wide(y) or not self._stays_narrow(op, x, y):
            return self._wide_binary(op, x, y)

        def again() -> Value:
            return self._wide_binary(op, x, y)

        exact = self.is_exact(x) and self.is_exact(y)
        (a, b), (c, d) = self.range(x), self.range(y)
        left = f"({x.ref} | i32(u.zero))" if x.is_const and y.is_const else x.ref
        text = f"{left} {INFIX[op]} {y.ref}"
        if op == "add":
            return self._made(text, a + c, b + d, True, again)
        if op == "sub":
            return self._made(text, a - d, b - c, True, again)
        if op == "mul":
            ends = a * c, a * d, b * c, b * d
            return self._made(text, min(ends), max(ends), True, again)
        if op in _BITS:
            return self._made(text, *FITS, exact, again)
        if op == "shr":
            return self._made(f"{left} >> u32({y.ref})", min(a, 0), max(b, 0), exact, again)
        if op in ("rem", "urem"):
            most = max(abs(c), abs(d), 1) - 1
            return self._made(text, 0 if a >= 0 else -most, min(most, max(b, 0)), exact, again)
        most = max(abs(a), abs(b))
        return self._made(text, -most if a < 0 or c < 0 else 0, most, exact, again)

    def _stays_narrow(self, op: str, x: Value, y: Value) -> bool:
        """Tell if an operation on narrow values is computed in 32 bits."""
        if op in (*_BITS, "shr"):
            return self.is_exact(x) and self.is_exact(y) and (op != "shr" or self.range(y)[1] < 32)
        if op in ("div", "rem"):  # what isn't below 0, or a divisor that isn't: no quotient leaves 32 bits
            return self.range(x)[0] > FITS[0] or self.range(y)[0] > 0
        return op != "shl"

    def _wide_binary(self, op: str, x: Value, y: Value) -> Value:
        a, b = self.wide(x), self.wide(y)
        if op in _BITS:
            return self.op(f"{a} {INFIX[op]} {b}", x.dtype)
        if op in ("shl", "shr"):
            name = {"shl": "long_shl", "shr": "long_sar" if x.dtype is I64 else "long_shr"}[op]
            return self.op(f"{self.helper(name)}({a}, {b}.x)", x.dtype)
        if op in ("div", "rem") and x.dtype is I64:
            op = f"s{op}"
        elif op in ("div", "rem"):
            op = f"u{op}"
        return self.op(f"{self.helper(f'long_{op}')}({a}, {b})", x.dtype)

    def long_compare(self, op: str, x: Value, y: Value) -> Value:
        if not (self.is_wide(x) or self.is_wide(y)):
            left = f"({x.ref} | i32(u.zero))" if x.is_const and y.is_const else x.ref
            if op == "ule":
                return self.op(f"bitcast<u32>({left}) <= bitcast<u32>({y.ref})", BOOL)
            infix = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}[op]
            return self.op(f"{left} {infix} {y.ref}", BOOL)
        a, b = self.wide(x), self.wide(y)
        if op in ("eq", "ne"):
            return self.op(f"all({a} == {b})" if op == "eq" else f"any({a} != {b})", BOOL)
        less = self.helper("long_ult" if op == "ule" or x.dtype is U64 else "long_slt")
        if op in ("lt", "ge"):
            return self.op(f"{'!' if op == 'ge' else ''}{less}({a}, {b})", BOOL)
        return self.op(f"{'' if op == 'gt' else '!'}{less}({b}, {a})", BOOL)

    def long_select(self, cond: Value, x: Value, y: Value) -> Value:
        if self.is_wide(x) or self.is_wide(y):
            return self._wide_select(cond, x, y)
        (a, b), (c, d) = self.range(x), self.range(y)
        text, exact = f"select({y.ref}, {x.ref}, {cond.ref})", self.is_exact(x) and self.is_exact(y)
        return self._made(text, min(a, c), max(b, d), exact, lambda: self._wide_select(cond, x, y))

    def _wide_select(self, cond: Value, x: Value, y: Value) -> Value:
        return self.op(f"select({self.wide(y)}, {self.wide(x)}, {cond.ref})", x.dtype)

    def long_extreme(self, op: str, x: Value, y: Value) -> Value:
        def again() -> Value:
            a, b = (Value(self.wide(v), v.dtype) for v in (x, y))
            return self._wide_select(self.long_compare("lt" if op == "min" else "gt", a, b), a, b)

        if self.is_wide(x) or self.is_wide(y):
            return again()
        pick = min if op == "min" else max
        (a, b), (c, d) = self.range(x), self.range(y)
        text, exact = f"{op}({x.ref}, {y.ref})", self.is_exact(x) and self.is_exact(y)
        return self._made(text, pick(a, c), pick(b, d), exact, again)

    def to_long(self, dtype: DType, x: Value) -> Value:
        """Return an integer of any size as a 64-bit integer."""
        if x.dtype.bits == 64:
            return self.op(self.wide(x), dtype)
        if x.dtype is U32:
            return self.op(f"vec2<u32>({x.ref}, 0u)", dtype)
        narrow = self.leaf(self.name(f"i32({x.ref})"), *x.dtype.limits)
        return narrow if dtype is I64 else Value(self.wide(narrow), dtype)

    def from_long(self, dtype: DType, x: Value) -> Value:
        if dtype is F32:
            if x.dtype is I64 and not self.is_wide(x) and self.is_exact(x):
                return self.op(f"f32({x.ref})", F32)
            name = "float_of_long" if x.dtype is I64 else "float_of_ulong"
            return self.op(f"{self.helper(name)}({self.wide(x)})", F32)
        low = f"{self.wide(x)}.x" if self.is_wide(x) else x.ref
        whole = self.op(
            f"{'u32' if dtype.kind == 'u' else 'bitcast<i32>'}({low})", U32 if dtype.kind == "u" else I32
        )
        return whole if dtype.bits == 32 else self.cast(dtype, whole)

    def power(self, base: Value, exponent: Value) -> Value:
        return self.op(f"{self.helper('long_power')}({self.wide(base)}, {self.wide(exponent)})", I64)


def _pair(number: int) -> str:
    bits = number & ((1 << 64) - 1)
    return f"vec2<u32>({bits & 0xFFFFFFFF}u, {bits >> 32}u)"
