"""WebAssembly, for browsers and Node."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import products
from jangin.ir.dtype import F32, F64
from jangin.targets.figures import FusionFigures
from jangin.targets.processor import Processor
from jangin.targets.rows import DOT2, FMA, PAIR_OF_BYTES, PORTABLE, Row
from jangin.targets.target import Target

WASM: tuple[Row, ...] = (
    replace(
        DOT2, needs=("simd128",), lanes=4, becomes=r"i32x4\.dot_i16x8_s",
        llvm="%a = bitcast {T} %x to {pairs}\n%b = bitcast {T} %y to {pairs}\n"
        "%both = call {T} @llvm.wasm.dot({pairs} %a, {pairs} %b)\nadd {T} %both, %z",
    ),
    replace(
        PAIR_OF_BYTES, needs=("simd128",), lanes=4, becomes=r"i16x8\.(load8x8|extend_low_i8x16)_s",
        llvm="%bytes = bitcast {T} %x to <8 x i8>\n%wide = sext <8 x i8> %bytes to {pairs}\n"
        "bitcast {pairs} %wide to {i32}",
    ),
    *PORTABLE,
)  # fmt: skip
"""The rows of WebAssembly with vectors of 128 bits."""

WASM32 = Target(
    "wasm32", "wasm32-unknown-unknown", "generic", "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint",
    WASM,
    Processor(16, 16, products=(products.DOT2,), fusion=FusionFigures(byte_weights=True, prepares=True)),
    outputs=("shared",),
)  # fmt: skip
"""WebAssembly with 128-bit vectors (SIMD128), in one thread.

Multiply-adds aren't fused. Engines keep values in the processor's registers, 16 on x86.
"""

WASM32_THREADS = replace(WASM32, name="wasm32-threads", features=f"{WASM32.features},+atomics")
"""WebAssembly whose memory several workers share. Browsers share memory only on isolated pages."""

RELAXED: tuple[Row, ...] = tuple(
    replace(
        FMA, dtypes=(dtype,), needs=("relaxed-simd",), lanes=16 // dtype.bytes, becomes=r"relaxed_madd",
        llvm="call {T} @llvm.wasm.relaxed.madd({T} %x, {T} %y, {T} %z)",
    )
    for dtype in (F32, F64)
)  # fmt: skip
"""Multiply-adds that an engine fuses if its processor does so."""

WASM32_RELAXED = replace(
    WASM32, name="wasm32-relaxed", features=f"{WASM32.features},+relaxed-simd", rows=(*RELAXED, *WASM)
)
"""WebAssembly with Relaxed SIMD. Floats may differ from machine to machine in their last bits, because some
fuse multiply-adds. Integers are the same everywhere. The dot product of bytes isn't used: it is exact
only if one operand has 7 bits, and int8 models have no such operand."""
