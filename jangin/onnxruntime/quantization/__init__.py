"""This package serves the calls of `onnxruntime.quantization` that `jangin.quantize` can perform.

`quantize_static` calibrates a model and writes it in QDQ form. Activations and weights have 8 bits, with a
scale for each output channel. A request for any other form is refused by name."""

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
