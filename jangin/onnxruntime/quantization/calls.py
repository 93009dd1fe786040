"""`quantize_static` and related calls, by `jangin.quantize`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from jangin.ir.records import dataclass
from jangin.onnxruntime.errors import NotImplemented
from jangin.onnxruntime.quantization.kinds import CalibrationMethod, QuantFormat, QuantType
from jangin.onnxruntime.said import say_idle

Path = str | os.PathLike[str]
Names = Sequence[str] | None
Extra = Mapping[str, Any] | None
NARROW_BITS = 7
"""`reduce_range` requests weights of this many bits, as ONNX Runtime documents it."""
_METHODS = {
    CalibrationMethod.MinMax: "minmax",
    CalibrationMethod.Entropy: "entropy",
    CalibrationMethod.Percentile: "percentile",
}
_BYTES = (QuantType.QInt8, QuantType.QUInt8)
"""The types of activations that are accepted. Both have 256 steps, and activations are always written as
unsigned bytes."""


@dataclass
class StaticQuantConfig:
    """The arguments of `quantize_static`."""

    calibration_data_reader: Any
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax
    quant_format: QuantFormat = QuantFormat.QDQ
    activation_type: QuantType = QuantType.QInt8
    weight_type: QuantType = QuantType.QInt8
    op_types_to_quantize: Names = None
    nodes_to_quantize: Names = None
    nodes_to_exclude: Names = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Names = None
    extra_options: Extra = None


@dataclass
class DynamicQuantConfig:
    """The arguments of `quantize_dynamic`."""

    weight_type: QuantType = QuantType.QInt8
    op_types_to_quantize: Names = None
    nodes_to_quantize: Names = None
    nodes_to_exclude: Names = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Extra = None


def quantize_static(
    model_input: Any,
    model_output: Path,
    calibration_data_reader: Any = None,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Names = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Names = None,
    nodes_to_exclude: Names = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Names = None,
    extra_options: Extra = None,
    calibration_cache_path: Path | None = None,
) -> None:
    """Calibrate a model on a reader's runs, and write it in QDQ form to `model_output`.

    There is a scale for each output channel, even without `per_channel`, because this loses less quality.
    Raises NotImplemented for another form, or if parts are chosen by hand."""
    _refuse(
        ("quant_format", quant_format != QuantFormat.QDQ, "the form that is written is QuantFormat.QDQ"),
        ("activation_type", activation_type not in _BYTES, "activations are of 8 bits"),
        ("weight_type", weight_type != QuantType.QInt8, "weights are QuantType.QInt8"),
        ("op_types_to_quantize", op_types_to_quantize, "all products with constant weights are quantized"),
        ("nodes_to_quantize", nodes_to_quantize, "all products with constant weights are quantized"),
        ("nodes_to_exclude", nodes_to_exclude, "jangin.quantize(kind='auto') leaves out what it harms"),
        ("calibrate_method", calibrate_method not in _METHODS, "there are MinMax, Entropy and Percentile"),
        ("use_external_data_format", use_external_data_format, "the file has its weights inside"),
        ("calibration_cache_path", calibration_cache_path, "calibrations aren't kept"),
        ("calibration_data_reader", calibration_data_reader is None, "there must be runs to calibrate on"),
    )
    say_idle(f"quantize_static's extra option {name}" for name in extra_options or ())
    from jangin.quantization.quantize import quantize as quantized

    runs = iter(calibration_data_reader.get_next, None)
    model = quantized(
        model_input, runs, method=_METHODS[calibrate_method], weight_bits=NARROW_BITS if reduce_range else 8
    )
    model.save(os.fspath(model_output))


def quantize_dynamic(
    model_input: Any,
    model_output: Path,
    op_types_to_quantize: Names = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Names = None,
    nodes_to_exclude: Names = None,
    use_external_data_format: bool = False,
    extra_options: Extra = None,
) -> None:
    """Raise NotImplemented, because Jangin calibrates before it quantizes. Models that ONNX Runtime quantized
    dynamically can be run."""
    raise NotImplemented.said(
        "ranges aren't found anew in each run: use quantize_static with data, or "
        "jangin.quantize(kind='int4') for weights alone; models that the real onnxruntime "
        "quantized dynamically run here"
    )


def quantize(model_input: Any, model_output: Path, quant_config: Any) -> None:
    """Quantize a model as the configuration tells: by `quantize_static` or `quantize_dynamic`."""
    if not isinstance(quant_config, (StaticQuantConfig, DynamicQuantConfig)):
        raise TypeError(f"a {type(quant_config).__name__} is no configuration of a quantization")
    settings = {f.name: getattr(quant_config, f.name) for f in fields(quant_config)}
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(model_input, model_output, **settings)
    else:
        quantize_dynamic(model_input, model_output, **settings)


def quant_pre_process(
    input_model: Any = None, output_model_path: Path | None = None, skip_optimization: bool = False,
    skip_onnx_shape: bool = False, skip_symbolic_shape: bool = False, **others: Any,
) -> None:  # fmt: skip
    """Write the model unchanged, because `quantize_static` infers shapes and folds constants itself."""
    if input_model is None or output_model_path is None:
        raise ValueError("quant_pre_process needs input_model and output_model_path")
    say_idle(f"quant_pre_process's {name}" for name in others)
    import onnx

    model = input_model if isinstance(input_model, onnx.ModelProto) else onnx.load(os.fspath(input_model))
    onnx.save(model, os.fspath(output_model_path))


def _refuse(*reasons: tuple[str, object, str]) -> None:
    """Raise NotImplemented for the first reason whose second item is true. It names the argument and the
    remedy."""
    for name, asked, why in reasons:
        if asked:
            raise NotImplemented.said(f"quantize_static can't honour {name}: {why}")
