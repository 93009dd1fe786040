"""LLVM IR that widens and narrows small element types, whose values lie in the lowest bits of an integer.

A float format is S bits of sign, then exponent, then mantissa. Its value times a power of two is
the float32 of the same exponent and mantissa bits, subnormal numbers included; going back, a
normal number is rebiased and rounded to even, and adding a power of two lets the processor round
a subnormal one. (IEEE 754; OCP 8-bit Floating Point Specification 1.0 and Microscaling Formats
1.0; Noune et al. 2022 for the "fnuz" formats: no negative zero, whose code is NaN.)
"""

from __future__ import annotations

from dataclasses import dataclass

from jangin.ir.dtype import BF16, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F16, DType


@dataclass(frozen=True)
class Format:
    """`top`: the code of the largest number; `beyond`: of what overflows; `nan`: of NaN (which, where
    it is the sign bit alone, there is no negative one of). `infinite`: codes above `top` are infinity
    and NaNs, as IEEE's."""

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
        """Else NaN becomes negative zero."""
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


def widen(dtype: DType) -> str:
    """A value %x in the type that it is computed in."""
    if dtype.is_int:
        left = f"%high = shl {{i8}} %x, {{i8:{8 - dtype.bits}}}"
        return f"{left}\n{'ashr' if dtype.kind == 'i' else 'lshr'} {{i8}} %high, {{i8:{8 - dtype.bits}}}"
    if dtype in _FORMATS:
        return _widen(_FORMATS[dtype])
    return _WIDEN_BF16 if dtype is BF16 else _WIDEN_E8M0


def narrow(dtype: DType) -> str:
    """A value %x of the type that is computed in, rounded to the nearest, half to even."""
    if dtype.is_int:
        return f"and {{i8}} %x, {{i8:{(1 << dtype.bits) - 1}}}"
    if dtype in _FORMATS:
        return _narrow(_FORMATS[dtype])
    return _NARROW_BF16 if dtype is BF16 else _NARROW_E8M0


def _widen(f: Format) -> str:
    lines = f"""
    %wide = zext {{T}} %x to {{i32}}
    %minus = and {{i32}} %wide, {{i32:{f.sign}}}
    %sign = shl {{i32}} %minus, {{i32:{31 - f.exponent - f.mantissa}}}
    %size = and {{i32}} %wide, {{i32:{f.sign - 1}}}
    %rest = shl {{i32}} %size, {{i32:{23 - f.mantissa}}}
    %small = bitcast {{i32}} %rest to {{f32}}
    %scaled = fmul {{f32}} %small, {{f32:{2.0 ** (127 - f.bias)!r}}}
    %number = bitcast {{f32}} %scaled to {{i32}}"""
    value = "%number"
    if f.infinite:
        lines += f"""
    %special = icmp sgt {{i32}} %size, {{i32:{f.top}}}
    %other = or {{i32}} %rest, {{i32:0x7F800000}}"""
    elif f.has_nan:
        lines += f"""
    %special = icmp eq {{i32}} {"%wide" if f.unsigned_nan else "%size"}, {{i32:{f.nan}}}
    %other = or {{i32}} %rest, {{i32:0x7FC00000}}"""
    if f.has_nan:
        lines += "\n%chosen = select {bool} %special, {i32} %other, {i32} %number"
        value = "%chosen"
    return f"""{lines}
    %bits = or {{i32}} {value}, %sign
    bitcast {{i32}} %bits to {{f32}}"""


def _narrow(f: Format) -> str:
    shift = 23 - f.mantissa
    rebias = -((127 - f.bias) << 23) + (1 << (shift - 1)) - 1
    step = shift + 1 - f.bias
    lines = f"""
    %bits = bitcast {{f32}} %x to {{i32}}
    %sign = and {{i32}} %bits, {{i32:-0x80000000}}
    %size = xor {{i32}} %bits, %sign
    %above = lshr {{i32}} %size, {{i32:{shift}}}
    %odd = and {{i32}} %above, {{i32:1}}
    %even = add {{i32}} %size, %odd
    %moved = add {{i32}} %even, {{i32:{rebias}}}
    %normal = lshr {{i32}} %moved, {{i32:{shift}}}
    %positive = bitcast {{i32}} %size to {{f32}}
    %shifted = fadd {{f32}} %positive, {{f32:{2.0**step!r}}}
    %tiny = bitcast {{f32}} %shifted to {{i32}}
    %subnormal = sub {{i32}} %tiny, {{i32:{(step + 127) << 23}}}
    %below = icmp slt {{i32}} %size, {{i32:{(128 - f.bias) << 23}}}
    %finite = select {{bool}} %below, {{i32}} %subnormal, {{i32}} %normal
    %over = icmp ugt {{i32}} %finite, {{i32:{f.top}}}
    %number = select {{bool}} %over, {{i32}} {{i32:{f.beyond}}}, {{i32}} %finite
    %nan = icmp sgt {{i32}} %size, {{i32:0x7F800000}}
    %any = select {{bool}} %nan, {{i32}} {{i32:{f.nan}}}, {{i32}} %number
    %minus = lshr {{i32}} %sign, {{i32:{31 - f.exponent - f.mantissa}}}
    %coded = or {{i32}} %any, %minus"""
    if f.unsigned_nan:  # the sign of zero is left out
        lines += """
    %zero = icmp eq {i32} %any, {i32:0}
    %kept = select {bool} %zero, {i32} {i32:0}, {i32} %coded"""
        return lines + "\n    trunc {i32} %kept to {T}"
    return lines + "\n    trunc {i32} %coded to {T}"


_WIDEN_E8M0 = """
    %wide = zext {T} %x to {i32}
    %power = shl {i32} %wide, {i32:23}
    %least = icmp eq {i32} %wide, {i32:0}
    %number = select {bool} %least, {i32} {i32:0x400000}, {i32} %power
    %nan = icmp eq {i32} %wide, {i32:255}
    %bits = select {bool} %nan, {i32} {i32:0x7FC00000}, {i32} %number
    bitcast {i32} %bits to {f32}"""
"""Powers of two: the exponent's code of float32, and no zero."""

_NARROW_E8M0 = """
    %bits = bitcast {f32} %x to {i32}
    %rounded = add {i32} %bits, {i32:0x400000}
    %code = lshr {i32} %rounded, {i32:23}
    %above = icmp sgt {i32} %bits, {i32:0}
    %below = icmp slt {i32} %bits, {i32:0x7F800000}
    %finite = and {bool} %above, %below
    %kept = select {bool} %finite, {i32} %code, {i32} {i32:255}
    trunc {i32} %kept to {T}"""

_WIDEN_BF16 = """
    %wide = zext {T} %x to {i32}
    %bits = shl {i32} %wide, {i32:16}
    bitcast {i32} %bits to {f32}"""

_NARROW_BF16 = """
    %bits = bitcast {f32} %x to {i32}
    %above = lshr {i32} %bits, {i32:16}
    %odd = and {i32} %above, {i32:1}
    %bias = add {i32} %odd, {i32:0x7FFF}
    %rounded = add {i32} %bits, %bias
    %quiet = or {i32} %bits, {i32:0x400000}
    %nan = fcmp uno {f32} %x, %x
    %chosen = select {bool} %nan, {i32} %quiet, {i32} %rounded
    %top = lshr {i32} %chosen, {i32:16}
    trunc {i32} %top to {T}"""
