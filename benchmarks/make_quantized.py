"""Quantize the benchmark models to int8 by ONNX Runtime's quantizer: static, QDQ, per channel.

    .venv/bin/python benchmarks/make_quantized.py
    .venv/bin/python benchmarks/run.py --precision int8 --peers onnxruntime,openvino,litert

`--reduce-range` (measured by `--precision int8_reduced`) makes weights of 7 bits (-64 to 64). ONNX Runtime
recommends them for AVX2 without VNNI, whose products of bytes would saturate otherwise. The files are
NAME_int8_reduced.onnx. `--dynamic` finds the ranges of products' inputs in each run. The files are
NAME_int8_dynamic.onnx.

The models come from benchmarks/make_models.py and have random weights, so random inputs calibrate them as
well as any. Activations are u8 by their range, and weights are s8 with a scale for each channel. Each model
becomes NAME_int8.onnx beside the original. benchmarks/make_tflite.py makes the models for LiteRT.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from catalogue import CATALOGUE, DYNAMIC, MODELS, QUANTIZED, Model, quantized
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

BATCHES = 4
"""The number of batches for calibration, with `WORDS` tokens each."""
WORDS = 1000


class Feeds(CalibrationDataReader):  # type: ignore[misc]
    """Random inputs of a model: pictures, or token ids with a mask of ones."""

    def __init__(self, path: Path, model: Model) -> None:
        entries, rng = onnx.load(path, load_external_data=False).graph.input, np.random.default_rng(0)
        self.feeds = iter([{e.name: self.array(e, model, rng) for e in entries} for _ in range(BATCHES)])

    def array(self, entry: onnx.ValueInfoProto, model: Model, rng: np.random.Generator) -> Any:
        kind = entry.type.tensor_type
        shape = [d.dim_value or model.sizes.get(d.dim_param, 1) for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.FLOAT:
            return rng.standard_normal(shape, np.float32)
        return rng.integers(0, WORDS, shape) if "input" in entry.name else np.ones(shape, np.int64)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def make(model: Model, folder: Path, kind: str) -> Path:
    """Quantize one model into a folder."""
    out = folder / quantized(model, kind).path.name
    if kind == "int8_dynamic":
        quantize_dynamic(model.path, out, weight_type=QuantType.QInt8)
        return out
    prepared = out.with_suffix(".prepared")
    quant_pre_process(model.path, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, out, Feeds(prepared, model), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        reduce_range=kind == "int8_reduced",
    )  # fmt: skip
    prepared.unlink()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: those that gain by it")
    parser.add_argument("--out", type=Path, default=MODELS, help="the folder (default: where the models lie)")
    kinds = parser.add_mutually_exclusive_group()
    for flag, kind, text in (
        ("--reduce-range", "int8_reduced", "weights of 7 bits"),
        ("--dynamic", "int8_dynamic", "by the range that a run finds"),
    ):
        kinds.add_argument(flag, dest="kind", action="store_const", const=kind, default="int8", help=text)
    args = parser.parse_args()
    for name in args.models or (DYNAMIC if args.kind == "int8_dynamic" else QUANTIZED):
        print(make(CATALOGUE[name], args.out, args.kind))


if __name__ == "__main__":
    main()
