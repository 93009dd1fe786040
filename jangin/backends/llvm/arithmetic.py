"""What each operation of the expression language is in LLVM IR, for scalars and vectors alike.

Semantics are `ir.expr`'s. Nothing here traps: an integer quotient by zero is 0, a shift by too
many bits gives what shifting one bit at a time would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jangin.backends.llvm.builder import Builder
from jangin.backends.llvm.values import Value, constant, scalar_type, vector_type
from jangin.ir.dtype import BOOL, F16, F32, F64, I32, I64, DType
from jangin.ir.words import BITCASTS, COMPARE

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_ORDER = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})


def binary(b: Builder, op: str, x: Value, y: Value) -> Value:
    """`op(x, y)` of one dtype; comparisons give bool."""
    x, y = b.unify(x, y)
    if x.dtype.wide is not x.dtype:
        wide = binary(b, op, convert(b, x.dtype.wide, x), convert(b, x.dtype.wide, y))
        return wide if op in COMPARE else convert(b, x.dtype, wide)
    if op in COMPARE:
        return _compare(b, op, x, y)
    if x.dtype.is_float:
        return _float_binary(b, op, x, y)
    if x.dtype is BOOL:
        op = {"min": "and", "mul": "and", "max": "or", "add": "or"}.get(op, op)
    return _int_binary(b, op, x, y)


def _same(b: Builder, text: str, like: Value) -> Value:
    return b.op(text, like.dtype, like.lanes)


def _plain(b: Builder, instruction: str, x: Value, y: Value) -> Value:
    return _same(b, f"{instruction} {x}, {y.ref}", x)


def _compare(b: Builder, op: str, x: Value, y: Value) -> Value:
    if x.dtype.is_float:
        return b.op(f"fcmp {_FLOAT_COMPARE[op]} {x}, {y.ref}", BOOL, x.lanes)
    sign = "s" if x.dtype.kind == "i" else "u"
    return b.op(f"icmp {sign + _ORDER[op] if op in _ORDER else op} {x}, {y.ref}", BOOL, x.lanes)


def select(b: Builder, cond: Value, x: Value, y: Value) -> Value:
    """Both arms are computed already."""
    lanes = max(cond.lanes, x.lanes, y.lanes)
    x, y = b.broadcast(x, lanes), b.broadcast(y, lanes)
    return b.op(f"select {cond}, {x}, {y}", x.dtype, lanes)


def splat(b: Builder, value: float | int, like: Value) -> Value:
    return b.broadcast(constant(value, like.dtype), like.lanes)


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x*y + z, with one rounding where the target has the instruction."""
    if x.dtype.wide is not x.dtype:
        return convert(b, x.dtype, fma(b, *(convert(b, v.dtype.wide, v) for v in (x, y, z))))
    if not x.dtype.is_float:
        return binary(b, "add", binary(b, "mul", x, y), z)
    return b.instruction("fma", x.dtype, x.dtype, x, y, z)


def _float_binary(b: Builder, op: str, x: Value, y: Value) -> Value:
    if op in _FLOAT:
        return _plain(b, _FLOAT[op], x, y)
    if op in ("min", "max"):
        return _extreme(b, op, x, y)
    if op == "floordiv":
        return _unary(b, "floor", _plain(b, "fdiv", x, y))
    if op == "mod":
        rest = _plain(b, "frem", x, y)
        zero = splat(b, 0, x)
        differs = b.op(
            f"xor {_compare(b, 'lt', rest, zero)}, {_compare(b, 'lt', y, zero).ref}", BOOL, x.lanes
        )
        wrong = b.op(f"and {differs}, {_compare(b, 'ne', rest, zero).ref}", BOOL, x.lanes)
        return select(b, wrong, _plain(b, "fadd", rest, y), rest)
    assert op == "pow", op
    return _power(b, x, y)


def _extreme(b: Builder, op: str, x: Value, y: Value) -> Value:
    if y.is_const and not x.is_const:
        x, y = y, x
    number = x.is_const and not x.is_nan
    return b.instruction(f"{op}_number" if number else op, x.dtype, x.dtype, x, y)


def _power(b: Builder, x: Value, y: Value) -> Value:
    def is_(value: float) -> bool:
        return y.ref == splat(b, value, y).ref

    one = splat(b, 1, x)
    if is_(0):
        return one
    if is_(1):
        return x
    if is_(2) or is_(3):
        square = _plain(b, "fmul", x, x)
        return square if is_(2) else _plain(b, "fmul", square, x)
    if is_(-1):
        return _plain(b, "fdiv", one, x)
    if is_(0.5) or is_(-0.5):
        root = _unary(b, "sqrt", x)
        lowest = _compare(b, "eq", x, splat(b, -math.inf, x))
        root = select(b, lowest, splat(b, math.inf, x), _absolute(b, root))
        return root if is_(0.5) else _plain(b, "fdiv", one, root)
    return library(b, "pow", (x, y))


def _int_binary(b: Builder, op: str, x: Value, y: Value) -> Value:
    if op in _INT:
        return _plain(b, _INT[op], x, y)
    if op in ("min", "max"):
        return select(b, _compare(b, "lt" if op == "min" else "gt", x, y), x, y)
    if op in ("shl", "shr"):
        return _shift(b, op, x, y)
    if op == "pow":
        return _int_power(b, x, y)
    return _divide(b, op, x, y)


def _shift(b: Builder, op: str, x: Value, y: Value) -> Value:
    last = splat(b, x.dtype.bits - 1, x)
    fits = b.op(f"icmp ule {y}, {last.ref}", BOOL, x.lanes)
    if op == "shr" and x.dtype.kind == "i":
        return _plain(b, "ashr", x, select(b, fits, y, last))
    zero = splat(b, 0, x)
    shifted = _plain(b, "shl" if op == "shl" else "lshr", x, select(b, fits, y, zero))
    return shifted if y.is_const else select(b, fits, shifted, zero)


def _divide(b: Builder, op: str, x: Value, y: Value) -> Value:
    """div and rem truncate, floordiv and mod go down; y == 0 gives 0, the smallest over -1 wraps."""
    signed = x.dtype.kind == "i"
    zero = splat(b, 0, x)
    null = _compare(b, "eq", y, zero)
    unsafe = null
    if signed and not y.is_const:
        lowest = _compare(b, "eq", x, splat(b, -1 << (x.dtype.bits - 1), x))
        minus = _compare(b, "eq", y, splat(b, -1, x))
        both = b.op(f"and {lowest}, {minus.ref}", BOOL, x.lanes)
        unsafe = b.op(f"or {null}, {both.ref}", BOOL, x.lanes)
    by = (
        y
        if y.is_const and y.ref not in (zero.ref, splat(b, -1, x).ref)
        else select(b, unsafe, splat(b, 1, x), y)
    )
    s = "s" if signed else "u"
    wants_rest = op in ("rem", "mod")
    out = _plain(b, s + ("rem" if wants_rest else "div"), x, by)
    if signed and op in ("floordiv", "mod"):
        rest = out if wants_rest else _plain(b, "srem", x, by)
        differs = _compare(b, "lt", _plain(b, "xor", rest, by), zero)
        wrong = b.op(f"and {differs}, {_compare(b, 'ne', rest, zero).ref}", BOOL, x.lanes)
        fixed = _plain(b, "add", out, by) if wants_rest else _plain(b, "sub", out, splat(b, 1, x))
        out = select(b, wrong, fixed, out)
    return out if y.is_const and by is y else select(b, null, zero, out)


POWER = """
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
"""base**exponent modulo 2**64, of an unsigned exponent."""


def _int_power(b: Builder, x: Value, y: Value) -> Value:
    b.declarations["int.power"] = POWER
    zero = splat(b, 0, x)
    below = _compare(b, "lt", y, zero)

    def one(base: Value, exponent: Value) -> Value:
        args = f"{convert(b, I64, base)}, {convert(b, I64, exponent)}"
        return convert(b, x.dtype, b.op(f"call i64 @int.power({args})", I64))

    return select(b, below, zero, _per_lane(b, one, (x, select(b, below, zero, y))))


def _per_lane(b: Builder, fn: Callable[..., Value], args: Sequence[Value]) -> Value:
    lanes = max(a.lanes for a in args)
    parts = [fn(*(b.lane(a, n) for a in args)) for n in range(lanes)]
    return parts[0] if lanes == 1 else b.gather_lanes(parts)


def library(b: Builder, fn: str, args: Sequence[Value]) -> Value:
    """A function of the C mathematical library, called for each lane."""
    dtype = args[0].dtype
    name = fn + ("f" if dtype is F32 else "")
    lanes = max(a.lanes for a in args)
    wide = [b.broadcast(a, lanes) for a in args]
    return _per_lane(b, lambda *scalars: b.call(name, scalars, dtype), wide)


# --- intrinsics of one argument


def _bits_as(b: Builder, dtype: DType, x: Value) -> Value:
    if scalar_type(dtype) == scalar_type(x.dtype):
        return Value(x.ref, dtype, x.lanes)
    return b.op(f"bitcast {x} to {vector_type(dtype, x.lanes)}", dtype, x.lanes)


def _absolute(b: Builder, x: Value) -> Value:
    return b.call("llvm.fabs", (x,), x.dtype, x.lanes)


def _unary(b: Builder, name: str, x: Value) -> Value:
    return b.instruction(name, x.dtype, x.dtype, x)


def elementary(b: Builder, fn: str, x: Value) -> Value | None:
    """An intrinsic that is a few instructions; None for the others (see `backends.llvm.math`)."""
    if fn in BITCASTS:
        return _bits_as(b, BITCASTS[fn], x)
    if fn in ("isnan", "isinf"):
        if not x.dtype.is_float:
            return splat(b, 0, Value("", BOOL, x.lanes))
        wide = convert(b, x.dtype.wide, x)
        if fn == "isnan":
            return b.op(f"fcmp uno {wide}, {wide.ref}", BOOL, x.lanes)
        return _compare(b, "eq", _absolute(b, wide), splat(b, math.inf, wide))
    if x.dtype.wide is not x.dtype:
        wide_result = elementary(b, fn, convert(b, x.dtype.wide, x))
        return None if wide_result is None else convert(b, x.dtype, wide_result)
    if fn == "not":
        return _plain(b, "xor", x, splat(b, 1 if x.dtype is BOOL else -1, x))
    return _float_unary(b, fn, x) if x.dtype.is_float else _int_unary(b, fn, x)


def _float_unary(b: Builder, fn: str, x: Value) -> Value | None:
    if fn == "neg":
        return _same(b, f"fneg {x}", x)
    if fn == "abs":
        return _absolute(b, x)
    if fn in _ROUNDING:
        return _unary(b, fn, x)
    if fn == "sign":
        zero = splat(b, 0, x)
        below = select(b, _compare(b, "lt", x, zero), splat(b, -1, x), x)
        return select(b, _compare(b, "gt", x, zero), splat(b, 1, x), below)
    if fn in ("sqrt", "rsqrt"):
        root = _unary(b, "sqrt", x)
        return root if fn == "sqrt" else _plain(b, "fdiv", splat(b, 1, x), root)
    return None


def _int_unary(b: Builder, fn: str, x: Value) -> Value | None:
    zero = splat(b, 0, x)
    if fn in _ROUNDING or (fn == "abs" and x.dtype.kind != "i"):
        return x
    if fn == "neg":
        return _plain(b, "sub", zero, x)
    if fn == "abs":
        return select(b, _compare(b, "lt", x, zero), _plain(b, "sub", zero, x), x)
    if fn == "sign":
        above = select(b, _compare(b, "gt", x, zero), splat(b, 1, x), zero)
        if x.dtype.kind != "i":
            return above
        return select(b, _compare(b, "lt", x, zero), splat(b, -1, x), above)
    return None


# --- conversions


def convert(b: Builder, dtype: DType, x: Value) -> Value:
    """The value in another type, as a C cast: floats truncate to integers, bool is `!= 0`."""
    if x.dtype == dtype:
        return x
    if x.dtype.wide is not x.dtype:
        return convert(b, dtype, b.instruction("widen", x.dtype, x.dtype.wide, x))
    if dtype is BOOL:
        return _compare(b, "ne", x, splat(b, 0, x))
    if dtype.wide is not dtype:
        return _narrow(b, dtype, x)
    if x.dtype.is_float:
        return _resize_float(b, dtype, x) if dtype.is_float else _float_to_int(b, dtype, x)
    if dtype.is_float:
        return _cast(b, "sitofp" if x.dtype.kind == "i" else "uitofp", x, dtype)
    bits = 1 if x.dtype is BOOL else x.dtype.bits
    if bits == dtype.bits:
        return Value(x.ref, dtype, x.lanes)
    return _cast(b, "trunc" if bits > dtype.bits else "sext" if x.dtype.kind == "i" else "zext", x, dtype)


def _cast(b: Builder, instruction: str, x: Value, dtype: DType) -> Value:
    return b.op(f"{instruction} {x} to {vector_type(dtype, x.lanes)}", dtype, x.lanes)


def _resize_float(b: Builder, dtype: DType, x: Value) -> Value:
    return _cast(b, "fpext" if dtype.bits > x.dtype.bits else "fptrunc", x, dtype)


def _float_to_int(b: Builder, dtype: DType, x: Value) -> Value:
    """Through the next signed type that the processor converts to; what doesn't fit is arbitrary."""
    if dtype.bits == 64:
        through, instruction = dtype, "fptosi" if dtype.kind == "i" else "fptoui"
    else:
        through, instruction = (I64 if dtype.name == "u32" else I32), "fptosi"
    loose = _cast(b, instruction, x, through)
    return convert(b, dtype, b.op(f"freeze {loose}", through, x.lanes))


def _narrow(b: Builder, dtype: DType, x: Value) -> Value:
    if dtype.is_int:
        return b.instruction("narrow", dtype, dtype, convert(b, dtype.wide, x))
    if not x.dtype.is_float:
        exact = x.dtype is BOOL or x.dtype.bits <= 16 or dtype is F16
        return _narrow(b, dtype, convert(b, F32 if exact else F64, x))
    single = _round_to_odd(b, x) if x.dtype is F64 else x
    return b.instruction("narrow", dtype, dtype, single)


def _round_to_odd(b: Builder, x: Value) -> Value:
    """f64 to f32 so that a second rounding to 16 bits gives what one rounding would: truncated,
    with the last bit set where inexact."""
    near = _cast(b, "fptrunc", x, F32)
    back = _cast(b, "fpext", near, F64)
    bits = b.op(f"bitcast {near} to {vector_type(I32, x.lanes)}", I32, x.lanes)
    beyond = _compare(b, "gt", _absolute(b, back), _absolute(b, x))
    down = select(b, beyond, _plain(b, "sub", bits, splat(b, 1, bits)), bits)
    inexact = b.op(f"fcmp one {back}, {x.ref}", BOOL, x.lanes)
    odd = select(b, inexact, _plain(b, "or", down, splat(b, 1, bits)), bits)
    return b.op(f"bitcast {odd} to {vector_type(F32, x.lanes)}", F32, x.lanes)


# --- across lanes


def across(b: Builder, op: str, v: Value) -> Value:
    """All lanes of a vector combined by an associative operation, halving where the count is even."""
    lanes = v.lanes
    while lanes % 2 == 0:
        half_lanes = lanes // 2
        low = b.shuffle(v, None, range(half_lanes)) if half_lanes > 1 else b.lane(v, 0)
        high = b.shuffle(v, None, range(half_lanes, lanes)) if half_lanes > 1 else b.lane(v, 1)
        v, lanes = binary(b, op, low, high), half_lanes
    total = b.lane(v, 0)
    for n in range(1, lanes):
        total = binary(b, op, total, b.lane(v, n))
    return total
