"""Builtin operators that aren't lowered, each with the reason, which errors give."""

from __future__ import annotations

from collections.abc import Mapping

NO_KERNEL = "LiteRT itself has no kernel for it"
_RANDOM = "its numbers are those of LiteRT's own generator"
_TEXT = "it works on text or hashes of it, in LiteRT's own way"
_TABLES = "tables that are kept between runs have no lowering"
_ROWS = "sums over rows of a sparse tensor's numbers have no lowering"
_PLAIN = "only its plain forms, GATHER_ND and SCATTER_ND, have a lowering"
_WINDOWS = "windows over any axes have no lowering"
_STABLEHLO = (
    "ABS BROADCAST_IN_DIM CBRT CLAMP COMPARE CONCATENATE CONVERT CONVOLUTION COSINE CUSTOM_CALL DIVIDE "
    "DOT_GENERAL DYNAMIC_SLICE DYNAMIC_UPDATE_SLICE EXPONENTIAL FLOOR IOTA LOG LOGISTIC NEGATE OR POWER "
    "REDUCE REMAINDER RESHAPE RSQRT SELECT SLICE SORT SUBTRACT TANH TRANSPOSE WHILE"
)
LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(("CALL", "CONCAT_EMBEDDINGS"), NO_KERNEL),
    **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"), _TABLES),
    **dict.fromkeys((f"STABLEHLO_{name}" for name in _STABLEHLO.split()), NO_KERNEL),
    **dict.fromkeys(("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"), _RANDOM),
    "STABLEHLO_RNG_BIT_GENERATOR": _RANDOM,
    **dict.fromkeys(("LSH_PROJECTION", "SKIP_GRAM"), _TEXT),
    **dict.fromkeys(("REDUCE_WINDOW", "STABLEHLO_REDUCE_WINDOW"), _WINDOWS),
    **dict.fromkeys(("STABLEHLO_GATHER", "STABLEHLO_SCATTER"), _PLAIN),
    "EMBEDDING_LOOKUP_SPARSE": _ROWS,
    "DELEGATE": "it stands for what another library runs",
}
