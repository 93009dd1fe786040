"""The functions of shaders that compute with 16-bit floats.

Each has two forms. Without WebGPU's feature `shader-f16`, a `Half` is the bits of a 16-bit float, and a sum
is computed in f32 and rounded. With the feature, a `Half` is WGSL's own f16, and so are sums and products of
two. Both give the same bits if the adapter rounds to nearest and keeps subnormal numbers.

Other values are rounded in software in both forms: WGSL lets a conversion round either way."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ROUND = "half_of_float(half_float(a) {} half_float(b))"
_OPERATIONS = {"half_add": "+", "half_sub": "-", "half_mul": "*"}
PLAIN: Mapping[str, str] = MappingProxyType({
    "Half": "alias Half = u32;",
    "half_of_bits": "fn half_of_bits(bits: u32) -> Half { return bits; }",
    "bits_of_half": "fn bits_of_half(h: Half) -> u32 { return h; }",
    "half_float": "fn half_float(h: Half) -> f32 { return float_of_half(h); }",
    "half_rounded": "fn half_rounded(x: f32) -> Half { return half_of_float(x); }",
    "half_exact": "fn half_exact(x: f32) -> Half { return half_of_float(x); }",
    "half_hidden": "fn half_hidden(h: Half) -> Half { return h | u.zero; }",
    "half_neg": "fn half_neg(h: Half) -> Half { return h ^ 0x8000u; }",
    "half_more": "fn half_more(a: Half, b: Half) -> bool { return half_float(a) > half_float(b); }",
    **{name: f"fn {name}(a: Half, b: Half) -> Half {{ return {_ROUND.format(op)}; }}"
       for name, op in _OPERATIONS.items()},
})  # fmt: skip
"""The functions by name, for all adapters."""
NATIVE: Mapping[str, str] = MappingProxyType({
    "Half": "alias Half = f16;",
    "half_of_bits": "fn half_of_bits(bits: u32) -> Half { return f16(float_of_half(bits)); }",
    "bits_of_half": "fn bits_of_half(h: Half) -> u32 { return half_of_float(f32(h)); }",
    "half_float": "fn half_float(h: Half) -> f32 { return f32(h); }",
    "half_rounded": "fn half_rounded(x: f32) -> Half { return f16(float_of_half(half_of_float(x))); }",
    "half_exact": "fn half_exact(x: f32) -> Half { return f16(x); }",
    "half_hidden": "fn half_hidden(h: Half) -> Half { return select(h, f16(1), u.zero == 1u); }",
    "half_neg": "fn half_neg(h: Half) -> Half { return -h; }",
    "half_more": "fn half_more(a: Half, b: Half) -> bool { return a > b; }",
    **{name: f"fn {name}(a: Half, b: Half) -> Half {{ return a {op} b; }}"
       for name, op in _OPERATIONS.items()},
})  # fmt: skip
"""The same functions for adapters with `shader-f16`."""
CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "half_of_bits": ("float_of_half",), "bits_of_half": ("half_of_float",), "half_float": ("float_of_half",),
    "half_rounded": ("half_of_float", "float_of_half"), "half_exact": ("half_of_float",), "half_hidden": (),
    "half_neg": (), "half_more": ("half_float",),
    **dict.fromkeys(_OPERATIONS, ("half_of_float", "half_float")),
})  # fmt: skip
"""The functions that each function's forms call, besides `Half`."""
ACCESS: Mapping[str, str] = MappingProxyType({"e": "half_of_bits", "g": "bits_of_half"})
"""The function that each function of `runtime.devices.wgsl` for 16-bit floats calls, by its letter."""
