"""Small element types, held in the lowest bits of an integer: how they are widened and narrowed.

A float format is a sign bit, then exponent, then mantissa. Its value times a power of two is the float32 with
the same exponent and mantissa bits, also for subnormal numbers. Narrowing rebiases a normal number and rounds
it to even. The processor rounds a subnormal one when a power of two is added.

Sources: IEEE 754; OCP 8-bit Floating Point Specification 1.0 and Microscaling Formats 1.0; Noune et al. 2022
for the "fnuz" formats. These have no negative zero: its code is NaN.
"""

from __future__ import annotations

from jangin.ir.dtype import (
    BF16,
    F4E2M1,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    I32,
    U8,
    U16,
    U32,
    DType,
)
from jangin.ir.expr import Const, Expr, Var, binary, call, cast, const, eq, land, select
from jangin.ir.records import dataclass

ARGUMENT = "argument"
"""The name of the variable in a formula of one argument."""


@dataclass(frozen=True)
class Format:
    """A small float format. `top`: the code of its largest number. `beyond`: the code for overflow. `nan`:
    the code of NaN.

    If `nan` is the sign bit alone, there is no negative NaN. `infinite`: codes above `top` are infinity and
    NaNs, as in IEEE 754.
    """

    exponent: int
    mantissa: int
    bias: int
    top: int
    beyond: int
    nan: int
    infinite: bool = False

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)

    @property
    def has_nan(self) -> bool:
        """Whether the format has NaN. If not, NaN becomes negative zero."""
        return self.top < self.sign - 1 or self.unsigned_nan

    @property
    def unsigned_nan(self) -> bool:
        return self.nan == self.sign == self.beyond


_FORMATS: dict[DType, Format] = {
    F16: Format(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00, infinite=True),
    F8E5M2: Format(5, 2, 15, 0x7B, 0x7C, 0x7E, infinite=True),
    F8E4M3FN: Format(4, 3, 7, 0x7E, 0x7F, 0x7F),
    F8E5M2FNUZ: Format(5, 2, 16, 0x7F, 0x80, 0x80),
    F8E4M3FNUZ: Format(4, 3, 8, 0x7F, 0x80, 0x80),
    F4E2M1: Format(2, 1, 1, 0x7, 0x7, 0x8),
}


def widen(dtype: DType, *, subnormals: bool = True) -> Expr:
    """Return the formula that widens ARGUMENT, of a small type, to the type that it is computed in. Without
    `subnormals` it computes with no subnormal float32, for devices that take them for 0."""
    x = Var(ARGUMENT, dtype)
    if dtype.is_int:
        left = const(8 - dtype.bits, dtype.wide)
        high = binary("shl", call(f"bitcast_{dtype.wide}", x), left)
        return binary("shr", high, left)
    wide = cast(I32, call(f"bitcast_u{8 * dtype.bytes}", x))
    if dtype is BF16:
        return _float(binary("shl", wide, _i(16)))
    return _float(_widen(_FORMATS[dtype], wide, subnormals) if dtype in _FORMATS else _widen_power(wide))


def narrow(dtype: DType) -> Expr:
    """Return the formula that narrows ARGUMENT to a small type, rounded to nearest, half to even."""
    x = Var(ARGUMENT, dtype.wide)
    if dtype.is_int:
        return call(f"bitcast_{dtype}", binary("and", x, const((1 << dtype.bits) - 1, dtype.wide)))
    if dtype in _FORMATS:
        code = _narrow(_FORMATS[dtype], x)
    else:
        code = _narrow_bf16(x) if dtype is BF16 else _narrow_power(x)
    return call(f"bitcast_{dtype}", cast(_CODES[dtype.bytes], code))


_CODES = {1: U8, 2: U16}


def _i(value: int) -> Const:
    return const(value, I32)


def _bits(x: Expr) -> Expr:
    return call("bitcast_i32", x)


def _float(bits: Expr) -> Expr:
    return call("bitcast_f32", bits)


def _above(bits: Expr, count: int) -> Expr:
    """Return the bits above the lowest `count`, shifted down."""
    return cast(I32, binary("shr", cast(U32, bits), const(count, U32)))


def _widen(f: Format, wide: Expr, subnormals: bool) -> Expr:
    sign = binary("shl", binary("and", wide, _i(f.sign)), _i(31 - f.exponent - f.mantissa))
    size = binary("and", wide, _i(f.sign - 1))
    rest = binary("shl", size, _i(23 - f.mantissa))
    if subnormals:
        number = _bits(_float(rest) * const(2.0 ** (127 - f.bias), F32))
    else:
        least = _bits(cast(F32, size) * const(2.0 ** (1 - f.bias - f.mantissa), F32))
        number = select(size < _i(1 << f.mantissa), least, rest + _i((127 - f.bias) << 23))
    if f.infinite:
        number = select(size > _i(f.top), binary("or", rest, _i(0x7F800000)), number)
    elif f.has_nan:
        nan = eq(wide if f.unsigned_nan else size, _i(f.nan))
        number = select(nan, binary("or", rest, _i(0x7FC00000)), number)
    return binary("or", number, sign)


def _narrow(f: Format, x: Expr) -> Expr:
    shift = 23 - f.mantissa
    bits = _bits(x)
    sign = binary("and", bits, _i(-0x80000000))
    size = binary("xor", bits, sign)
    even = size + binary("and", _above(size, shift), _i(1))
    normal = _above(even + _i(-((127 - f.bias) << 23) + (1 << (shift - 1)) - 1), shift)
    step = shift + 1 - f.bias
    subnormal = _bits(_float(size) + const(2.0**step, F32)) - _i((step + 127) << 23)
    finite = select(size < _i((128 - f.bias) << 23), subnormal, normal)
    number = select(cast(U32, finite) > const(f.top, U32), _i(f.beyond), finite)
    code = select(size > _i(0x7F800000), _i(f.nan), number)
    coded = binary("or", code, _above(sign, 31 - f.exponent - f.mantissa))
    # such a format's zero has no sign
    return select(eq(code, _i(0)), _i(0), coded) if f.unsigned_nan else coded


def _widen_power(wide: Expr) -> Expr:
    """F8E8M0 holds powers of two: its code is float32's exponent. It has no zero."""
    number = select(eq(wide, _i(0)), _i(0x400000), binary("shl", wide, _i(23)))
    return select(eq(wide, _i(255)), _i(0x7FC00000), number)


def _narrow_power(x: Expr) -> Expr:
    bits = _bits(x)
    finite = land(bits > _i(0), bits < _i(0x7F800000))
    return select(finite, _above(bits + _i(0x400000), 23), _i(255))


def _narrow_bf16(x: Expr) -> Expr:
    bits = _bits(x)
    odd = binary("and", _above(bits, 16), _i(1))
    rounded = bits + (odd + _i(0x7FFF))
    return _above(select(call("isnan", x), binary("or", bits, _i(0x400000)), rounded), 16)
