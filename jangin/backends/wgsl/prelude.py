"""WGSL functions that shaders call. The language lacks them, or doesn't define their results.

WGSL doesn't define comparisons with NaN, so NaN is recognized by its bits. A 64-bit integer is a pair of
words, the low one first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from jangin.ir.records import dataclass
from jangin.runtime.devices.wgsl_halves import CALLS, PLAIN


@dataclass(frozen=True)
class Helper:
    """A function's text, and the names of the functions that it calls."""

    text: str
    calls: tuple[str, ...] = ()


def texts(names: Collection[str]) -> list[str]:
    """Return the texts of the named functions and of all functions that they call. Each function follows
    those that it calls."""
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        for called in HELPERS[name].calls:
            add(called)
        texts[name] = HELPERS[name].text

    for name in sorted(names):
        add(name)
    return [*texts.values()]


HELPERS: Mapping[str, Helper] = MappingProxyType({
    "is_nan": Helper("""fn is_nan(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}"""),
    "least": Helper("""fn least(x: f32, y: f32) -> f32 {
  return select(select(y, x, x < y), x, is_nan(x));
}""", ("is_nan",)),
    "greatest": Helper("""fn greatest(x: f32, y: f32) -> f32 {
  return select(select(y, x, x > y), x, is_nan(x));
}""", ("is_nan",)),
    "i32_of": Helper("""fn i32_of(x: f32) -> i32 {
  return select(i32(-2147483647 - 1), i32(x), x >= -2147483648.0f && x < 2147483648.0f);
}"""),
    "float_of_half": Helper("""fn float_of_half(x: u32) -> f32 {
  let special = ((x & 0x8000u) << 16u) | 0x7f800000u | ((x & 0x3ffu) << 13u);
  return select(unpack2x16float(x).x, bitcast<f32>(special), (x & 0x7c00u) == 0x7c00u);
}"""),
    "half_of_float": Helper("""fn half_of_float(x: f32) -> u32 {
  let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
  let size = bitcast<u32>(x) & 0x7fffffffu;
  let normal = (size + ((size >> 13u) & 1u) + 0xc8000fffu) >> 13u;
  let subnormal = bitcast<u32>(bitcast<f32>(size) + 0.5f) - 0x3f000000u;
  let number = min(select(normal, subnormal, size < 0x38800000u), 0x7c00u);
  return sign | select(number, 0x7e00u, size > 0x7f800000u);
}"""),
    **{name: Helper(text, ("Half", *CALLS[name]) if name in CALLS else ()) for name, text in PLAIN.items()},
    "remainder": Helper("""fn remainder(x: f32, y: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b == 0u || b > 0x7f800000u) { return bitcast<f32>(0x7fc00000u | u.zero); }
  if (a < b) { return x; }
  var exponent = i32(max(a >> 23u, 1u));
  let least = i32(max(b >> 23u, 1u));
  let divisor = select((b & 0x7fffffu) | 0x800000u, b, b < 0x800000u);
  var rest = select((a & 0x7fffffu) | 0x800000u, a, a < 0x800000u) % divisor;
  while (exponent > least) {
    let n = min(8, exponent - least);
    rest = (rest << u32(n)) % divisor;
    exponent -= n;
  }
  if (rest == 0u) { return bitcast<f32>(sign); }
  let up = min(i32(countLeadingZeros(rest)) - 8, least - 1);
  let number = rest << u32(up);
  let code = select(number, (number & 0x7fffffu) | (u32(least - up) << 23u), number >= 0x800000u);
  return bitcast<f32>(sign | code);
}"""),
    "quarters": Helper("""fn quarters(x: f32) -> vec2<f32> {
  var digits = array<u32, 8>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u,
                             0x3c439041u, 0xfe5163abu);
  let code = bitcast<u32>(x) & 0x7fffffffu;
  let m = (code & 0x7fffffu) | 0x800000u;
  let first = (code >> 23u) - 120u;
  let s = first & 31u;
  var w = array<u32, 3>(0u, 0u, 0u);
  for (var n = 0u; n < 3u; n++) {
    let at = (first >> 5u) + n;
    w[n] = select((digits[at] << s) | (digits[at + 1u] >> (32u - max(s, 1u))), digits[at], s == 0u);
  }
  let low = long_of_product(m, w[2]);
  let middle = long_add(long_of_product(m, w[1]), vec2<u32>(low.y, 0u));
  let high = m * w[0] + middle.y;
  var quarter = high >> 30u;
  var part = vec2<u32>((middle.x << 2u) | (low.x >> 30u), (high << 2u) | (middle.x >> 30u));
  let negative = part.y >= 0x80000000u;
  if (negative) {
    quarter += 1u;
    part = long_sub(vec2<u32>(0u, 0u), part);
  }
  let angle = float_of_ulong(part) * 8.515303950216386e-20f;
  let turns = select(quarter, 4u - quarter, x < 0.0f) & 3u;
  return vec2<f32>(select(angle, -angle, negative != (x < 0.0f)), f32(turns));
}""", ("long_of_product", "long_add", "long_sub", "float_of_ulong")),
    "widened": Helper("""fn widened(x: i32) -> vec2<u32> {
  return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}"""),
    "clamped": Helper("""fn clamped(x: vec2<u32>) -> i32 {
  let low = bitcast<i32>(x.x);
  let end = select(2147483647, i32(-2147483647 - 1), bitcast<i32>(x.y) < 0);
  return select(end, low, bitcast<i32>(x.y) == (low >> 31u));
}"""),
    "long_add": Helper("""fn long_add(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let low = x.x + y.x;
  return vec2<u32>(low, x.y + y.y + select(0u, 1u, low < x.x));
}"""),
    "long_sub": Helper("""fn long_sub(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(x.x - y.x, x.y - y.y - select(0u, 1u, x.x < y.x));
}"""),
    "long_of_product": Helper("""fn long_of_product(x: u32, y: u32) -> vec2<u32> {
  let a = x & 0xffffu; let b = x >> 16u; let c = y & 0xffffu; let d = y >> 16u;
  let first = a * c;
  let second = b * c + (first >> 16u);
  let third = a * d + (second & 0xffffu);
  return vec2<u32>((third << 16u) | (first & 0xffffu), b * d + (second >> 16u) + (third >> 16u));
}"""),
    "long_mul": Helper("""fn long_mul(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let low = long_of_product(x.x, y.x);
  return vec2<u32>(low.x, low.y + x.x * y.y + x.y * y.x);
}""", ("long_of_product",)),
    "long_ult": Helper("""fn long_ult(x: vec2<u32>, y: vec2<u32>) -> bool {
  return x.y < y.y || (x.y == y.y && x.x < y.x);
}"""),
    "long_slt": Helper("""fn long_slt(x: vec2<u32>, y: vec2<u32>) -> bool {
  let a = bitcast<i32>(x.y); let b = bitcast<i32>(y.y);
  return a < b || (a == b && x.x < y.x);
}"""),
    "long_shl": Helper("""fn long_shl(x: vec2<u32>, by: u32) -> vec2<u32> {
  if (by == 0u) { return x; }
  if (by >= 32u) { return vec2<u32>(0u, x.x << (by & 31u)); }
  return vec2<u32>(x.x << by, (x.y << by) | (x.x >> (32u - by)));
}"""),
    "long_shr": Helper("""fn long_shr(x: vec2<u32>, by: u32) -> vec2<u32> {
  if (by == 0u) { return x; }
  if (by >= 32u) { return vec2<u32>(x.y >> (by & 31u), 0u); }
  return vec2<u32>((x.x >> by) | (x.y << (32u - by)), x.y >> by);
}"""),
    "long_sar": Helper("""fn long_sar(x: vec2<u32>, by: u32) -> vec2<u32> {
  let high = bitcast<i32>(x.y);
  if (by == 0u) { return x; }
  if (by >= 32u) { return vec2<u32>(bitcast<u32>(high >> (by & 31u)), bitcast<u32>(high >> 31u)); }
  return vec2<u32>((x.x >> by) | (x.y << (32u - by)), bitcast<u32>(high >> by));
}"""),
    "long_divided": Helper("""fn long_divided(x: vec2<u32>, y: vec2<u32>) -> vec4<u32> {
  if (x.y == 0u && y.y == 0u) {
    let by = max(y.x, 1u);
    return vec4<u32>(x.x / by, 0u, x.x % by, 0u);
  }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var n = 0; n < 64; n++) {
    let bit = select(x.x >> u32((63 - n) & 31), x.y >> u32((63 - n) & 31), n < 32) & 1u;
    let out = rest.y >> 31u;
    rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
    quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
    if (out == 1u || !long_ult(rest, y)) {
      rest = long_sub(rest, y);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}""", ("long_ult", "long_sub")),
    "long_udiv": Helper("""fn long_udiv(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  return long_divided(x, y).xy;
}""", ("long_divided",)),
    "long_urem": Helper("""fn long_urem(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  return long_divided(x, y).zw;
}""", ("long_divided",)),
    "long_size": Helper("""fn long_size(x: vec2<u32>) -> vec2<u32> {
  if (bitcast<i32>(x.y) < 0) { return long_sub(vec2<u32>(0u, 0u), x); }
  return x;
}""", ("long_sub",)),
    "long_sdiv": Helper("""fn long_sdiv(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let size = long_udiv(long_size(x), long_size(y));
  if (bitcast<i32>(x.y ^ y.y) < 0) { return long_sub(vec2<u32>(0u, 0u), size); }
  return size;
}""", ("long_udiv", "long_size")),
    "long_srem": Helper("""fn long_srem(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  let size = long_urem(long_size(x), long_size(y));
  if (bitcast<i32>(x.y) < 0) { return long_sub(vec2<u32>(0u, 0u), size); }
  return size;
}""", ("long_urem", "long_size")),
    "long_power": Helper("""fn long_power(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
  var base = x;
  var exponent = y;
  var result = vec2<u32>(1u, 0u);
  while (any(exponent != vec2<u32>(0u, 0u))) {
    if ((exponent.x & 1u) == 1u) { result = long_mul(result, base); }
    base = long_mul(base, base);
    exponent = long_shr(exponent, 1u);
  }
  return result;
}""", ("long_mul", "long_shr")),
    "float_of_ulong": Helper("""fn float_of_ulong(x: vec2<u32>) -> f32 {
  if (x.y == 0u) { return f32(x.x); }
  let s = 32u - countLeadingZeros(x.y);
  let top = long_shr(x, s).x;
  let whole = select(top, top | 1u, (x.x << (32u - s)) != 0u);
  return f32(whole) * bitcast<f32>((s + 127u) << 23u);
}""", ("long_shr",)),
    "float_of_long": Helper("""fn float_of_long(x: vec2<u32>) -> f32 {
  let size = float_of_ulong(long_size(x));
  return select(size, -size, bitcast<i32>(x.y) < 0);
}""", ("float_of_ulong", "long_size")),
    "long_of_float": Helper("""fn long_of_float(x: f32) -> vec2<u32> {
  let code = bitcast<u32>(x) & 0x7fffffffu;
  let exponent = i32(code >> 23u) - 150;
  if (exponent >= 40) { return vec2<u32>(0u, 0x80000000u); }
  let m = (code & 0x7fffffu) | 0x800000u;
  var size = vec2<u32>(select(m >> u32(clamp(-exponent, 0, 31)), 0u, exponent < -31), 0u);
  if (exponent > 0) { size = long_shl(vec2<u32>(m, 0u), u32(exponent)); }
  if (x < 0.0f) { return long_sub(vec2<u32>(0u, 0u), size); }
  return size;
}""", ("long_shl", "long_sub")),
})  # fmt: skip
"""The functions by name.

- `half_of_float(x)` returns the bits of a 16-bit float, rounded to nearest, half to even.
- `quarters(x)` subtracts quarter turns from x, for |x| > 2^10. It returns the rest, and the number of quarter
  turns modulo 4 (Payne and Hanek, "Radian reduction for trigonometric functions", 1983)."""
