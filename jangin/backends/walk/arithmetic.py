"""Lowers each operation of the expression language to a machine's operations, for scalars and vectors alike.

The semantics are those of `ir.expr`. Nothing here traps: an integer quotient by zero is 0. A shift by too
many bits has the result of shifting one bit at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jangin.backends.walk.saturated import CONVERSIONS, Saturated
from jangin.backends.walk.writer import Value, Writer
from jangin.ir.arithmetic import convert, through_signed
from jangin.ir.dtype import BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U64, DType, dtype_of
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select, Var
from jangin.ir.products import Product
from jangin.ir.traversal import children
from jangin.ir.words import BITCASTS, COMPARE, ROUNDINGS
from jangin.targets.small import ARGUMENT

_INT = frozenset({"add", "sub", "mul", "and", "or", "xor"})
_FLOAT = frozenset({"add", "sub", "mul", "div", "rem"})
_BOOL = {"min": "and", "mul": "and", "max": "or", "add": "or"}
_ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})


class Arithmetic:
    """Operations in terms of a writer's operations."""

    def __init__(self, w: Writer) -> None:
        self.w = w

    def formula(self, e: Expr, *given: Value, names: Sequence[str] = (ARGUMENT,)) -> Value:
        """Return an expression of variables of these `names` at the values given. It has no loads, so all of
        it is computed."""
        values = dict(zip(names, given, strict=True))
        done: dict[Expr, Value] = {}

        def value(e: Expr) -> Value:
            if isinstance(e, Const):
                return self.w.constant(e.value, e.dtype)
            if isinstance(e, Var):
                return values[e.name]
            if e not in done:
                done[e] = compute(e, *map(value, children(e)))
            return done[e]

        def compute(e: Expr, *args: Value) -> Value:
            if isinstance(e, Binary):
                return self.binary(e.op, *args)
            if isinstance(e, Select):
                return self.select(*args)
            if isinstance(e, Cast):
                return self.convert(e.dtype, args[0])
            assert isinstance(e, Call)
            result = self.fma(*args) if e.fn == "fma" else self.elementary(e.fn, *args)
            assert result is not None, f"{e.fn} isn't elementary"
            return result

        return value(e)

    def binary(self, op: str, x: Value, y: Value) -> Value:
        """Return `op(x, y)` of one dtype. Comparisons return bool. Types smaller than f32 are computed in
        their wide type."""
        x, y = self.w.unify(x, y)
        dtype = x.dtype
        if dtype.wide is not dtype:
            wide = self.binary(op, self.convert(dtype.wide, x), self.convert(dtype.wide, y))
            return wide if op in COMPARE else self.convert(dtype, wide)
        if op in COMPARE:
            return self.w.compare(op, x, y)
        if dtype.is_float:
            return self._float_binary(op, x, y)
        return self._int_binary(_BOOL.get(op, op) if dtype is BOOL else op, x, y)

    def select(self, cond: Value, x: Value, y: Value) -> Value:
        """Return x where `cond` holds, and y elsewhere. Both are computed already."""
        lanes = max(cond.lanes, x.lanes, y.lanes)
        return self.w.select(cond, self.w.broadcast(x, lanes), self.w.broadcast(y, lanes))

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """Return x*y + z, with one rounding if the target has the instruction."""
        dtype = x.dtype
        if dtype.wide is not dtype:
            return self.convert(dtype, self.fma(*(self.convert(dtype.wide, v) for v in (x, y, z))))
        if not dtype.is_float:
            return self.binary("add", self.binary("mul", x, y), z)
        return self.w.instruction("fma", dtype, dtype, *self.w.unify(x, y, z))

    def dot(self, product: Product, x: Value, y: Value, z: Value) -> Value:
        """Return z plus the Product's sum for the words x and y."""
        if product.rounds:
            y = self._tf32(product.rounds, y)
            x = x if product.ready else self._tf32(product.rounds, x)
        x, y, z = self.w.unify(x, y, z)
        if product.terms == 1 and self.w.target.product_row(product, x.lanes) is None:
            return self.fma(self.convert(z.dtype, x), self.convert(z.dtype, y), z)
        return self.w.instruction(product.name, product.row_type, product.total, x, y, z)

    def library(self, fn: str, *args: Value) -> Value:
        """Return the result of a function of the C mathematical library, which is called for each lane."""
        return self.w.by_lane(lambda *scalars: self.w.function(fn, *scalars), *args)

    # --- floats

    def _float_binary(self, op: str, x: Value, y: Value) -> Value:
        w = self.w
        if op in _FLOAT:
            return w.binary(op, x, y)
        if op in ("min", "max"):
            return self._extreme(op, x, y)
        if op == "floordiv":
            return self._unary("floor", w.binary("div", x, y))
        if op == "mod":
            rest, zero = w.binary("rem", x, y), w.like(0, x)
            differs = w.binary("xor", w.compare("lt", rest, zero), w.compare("lt", y, zero))
            wrong = w.binary("and", differs, w.compare("ne", rest, zero))
            return w.select(wrong, w.binary("add", rest, y), rest)
        assert op == "pow", op
        return self._power(x, y)

    def _extreme(self, op: str, x: Value, y: Value) -> Value:
        if y.is_const and not x.is_const:
            x, y = y, x
        number = x.number is not None and x.number == x.number  # a constant, but not NaN
        return self.w.instruction(f"{op}_number" if number else op, x.dtype, x.dtype, x, y)

    def _power(self, x: Value, y: Value) -> Value:
        w, one = self.w, self.w.like(1, x)
        if y.number == 0:
            return one
        if y.number == 1:
            return x
        if y.number in (2, 3):
            square = w.binary("mul", x, x)
            return square if y.number == 2 else w.binary("mul", square, x)
        if y.number == -1:
            return w.binary("div", one, x)
        if y.number in (0.5, -0.5):
            root = self._unary("sqrt", x)
            lowest = w.compare("eq", x, w.like(-math.inf, x))
            root = w.select(lowest, w.like(math.inf, x), w.absolute(root))
            return root if y.number == 0.5 else w.binary("div", one, root)
        return self.library("pow", x, y)

    def _unary(self, name: str, x: Value) -> Value:
        return self.w.instruction(name, x.dtype, x.dtype, x)

    # --- integers

    def _int_binary(self, op: str, x: Value, y: Value) -> Value:
        if op in _INT:
            return self.w.binary(op, x, y)
        if op in ("min", "max"):
            return self.w.extreme(op, x, y)
        if op in ("shl", "shr"):
            return self._shift(op, x, y)
        if op == "pow":
            return self._int_power(x, y)
        return self._divide(op, x, y)

    def _shift(self, op: str, x: Value, y: Value) -> Value:
        if y.number is not None and 0 <= y.number < x.dtype.bits:
            return self.w.binary(op, x, y)
        w, last = self.w, self.w.like(x.dtype.bits - 1, x)
        unsigned = dtype_of(f"u{x.dtype.bits}")
        if op == "shr" and x.dtype.kind == "i" and x.lanes > 1 and w.target.row("min", unsigned, x.lanes):
            least = w.extreme("min", *(w.bitcast(unsigned, v) for v in (y, last)))
            return w.binary("shr", x, w.bitcast(x.dtype, least))
        fits = w.compare("ule", y, last)
        if op == "shr" and x.dtype.kind == "i":
            return w.binary("shr", x, w.select(fits, y, last))
        zero = w.like(0, x)
        shifted = w.binary(op, x, w.select(fits, y, zero))
        return shifted if y.is_const else w.select(fits, shifted, zero)

    def _divide(self, op: str, x: Value, y: Value) -> Value:
        """Return an integer quotient or remainder: div and rem truncate, floordiv and mod round down. y == 0
        gives 0; the smallest number over -1 wraps."""
        w, signed = self.w, x.dtype.kind == "i"
        zero = w.like(0, x)
        if signed and y.number == -1:
            return zero if op in ("rem", "mod") else w.binary("sub", zero, x)
        null = w.compare("eq", y, zero)
        unsafe = null
        if signed and not y.is_const:
            lowest = w.compare("eq", x, w.like(-1 << (x.dtype.bits - 1), x))
            minus = w.compare("eq", y, w.like(-1, x))
            unsafe = w.binary("or", null, w.binary("and", lowest, minus))
        by = y if y.number else w.select(unsafe, w.like(1, x), y)
        wants_rest = op in ("rem", "mod")
        out = w.binary("rem" if wants_rest else "div", x, by)
        if signed and op in ("floordiv", "mod"):
            rest = out if wants_rest else w.binary("rem", x, by)
            differs = w.compare("lt", w.binary("xor", rest, by), zero)
            wrong = w.binary("and", differs, w.compare("ne", rest, zero))
            fixed = w.binary("add", out, by) if wants_rest else w.binary("sub", out, w.like(1, x))
            out = w.select(wrong, fixed, out)
        return out if y.is_const and by is y else w.select(null, zero, out)

    def _int_power(self, x: Value, y: Value) -> Value:
        w, zero = self.w, self.w.like(0, x)
        below = w.compare("lt", y, zero)

        def one(base: Value, exponent: Value) -> Value:
            return self.convert(x.dtype, w.power(self.convert(I64, base), self.convert(I64, exponent)))

        return w.select(below, zero, w.by_lane(one, x, w.select(below, zero, y)))

    # --- intrinsics of one argument

    def elementary(self, fn: str, x: Value) -> Value | None:
        """Return an intrinsic of a few instructions, or None for the others (see `backends.walk.math`)."""
        w, dtype = self.w, x.dtype
        if fn in BITCASTS:
            return self._bits_as(BITCASTS[fn], x)
        if fn in ("isnan", "isinf"):
            if not dtype.is_float:
                return w.broadcast(w.constant(False, BOOL), x.lanes)
            wide = self.convert(dtype.wide, x)
            if fn == "isnan":
                return w.compare("unordered", wide, wide)
            return w.compare("eq", w.absolute(wide), w.like(math.inf, wide))
        if dtype.wide is not dtype:
            wide_result = self.elementary(fn, self.convert(dtype.wide, x))
            return None if wide_result is None else self.convert(dtype, wide_result)
        if fn == "not":
            return w.binary("xor", x, w.like(True if dtype is BOOL else -1, x))
        return self._float_unary(fn, x) if dtype.is_float else self._int_unary(fn, x)

    def _bits_as(self, dtype: DType, x: Value) -> Value:
        if x.number is None:
            return self.w.bitcast(dtype, x)
        bits = np.asarray(x.number, x.dtype.numpy).view(dtype.numpy).item()
        return self.w.broadcast(self.w.constant(bits, dtype), x.lanes)

    def _float_unary(self, fn: str, x: Value) -> Value | None:
        w = self.w
        if fn == "neg":
            return w.negate(x)
        if fn == "abs":
            return w.absolute(x)
        if fn in _ROUNDING:
            return self._unary(fn, x)
        if fn in ROUNDINGS:
            return self._tf32(fn, x)
        if fn == "sign":
            zero = w.like(0, x)
            below = w.select(w.compare("lt", x, zero), w.like(-1, x), x)
            return w.select(w.compare("gt", x, zero), w.like(1, x), below)
        if fn in ("sqrt", "rsqrt"):
            root = self._unary("sqrt", x)
            return root if fn == "sqrt" else w.binary("div", w.like(1, x), root)
        return None

    def _tf32(self, fn: str, x: Value) -> Value:
        """Return an f32 rounded to tf32 by one of `ROUNDINGS`, by the target's instruction if it has one. The
        sum of its bits changes NaN, which stays as it is."""
        w = self.w
        if w.target.row(fn, F32, x.lanes) is not None:
            return w.instruction(fn, F32, F32, x)
        bits = w.bitcast(I32, x)
        half, kept = w.like(1 << 12, bits), w.like(-1 << 13, bits)
        if fn == "tf32_even":
            odd = w.binary("and", w.binary("shr", bits, w.like(13, bits)), w.like(1, bits))
            half = w.binary("add", w.like((1 << 12) - 1, bits), odd)
        near = w.bitcast(F32, w.binary("and", w.binary("add", bits, half), kept))
        return w.select(w.compare("unordered", x, x), x, near)

    def _int_unary(self, fn: str, x: Value) -> Value | None:
        w, zero = self.w, self.w.like(0, x)
        signed = x.dtype.kind == "i"
        if fn in _ROUNDING or (fn == "abs" and not signed):
            return x
        if fn == "neg":
            return w.binary("sub", zero, x)
        if fn == "abs":
            return w.select(w.compare("lt", x, zero), w.binary("sub", zero, x), x)
        if fn == "sign":
            above = w.select(w.compare("gt", x, zero), w.like(1, x), zero)
            return w.select(w.compare("lt", x, zero), w.like(-1, x), above) if signed else above
        return None

    # --- conversions

    def convert(self, dtype: DType, x: Value, held: bool = False) -> Value:
        """Return the value in another type, converted as in C: floats truncate to integers, bool is `!= 0`.
        `held`: an i32 can hold the float, unless it is NaN."""
        if x.dtype is dtype:
            return x
        if x.dtype.wide is not x.dtype:
            return self.convert(dtype, self._conversion("widen", x.dtype, x.dtype.wide, x), held)
        if dtype is BOOL:
            return self.w.compare("ne", x, self.w.like(0, x))
        if dtype.wide is not dtype:
            return self._narrow(dtype, x, held)
        if x.dtype.is_float and not dtype.is_float:
            x = self._whole(dtype, x, held)
        return x if x.dtype is dtype else self.w.cast(dtype, x)

    def _whole(self, dtype: DType, x: Value, held: bool) -> Value:
        """Return the integer whose lowest bits a float's conversion to a type keeps (see
        `ir.arithmetic.convert`)."""
        w = self.w
        if x.number is not None:
            return w.broadcast(w.constant(int(convert(x.number, dtype)), dtype), x.lanes)
        through = through_signed(dtype)
        if dtype is not U64:
            name = f"to_{through}_held" if held and dtype.bits <= 16 else f"to_{through}"
            return w.instruction(name, x.dtype, through, x)
        end = w.like(2.0**63, x)
        low, high = (
            w.instruction(f"to_{through}", x.dtype, through, v) for v in (x, w.binary("sub", x, end))
        )
        turned = w.binary("xor", high, w.like(through.limits[0], high))
        return w.select(w.compare("ge", x, end), turned, low)

    def saturated(self, dtype: DType, x: Value, s: Saturated) -> Value:
        """Return x rounded and clamped, as an integer of 8 or 16 bits.

        A bound that equals the limit of the type, or of its unsigned counterpart, is left to the saturating
        conversion. If nothing is subtracted, numbers below all i32 become the least i32. On x86 NaN becomes
        the least i32 too, and therefore the least number of the type.
        """
        w, top = self.w, 1 << dtype.bits
        # the conversion to this type saturates at this bound too
        kind = U16 if dtype is I16 and s.low == 0 else dtype
        cut = {0: top - 1, -top // 2: top // 2 - 1}.get(s.low) if s.offset >= 0 else None
        if not s.fits:
            x = self.binary("min", x, w.constant(float(s.high - s.offset), F32))
            if cut is None:
                low = w.like(float(s.low - s.offset), x)
                x = w.instruction("max_number", F32, F32, x, low)  # for NaN, the second operand is the result
        whole = w.instruction(CONVERSIONS[s.rule], F32, I32, x)
        if s.offset:
            whole = self.binary("add", whole, w.constant(s.offset, I32))
        ends = (("max", s.low), ("min", s.high)) if s.fits else ()
        if cut is not None and not s.fits:
            ends = ("max", s.low), ("min", cut)
        at_once = w.target.row("clamped", kind, x.lanes) is not None
        for op, end in ends:
            if not (at_once and end in (*kind.limits, cut)):
                whole = self.binary(op, whole, w.constant(end, I32))
        if not at_once:
            return self.convert(dtype, whole)
        return w.bitcast(dtype, w.instruction("clamped", kind, kind, whole))

    def by_short(self, dtype: DType, x: Value, to: Saturated) -> Value:
        """Return `saturated` by way of int16, to which the processor clamps. The offset is usually added in
        int16. The offset is added in bytes if the range without the offset is exactly a byte type's."""
        w, whole = self.w, self.w.instruction("short", F32, I16, x)
        ends, kind = (to.low - to.offset, to.high - to.offset), dtype
        bare = next((t for t in (U8, I8) if dtype.bits == 8 and t.limits == ends), None)
        if bare is not None:
            kind = bare
        elif to.offset:
            offset = w.broadcast(w.constant(to.offset, I16), x.lanes)
            whole, ends = w.instruction("add_short", I16, I16, whole, offset), (to.low, to.high)
        if kind.bits == 8 or kind.limits != ends:
            for op, end in (("max", ends[0]), ("min", ends[1])):
                whole = self.binary(op, whole, w.constant(end, I16))
        small = self.convert(kind, whole)
        if bare is None or not to.offset:
            return w.bitcast(dtype, small)
        return self.binary("add", w.bitcast(dtype, small), w.constant(to.offset, dtype))

    def _conversion(self, name: str, dtype: DType, result: DType, x: Value) -> Value:
        """Return x converted between a small type and the type that it is computed in, by the target's row
        `name`."""
        row = self.w.row(name, dtype, x.lanes)
        if row.expansion is not None and not self.w.has_text(row):
            return self.formula(row.expansion, x)
        return self.w.instruction(name, dtype, result, x)

    def _narrow(self, dtype: DType, x: Value, held: bool = False) -> Value:
        if dtype.is_int:
            return self._conversion("narrow", dtype, dtype, self.convert(dtype.wide, x, held))
        if not x.dtype.is_float:
            exact = x.dtype is BOOL or x.dtype.bits <= 16 or dtype is F16
            return self._narrow(dtype, self.convert(F32 if exact else F64, x))
        single = self._round_to_odd(x) if x.dtype is F64 else x
        return self._conversion("narrow", dtype, dtype, single)

    def _round_to_odd(self, x: Value) -> Value:
        """Return an f64 as f32, rounded to odd, so that a second rounding to 16 bits equals a single
        rounding. The value is truncated, and its last bit is set if it is inexact."""
        w = self.w
        near = w.cast(F32, x)
        back = w.cast(F64, near)
        bits = w.bitcast(I32, near)
        beyond = w.compare("gt", w.absolute(back), w.absolute(x))
        down = w.select(beyond, w.binary("sub", bits, w.like(1, bits)), bits)
        inexact = w.compare("apart", back, x)
        odd = w.select(inexact, w.binary("or", down, w.like(1, bits)), bits)
        return w.bitcast(F32, odd)

    # --- across lanes

    def across(self, op: str, v: Value) -> Value:
        """Return all lanes of a vector combined by an associative operation. An even number of lanes is
        halved repeatedly."""
        w, lanes = self.w, v.lanes
        while lanes % 2 == 0:
            half = lanes // 2
            low = w.shuffle(v, None, range(half)) if half > 1 else w.lane(v, 0)
            high = w.shuffle(v, None, range(half, lanes)) if half > 1 else w.lane(v, 1)
            v, lanes = self.binary(op, low, high), half
        total = w.lane(v, 0)
        for n in range(1, lanes):
            total = self.binary(op, total, w.lane(v, n))
        return total
