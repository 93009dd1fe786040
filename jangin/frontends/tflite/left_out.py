"""Builtin operators without a lowering, each with the reason for its error message."""

from __future__ import annotations

from collections.abc import Mapping

NO_KERNEL = "LiteRT itself has no kernel for it"
_STABLEHLO = (
    "ABS BROADCAST_IN_DIM CBRT CLAMP COMPARE CONCATENATE CONVERT CONVOLUTION COSINE CUSTOM_CALL DIVIDE "
    "DOT_GENERAL DYNAMIC_SLICE DYNAMIC_UPDATE_SLICE EXPONENTIAL FLOOR IOTA LOG LOGISTIC NEGATE OR POWER "
    "REDUCE REMAINDER RESHAPE RSQRT SELECT SLICE SORT SUBTRACT TANH TRANSPOSE WHILE"
)
LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(("CALL", "CONCAT_EMBEDDINGS"), NO_KERNEL),
    **dict.fromkeys((f"STABLEHLO_{name}" for name in _STABLEHLO.split()), NO_KERNEL),
    **dict.fromkeys(
        ("FlexSaveV2", "FlexRestoreV2"),
        "checkpoints of several files are neither written nor read; convert the model with Save and Restore, "
        "or use the executable's attribute `state`",
    ),
    "DELEGATE": "it stands for what another library runs",
}
