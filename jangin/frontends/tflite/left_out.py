"""Builtin operators that aren't lowered, each with the reason, which errors give."""

from __future__ import annotations

from collections.abc import Mapping

_NO_KERNEL = "LiteRT itself has no kernel for it"
_RANDOM = "its numbers are those of LiteRT's own generator"
_TEXT = "it works on text or hashes of it, in LiteRT's own way"
_WINDOWS = "windows over any axes have no lowering"
_STABLEHLO = (
    "ABS AND BROADCAST_IN_DIM CBRT CLAMP COMPARE CONCATENATE CONVERT CONVOLUTION COSINE CUSTOM_CALL DIVIDE "
    "DOT_GENERAL DYNAMIC_SLICE DYNAMIC_UPDATE_SLICE EXPONENTIAL FLOOR IOTA LOG LOGISTIC NEGATE OR POWER "
    "REDUCE REMAINDER RESHAPE RSQRT SELECT SHIFT_LEFT SLICE SORT SUBTRACT TANH TRANSPOSE WHILE"
)
LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(("CALL", "CONCAT_EMBEDDINGS", "SEGMENT_SUM"), _NO_KERNEL),
    **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"), _NO_KERNEL),
    **dict.fromkeys((f"STABLEHLO_{name}" for name in _STABLEHLO.split()), _NO_KERNEL),
    **dict.fromkeys(("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"), _RANDOM),
    "STABLEHLO_RNG_BIT_GENERATOR": _RANDOM,
    **dict.fromkeys(("EMBEDDING_LOOKUP_SPARSE", "LSH_PROJECTION", "SKIP_GRAM"), _TEXT),
    **dict.fromkeys(("REDUCE_WINDOW", "STABLEHLO_REDUCE_WINDOW"), _WINDOWS),
    **dict.fromkeys(("STABLEHLO_GATHER", "STABLEHLO_SCATTER"), "GATHER_ND and SCATTER_ND are"),
    "DELEGATE": "it stands for what another library runs",
}
