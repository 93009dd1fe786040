"""x86-64 targets: v2 (SSE4, the portable row set), v3 (AVX2) and v4 (AVX-512)."""

from __future__ import annotations

from jangin.targets.rows import AVX2, AVX512, PORTABLE
from jangin.targets.target import Target

TRIPLE = "x86_64-unknown-linux-gnu"
_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"
_V3 = _V2 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_V4 = _V3 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"

V2 = Target("x86-64-v2", TRIPLE, "x86-64-v2", _V2, 16, 16, PORTABLE, c_flags=("-march=x86-64-v2",))
V3 = Target("x86-64-v3", TRIPLE, "x86-64-v3", _V3, 32, 16, AVX2, c_flags=("-march=x86-64-v3",))
V4 = Target(
    "x86-64-v4", TRIPLE, "x86-64-v4", _V4, 64, 32, AVX512, l2=1 << 20, c_flags=("-march=x86-64-v4",)
)  # fmt: skip
