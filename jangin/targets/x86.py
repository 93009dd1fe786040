"""x86-64 targets: v2 (SSE4), v3 (AVX2) and v4 (AVX-512). v3 and v4 also come with VNNI, and v4 with VBMI,
BF16 and AMX too."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.products import DOT2, DOT2BF, DOT4S, DOT4U, Product
from jangin.targets.byte_rows import AVX2_BYTES, AVX512_BYTES
from jangin.targets.figures import WinogradFigures
from jangin.targets.processor import Processor
from jangin.targets.rows import Row
from jangin.targets.target import Target
from jangin.targets.x86_rows import AMX, AVX2, AVX512, SSE4

TRIPLE = "x86_64-unknown-linux-gnu"
_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"
_V3 = _V2 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_V4 = _V3 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"


def _level(
    name: str, features: str, vector_bytes: int, registers: int, rows: tuple[Row, ...], l2: int = 512 << 10
) -> Target:
    # an element takes the same time with wider vectors, which make more products meanwhile
    changing = 3 * vector_bytes // 4
    figures = WinogradFigures(changing=changing, nearby=max(12, changing * 5 // 12))
    machine = Processor(vector_bytes, registers, l2=l2, products=(DOT4S, DOT2), winograd=figures)
    return Target(name, TRIPLE, name, features, rows, machine, c_flags=(f"-march={name}",))


def _more(level: Target, name: str, features: str, c_flags: str, *products: Product) -> Target:
    """Return a level with more features than `level`. `products` are all that the new level has, the
    preferred first."""
    features, flags = f"{level.features},+{features}", (*level.c_flags, *c_flags.split())
    level = level.with_figures(products=products)
    return replace(level, name=name, features=features, c_flags=flags)


V2 = _level("x86-64-v2", _V2, 16, 16, SSE4)
V3 = _level("x86-64-v3", _V3, 32, 16, (*AVX2_BYTES, *AVX2))
V4 = _level("x86-64-v4", _V4, 64, 32, (*AVX512_BYTES, *AVX512), l2=1 << 20)
_WORDS = DOT4U, DOT2
V3_VNNI = _more(V3, "x86-64-v3-vnni", "avxvnni", "-mavxvnni", *_WORDS)
V4_VNNI = _more(V4, "x86-64-v4-vnni", "avx512vnni", "-mavx512vnni", *_WORDS)
V4_VBMI = _more(V4_VNNI, "x86-64-v4-vbmi", "avx512vbmi", "-mavx512vbmi", *_WORDS)
"""Processors since Ice Lake and Zen 4. VBMI looks up bytes in two registers."""
V4_BF16 = _more(V4_VBMI, "x86-64-v4-bf16", "avx512bf16", "-mavx512bf16", *_WORDS, DOT2BF)
"""Zen 4 and later. Intel's processors have the instructions too (see `targets.host`)."""
V4_AMX = replace(
    _more(V4_BF16, "x86-64-v4-amx", "amx-tile,+amx-int8,+amx-bf16", "", *V4_BF16.machine.products),
    rows=(*AMX, *V4_BF16.rows),
)
"""Intel's server processors since Sapphire Rapids. AMX multiplies matrices in registers of their own."""
