"""Quantize the benchmark models to int8 for LiteRT, by its makers' tools: static, weights per channel.

    python -m venv .venv-tflite
    .venv-tflite/bin/pip install litert-torch ai-edge-quantizer
    .venv-tflite/bin/python benchmarks/make_tflite.py
    .venv/bin/python benchmarks/run.py --precision int8 --peers onnxruntime,openvino,litert

Each PyTorch program of benchmarks/make_models.py becomes NAME_int8.tflite beside NAME_int8.onnx. It is
calibrated on random inputs too. Pictures have their channels last, and inputs and outputs are 8-bit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import litert_torch
import numpy as np
import torch
from ai_edge_quantizer import quantizer, recipe
from catalogue import CATALOGUE, MODELS, QUANTIZED, program, quantized

BATCHES, WORDS = 4, 1000
SIGNATURE = "serving_default"


def converted(path: Path, out: Path) -> Sequence[torch.Tensor]:
    """Write an exported program as a float model. Returns its example inputs, in the form that the float
    model takes."""
    exported = torch.export.load(path)
    module, (inputs, _) = exported.module(), exported.example_inputs
    if inputs[0].ndim == 4:
        module, inputs = litert_torch.to_channel_last_io(module, args=[0]), (inputs[0].permute(0, 2, 3, 1),)
    litert_torch.convert(module, tuple(x.contiguous() for x in inputs)).export(str(out))
    return inputs


def feeds(examples: Sequence[torch.Tensor], random: np.random.Generator) -> Mapping[str, Any]:
    """Return random inputs like the examples: pictures, or token ids with a mask of ones."""
    arrays = [
        random.standard_normal(x.shape, np.float32)
        if x.is_floating_point()
        else random.integers(0, WORDS, x.shape).astype(np.int32) if n == 0
        else np.ones(x.shape, np.int32)
        for n, x in enumerate(examples)
    ]  # fmt: skip
    return {f"args_{n}": a for n, a in enumerate(arrays)}


def make(name: str, folder: Path) -> Path:
    """Quantize one model into a folder."""
    out, random = folder / quantized(CATALOGUE[name]).tflite.name, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "float32.tflite"
        examples = converted(program(name), plain)
        made = quantizer.Quantizer(str(plain), recipe.static_wi8_ai8())
        ranges = made.calibrate({SIGNATURE: [feeds(examples, random) for _ in range(BATCHES)]})
        made.quantize(ranges).export_model(str(out), overwrite=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = [n for n in QUANTIZED if program(n).is_file()]
    parser.add_argument("models", nargs="*", default=known, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=MODELS, help="the folder (default: where the models lie)")
    args = parser.parse_args()
    for name in args.models:
        print(make(name, args.out))


if __name__ == "__main__":
    main()
