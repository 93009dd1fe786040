"""Export the models of the study in docs/choosing.md, with a symbolic batch.

    .venv-export/bin/python benchmarks/study_models.py .cache/study

Each model is written twice: as ONNX, and as an exported program of PyTorch beside it, which PyTorch's engines
read. `make_models` describes the weights and the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from make_models import BERT_INPUTS, OPSET, SEED, load_minilm, settle
from networks import Positional

NETWORKS = {
    "squeezenet1_1": ("squeezenet", "squeezenet_v1_1"),
    "mobilenet_v1": ("mobilenet", "mobilenet_w1"),
    "mobilenetv2": ("mobilenetv2", "mobilenetv2_w1"),
    "resnet50": ("resnet", "resnet50"),
}
"""The modules and functions of pytorchcv."""
PIXELS, TOKENS = 224, 128
"""The sizes of pictures and of texts."""


def write(
    model: Any, examples: tuple[Any, ...], folder: Path, name: str, inputs: Sequence[str], output: str
) -> None:
    """Write a model for any batch up to 64."""
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        sizes = ({0: batch},) * len(examples)
        program = torch.export.export(model, examples, strict=False, dynamic_shapes=(sizes,))
        torch.export.save(program, folder / f"{name}.pt2")
    axes = {value: {0: "batch"} for value in (*inputs, output)}
    torch.onnx.export(
        model, examples, folder / f"{name}.onnx", input_names=list(inputs), output_names=[output],
        dynamic_axes=axes, opset_version=OPSET, dynamo=False,
    )  # fmt: skip


class Called(torch.nn.Module):
    """A model whose inputs are one tuple of arguments, so that all have the same free size."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arrays: Any) -> Any:
        return self.model(*arrays)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, function) in NETWORKS.items():
        torch.manual_seed(SEED)
        network = getattr(import_module(f"pytorchcv.models.{module}"), function)(pretrained=False)
        model = settle(network, PIXELS)
        write(Called(model), (torch.rand(2, 3, PIXELS, PIXELS),), folder, name, ("input",), "output")
        print(name, flush=True)
    tokens = tuple(torch.full((2, TOKENS), fill, dtype=torch.int64) for fill in (5, 1, 0))
    model = Positional(load_minilm()).eval()
    write(Called(model), tokens, folder, "minilm", BERT_INPUTS, "last_hidden_state")
    print("minilm")


if __name__ == "__main__":
    main()
