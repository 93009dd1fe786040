"""`onnxruntime.quantization`, of which the calls that Jangin can make are `jangin.quantize`'s.

`quantize_static` calibrates and writes a model in QDQ form, 8-bit activations with 8-bit weights, a scale an
output channel. What asks for another form is refused by name."""

from jangin.onnxruntime.quantization.calls import (
    DynamicQuantConfig,
    StaticQuantConfig,
    quant_pre_process,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from jangin.onnxruntime.quantization.kinds import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
)

__all__ = [
    "CalibrationDataReader", "CalibrationMethod", "DynamicQuantConfig", "QuantFormat", "QuantType",
    "QuantizationMode", "StaticQuantConfig", "quant_pre_process", "quantize", "quantize_dynamic",
    "quantize_static",
]  # fmt: skip
