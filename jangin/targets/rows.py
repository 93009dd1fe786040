"""Instruction rows: operations that processors do differently, each with its meaning and its code.

A target has a table of rows. The row for an operation and a type is the first whose `needs` the target has
(`Target.row`). Code generation asks for operations by name and tests no features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from jangin.ir import products
from jangin.ir.dtype import BF16, BOOL, DTYPES, F16, F32, F64, I16, I32, I64, SMALL, DType
from jangin.ir.expr import Expr
from jangin.ir.fragments import Fragment
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.products import PRODUCTS, Product
from jangin.ir.records import dataclass
from jangin.targets import small

FLOATS = (F32, F64)
STORED = tuple(t for t in DTYPES.values() if t is not BOOL and t not in SMALL)
WORDS = tuple(t for t in STORED if t.bytes >= 4)
FOUR = tuple(t for t in WORDS if t.bytes == 4)
TILES, TILE_ROWS, TILE_BYTES = 8, 16, 64
"""AMX's limits: matrix registers, rows of each, and bytes of a row."""
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Row:
    """One way to do an operation on values of a type `T` in `dtypes`, for any number of lanes N.

    - `operands` and `result`: written as in Loop IR. The result has N elements, or one if its size is written
      ([1]), and is empty if the row stores. T[1] is one value for all lanes. `memory` is an address, and the
      others are values. `stride` is the bytes from row to row in memory. Operands of R, C or K rows and
      columns are matrix registers by number.
    - `reference`: the work for lane `i`, for whole matrices, or for a result of one element, in Loop IR. It
      leaves the result in `r`.
    - `llvm`: LLVM IR. `{T}`, `{i32}`... are types by lanes, `{T.one}` is one element's type, and `{T.bytes}`
      is its size. `{i32:16}` is a constant, and `%x` is an operand. `{pairs}` is two i16 for each lane,
      `{bfloats}` is two bfloat16, and `{quads}` is four i8. The last line is the result or the effect.
    - `needs`: LLVM's names of the processor features that the row requires.
    - `becomes`: a pattern of the one instruction that a vector register takes, in assembly. It is empty for
      several instructions. Rows for all processors have x86's.
    - `expansion`: the result as an expression of `small.ARGUMENT`, for languages without text for the row.
    - `c`: a C expression with GNU's vector types, on operands that fill a vector register. `{bits}` is the
      register's name in x86's intrinsics ("" for 128 bits), and `{reg}` is its bits. `{s}` is the type of its
      floats (s or d). `{T}` is the type, and `{i32}` is the type of as many i32. If `c` is empty, C does the
      reference's work lane by lane. It also does so for one lane of a row for any number.
    - `lanes`: the number of lanes that the row takes, or 0 for any number.
    - `multiplies`: the instructions of a multiply-add's units that the row takes.
    - `between`: registers for intermediate results, because LLVM has several sums under way.
    - `registers`: registers that hold the row's sums and operands, if these aren't the target's vector
      registers.
    - `product`: the product that the row adds to `z` or to a matrix, or None if it multiplies no small
      numbers.
    - `words`: the number of words of each operand that the row multiplies.
    - `fragments`: how the lanes of a warp share the left matrix, the right one and the sums, for a row that
      multiplies fragments. `c` is then the name of a function of their registers, the sums' first.
    """

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
    between: int = 0
    registers: int = 0
    product: Product | None = None
    words: int = 1
    fragments: tuple[Fragment, ...] = ()

    @property
    def fuses(self) -> bool:
        """Whether a product and its sum are rounded once."""
        return "fma(" in self.reference

    @property
    def of_tiles(self) -> bool:
        """Whether the row works on matrix registers."""
        return "[R" in self.operands

    @property
    def across(self) -> bool:
        """Whether the row makes one number of all lanes."""
        return self.result.endswith("[1]")

    def func(self, dtype: DType) -> Func:
        """The reference as a kernel of symbolic size N, and M if memory has another size."""
        out = f", r: out {self.result}{'' if self.across else '[N]'}" if self.result else ""
        most = {"N": "", "M": "", **dict.fromkeys("RCK", TILE_ROWS)}
        sizes = [f"{n} in 1..{most[n]}" for n in most if re.search(rf"[\[ ]{n}[\],]", self.operands + out)]
        head = f"func {self.name}({self.operands}{out}) symbols ({', '.join(sizes)})"
        whole = self.of_tiles or self.across
        text = f"{head} {{ {self.reference if whole else f'serial i in N {{ {self.reference} }}'} }}"
        return parse_func(re.sub(r"\bT\b", dtype.name, text))


def _unary(name: str, function: str, becomes: str) -> Row:
    llvm = f"call {{T}} @llvm.{function}({{T}} %x)"
    return Row(name, FLOATS, "x: T[N]", "T", f"r[i] = {name}(x[i])", llvm, becomes=becomes)


def extreme(name: str, order: str) -> tuple[Row, Row]:
    """The rows `min` or `max`, in full and for a first operand that is known to be a number.

    The full row gives NaN if either operand is NaN, and either of two zeros. x86's instruction gives its
    second operand if the two don't compare, so it suffices alone for the other row.
    """
    compared, sign = f"%first = fcmp {order} {{T}} %x, %y\n", {"olt": "<", "ogt": ">"}[order]
    full = Row(
        name, FLOATS, "x: T[N], y: T[N]", "T", f"r[i] = {name}(x[i], y[i])",
        f"call nsz {{T}} @llvm.{name}imum({{T}} %x, {{T}} %y)",
        c=f"PICK((x != x) | (x {sign} y), x, y)",
    )  # fmt: skip
    alone = compared + "select {bool} %first, {T} %x, {T} %y"
    number = f"PICK(x {sign} y, x, y)"
    return full, replace(full, name=f"{name}_number", llvm=alone, becomes=f"{name}[ps]", c=number)


FMA = Row(
    "fma", FLOATS, "x: T[N], y: T[N], z: T[N]", "T", "r[i] = x[i] * y[i] + z[i]",
    "%product = fmul {T} %x, %y\nfadd {T} %product, %z", c="x * y + z",
)  # fmt: skip


def _dot(product: Product, between: int = 0) -> Row:
    """The row that adds the products of the integers in each word to a sum."""
    left, right, clamps = product.left, product.right, product.clamps
    bits, word = left.bits, product.word
    tops = [*range(word.bits - bits, -1, -bits)]

    def number(v: str, dtype: DType, top: int) -> str:
        signed = f"(({v}[i] << {word}({top})) >> {word}({word.bits - bits}))"
        signed = signed if word is I32 else f"i32({signed})"
        return signed if dtype.kind == "i" else f"({signed} & i32({(1 << bits) - 1}))"

    parts = [f"{number('x', left, n)} * {number('y', right, n)}" for n in tops]
    if clamps:
        parts = [
            f"max(min({a} + {b}, i32(32767)), i32(-32768))" for a, b in zip(*[iter(parts)] * 2, strict=True)
        ]
    wide, lines, total = "", list[str](), "%z"
    if word.bits < I32.bits:
        wide, lines = "_wide", [f"%{v}_wide = sext {{T}} %{v} to {{i32}}" for v in "xy"]
    for n in tops:
        for v, dtype in (("x", left), ("y", right)):
            down, half = "ashr" if dtype.kind == "i" else "lshr", wide
            if word.bits > I32.bits:
                half = f"_half{n}"
                lines += [f"%{v}{half}_wide = lshr {{T}} %{v}, {{i64:{32 * (n < 32)}}}"]
                lines += [f"%{v}{half} = trunc {{T}} %{v}{half}_wide to {{i32}}"]
            lines += [f"%{v}{n}_top = shl {{i32}} %{v}{half}, {{i32:{(n + 32 - word.bits) % 32}}}"]
            lines += [f"%{v}{n} = {down} {{i32}} %{v}{n}_top, {{i32:{32 - bits}}}"]
        lines.append(f"%product{n} = mul {{i32}} %x{n}, %y{n}")
        if not clamps:
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
    return Row(
        product.name, (word,), "x: T[N], y: T[N], z: i32[N]", "i32", reference, "\n".join(lines),
        between=between, product=product.by_lanes,
    )  # fmt: skip


DOT1, DOT1B, DOT4, DOT4U, DOT8, DOT8U = map(
    _dot, (products.DOT1, products.DOT1B, products.DOT4, products.DOT4U, products.DOT8, products.DOT8U)
)
DOT2, DOT4S, DOT2B = _dot(products.DOT2, 2), _dot(products.DOT4S, 5), _dot(products.DOT2B, 3)
DOT2BF = Row(
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
    product=products.DOT2BF,
)  # fmt: skip
"""Fusing doesn't matter here: a product of two bfloat16 is exact in f32."""


def _four_bfloats() -> Row:
    total, lines = "z[i]", list[str]()
    for n in range(4):
        x, y = (f"bitcast_f32(i32({v}[i] >> i64({16 * n})) << i32(16))" for v in "xy")
        total = f"fma({x}, {y}, {total})"
        for v in "xy":
            lines += [
                f"%{v}{n}_far = lshr {{i64}} %{v}, {{i64:{16 * n}}}",
                f"%{v}{n}_low = trunc {{i64}} %{v}{n}_far to {{i32}}",
                f"%{v}{n}_top = shl {{i32}} %{v}{n}_low, {{i32:16}}",
                f"%{v}{n} = bitcast {{i32}} %{v}{n}_top to {{T}}",
            ]
        lines += [f"%product{n} = fmul {{T}} %x{n}, %y{n}"]
        lines += [f"%sum{n} = fadd {{T}} %product{n}, %{f'sum{n - 1}' if n else 'z'}"]
    lines[-1] = lines[-1].partition(" = ")[2]
    operands = "x: i64[N], y: i64[N], z: T[N]"
    return Row(
        "dot4bf", (F32,), operands, "T", f"r[i] = {total}", "\n".join(lines), product=products.DOT4BF.by_lanes
    )


DOT4BF = _four_bfloats()


def _of_pairs(name: str, operation: str, reference: str) -> Row:
    """A row for an operation on pairs of int16."""
    llvm = "%a = bitcast {T} %x to {pairs}\n%b = bitcast {T} %y to {pairs}\n"
    llvm += f"%both = {operation} {{pairs}} %a, %b\nbitcast {{pairs}} %both to {{T}}"
    return Row(
        name, (I32,), "x: T[N], y: T[N]", "T", f"r[i] = {reference}", llvm, becomes=f"p{operation}w"
    )  # fmt: skip


_LOW, _HIGH = "i32(2147450879)", "i32(-2147450880)"
"""Masks of the lower 15 bits and of the highest bit of both numbers in a word. With the highest bits set
apart, a word's addition carries nothing from one number to the other."""
_ADD2 = _of_pairs("add2", "add", f"((x[i] & {_LOW}) + (y[i] & {_LOW})) ^ ((x[i] ^ y[i]) & {_HIGH})")
_SUB2 = _of_pairs(
    "sub2", "sub", f"((x[i] | {_HIGH}) - (y[i] & {_LOW})) ^ ((x[i] ^ y[i] ^ i32(-1)) & {_HIGH})"
)


def _half(name: str, first: int) -> Row:
    """Every second int8 of a word of four, as a pair of int16."""
    low, high = 24 - 8 * first, 8 - 8 * first
    reference = (
        f"r[i] = (((x[i] << T({low})) >> T(24)) & T(65535)) | (((x[i] << T({high})) >> T(24)) << T(16))"
    )
    llvm = f"""
    %low_top = shl {{T}} %x, {{T:{low}}}
    %low_wide = ashr {{T}} %low_top, {{T:24}}
    %low = and {{T}} %low_wide, {{T:65535}}
    %high_top = shl {{T}} %x, {{T:{high}}}
    %high_wide = ashr {{T}} %high_top, {{T:24}}
    %high = shl {{T}} %high_wide, {{T:16}}
    or {{T}} %low, %high"""
    return Row(name, (I32,), "x: T[N]", "T", reference, llvm)


EVEN_BYTES, ODD_BYTES = _half("even_bytes", 0), _half("odd_bytes", 1)


PAIR_OF_BYTES = Row(
    "pair_of_bytes", (I16,), "x: T[N]", "i32",
    "r[i] = ((i32(x[i]) << i32(24)) >> i32(24)) & i32(65535) | (i32(x[i]) >> i32(8)) << i32(16)",
    """
    %wide = sext {T} %x to {i32}
    %low_top = shl {i32} %wide, {i32:24}
    %low_wide = ashr {i32} %low_top, {i32:24}
    %low = and {i32} %low_wide, {i32:65535}
    %high_wide = ashr {i32} %wide, {i32:8}
    %high = shl {i32} %high_wide, {i32:16}
    or {i32} %low, %high""",
)  # fmt: skip


def _conversions(dtype: DType) -> tuple[Row, Row]:
    """The conversions `widen` and `narrow` between a small type and the type that its values are computed
    in."""
    wide = dtype.wide.name
    return (
        Row("widen", (dtype,), "x: T[N]", wide, f"r[i] = {wide}(x[i])", expansion=small.widen(dtype)),
        Row("narrow", (dtype,), f"x: {wide}[N]", "T", "r[i] = T(x[i])", expansion=small.narrow(dtype)),
    )


CONVERSIONS = {t: _conversions(t) for t in (F16, BF16, *SMALL)}


_WITHIN = "(x >= -0x1p{0}f) & (x < 0x1p{0}f)"
_CONVERTED = "__builtin_convertvector({0}, {{{1}}})"


def _whole(to: DType) -> tuple[Row, Row]:
    """The rows `to_i32` or `to_i64`: a float truncated to a signed type.

    The first gives the least number of the type if the float is out of range. The second, `_held`, is only
    for floats in range and NaN, for which it gives any multiple of 65536.
    """
    least, top, kind = to.limits[0], to.bits - 1, to.name
    name, inside = f"to_{kind}", f"(x[i] >= T(-{1 << top}.0)) & (x[i] < T({1 << top}.0))"
    saturated = _saturating(kind)
    mask, value = (_CONVERTED.format(v, kind) for v in (_WITHIN.format(top), "x"))
    full = Row(
        name, FLOATS, "x: T[N]", kind, f"r[i] = select({inside}, {kind}(x[i]), {kind}({least}))",
        f"%near = {saturated}\n%below = fcmp olt {{T}} %x, {{T:{1 << top}}}\n"
        f"select {{bool}} %below, {{{kind}}} %near, {{{kind}}} {{{kind}:{least}}}",
        c=f"PICK({mask}, {value}, ({{{kind}}}){{{{0}}}} - {-least - 1} - 1)",
    )  # fmt: skip
    return full, replace(full, name=f"{name}_held", reference=f"r[i] = {kind}(x[i])", llvm=saturated, c=value)


def _saturating(kind: str) -> str:
    return f"call {{{kind}}} @llvm.fptosi.sat({{T}} %x)"


WHOLE = (*_whole(I32), *_whole(I64))


def by_instruction(row: Row) -> Row:
    """One of WHOLE by the processor's own instruction, which is complete, or saturates. LLVM would make
    several.

    LLVM promises nothing for numbers out of range, but selects this instruction. Tests of the rows and of
    casts hold it.
    """
    loose = f"%loose = fptosi {{T}} %x to {{{row.result}}}\n"
    if row.name.endswith("_held"):
        return replace(row, llvm=f"{loose}freeze {{{row.result}}} %loose")
    saturated = f"%near = {_saturating(row.result)}"
    return replace(row, llvm=row.llvm.replace(saturated, f"{loose}%near = freeze {{{row.result}}} %loose"))


def halves(needs: tuple[str, ...], widens: str, narrows: str) -> tuple[Row, Row]:
    """The conversions of half precision to and from f32 by a processor's instructions."""
    widen, narrow = CONVERSIONS[F16]
    wide = "%half = bitcast {T} %x to {half}\nfpext {half} %half to {f32}"
    small = "%half = fptrunc {f32} %x to {half}\nbitcast {half} %half to {T}"
    return (
        replace(widen, needs=needs, becomes=widens, llvm=wide),
        replace(narrow, needs=needs, becomes=narrows, llvm=small),
    )


PLACES = "%places = getelementptr {T.one}, ptr %memory, {i64} %index\n"
"""The addresses of elements by their indices, for gathers and scatters."""
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
        PLACES + "call {T} @llvm.masked.gather({ptr} align {T.bytes} %places, {bool} %mask, "
        "{T} zeroinitializer)",
    ),
    Row(
        "masked_scatter", STORED, "index: i64[N], mask: bool[N], x: T[N], memory: out T[M]", "",
        "if mask[i] { memory[index[i]] = x[i] }",
        PLACES + "call void @llvm.masked.scatter({T} %x, {ptr} align {T.bytes} %places, {bool} %mask)",
    ),
)  # fmt: skip
"""Masked accesses. Lanes that are off touch no memory. If two lanes scatter to one place, the later wins."""

_BROADCAST = Row(
    "broadcast", tuple(DTYPES.values()), "x: T[1]", "T", "r[i] = x[0]", """
    %one = insertelement {T} poison, {T.one} %x, i64 0
    shufflevector {T} %one, {T} poison, {i32} zeroinitializer""",
)  # fmt: skip

PORTABLE: tuple[Row, ...] = (
    FMA,
    *extreme("min", "olt"),
    *extreme("max", "ogt"),
    _unary("floor", "floor", "round[ps]"),
    _unary("ceil", "ceil", "round[ps]"),
    _unary("trunc", "trunc", "round[ps]"),
    _unary("round", "roundeven", "round[ps]"),
    _unary("sqrt", "sqrt", "sqrt[ps]"),
    *(row for rows in CONVERSIONS.values() for row in rows),
    *WHOLE,
    DOT1,
    DOT1B,
    DOT2,
    DOT4,
    DOT4U,
    DOT4S,
    DOT2B,
    DOT8,
    DOT8U,
    DOT2BF,
    DOT4BF,
    _ADD2,
    _SUB2,
    EVEN_BYTES,
    ODD_BYTES,
    PAIR_OF_BYTES,
    *_MASKED,
    _BROADCAST,
)
"""The rows that LLVM can make for every processor, each as one instruction or several."""


def single(
    needs: tuple[str, ...],
    dtypes: tuple[DType, ...],
    becomes: Mapping[str, str],
    c: Mapping[str, str] = _NONE,
) -> tuple[Row, ...]:
    """Portable rows, by name, that are one instruction on processors with the features `needs`."""
    return tuple(
        replace(
            r, dtypes=tuple(t for t in r.dtypes if t in dtypes), needs=needs, becomes=becomes[r.name],
            c=c.get(r.name, r.c),
        )
        for r in PORTABLE
        if r.name in becomes
    )  # fmt: skip


FUSED = replace(
    FMA, reference="r[i] = fma(x[i], y[i], z[i])", llvm="call {T} @llvm.fma({T} %x, {T} %y, {T} %z)", c=""
)

FUSING: tuple[Row, ...] = (FUSED, *PORTABLE)
"""Rows for architectures on which every processor fuses multiply-adds; x86 does so from AVX2 on."""

NEAREST = Row(
    "nearest", (F32,), "x: T[N]", "i32", "r[i] = i32(round(x[i]))", "call {i32} @llvm.lrint({T} %x)",
    becomes="cvtps2dq", c="({i32})_mm{bits}_cvtps_epi32(x)",
)  # fmt: skip
"""Rounds half to even and converts, in one instruction."""
TOWARD_ZERO = replace(NEAREST, name="toward_zero", reference="r[i] = i32(trunc(x[i]))", llvm="", becomes="")
"""Rounds toward zero and converts, in one instruction that saturates. The text is the target's own."""


def by_quads(row: Row, function: str, operands: str, becomes: str, c: str, feature: str, lanes: int) -> Row:
    """A sum of products of bytes by one instruction. `operands`: %a and %b in the instruction's order."""
    llvm = "%a = bitcast {T} %x to {quads}\n%b = bitcast {T} %y to {quads}\n"
    llvm += f"call {{T}} @llvm.{function}({{T}} %z, {operands})"
    return replace(row, llvm=llvm, becomes=becomes, c=f"({{T}}){c}", needs=(feature,), lanes=lanes)


def matrix(row: Row, function: str, kind: str, becomes: str, feature: str) -> Row:
    """A matrix product of two rows `y` and two columns `z` of 64-bit words by one instruction.

    The lanes of the result, and of the addend `x`, are the sums of the first row, then of the second. `kind`:
    the LLVM type of the instruction's operands.
    """
    places = {"x": "y[i // 2 % 2]", "y": "z[i % 2]", "z": "x[i]"}
    reference = re.sub(r"\b([xyz])\[i\]", lambda m: places[m[1]], row.reference)
    total = "{i32}" if row.result == "i32" else "{T}"
    operands = f"x: {row.result}[N], y: i64[2], z: i64[2]"
    llvm = f"%a = bitcast <2 x i64> %y to {kind}\n%b = bitcast <2 x i64> %z to {kind}\n"
    llvm += f"call {total} @llvm.{function}({total} %x, {kind} %a, {kind} %b)"
    return replace(
        row, name=f"{row.name}_matrix", operands=operands, reference=reference, llvm=llvm, needs=(feature,),
        becomes=becomes, lanes=4, product=PRODUCTS[row.name],
    )  # fmt: skip


def bfloats(lanes: int, function: str, becomes: str, c: str, *needs: str, turned: bool = False) -> Row:
    """`dot2bf` of one vector register by one instruction. `turned`: the instruction takes %b first."""
    x, y = ("%b", "%a") if turned else ("%a", "%b")
    llvm = "%a = bitcast {i32} %x to {bfloats}\n%b = bitcast {i32} %y to {bfloats}\n"
    llvm += f"call {{T}} @llvm.{function}({{T}} %z, {{bfloats}} {x}, {{bfloats}} {y})"
    return replace(DOT2BF, llvm=llvm, needs=needs, lanes=lanes, becomes=becomes, c=c)
