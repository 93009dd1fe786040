"""WebAssembly: what browsers and Node run."""

from __future__ import annotations

from jangin.targets.rows import WASM
from jangin.targets.target import Target

WASM32 = Target(
    "wasm32", "wasm32-unknown-unknown", "generic", "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint",
    16, 16, WASM, dots=("dot2",), outputs=("shared",),
)  # fmt: skip
"""With its 128-bit vectors (SIMD128), in one thread. A product and its sum round each: the instruction that
may fuse them (relaxed SIMD) gives other results on other machines. Engines have the processor's registers for
its values, 16 on x86."""
