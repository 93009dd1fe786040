"""Instruction rows: what each operation that machines do differently computes, and how to write it.

A row set is a table; of the rows for an operation and a type, the first whose `needs` the target
has is taken (`Target.row`). Code generation asks for operations by name and tests no features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from jangin.ir.dtype import BF16, BOOL, DTYPES, F16, F32, F64, I16, I32, SMALL, DType
from jangin.ir.expr import Expr
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.records import dataclass
from jangin.ir.words import CLAMPED, DOTS, word_of
from jangin.targets import small

FLOATS = (F32, F64)
STORED = tuple(t for t in DTYPES.values() if t is not BOOL and t not in SMALL)
WORDS = tuple(t for t in STORED if t.bytes >= 4)
FOUR = tuple(t for t in WORDS if t.bytes == 4)
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Row:
    """One way to do an operation on values of a type `T` in `dtypes`, for any number of lanes N.

    `operands` and `result` (of N elements; empty where the row stores): as in Loop IR. T[1] is
    one value for all lanes; `memory` is an address, the others are values.
    `reference`: what is done for lane `i`, in Loop IR; it leaves the result in `r`.
    `llvm`: LLVM IR. `{T}`, `{i32}`... are types by lanes, `{T.one}` is one element's type, `{T.bytes}`
    its size, `{i32:16}` a constant, `{pairs}` two i16 for each lane, `{bfloats}` two bfloat16, `{quads}`
    four i8, `%x` an operand. The last line is the result or the effect. `lanes`: how many it takes; 0 for any
    number.
    `c`: C with GNU's vector types, on operands that fill a vector register: an expression, in which `{bits}`
    is what the names of x86's intrinsics call the register ("" of 128 bits), `{reg}` its bits, `{s}` the type
    of its floats (s or d), `{T}` the type and `{i32}` that of as many i32. Where it is empty, and for one
    lane, C does what the reference says lane by lane.
    `expansion`: the result as an expression of `small.ARGUMENT`, for languages in which the row has no text.
    `needs`: LLVM's names of processor features. `becomes`: a pattern of the one instruction, in
    the processors' assembly (x86's in rows for all), that a vector register takes; empty where it takes
    several. `multiplies`: instructions of a multiply-add's units that it takes."""

    name: str
    dtypes: tuple[DType, ...]
    operands: str
    result: str
    reference: str
    llvm: str = ""
    needs: tuple[str, ...] = ()
    becomes: str = ""
    expansion: Expr | None = None
    c: str = ""
    lanes: int = 0
    multiplies: int = 1

    @property
    def fuses(self) -> bool:
        """Whether a product and its sum are rounded once."""
        return "fma(" in self.reference

    def func(self, dtype: DType) -> Func:
        """The reference as a kernel of symbolic size N (and M, where memory has another)."""
        out = f", r: out {self.result}[N]" if self.result else ""
        sizes = "N in 1.." + (", M in 1.." if "[M]" in self.operands else "")
        head = f"func {self.name}({self.operands}{out}) symbols ({sizes})"
        text = f"{head} {{ serial i in N {{ {self.reference} }} }}"
        return parse_func(re.sub(r"\bT\b", dtype.name, text))


def _unary(name: str, function: str, becomes: str) -> Row:
    llvm = f"call {{T}} @llvm.{function}({{T}} %x)"
    return Row(name, FLOATS, "x: T[N]", "T", f"r[i] = {name}(x[i])", llvm, becomes=becomes)


def _extreme(name: str, order: str) -> tuple[Row, Row]:
    """A NaN of either operand comes out, and either of two zeros. x86's instruction gives its second operand
    where they don't compare, so that alone it does where the first is known to be a number."""
    compared, sign = f"%first = fcmp {order} {{T}} %x, %y\n", {"olt": "<", "ogt": ">"}[order]
    full = Row(
        name, FLOATS, "x: T[N], y: T[N]", "T", f"r[i] = {name}(x[i], y[i])",
        f"call nsz {{T}} @llvm.{name}imum({{T}} %x, {{T}} %y)",
        c=f"PICK((x != x) | (x {sign} y), x, y)",
    )  # fmt: skip
    alone = compared + "select {bool} %first, {T} %x, {T} %y"
    number = f"PICK(x {sign} y, x, y)"
    return full, replace(full, name=f"{name}_number", llvm=alone, becomes=f"{name}[ps]", c=number)


_FMA = Row(
    "fma", FLOATS, "x: T[N], y: T[N], z: T[N]", "T", "r[i] = x[i] * y[i] + z[i]",
    "%product = fmul {T} %x, %y\nfadd {T} %product, %z", c="x * y + z",
)  # fmt: skip


def _dot(name: str, left: DType, right: DType) -> Row:
    """A sum with the products of the numbers in each word."""
    bits, word = left.bits, word_of(name)
    tops = [*range(word.bits - bits, -1, -bits)]

    def number(v: str, dtype: DType, top: int) -> str:
        signed = f"(({v}[i] << {word}({top})) >> {word}({word.bits - bits}))"
        signed = signed if word is I32 else f"i32({signed})"
        return signed if dtype.kind == "i" else f"({signed} & i32({(1 << bits) - 1}))"

    parts = [f"{number('x', left, n)} * {number('y', right, n)}" for n in tops]
    if name in CLAMPED:
        parts = [
            f"max(min({a} + {b}, i32(32767)), i32(-32768))" for a, b in zip(*[iter(parts)] * 2, strict=True)
        ]
    wide = "" if word is I32 else "_wide"
    lines, total = [f"%{v}_wide = sext {{T}} %{v} to {{i32}}" for v in "xy" if wide], "%z"
    for n in tops:
        for v, dtype in (("x", left), ("y", right)):
            down = "ashr" if dtype.kind == "i" else "lshr"
            lines += [f"%{v}{n}_top = shl {{i32}} %{v}{wide}, {{i32:{n + 32 - word.bits}}}"]
            lines += [f"%{v}{n} = {down} {{i32}} %{v}{n}_top, {{i32:{32 - bits}}}"]
        lines.append(f"%product{n} = mul {{i32}} %x{n}, %y{n}")
        if name not in CLAMPED:
            lines.append(f"%sum{n} = add {{i32}} {total}, %product{n}")
            total = f"%sum{n}"
        elif n % (2 * bits) == 0:
            lines += [
                f"%both{n} = add {{T}} %product{n}, %product{n + bits}",
                f"%least{n} = call {{T}} @llvm.smin({{T}} %both{n}, {{T}} {{i32:32767}})",
                f"%held{n} = call {{T}} @llvm.smax({{T}} %least{n}, {{T}} {{i32:-32768}})",
                f"%sum{n} = add {{T}} {total}, %held{n}",
            ]
            total = f"%sum{n}"
    lines[-1] = lines[-1].partition(" = ")[2]
    reference = f"r[i] = z[i] + {' + '.join(parts)}"
    return Row(name, (word,), "x: T[N], y: T[N], z: i32[N]", "i32", reference, "\n".join(lines))


_DOT1, _DOT2, _DOT4, _DOT4U, _DOT4S, _DOT2B = (
    _dot(name, *types) for name, types in DOTS.items() if not types[0].is_float
)
_DOT2BF = Row(
    "dot2bf", (F32,), "x: i32[N], y: i32[N], z: T[N]", "T",
    "r[i] = fma(bitcast_f32(x[i] << i32(16)), bitcast_f32(y[i] << i32(16)), "
    "fma(bitcast_f32(x[i] & i32(-65536)), bitcast_f32(y[i] & i32(-65536)), z[i]))",
    """
    %x1 = and {i32} %x, {i32:-65536}
    %y1 = and {i32} %y, {i32:-65536}
    %x0 = shl {i32} %x, {i32:16}
    %y0 = shl {i32} %y, {i32:16}
    %a1 = bitcast {i32} %x1 to {T}
    %b1 = bitcast {i32} %y1 to {T}
    %a0 = bitcast {i32} %x0 to {T}
    %b0 = bitcast {i32} %y0 to {T}
    %upper = fmul {T} %a1, %b1
    %half = fadd {T} %upper, %z
    %lower = fmul {T} %a0, %b0
    fadd {T} %lower, %half""",
)  # fmt: skip
"""A product of two bfloat16 is exact in f32, so that it doesn't matter whether it is rounded."""


def _of_pairs(name: str, operation: str, reference: str) -> Row:
    """An operation on pairs of int16."""
    llvm = "%a = bitcast {T} %x to {pairs}\n%b = bitcast {T} %y to {pairs}\n"
    llvm += f"%both = {operation} {{pairs}} %a, %b\nbitcast {{pairs}} %both to {{T}}"
    return Row(
        name, (I32,), "x: T[N], y: T[N]", "T", f"r[i] = {reference}", llvm, becomes=f"p{operation}w"
    )  # fmt: skip


_LOW, _HIGH = "i32(2147450879)", "i32(-2147450880)"
"""All bits but the highest of both numbers of a pair, and these: they are added up without carries."""
_ADD2 = _of_pairs("add2", "add", f"((x[i] & {_LOW}) + (y[i] & {_LOW})) ^ ((x[i] ^ y[i]) & {_HIGH})")
_SUB2 = _of_pairs(
    "sub2", "sub", f"((x[i] | {_HIGH}) - (y[i] & {_LOW})) ^ ((x[i] ^ y[i] ^ i32(-1)) & {_HIGH})"
)


def _conversions(dtype: DType) -> tuple[Row, Row]:
    """To and from the type that a small type's values are computed in."""
    wide = dtype.wide.name
    return (
        Row("widen", (dtype,), "x: T[N]", wide, f"r[i] = {wide}(x[i])", expansion=small.widen(dtype)),
        Row("narrow", (dtype,), f"x: {wide}[N]", "T", "r[i] = T(x[i])", expansion=small.narrow(dtype)),
    )


_CONVERSIONS = {t: _conversions(t) for t in (F16, BF16, *SMALL)}


def _halves(needs: tuple[str, ...], widens: str, narrows: str) -> tuple[Row, Row]:
    """Half precision to and from f32, by a processor's conversions."""
    widen, narrow = _CONVERSIONS[F16]
    wide = "%half = bitcast {T} %x to {half}\nfpext {half} %half to {f32}"
    small = "%half = fptrunc {f32} %x to {half}\nbitcast {half} %half to {T}"
    return (
        replace(widen, needs=needs, becomes=widens, llvm=wide),
        replace(narrow, needs=needs, becomes=narrows, llvm=small),
    )


_PLACES = "%places = getelementptr {T.one}, ptr %memory, {i64} %index\n"
_GATHER = Row(
    "gather", WORDS, "memory: T[M], index: i64[N]", "T", "r[i] = memory[index[i]]",
    _PLACES + "call {T} @llvm.masked.gather({ptr} align {T.bytes} %places, {bool} {bool:1}, "
    "{T} zeroinitializer)",
    ("avx512f",), "gather[dq]",
)  # fmt: skip
"""Not of AVX2, where LLVM knows gathers to be slow on many processors and makes scalar loads of
addresses taken out of a vector: scalar loads of scalar addresses are half the instructions."""

_MASKED = (
    Row(
        "masked_load", STORED, "memory: T[N], mask: bool[N]", "T",
        "r[i] = select(mask[i], memory[i], T(0))",
        "call {T} @llvm.masked.load(ptr align {T.bytes} %memory, {bool} %mask, {T} zeroinitializer)",
    ),
    Row(
        "masked_store", STORED, "mask: bool[N], x: T[N], memory: out T[N]", "",
        "if mask[i] { memory[i] = x[i] }",
        "call void @llvm.masked.store({T} %x, ptr align {T.bytes} %memory, {bool} %mask)",
    ),
    Row(
        "masked_gather", STORED, "memory: T[M], index: i64[N], mask: bool[N]", "T",
        "r[i] = select(mask[i], memory[index[i]], T(0))",
        _PLACES + "call {T} @llvm.masked.gather({ptr} align {T.bytes} %places, {bool} %mask, "
        "{T} zeroinitializer)",
    ),
    Row(
        "masked_scatter", STORED, "index: i64[N], mask: bool[N], x: T[N], memory: out T[M]", "",
        "if mask[i] { memory[index[i]] = x[i] }",
        _PLACES + "call void @llvm.masked.scatter({T} %x, {ptr} align {T.bytes} %places, {bool} %mask)",
    ),
)  # fmt: skip
"""Lanes that are off touch no memory. Of two lanes that scatter to one place, the later wins."""

_BROADCAST = Row(
    "broadcast", tuple(DTYPES.values()), "x: T[1]", "T", "r[i] = x[0]", """
    %one = insertelement {T} poison, {T.one} %x, i64 0
    shufflevector {T} %one, {T} poison, {i32} zeroinitializer""",
)  # fmt: skip

PORTABLE: tuple[Row, ...] = (
    _FMA,
    *_extreme("min", "olt"),
    *_extreme("max", "ogt"),
    _unary("floor", "floor", "round[ps]"),
    _unary("ceil", "ceil", "round[ps]"),
    _unary("trunc", "trunc", "round[ps]"),
    _unary("round", "roundeven", "round[ps]"),
    _unary("sqrt", "sqrt", "sqrt[ps]"),
    *(row for rows in _CONVERSIONS.values() for row in rows),
    _DOT1,
    _DOT2,
    _DOT4,
    _DOT4U,
    _DOT4S,
    _DOT2B,
    _DOT2BF,
    _ADD2,
    _SUB2,
    *_MASKED,
    _BROADCAST,
)
"""What every CPU that LLVM knows can do, one instruction or several."""


def _single(
    needs: tuple[str, ...],
    dtypes: tuple[DType, ...],
    becomes: Mapping[str, str],
    c: Mapping[str, str] = _NONE,
) -> tuple[Row, ...]:
    """Portable rows, by name, that are one instruction on processors with some features."""
    return tuple(
        replace(
            r, dtypes=tuple(t for t in r.dtypes if t in dtypes), needs=needs, becomes=becomes[r.name],
            c=c.get(r.name, r.c),
        )
        for r in PORTABLE
        if r.name in becomes
    )  # fmt: skip


_FUSED = replace(
    _FMA, reference="r[i] = fma(x[i], y[i], z[i])", llvm="call {T} @llvm.fma({T} %x, {T} %y, {T} %z)", c=""
)

FUSING: tuple[Row, ...] = (_FUSED, *PORTABLE)
"""For kinds of processors all of which round a product and its sum once, as AVX2 does."""

_MASKMOV = {"masked_load": "maskmov", "masked_store": "maskmov"}
_ROUNDS = dict.fromkeys(("floor", "ceil", "trunc", "round"), "round[ps]")
_C_ROUNDING = {"floor": 9, "ceil": 10, "trunc": 11, "round": 8}
"""The operand that says how x86's instruction rounds; no exception is raised."""
_C_ROUNDS = {n: f"_mm{{bits}}_round_p{{s}}(x, {how})" for n, how in _C_ROUNDING.items()}


_HALVES = _halves(("f16c",), "vcvtph2ps", "vcvtps2ph")
_HALVES_IN_REGISTER = replace(
    _HALVES[1], lanes=8,
    llvm='%half = fptrunc {f32} %x to {half}\n%bits = bitcast {half} %half to {T}\n'
    'call {T} asm "", "=v,0"({T} %bits)',
)  # fmt: skip
"""Passed through assembly without instructions, or LLVM would have the instruction store what it converts,
which takes AMD's processors up to three times as long as to convert and to store."""
_IN_ORDER = '%sum = add {T} %both, %z\ncall {T} asm "", "=v,0"({T} %sum)'


def _pairs(lanes: int, function: str, needs: tuple[str, ...] = (), fused: str = "") -> Row:
    """`dot2` of one vector register. `fused`: C's function where one instruction adds too. Elsewhere the sum
    passes through assembly without instructions, as LLVM would add up the products of several terms first,
    for which a register tile has no registers."""
    called = f"call {{T}} @llvm.x86.{function}({{pairs}} %a, {{pairs}} %b)"
    llvm = f"%a = bitcast {{T}} %x to {{pairs}}\n%b = bitcast {{T}} %y to {{pairs}}\n%both = {called}\n"
    x, y, z = (f"(__m{{reg}}i){n}" for n in "xyz")
    c = (
        f"({{T}})_mm{{bits}}_{fused}({z}, {x}, {y})"
        if fused
        else f"({{T}})_mm{{bits}}_madd_epi16({x}, {y}) + z"
    )
    return replace(
        _DOT2, llvm=llvm + ("add {T} %both, %z" if fused else _IN_ORDER), needs=needs, lanes=lanes, c=c,
        becomes="vpdpwssd" if fused else "pmaddwd",
    )  # fmt: skip


def _by_quads(row: Row, function: str, operands: str, becomes: str, c: str, feature: str, lanes: int) -> Row:
    """A sum of products of bytes by one instruction, which takes `operands`, %a and %b, in its own order."""
    llvm = "%a = bitcast {T} %x to {quads}\n%b = bitcast {T} %y to {quads}\n"
    llvm += f"call {{T}} @llvm.{function}({{T}} %z, {operands})"
    return replace(row, llvm=llvm, becomes=becomes, c=f"({{T}}){c}", needs=(feature,), lanes=lanes)


def _fours(lanes: int, bits: int, feature: str, fused: str) -> Row:
    """`dot4u` of one vector register, exact: the instruction without saturation."""
    return _by_quads(
        _DOT4U, f"x86.avx512.vpdpbusd.{bits}", "{quads} %a, {quads} %b", "vpdpbusd",
        f"_mm{{bits}}_{fused}((__m{{reg}}i)z, (__m{{reg}}i)x, (__m{{reg}}i)y)", feature, lanes,
    )  # fmt: skip


def _fours_clamped(lanes: int, of_bytes: str, of_pairs: str, needs: tuple[str, ...] = ()) -> Row:
    """`dot4s` of one vector register: sums of two products, and, as products with 1, of two of those."""
    llvm = "%a = bitcast {T} %x to {quads}\n%b = bitcast {T} %y to {quads}\n"
    llvm += f"%twos = call {{pairs}} @llvm.x86.{of_bytes}({{quads}} %a, {{quads}} %b)\n"
    llvm += f"%both = call {{T}} @llvm.x86.{of_pairs}({{pairs}} %twos, {{pairs}} splat (i16 1))\n{_IN_ORDER}"
    x, y = (f"(__m{{reg}}i){n}" for n in "xy")
    twos = f"_mm{{bits}}_maddubs_epi16({x}, {y})"
    return replace(
        _DOT4S, llvm=llvm, needs=needs, lanes=lanes, becomes="pmaddubsw", multiplies=2,
        c=f"({{T}})_mm{{bits}}_madd_epi16({twos}, _mm{{bits}}_set1_epi16(1)) + z",
    )  # fmt: skip


_NEAREST = Row(
    "nearest", (F32,), "x: T[N]", "i32", "r[i] = i32(round(x[i]))", "call {i32} @llvm.lrint({T} %x)",
    becomes="cvtps2dq", c="({i32})_mm{bits}_cvtps_epi32(x)",
)  # fmt: skip
"""Rounded half to even and converted by one instruction."""

RVV: tuple[Row, ...] = (
    replace(_NEAREST, needs=("v",), becomes=r"vfcvt\.x\.f\.v", c=""),
    replace(_DOT1, needs=("v",), lanes=8, becomes=r"vwmacc\.v"),
    *FUSING,
)
"""Of RISC-V's vectors of 128 bits. Rounding alone takes two writes of a control register."""

SSE4: tuple[Row, ...] = (
    _NEAREST,
    _pairs(4, "sse2.pmadd.wd"),
    _fours_clamped(4, "ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),
    *PORTABLE,
)

AVX2: tuple[Row, ...] = (
    replace(_FUSED, needs=("fma",), becomes="vfmadd", c="_mm{bits}_fmadd_p{s}(x, y, z)"),
    _fours(8, 256, "avxvnni", "dpbusd_avx_epi32"),
    _pairs(8, "avx2.pmadd.wd", ("avxvnni",), "dpwssd_avx_epi32"),
    _pairs(8, "avx2.pmadd.wd", ("avx2",)),
    _fours_clamped(8, "avx2.pmadd.ub.sw", "avx2.pmadd.wd", ("avx2",)),
    _HALVES_IN_REGISTER,
    *_HALVES,
    *_single(("avx2",), FOUR, _MASKMOV, {
        "masked_load": "({T})_mm{bits}_maskload_epi32((const int *)memory, (__m{reg}i)mask)",
        "masked_store": "_mm{bits}_maskstore_epi32((int *)memory, (__m{reg}i)mask, (__m{reg}i)x)",
    }),
    *_single(("avx2",), tuple(t for t in WORDS if t not in FOUR), _MASKMOV),
    *_single(("avx2",), WORDS, {"broadcast": "broadcast"}),
    *_single(("avx2",), FLOATS, _ROUNDS, _C_ROUNDS),
    *_single(("avx2",), FLOATS, {"sqrt": "sqrt[ps]"}, {"sqrt": "_mm{bits}_sqrt_p{s}(x)"}),
    *SSE4,
)  # fmt: skip


def _own_extremes(dtypes: tuple[DType, ...], prefix: str) -> Iterator[Row]:
    """By instructions that give NaN where either operand is."""
    for row in (_extreme("min", "olt")[0], _extreme("max", "ogt")[0]):
        llvm, becomes = f"call {{T}} @llvm.{row.name}imum({{T}} %x, {{T}} %y)", rf"{prefix}{row.name}\b"
        for name in (row.name, f"{row.name}_number"):
            yield replace(row, name=name, dtypes=dtypes, llvm=llvm, becomes=becomes)


_SDOT = _by_quads(
    _DOT4, "aarch64.neon.sdot.v4i32.v16i8", "{quads} %b, {quads} %a", r"sdot\s",
    "vdotq_s32((int32x4_t)z, (int8x16_t)y, (int8x16_t)x)", "dotprod", 4,
)  # fmt: skip
"""The operand of which the instruction can take one lane, which a product gives first, comes last."""
_USDOT = _by_quads(
    _DOT4U, "aarch64.neon.usdot.v4i32.v16i8", "{quads} %a, {quads} %b", r"usdot\s",
    "vusdotq_s32((int32x4_t)z, (uint8x16_t)x, (int8x16_t)y)", "i8mm", 4,
)  # fmt: skip
"""LLVM makes SUDOT of it where the first operand is one lane."""


def _short(vectors: int) -> Row:
    """Of so many vector registers, each rounded half to even and converted by one instruction, and clamped by
    one."""
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


def _bytes_widened(name: str, operands: str) -> Row:
    """`dot2b` of two vector registers of sums: products of int16, of which neighbours are added to i32. Those
    of two terms, x and y, u and v, are added first, as no sum of two is beyond int16."""
    lines, sums = [f"%{v}b = bitcast {{T}} %{v} to <16 x i8>" for v in operands], list[str]()
    products = [*zip(operands[::2], operands[1::2], strict=True)]
    for n in (0, 1):
        eight, four = (", ".join(f"i32 {many * n + lane}" for lane in range(many)) for many in (8, 4))
        for v in operands:
            lines.append(f"%{v}{n} = shufflevector <16 x i8> %{v}b, <16 x i8> poison, <8 x i32> <{eight}>")
        for a, b in products:
            both = f"<8 x i8> %{b}{n}, <8 x i8> %{a}{n}"
            lines.append(f"%{a}{b}{n} = call <8 x i16> @llvm.aarch64.neon.smull.v8i16({both})")
        if len(products) > 1:
            lines.append(f"%both{n} = add <8 x i16> %xy{n}, %uv{n}")
        total = f"<8 x i16> %{'both' if len(products) > 1 else 'xy'}{n}"
        lines += [
            f"%z{n} = shufflevector {{i32}} %z, {{i32}} poison, <4 x i32> <{four}>",
            f"%pairs{n} = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16({total})",
            f"%sum{n} = add <4 x i32> %z{n}, %pairs{n}",
            f'%kept{n} = call <4 x i32> asm "", "=w,0"(<4 x i32> %sum{n})',
        ]
        sums.append(f"<4 x i32> %kept{n}")
    picks = ", ".join(f"i32 {n}" for n in range(8))
    lines.append(f"shufflevector {', '.join(sums)}, <8 x i32> <{picks}>")
    one = _DOT2B.reference.partition(" + ")[2]
    terms = [one.replace("x[i]", f"{a}[i]").replace("y[i]", f"{b}[i]") for a, b in products]
    return replace(
        _DOT2B, name=name, llvm="\n".join(lines), lanes=8, multiplies=3,
        operands=", ".join([*(f"{v}: T[N]" for v in operands), "z: i32[N]"]),
        reference=f"r[i] = z[i] + {' + '.join(terms)}", becomes=r"(?s)sm[ul]l[al]2\s.*sadalp",
    )  # fmt: skip


_ADD_SHORT = Row(
    "add_short", (I16,), "x: T[N], y: T[N]", "T",
    "r[i] = i16(max(min(i32(x[i]) + i32(y[i]), i32(32767)), i32(-32768)))",
    "call {T} @llvm.sadd.sat({T} %x, {T} %y)", becomes=r"sqadd\s",
)  # fmt: skip


def _bfloats(lanes: int, function: str, becomes: str, c: str, *needs: str, turned: bool = False) -> Row:
    """`dot2bf` of one vector register by one instruction."""
    x, y = ("%b", "%a") if turned else ("%a", "%b")
    llvm = "%a = bitcast {i32} %x to {bfloats}\n%b = bitcast {i32} %y to {bfloats}\n"
    llvm += f"call {{T}} @llvm.{function}({{T}} %z, {{bfloats}} {x}, {{bfloats}} {y})"
    return replace(_DOT2BF, llvm=llvm, needs=needs, lanes=lanes, becomes=becomes, c=c)


_BFDOT = _bfloats(
    4, "aarch64.neon.bfdot.v4f32.v8bf16", r"bfdot\s",
    "vbfdotq_f32((float32x4_t)z, (bfloat16x8_t)y, (bfloat16x8_t)x)", "bf16", turned=True,
)  # fmt: skip
"""Rounds to odd, the sum of two products too, and takes subnormal numbers for 0."""

NEON: tuple[Row, ...] = (
    _BFDOT,
    _SDOT,
    _USDOT,
    _bytes_widened("dot2b", "xy"),
    _bytes_widened("dot2b_twice", "xyuv"),
    *map(_short, (1, 2, 4)),
    _ADD_SHORT,
    replace(_FUSED, becomes=r"fmla\s"),
    *_halves((), r"fcvtl\s", r"fcvtn\s"),
    *_own_extremes(FLOATS, "f"),
    *_single((), FLOATS, {
        "floor": r"frintm\s", "ceil": r"frintp\s", "trunc": r"frintz\s", "round": r"frintn\s",
        "sqrt": r"fsqrt\s",
    }),
    *PORTABLE,
)  # fmt: skip
"""Of 64-bit Arm processors, all of which round a product and its sum once."""

NEON32: tuple[Row, ...] = (
    replace(_FMA, dtypes=(F32,), becomes=r"vmla\.f32\s"),
    replace(
        _CONVERSIONS[F16][0],
        lanes=4,
        becomes=r"vcvt\.f32\.f16\s",
        llvm="call {f32} @llvm.arm.neon.vcvthf2fp({T} %x)",
    ),
    replace(
        _CONVERSIONS[F16][1],
        lanes=4,
        becomes=r"vcvt\.f16\.f32\s",
        llvm="call {T} @llvm.arm.neon.vcvtfp2hf({f32} %x)",
    ),
    *_own_extremes((F32,), "v"),
    *PORTABLE,
)
"""Of 32-bit Arm processors: the multiply-add that takes one lane of a vector for all rounds the product."""

WASM: tuple[Row, ...] = (
    replace(
        _DOT2, needs=("simd128",), lanes=4, becomes=r"i32x4\.dot_i16x8_s",
        llvm="%a = bitcast {T} %x to {pairs}\n%b = bitcast {T} %y to {pairs}\n"
        "%both = call {T} @llvm.wasm.dot({pairs} %a, {pairs} %b)\nadd {T} %both, %z",
    ),
    *PORTABLE,
)  # fmt: skip
"""Of WebAssembly with vectors of 128 bits."""

_SCALED = {n: f"_mm{{bits}}_roundscale_p{{s}}(x, {how})" for n, how in _C_ROUNDING.items()}
_MASKED_MOVE = {"masked_load": r"vmov.*\{%k", "masked_store": r"vmov.*\{%k"}
_MASK = "_mm{bits}_test_epi32_mask((__m{reg}i)mask, (__m{reg}i)mask)"


_DPBF16 = tuple(
    _bfloats(
        bits // 32, f"x86.avx512bf16.dpbf16ps.{bits}", "vdpbf16ps",
        "_mm{bits}_dpbf16_ps((__m{reg})z, (__m{reg}bh)x, (__m{reg}bh)y)", "avx512bf16", "avx512vl",
    )
    for bits in (512, 256, 128)
)  # fmt: skip
"""Adds the product of the upper numbers, then that of the lower, each sum rounded to the nearest, half to
even; takes subnormal numbers for 0."""

AVX512: tuple[Row, ...] = (
    *_DPBF16,
    _fours(16, 512, "avx512vnni", "dpbusd_epi32"),
    _pairs(16, "avx512.pmaddw.d.512", ("avx512vnni",), "dpwssd_epi32"),
    _pairs(16, "avx512.pmaddw.d.512", ("avx512bw",)),
    _fours_clamped(16, "avx512.pmaddubs.w.512", "avx512.pmaddw.d.512", ("avx512bw",)),
    *_single(("avx512f", "avx512bw", "avx512vl"), FOUR, _MASKED_MOVE, {
        "masked_load": f"({{T}})_mm{{bits}}_maskz_loadu_epi32({_MASK}, memory)",
        "masked_store": f"_mm{{bits}}_mask_storeu_epi32(memory, {_MASK}, (__m{{reg}}i)x)",
    }),
    *_single(("avx512f", "avx512bw", "avx512vl"), tuple(t for t in STORED if t not in FOUR), _MASKED_MOVE),
    *_single(("avx512f",), WORDS, {"masked_gather": "gather[dq]", "masked_scatter": "scatter[dq]"}),
    *_single(("avx512f", "avx512vl"), FLOATS, dict.fromkeys(_C_ROUNDING, "vrndscale"), _SCALED),
    _GATHER,
    *AVX2,
)  # fmt: skip
