"""The instruction rows (`targets.rows`) of x86-64, from SSE4 to AVX-512."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import products
from jangin.ir.dtype import F32, I32
from jangin.targets.matrix_rows import tile, tiles
from jangin.targets.rows import (
    DOT2,
    DOT4S,
    DOT4U,
    FLOATS,
    FOUR,
    FUSED,
    NEAREST,
    PLACES,
    PORTABLE,
    STORED,
    WHOLE,
    WORDS,
    Row,
    bfloats,
    by_instruction,
    by_quads,
    halves,
    single,
)

_MASKMOV = {"masked_load": "maskmov", "masked_store": "maskmov"}
_ROUNDS = dict.fromkeys(("floor", "ceil", "trunc", "round"), "round[ps]")
_C_ROUNDING = {"floor": 9, "ceil": 10, "trunc": 11, "round": 8}
"""The rounding operand of x86's instruction. It also suppresses exceptions."""
_C_ROUNDS = {n: f"_mm{{bits}}_round_p{{s}}(x, {how})" for n, how in _C_ROUNDING.items()}


_HALVES = halves(("f16c",), "vcvtph2ps", "vcvtps2ph")
_HALVES_IN_REGISTER = replace(
    _HALVES[1], lanes=8,
    llvm='%half = fptrunc {f32} %x to {half}\n%bits = bitcast {half} %half to {T}\n'
    'call {T} asm "", "=v,0"({T} %bits)',
)  # fmt: skip
"""`narrow` to half precision in a register.

Opaque assembly keeps LLVM from the instruction that converts and stores. On AMD's processors it takes up to
three times as long as a conversion and a store.
"""
_IN_ORDER = '%sum = add {T} %both, %z\ncall {T} asm "", "=v,0"({T} %sum)'


def _pairs(lanes: int, function: str, needs: tuple[str, ...] = (), fused: str = "") -> Row:
    """Return the row of `dot2` for one vector register. `fused` is C's function if one instruction multiplies
    and adds.

    If there is no such instruction, the sum passes through opaque assembly. LLVM would otherwise add up the
    products of several terms first, and a register tile has no registers for them."""
    called = f"call {{T}} @llvm.x86.{function}({{pairs}} %a, {{pairs}} %b)"
    llvm = f"%a = bitcast {{T}} %x to {{pairs}}\n%b = bitcast {{T}} %y to {{pairs}}\n%both = {called}\n"
    x, y, z = (f"(__m{{reg}}i){n}" for n in "xyz")
    c = (
        f"({{T}})_mm{{bits}}_{fused}({z}, {x}, {y})"
        if fused
        else f"({{T}})_mm{{bits}}_madd_epi16({x}, {y}) + z"
    )
    return replace(
        DOT2, llvm=llvm + ("add {T} %both, %z" if fused else _IN_ORDER), needs=needs, lanes=lanes, c=c,
        becomes="vpdpwssd" if fused else "pmaddwd",
    )  # fmt: skip


_GATHER = Row(
    "gather", WORDS, "memory: T[M], index: i64[N]", "T", "r[i] = memory[index[i]]",
    PLACES + "call {T} @llvm.masked.gather({ptr} align {T.bytes} %places, {bool} {bool:1}, "
    "{T} zeroinitializer)",
    ("avx512f",), "gather[dq]",
)  # fmt: skip
"""Gathers need AVX-512. On AVX2, LLVM considers gathers slow and makes scalar loads whose addresses it
extracts from a vector. Scalar loads at scalar addresses are half the instructions."""


def _fours(lanes: int, bits: int, feature: str, fused: str) -> Row:
    """Return the row of `dot4u` for one vector register. VNNI's instruction doesn't saturate here, so the
    result is exact."""
    return by_quads(
        DOT4U, f"x86.avx512.vpdpbusd.{bits}", "{quads} %a, {quads} %b", "vpdpbusd",
        f"_mm{{bits}}_{fused}((__m{{reg}}i)z, (__m{{reg}}i)x, (__m{{reg}}i)y)", feature, lanes,
    )  # fmt: skip


def _fours_clamped(lanes: int, of_bytes: str, of_pairs: str, needs: tuple[str, ...] = ()) -> Row:
    """Return the row of `dot4s` for one vector register. One instruction adds pairs of products of bytes. A
    product with 1 then adds these sums in pairs."""
    llvm = "%a = bitcast {T} %x to {quads}\n%b = bitcast {T} %y to {quads}\n"
    llvm += f"%twos = call {{pairs}} @llvm.x86.{of_bytes}({{quads}} %a, {{quads}} %b)\n"
    llvm += f"%both = call {{T}} @llvm.x86.{of_pairs}({{pairs}} %twos, {{pairs}} splat (i16 1))\n{_IN_ORDER}"
    x, y = (f"(__m{{reg}}i){n}" for n in "xy")
    twos = f"_mm{{bits}}_maddubs_epi16({x}, {y})"
    return replace(
        DOT4S, llvm=llvm, needs=needs, lanes=lanes, becomes="pmaddubsw", multiplies=2,
        c=f"({{T}})_mm{{bits}}_madd_epi16({twos}, _mm{{bits}}_set1_epi16(1)) + z",
    )  # fmt: skip


def _upper(lanes: int, c: str, needs: tuple[str, ...] = ()) -> Row:
    """Return the row of the product of two i32, computed in i64, shifted right by 30 bits and cut to i32.

    One instruction multiplies the even lanes and one the odd lanes. A blend then interleaves them."""
    half, evens = f"<{lanes // 2} x i64>", ", ".join(f"i1 {n % 2}" for n in range(lanes))
    lines = [f"%{v}_both = bitcast {{T}} %{v} to {half}" for v in "xy"]
    for v in "xy":
        lines += [f"%{v}_up = shl {half} %{v}_both, splat (i64 32)"]
        lines += [f"%{v}_even = ashr {half} %{v}_up, splat (i64 32)"]
        lines += [f"%{v}_odd = ashr {half} %{v}_both, splat (i64 32)"]
    for side, shift in (("even", "lshr"), ("odd", "shl")):
        lines.append(f"%{side} = mul {half} %x_{side}, %y_{side}")
        lines.append(f"%{side}_put = {shift} {half} %{side}, splat (i64 {30 if side == 'even' else 2})")
        lines.append(f"%{side}_out = bitcast {half} %{side}_put to {{T}}")
    lines.append(f"select <{lanes} x i1> <{evens}>, {{T}} %odd_out, {{T}} %even_out")
    x, y = (f"(__m{{reg}}i){v}" for v in "xy")
    odd = ", ".join(f"_mm{{bits}}_srli_epi64({v}, 32)" for v in (x, y))
    down = f"_mm{{bits}}_srli_epi64(_mm{{bits}}_mul_epi32({x}, {y}), 30)"
    up = f"_mm{{bits}}_slli_epi64(_mm{{bits}}_mul_epi32({odd}), 2)"
    return Row(
        "upper", (I32,), "x: T[N], y: T[N]", "T", "r[i] = i32((i64(x[i]) * i64(y[i])) >> i64(30))",
        "\n".join(lines), needs, lanes=lanes,
        c=c and f"({{T}}){c.format(down, up)}",
    )  # fmt: skip


def _fours_by_pairs(lanes: int, function: str, needs: tuple[str, ...] = ()) -> Row:
    """Return the row of `dot4u` for one vector register, by two products of pairs. The bytes are first
    extended to int16, so that no sum saturates."""
    llvm = "%a = bitcast {T} %x to {pairs}\n%b = bitcast {T} %y to {pairs}\n"
    llvm += "%b_even = shl {pairs} %b, splat (i16 8)\n"
    for n, a, b in (
        ("even", "and {pairs} %a, splat (i16 255)", "%b_even"),
        ("odd", "lshr {pairs} %a, splat (i16 8)", "%b"),
    ):
        llvm += f"%a{n} = {a}\n%b{n} = ashr {{pairs}} {b}, splat (i16 8)\n"
        llvm += f"%both{n} = call {{T}} @llvm.x86.{function}({{pairs}} %a{n}, {{pairs}} %b{n})\n"
    llvm += "%fours = add {T} %botheven, %bothodd\nadd {T} %fours, %z"
    return replace(DOT4U, llvm=llvm, needs=needs, lanes=lanes, multiplies=4)


_BY_INSTRUCTION = tuple(
    replace(
        row, dtypes=(dtype,), llvm=by_instruction(replace(row, name=f"{row.name}_held")).llvm,
        becomes="cvttp[sd]2dq" if row.result == "i32" else "",
        c="({i32})_mm{bits}_cvttps_epi32(x)" if row.result == "i32" and dtype is F32 else row.c,
    )
    for row in WHOLE for dtype in FLOATS
)  # fmt: skip
"""Conversions to integers by x86's instructions. They give the least number of the type if the float is out
of range."""


def _nearest_by_fours(lanes: int) -> Row:
    """Return the row of `nearest` for several vector registers, by the intrinsic of the instruction."""
    lines, parts = [], []
    for first in range(0, lanes, 4):
        places = ", ".join(f"i32 {n}" for n in range(first, first + 4))
        lines.append(f"%x{first} = shufflevector {{T}} %x, {{T}} poison, <4 x i32> <{places}>")
        lines.append(f"%i{first} = call <4 x i32> @llvm.x86.sse2.cvtps2dq(<4 x float> %x{first})")
        parts.append(f"%i{first}")
    size = 4
    while len(parts) > 1:
        joined, places = [], ", ".join(f"i32 {n}" for n in range(2 * size))
        for a, b in zip(parts[::2], parts[1::2], strict=True):
            joined.append(f"{a}_{2 * size}")
            kind = f"<{size} x i32>"
            lines.append(
                f"{joined[-1]} = shufflevector {kind} {a}, {kind} {b}, <{2 * size} x i32> <{places}>"
            )
        parts, size = joined, 2 * size
    whole = lines.pop().partition(" = ")[2]
    return replace(NEAREST, llvm="\n".join([*lines, whole]), lanes=lanes)


_NEAREST_HELD = (
    replace(NEAREST, lanes=1, becomes="cvtss2si"),
    *map(_nearest_by_fours, (4, 8, 16, 32, 64)),
    replace(NEAREST, llvm="%whole = call {T} @llvm.rint({T} %x)\ncall {i32} @llvm.lrint({T} %whole)"),
)
"""`nearest` for SSE4, by the instruction's own function or by `llvm.rint`.

For a vector's `llvm.lrint`, LLVM 22.1 makes the preceding load an operand of SSE's instruction. The process
then stops if the address isn't a multiple of 16 bytes. LLVM checks the address for the instruction's own
function and for `llvm.rint`. AVX's instruction takes any address.
"""

SSE4: tuple[Row, ...] = (
    *_NEAREST_HELD,
    *_BY_INSTRUCTION,
    _upper(4, "_mm_blend_epi16({}, {}, 0xCC)"),
    _pairs(4, "sse2.pmadd.wd"),
    _fours_clamped(4, "ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),
    _fours_by_pairs(4, "sse2.pmadd.wd"),
    *PORTABLE,
)

AVX2: tuple[Row, ...] = (
    replace(FUSED, needs=("fma",), becomes="vfmadd", c="_mm{bits}_fmadd_p{s}(x, y, z)"),
    _fours(8, 256, "avxvnni", "dpbusd_avx_epi32"),
    _pairs(8, "avx2.pmadd.wd", ("avxvnni",), "dpwssd_avx_epi32"),
    _pairs(8, "avx2.pmadd.wd", ("avx2",)),
    _fours_clamped(8, "avx2.pmadd.ub.sw", "avx2.pmadd.wd", ("avx2",)),
    _upper(8, "_mm256_blend_epi32({}, {}, 0xAA)", ("avx2",)),
    _fours_by_pairs(8, "avx2.pmadd.wd", ("avx2",)),
    _HALVES_IN_REGISTER,
    *_HALVES,
    *single(("avx2",), FOUR, _MASKMOV, {
        "masked_load": "({T})_mm{bits}_maskload_epi32((const int *)memory, (__m{reg}i)mask)",
        "masked_store": "_mm{bits}_maskstore_epi32((int *)memory, (__m{reg}i)mask, (__m{reg}i)x)",
    }),
    *single(("avx2",), tuple(t for t in WORDS if t not in FOUR), _MASKMOV),
    *single(("avx2",), WORDS, {"broadcast": "broadcast"}),
    *single(("avx2",), FLOATS, _ROUNDS, _C_ROUNDS),
    replace(NEAREST, needs=("avx2",)),
    *single(("avx2",), FLOATS, {"sqrt": "sqrt[ps]"}, {"sqrt": "_mm{bits}_sqrt_p{s}(x)"}),
    *SSE4,
)  # fmt: skip


_SCALED = {n: f"_mm{{bits}}_roundscale_p{{s}}(x, {how})" for n, how in _C_ROUNDING.items()}
_MASKED_MOVE = {"masked_load": r"vmov.*\{%k", "masked_store": r"vmov.*\{%k"}
_MASK = "_mm{bits}_test_epi32_mask((__m{reg}i)mask, (__m{reg}i)mask)"


_OPAQUE = tuple(
    Row(
        "opaque", tuple(t for t in STORED if t.bytes == size and t is not F32), "x: T[N]", "T", "r[i] = x[i]",
        'call {T} asm "", "=v,0"({T} %x)', ("avx512f", "avx512vl"), lanes=register // size,
    )
    for size in (1, 2, 4)
    for register in (16, 32)
)  # fmt: skip
"""`opaque`: the value unchanged, through opaque assembly, so that LLVM doesn't see that it was narrowed.

LLVM 22.1 stores a narrowed vector under a mask of one lane by the wide element (its issue 179489). The widest
vector of a register is never a narrowed one. Conversion and store as two instructions are no slower than as
one on Intel's processors, and take 0.6 times as long on Zen 4.
"""


_DPBF16 = tuple(
    bfloats(
        bits // 32, f"x86.avx512bf16.dpbf16ps.{bits}", "vdpbf16ps",
        "_mm{bits}_dpbf16_ps((__m{reg})z, (__m{reg}bh)x, (__m{reg}bh)y)", "avx512bf16", "avx512vl",
    )
    for bits in (512, 256, 128)
)  # fmt: skip
"""VDPBF16PS adds the product of the upper numbers, then that of the lower. It rounds each sum half to even,
and takes subnormal numbers for 0."""

AMX: tuple[Row, ...] = (
    *tiles("tilezero", "tileloadd64", "tilestored64", "amx-tile"),
    tile(products.DOT4U, "tdpbusd", "amx-int8"),
    tile(products.DOT4, "tdpbssd", "amx-int8"),
    tile(products.DOT2BF, "tdpbf16ps", "amx-bf16"),
)
"""AMX's matrix products. For bfloat16, the products of first and of second numbers are summed apart, then
added to the sum. So the rounding differs from VDPBF16PS. Subnormal numbers are 0."""

AVX512: tuple[Row, ...] = (
    *_DPBF16,
    *(_fours(bits // 32, bits, "avx512vnni", "dpbusd_epi32") for bits in (512, 256)),
    _pairs(16, "avx512.pmaddw.d.512", ("avx512vnni",), "dpwssd_epi32"),
    _pairs(8, "avx2.pmadd.wd", ("avx512vnni",), "dpwssd_epi32"),
    _pairs(16, "avx512.pmaddw.d.512", ("avx512bw",)),
    _fours_clamped(16, "avx512.pmaddubs.w.512", "avx512.pmaddw.d.512", ("avx512bw",)),
    *(_upper(n, "_mm512_mask_blend_epi32(0xAAAA, {}, {})" * (n == 16), ("avx512f",)) for n in (16, 32, 64)),
    _fours_by_pairs(16, "avx512.pmaddw.d.512", ("avx512bw",)),
    *single(("avx512f", "avx512bw", "avx512vl"), FOUR, _MASKED_MOVE, {
        "masked_load": f"({{T}})_mm{{bits}}_maskz_loadu_epi32({_MASK}, memory)",
        "masked_store": f"_mm{{bits}}_mask_storeu_epi32(memory, {_MASK}, (__m{{reg}}i)x)",
    }),
    *single(("avx512f", "avx512bw", "avx512vl"), tuple(t for t in STORED if t not in FOUR), _MASKED_MOVE),
    *single(("avx512f",), WORDS, {"masked_gather": "gather[dq]", "masked_scatter": "scatter[dq]"}),
    *single(("avx512f", "avx512vl"), FLOATS, dict.fromkeys(_C_ROUNDING, "vrndscale"), _SCALED),
    _GATHER,
    *_OPAQUE,
    *AVX2,
)  # fmt: skip
