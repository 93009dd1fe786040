"""The instruction rows (`targets.rows`) of 64-bit and 32-bit Arm processors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jangin.ir.dtype import F16, F32, I8, I16, U8, U16, DType
from jangin.ir.products import DOT1H
from jangin.targets.rows import (
    CONVERSIONS,
    DOT2B,
    DOT4,
    DOT4BF,
    DOT4U,
    DOT8,
    DOT8U,
    FLOATS,
    FMA,
    FUSED,
    PORTABLE,
    WHOLE,
    Row,
    bfloats,
    by_instruction,
    by_quads,
    extreme,
    halves,
    matrix,
    single,
)


def _own_extremes(dtypes: tuple[DType, ...], prefix: str) -> Iterator[Row]:
    """Yield the rows of `min` and `max` by Arm's instructions, which give NaN if either operand is NaN."""
    for row in (extreme("min", "olt")[0], extreme("max", "ogt")[0]):
        llvm, becomes = f"call {{T}} @llvm.{row.name}imum({{T}} %x, {{T}} %y)", rf"{prefix}{row.name}\b"
        for name in (row.name, f"{row.name}_number"):
            yield replace(row, name=name, dtypes=dtypes, llvm=llvm, becomes=becomes)


_SDOT = by_quads(
    DOT4, "aarch64.neon.sdot.v4i32.v16i8", "{quads} %b, {quads} %a", r"sdot\s",
    "vdotq_s32((int32x4_t)z, (int8x16_t)y, (int8x16_t)x)", "dotprod", 4,
)  # fmt: skip
"""SDOT. It takes one lane of its last operand for all sums, and products have this operand first."""
_USDOT = by_quads(
    DOT4U, "aarch64.neon.usdot.v4i32.v16i8", "{quads} %a, {quads} %b", r"usdot\s",
    "vusdotq_s32((int32x4_t)z, (uint8x16_t)x, (int8x16_t)y)", "i8mm", 4,
)  # fmt: skip
"""USDOT. LLVM makes SUDOT of it if the first operand is one lane."""


def _short(vectors: int) -> Row:
    """Return the row of `short` for `vectors` vector registers. One instruction rounds half to even and
    converts each register, and one clamps."""
    lines, parts = list[str](), list[str]()
    for n in range(vectors):
        picks = ", ".join(f"i32 {4 * n + lane}" for lane in range(4))
        lines += [
            f"%x{n} = shufflevector {{T}} %x, {{T}} poison, <4 x i32> <{picks}>",
            f"%n{n} = call <4 x i32> @llvm.aarch64.neon.fcvtns.v4i32.v4f32(<4 x float> %x{n})",
        ]
        parts.append(f"%n{n}")
    for lanes in (4, 8)[: vectors // 2]:
        picks = ", ".join(f"i32 {n}" for n in range(2 * lanes))
        for a, b in zip(parts[::2], parts[1::2], strict=True):
            both = f"<{lanes} x i32> {a}, <{lanes} x i32> {b}"
            lines.append(f"{a}_{lanes} = shufflevector {both}, <{2 * lanes} x i32> <{picks}>")
        parts = [f"{a}_{lanes}" for a in parts[::2]]
    lines += [
        f"%least = call {{i32}} @llvm.smin({{i32}} {parts[0]}, {{i32}} {{i32:32767}})",
        "%held = call {i32} @llvm.smax({i32} %least, {i32} {i32:-32768})",
        "trunc {i32} %held to {i16}",
    ]
    return Row(
        "short", (F32,), "x: T[N]", "i16", "r[i] = i16(max(min(round(x[i]), 32767.0), -32768.0))",
        "\n".join(lines), lanes=4 * vectors, becomes=r"(?s)fcvtns\s.*sqxtn",
        c="" if vectors > 1 else "({i16})vqmovn_s32(vcvtnq_s32_f32((float32x4_t)x))",
    )  # fmt: skip


BETWEEN = 5
"""Registers for products that 32-bit processors have under way. With 3, tiles spill: ResNet-8 takes 7.5
million instructions instead of 5.8."""


def _bytes_widened(name: str, operands: str, long: bool = True) -> Row:
    """Return the row of `dot2b` for two vector registers of sums. It takes one or two words of each operand.

    The products are int16, and neighbours are added to the i32 sums. If there are two words, x times y and u
    times v, their products are added first: the sum of two products fits int16. `long`: 64-bit processors.
    """
    multiply = "aarch64.neon.smull" if long else "arm.neon.vmulls"
    lines, sums = [f"%{v}b = bitcast {{T}} %{v} to <16 x i8>" for v in operands], list[str]()
    products = [*zip(operands[::2], operands[1::2], strict=True)]
    for n in (0, 1):
        eight, four = (", ".join(f"i32 {many * n + lane}" for lane in range(many)) for many in (8, 4))
        for v in operands:
            lines.append(f"%{v}{n} = shufflevector <16 x i8> %{v}b, <16 x i8> poison, <8 x i32> <{eight}>")
        for a, b in products:
            both = f"<8 x i8> %{b}{n}, <8 x i8> %{a}{n}"
            lines.append(f"%{a}{b}{n} = call <8 x i16> @llvm.{multiply}.v8i16({both})")
        if len(products) > 1:
            lines.append(f"%both{n} = add <8 x i16> %xy{n}, %uv{n}")
        total = f"<8 x i16> %{'both' if len(products) > 1 else 'xy'}{n}"
        lines.append(f"%z{n} = shufflevector {{i32}} %z, {{i32}} poison, <4 x i32> <{four}>")
        added = f"call <4 x i32> @llvm.arm.neon.vpadals.v4i32.v8i16(<4 x i32> %z{n}, {total})"
        if long:
            lines.append(f"%pairs{n} = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16({total})")
            added = f"add <4 x i32> %z{n}, %pairs{n}"
        lines += [f"%sum{n} = {added}", f'%kept{n} = call <4 x i32> asm "", "=w,0"(<4 x i32> %sum{n})']
        sums.append(f"<4 x i32> %kept{n}")
    picks = ", ".join(f"i32 {n}" for n in range(8))
    lines.append(f"shufflevector {', '.join(sums)}, <8 x i32> <{picks}>")
    one = DOT2B.reference.partition(" + ")[2]
    terms = [one.replace("x[i]", f"{a}[i]").replace("y[i]", f"{b}[i]") for a, b in products]
    return replace(
        DOT2B, name=name, llvm="\n".join(lines), lanes=8, multiplies=3,
        operands=", ".join([*(f"{v}: T[N]" for v in operands), "z: i32[N]"]),
        reference=f"r[i] = z[i] + {' + '.join(terms)}",
        becomes=r"(?s)sm[ul]l[al]2\s.*sadalp" if long else r"(?s)vm[ul]l[al]?l?\.s8\s.*vpadal",
        words=len(products), between=DOT2B.between if long else BETWEEN,
    )  # fmt: skip


_ADD_SHORT = Row(
    "add_short", (I16,), "x: T[N], y: T[N]", "T",
    "r[i] = i16(max(min(i32(x[i]) + i32(y[i]), i32(32767)), i32(-32768)))",
    "call {T} @llvm.sadd.sat({T} %x, {T} %y)", becomes=r"sqadd\s",
)  # fmt: skip


_BFDOT = bfloats(
    4, "aarch64.neon.bfdot.v4f32.v8bf16", r"bfdot\s",
    "vbfdotq_f32((float32x4_t)z, (bfloat16x8_t)y, (bfloat16x8_t)x)", "bf16", turned=True,
)  # fmt: skip
"""BFDOT rounds to odd, also the sum of two products, and takes subnormal numbers for 0."""


def _long() -> Row:
    """Return the row of `dot1h` for two vector registers of sums. FMLAL and FMLAL2 multiply the two halves of
    a register of f16."""
    lines = ["%a = bitcast {f16} %x to {half}", "%b = bitcast {f16} %y to {half}"]
    for n, name in enumerate(("fmlal", "fmlal2")):
        picks = ", ".join(f"i32 {4 * n + lane}" for lane in range(4))
        sums = f"<4 x float> %z{n}, {{half}} %b, {{half}} %a"
        lines.append(f"%z{n} = shufflevector {{T}} %z, {{T}} poison, <4 x i32> <{picks}>")
        lines.append(f"%sum{n} = call <4 x float> @llvm.aarch64.neon.{name}.v4f32.v8f16({sums})")
    picks = ", ".join(f"i32 {n}" for n in range(8))
    lines.append(f"shufflevector <4 x float> %sum0, <4 x float> %sum1, <8 x i32> <{picks}>")
    return Row(
        "dot1h", (F32,), "x: f16[N], y: f16[N], z: T[N]", "T", "r[i] = fma(f32(x[i]), f32(y[i]), z[i])",
        "\n".join(lines), ("fp16fml",), r"fmlal2\s", lanes=8, product=DOT1H,
    )  # fmt: skip


_SPLAT = Row(
    "broadcast", (F16,), "x: T[1]", "T", "r[i] = x[0]", """
    %bits = bitcast {T.one} %x to half
    %one = insertelement {half} poison, half %bits, i64 0
    %all = shufflevector {half} %one, {half} poison, {i32} zeroinitializer
    bitcast {half} %all to {T}""",
    needs=("fp16fml",),
)  # fmt: skip
"""`broadcast` by way of LLVM's half, so that LLVM sees a lane that FMLAL can take."""
_MATRICES = (
    matrix(DOT8, "aarch64.neon.smmla.v4i32.v16i8", "<16 x i8>", r"\bsmmla\s", "i8mm"),
    matrix(DOT8U, "aarch64.neon.usmmla.v4i32.v16i8", "<16 x i8>", r"usmmla\s", "i8mm"),
    matrix(DOT4BF, "aarch64.neon.bfmmla", "<8 x bfloat>", r"bfmmla\s", "bf16"),
)
"""i8mm's and BF16's matrix products. BFMMLA adds two pairs of products one after the other, each as BFDOT
does."""

NEON: tuple[Row, ...] = (
    *_MATRICES,
    _BFDOT,
    _long(),
    _SPLAT,
    _SDOT,
    _USDOT,
    _bytes_widened("dot2b", "xy"),
    _bytes_widened("dot2b_twice", "xyuv"),
    *map(_short, (1, 2, 4)),
    _ADD_SHORT,
    replace(FUSED, becomes=r"fmla\s"),
    *halves((), r"fcvtl\s", r"fcvtn\s"),
    *_own_extremes(FLOATS, "f"),
    *single((), FLOATS, {
        "floor": r"frintm\s", "ceil": r"frintp\s", "trunc": r"frintz\s", "round": r"frintn\s",
        "sqrt": r"fsqrt\s",
    }),
    *PORTABLE,
)  # fmt: skip
"""The rows of 64-bit Arm processors. All of them fuse multiply-adds."""


def _widening(dtype: DType) -> Iterator[Row]:
    """Yield the load in C that widens four small integers to i32, and the store that keeps the lowest bits of
    four."""
    sign, bits = "u" if dtype.kind == "u" else "s", dtype.bits
    load = "vld1_{0}16((const {1}int16_t *)memory)"
    store = "vst1_s16((int16_t *)memory, vmovn_s32((int32x4_t)x))"
    if bits == 8:
        load = "vget_low_{0}16(vmovl_{0}8(vreinterpret_{0}8_u32(vld1_dup_u32((const uint32_t *)memory))))"
        short = "vmovn_s32((int32x4_t)x)"
        word = f"vreinterpret_u32_s8(vmovn_s16(vcombine_s16({short}, {short})))"
        store = f"vst1_lane_u32((uint32_t *)memory, {word}, 0)"
    yield Row(
        "load_i32", (dtype,), "memory: T[N]", "i32", "r[i] = i32(memory[i])", lanes=4,
        c=f"({{i32}})vmovl_{sign}16({load.format(sign, 'u' if sign == 'u' else '')})",
    )  # fmt: skip
    yield Row(
        "store_i32", (dtype,), "x: i32[N], memory: out T[N]", "", "memory[i] = T(x[i])", lanes=4, c=store
    )


_PAIRS_OF_BYTES = replace(
    DOT2B, lanes=4, multiplies=2, becomes=r"vpadal\.s16\s",
    llvm="""
    %a = bitcast {T} %x to <8 x i8>
    %b = bitcast {T} %y to <8 x i8>
    %both = call <8 x i16> @llvm.arm.neon.vmulls.v8i16(<8 x i8> %a, <8 x i8> %b)
    call {i32} @llvm.arm.neon.vpadals.v4i32.v8i16({i32} %z, <8 x i16> %both)""",
    c="({i32})vpadalq_s16((int32x4_t)z, vmull_s8((int8x8_t)x, (int8x8_t)y))",
)  # fmt: skip
"""`dot2b` of one register of sums, which takes half a register of each operand."""

NEON32: tuple[Row, ...] = (
    _PAIRS_OF_BYTES,
    *(row for dtype in (I8, U8, I16, U16) for row in _widening(dtype)),
    replace(FMA, dtypes=(F32,), becomes=r"vmla\.f32\s"),
    replace(
        CONVERSIONS[F16][0],
        lanes=4,
        becomes=r"vcvt\.f32\.f16\s",
        llvm="call {f32} @llvm.arm.neon.vcvthf2fp({T} %x)",
    ),
    replace(
        CONVERSIONS[F16][1],
        lanes=4,
        becomes=r"vcvt\.f16\.f32\s",
        llvm="call {T} @llvm.arm.neon.vcvtfp2hf({f32} %x)",
    ),
    _bytes_widened("dot2b", "xy", long=False),
    _bytes_widened("dot2b_twice", "xyuv", long=False),
    *_own_extremes((F32,), "v"),
    *(replace(by_instruction(r), dtypes=(F32,)) for r in WHOLE if r.result == "i32"),
    *PORTABLE,
)
"""The rows of 32-bit Arm processors. Their multiply-add that takes one lane of a vector rounds the
product."""
