"""Rows on whole registers of bytes. AVX2's and AVX-512's pack sums to bytes and int16. AVX-512's also look up
tables of 256 bytes and interleave bytes to words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jangin.ir.dtype import I8, I16, U8, U16, DType
from jangin.targets.rows import Row


def _picks(picks: Iterable[int]) -> str:
    """Return the mask operand of LLVM's shufflevector."""
    numbers = [*picks]
    return f"<{len(numbers)} x i32> <{', '.join(f'i32 {n}' for n in numbers)}>"


def _clamped(dtype: DType, pack: str, bits: int) -> Iterator[Row]:
    """Yield the rows of `clamped`: i32 saturated to a smaller integer type, from vectors of `bits` bits. Pack
    instructions work on each 128-bit part of a register by itself. A shuffle then puts the parts in order."""
    name, feature = {512: ("avx512", "avx512bw"), 256: ("avx2", "avx2")}[bits]
    suffix, each, parts = (".512" if bits == 512 else ""), bits // 32, bits // 128
    low, high = dtype.limits
    for lanes in (bits // dtype.bits, bits // dtype.bits // 2) if dtype.bits == 8 else (bits // dtype.bits,):
        count = lanes // each
        lines = []
        for n in range(count):
            part = _picks(range(each * n, each * n + each))
            lines.append(f"%part{n} = shufflevector {{i32}} %x, {{i32}} poison, {part}")
        short = "packssdw" if dtype.bits == 8 else pack
        shorts, words = f"<{2 * each} x i16>", f"<{each} x i32>"
        for n in range(0, count, 2):
            pair = f"{words} %part{n}, {words} %part{n + 1}"
            lines.append(f"%pair{n} = call {shorts} @llvm.x86.{name}.{short}{suffix}({pair})")
        packed = f"{shorts} %pair0"
        if dtype.bits == 8:
            packed = f"<{4 * each} x i8> %bytes"
            last = f"{shorts} %pair0, {shorts} %pair{count - 2}"
            lines.append(f"%bytes = call <{4 * each} x i8> @llvm.x86.{name}.{pack}{suffix}({last})")
        # i32 of each vector in a 128-bit part
        run = 1 if dtype.bits == 8 else 2
        order = [
            4 * part + run * vector + n
            for vector in range(count) for part in range(parts) for n in range(run)
        ]  # fmt: skip
        lines.append(f"%quads = bitcast {packed} to {words}")
        lines.append(f"%order = shufflevector {words} %quads, {words} poison, {_picks(order)}")
        lines.append(f"bitcast <{len(order)} x i32> %order to {{T}}")
        yield Row(
            "clamped", (dtype,), "x: i32[N]", "T", f"r[i] = T(min(max(x[i], i32({low})), i32({high})))",
            "\n".join(lines), needs=(feature,), becomes=pack, lanes=lanes,
        )  # fmt: skip


def _table(lanes: int) -> Row:
    """Return the row of `table`, which looks up bytes in a table of 256 bytes.

    Four registers hold the table as pairs of bytes. One instruction looks up 32 places in two registers. The
    places in the low bytes and in the high bytes of words are looked up apart.
    """
    words, quarter = "<32 x i16>", "<256 x i8> %y, <256 x i8> poison"
    text = [f"%x64 = shufflevector {{u8}} %x, {{u8}} poison, {_picks(n % lanes for n in range(64))}"]
    text.append(f"%word = bitcast <64 x i8> %x64 to {words}")
    for n in range(4):
        text.append(f"%bytes{n} = shufflevector {quarter}, {_picks(range(64 * n, 64 * n + 64))}")
        text.append(f"%table{n} = bitcast <64 x i8> %bytes{n} to {words}")
    for side, shift in (("low", 1), ("high", 9)):
        text.append(f"%{side} = lshr {words} %word, splat (i16 {shift})")
        for half, first in (("lower", 0), ("upper", 2)):
            parts = f"{words} %table{first}, {words} %{side}, {words} %table{first + 1}"
            text.append(f"%{side}_{half} = call {words} @llvm.x86.avx512.vpermi2var.hi.512({parts})")
        bit = "%word" if side == "high" else "%word_up"
        if side == "low":
            text.append(f"%word_up = shl {words} %word, splat (i16 8)")
        text.append(f"%{side}_top = icmp slt {words} {bit}, zeroinitializer")
        pair = f"{words} %{side}_upper, {words} %{side}_lower"
        text.append(f"%{side}_pair = select <32 x i1> %{side}_top, {pair}")
        text.append(f"%{side}_bit = and {words} %word, splat (i16 {1 << (shift - 1)})")
        text.append(f"%{side}_odd = icmp ne {words} %{side}_bit, zeroinitializer")
    text.append(f"%low_down = lshr {words} %low_pair, splat (i16 8)")
    text.append(f"%low_out = select <32 x i1> %low_odd, {words} %low_down, {words} %low_pair")
    text.append(f"%high_up = shl {words} %high_pair, splat (i16 8)")
    text.append(f"%high_out = select <32 x i1> %high_odd, {words} %high_pair, {words} %high_up")
    text += [f"%{side}_bytes = bitcast {words} %{side}_out to <64 x i8>" for side in ("low", "high")]
    both = _picks(64 + n if n % 2 else n for n in range(lanes))
    text.append(f"shufflevector <64 x i8> %low_bytes, <64 x i8> %high_bytes, {both}")
    return Row(
        "table", (U8, I8), "x: u8[N], y: T[256]", "T", "r[i] = y[i64(x[i])]", "\n".join(text),
        ("avx512bw",), "vperm[it]2w", lanes=lanes,
    )  # fmt: skip


def _joined(needs: tuple[str, ...], becomes: str, put: Sequence[str]) -> Row:
    """Return the row of `joined`, which makes words of four bytes, one byte from each of four vectors.

    `put`: the LLVM IR that makes %words from %xy and %zu. The lower half of %xy holds x and y, and that of
    %zu holds z and u. An empty inline assembly keeps %xy and %zu whole, because LLVM would otherwise
    interleave each pair first, and then the results.
    """
    both, more = _picks(range(32)), _picks(n % 32 for n in range(64))
    text = list[str]()
    for a, b in ("xy", "zu"):
        text.append(f"%{a}{b}_pair = shufflevector {{u8}} %{a}, {{u8}} %{b}, {both}")
        text.append(f'%{a}{b}_kept = call <32 x i8> asm "", "=v,0"(<32 x i8> %{a}{b}_pair)')
        text.append(f"%{a}{b} = shufflevector <32 x i8> %{a}{b}_kept, <32 x i8> poison, {more}")
    shifted = " | ".join(f"(i32({v}[i]) << i32({8 * n}))" for n, v in enumerate("xyzu"))
    return Row(
        "joined", (U8,), "x: T[N], y: T[N], z: T[N], u: T[N]", "i32", f"r[i] = {shifted}",
        "\n".join([*text, *put, "bitcast <64 x i8> %words to {i32}"]), needs, becomes, lanes=16,
    )  # fmt: skip


def _joined_at_once() -> Row:
    picks = ", ".join(f"i8 {v}" for n in range(16) for v in (n, 16 + n, 64 + n, 80 + n))
    parts = f"<64 x i8> %xy, <64 x i8> <{picks}>, <64 x i8> %zu"
    put = [f"%words = call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512({parts})"]
    return _joined(("avx512vbmi",), "vperm[it]2b", put)


def _joined_by_quads() -> Row:
    """Return the row of `joined` for processors without a byte permutation across a whole register. A
    permutation of 32-bit lanes gathers the bytes of four words in each 128-bit part. A byte shuffle within
    the parts then puts them in order."""
    put = [f"%{v}_quads = bitcast <64 x i8> %{v} to <16 x i32>" for v in ("xy", "zu")]
    picks = ", ".join(f"i32 {v}" for n in range(4) for v in (n, 4 + n, 16 + n, 20 + n))
    parts = f"<16 x i32> %xy_quads, <16 x i32> <{picks}>, <16 x i32> %zu_quads"
    put.append(f"%quads = call <16 x i32> @llvm.x86.avx512.vpermi2var.d.512({parts})")
    put.append('%kept = call <16 x i32> asm "", "=v,0"(<16 x i32> %quads)')
    put.append("%bytes = bitcast <16 x i32> %kept to <64 x i8>")
    order = _picks(16 * (n // 16) + 4 * (n % 4) + n % 16 // 4 for n in range(64))
    put.append(f"%words = shufflevector <64 x i8> %bytes, <64 x i8> poison, {order}")
    return _joined(("avx512bw",), "vpshufb", put)


def _joined_half() -> Row:
    """Return the row of `joined` for half a register of words. It interleaves bytes, then pairs of bytes."""
    text = list[str]()
    for a, b in ("xy", "zu"):
        picks = _picks(v for n in range(8) for v in (n, 8 + n))
        text.append(f"%{a}{b} = shufflevector {{u8}} %{a}, {{u8}} %{b}, {picks}")
        text.append(f"%{a}{b}_pairs = bitcast <16 x i8> %{a}{b} to <8 x i16>")
    both = _picks(v for n in range(8) for v in (n, 8 + n))
    text.append(f"%words = shufflevector <8 x i16> %xy_pairs, <8 x i16> %zu_pairs, {both}")
    row = _joined(("avx512bw",), "punpck", [])
    return replace(row, llvm="\n".join([*text, "bitcast <16 x i16> %words to {i32}"]), lanes=8)


AVX512_BYTES: tuple[Row, ...] = (
    *map(_table, (64, 32, 16)),
    _joined_at_once(),
    _joined_by_quads(),
    _joined_half(),
    *_clamped(U8, "packuswb", 512),
    *_clamped(I8, "packsswb", 512),
)
AVX2_BYTES: tuple[Row, ...] = (
    *_clamped(U8, "packuswb", 256),
    *_clamped(I8, "packsswb", 256),
    *_clamped(U16, "packusdw", 256),
    *_clamped(I16, "packssdw", 256),
)
