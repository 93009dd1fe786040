"""Export the benchmark models to ONNX. Needs torch, pytorchcv and transformers, so it stands apart:

    python -m venv .venv-export
    .venv-export/bin/pip install -r benchmarks/requirements-export.txt
    .venv-export/bin/python benchmarks/make_models.py

The networks of convolutions have seeded random weights (speed needs no training); MiniLM's are the
pretrained ones, and its batch and sequence stay symbolic. `--golden FILE` also writes the embeddings
that PyTorch gives for some sentences, which a test compares with.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import packages  # noqa: E402  (the examples' downloads)

MODELS = ROOT / ".cache" / "models"
OPSET = 18
SEED = 0
CONVOLUTIONAL = {  # our name: pytorchcv's module and function
    "squeezenet1_1": ("squeezenet", "squeezenet_v1_1"),
    "mobilenetv2": ("mobilenetv2", "mobilenetv2_w1"),
    "resnet50": ("resnet", "resnet50"),
}


def export_convolutional(name: str, path: Path) -> None:
    """A network of pytorchcv at batch 1, 3 x 224 x 224. Batch-norm statistics come from one
    seeded batch, so that activations keep a sane scale through the depth."""
    module_name, function = CONVOLUTIONAL[name]
    torch.manual_seed(SEED)
    model = getattr(import_module(f"pytorchcv.models.{module_name}"), function)(pretrained=False)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    model.train()
    with torch.no_grad():
        model(torch.rand(4, 3, 224, 224) * 2 - 1)
    model.eval()
    torch.onnx.export(
        model,
        (torch.rand(1, 3, 224, 224),),
        path,
        input_names=["input"],
        output_names=["output"],
        opset_version=OPSET,
        dynamo=False,
    )


def load_minilm() -> Any:
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    folder = packages.minilm()
    config = BertConfig.from_json_file(str(folder / "config.json"))
    config._attn_implementation = "eager"
    model = BertModel(config, add_pooling_layer=False)
    missing, _ = model.load_state_dict(load_file(str(folder / "model.safetensors")), strict=False)
    assert not [m for m in missing if "position_ids" not in m], missing
    return model.eval()


class LastHidden(torch.nn.Module):
    """BERT as ONNX wants it: positional tensors in, one tensor out. The mask is made additive here,
    as BERT's own exports have it, and not gathered element by element."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        mask = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        return self.model(input_ids, mask, token_type_ids, return_dict=True).last_hidden_state


def export_minilm(path: Path) -> None:
    """MiniLM-L6 with symbolic `batch` and `seq`; the output is the last hidden state."""
    ids, mask, types = (torch.full((2, 16), i, dtype=torch.int64) for i in (5, 1, 0))
    batch, seq = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("seq", min=2, max=512)
    axes = {0: batch, 1: seq}
    names = ("input_ids", "attention_mask", "token_type_ids")
    torch.onnx.export(
        LastHidden(load_minilm()),
        (ids, mask, types),
        path,
        input_names=list(names),
        output_names=["last_hidden_state"],
        dynamic_shapes=dict.fromkeys(names, axes),
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
    )


def write_golden(path: Path) -> None:
    """PyTorch's sentence embeddings (mean over tokens, unit length) for `packages.SENTENCES`."""
    model = LastHidden(load_minilm())
    arrays: dict[str, Any] = {}
    for i, ids in enumerate(packages.token_ids(packages.SENTENCES)):
        tokens = torch.tensor([ids])
        with torch.no_grad():
            hidden = model(tokens, torch.ones_like(tokens), torch.zeros_like(tokens))
        mean = hidden[0].mean(0)
        arrays[f"ids{i}"] = np.array(ids, np.int32)
        arrays[f"embedding{i}"] = (mean / mean.norm()).numpy()
    np.savez_compressed(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", default=[*CONVOLUTIONAL, "minilm"])
    parser.add_argument("--golden", type=Path, help="write PyTorch's embeddings to this .npz")
    args = parser.parse_args()
    MODELS.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        path = MODELS / f"{name}.onnx"
        if name == "minilm":
            export_minilm(path)
        else:
            export_convolutional(name, path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")
    if args.golden:
        write_golden(args.golden)


if __name__ == "__main__":
    main()
