"""WebAssembly: what browsers and Node run."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir import products
from jangin.targets.processor import Processor
from jangin.targets.rows import DOT2, PORTABLE, Row
from jangin.targets.target import Target

WASM: tuple[Row, ...] = (
    replace(
        DOT2, needs=("simd128",), lanes=4, becomes=r"i32x4\.dot_i16x8_s",
        llvm="%a = bitcast {T} %x to {pairs}\n%b = bitcast {T} %y to {pairs}\n"
        "%both = call {T} @llvm.wasm.dot({pairs} %a, {pairs} %b)\nadd {T} %both, %z",
    ),
    *PORTABLE,
)  # fmt: skip
"""Of WebAssembly with vectors of 128 bits."""

WASM32 = Target(
    "wasm32", "wasm32-unknown-unknown", "generic", "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint",
    WASM, Processor(16, 16, products=(products.DOT2,)), outputs=("shared",),
)  # fmt: skip
"""With its 128-bit vectors (SIMD128), in one thread. A product and its sum round each: the instruction that
may fuse them (relaxed SIMD) gives other results on other machines. So does its dot product of bytes, unless
one operand has 7 bits and no sign, which neither the weights nor the activations of int8 models are. Engines
have the processor's registers for its values, 16 on x86."""
