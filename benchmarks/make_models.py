"""Export the benchmark models to ONNX, and to PyTorch programs for Inductor.

The script needs torch, pytorchcv and transformers, so it has an environment of its own:

    python -m venv .venv-export
    .venv-export/bin/pip install -r benchmarks/requirements-export.txt
    .venv-export/bin/python benchmarks/make_models.py

Weights are seeded random numbers, because speed needs no training. MiniLM, EfficientNet-Lite0 and the two
networks of PP-OCR have the weights that a package carries. `--golden FILE` also writes PyTorch's MiniLM
embeddings of some sentences, for a test.
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
from catalogue import BRIEF, CATALOGUE, MODELS, ROOT, program
from networks import Logits, Named, Positional, Recurrent, YoloTiny
from sequences import (
    Conformer,
    DecoderStep,
    GraphNetwork,
    Spectrograms,
    TemporalConvolutions,
    Vocoder,
)
from vision import SSD, Autoencoder, Detector, RepLKNet, StyleTransfer, SuperResolution, UNet, Volumes

sys.path.insert(0, str(ROOT / "examples"))

import packages

OPSET = 18
SEED = 0
OCR = "rapidocr-onnxruntime==1.4.4"


def settle(model: Any, size: int, noise: float = 0.3) -> Any:
    """Return the model in inference mode, with batch-norm statistics of one seeded batch. Activations then
    keep a sane scale through the depth.

    The batch's images have structure at every scale, with less of the finest than the noise of the
    measurement. Otherwise deep layers would answer all inputs alike, and normalizing the remaining
    differences would magnify rounding errors."""
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
    """Export at the example's sizes, by tracing, and save the program that Inductor compiles."""
    save_program(model, (example,), path.stem)
    trace(model, (example,), path, ("input",), outputs)


def trace(
    model: Any,
    examples: tuple[Any, ...],
    path: Path,
    inputs: tuple[str, ...] = ("input",),
    outputs: tuple[str, ...] = ("output",),
) -> None:
    torch.onnx.export(
        model.eval(),
        examples,
        path,
        input_names=list(inputs),
        output_names=list(outputs),
        opset_version=OPSET,
        dynamo=False,
    )


def export_symbolic(model: Any, names: tuple[str, ...], output: str, path: Path) -> None:
    """Export a transformer over token ids, with symbolic `batch` and `seq`. Its programs have fixed sizes."""

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
    """Return a function that exports a network of pytorchcv, for images [batch, 3, size, size]. `settle`
    describes `noise`."""

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
    """Return a function that exports a network of PP-OCRv4 with a fixed picture size, [1, 3, height,
    width]."""

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


def traced(
    make: Callable[[], Any], *shape: int, size: int = 0, outputs: tuple[str, ...] = ("output",)
) -> Callable[[Path], None]:
    """Return a function that exports a network for an input of a shape. `size` is the size of the pictures
    that settle its statistics."""

    def write(path: Path) -> None:
        model = settle(make(), size) if size else make()
        trace(model, (torch.rand(shape),), path, outputs=outputs)

    return write


def library(
    name: str, config: str, shape: tuple[int, ...], output: str, **given: Any
) -> Callable[[Path], None]:
    """Return a function that exports a model of the library transformers: the result `output` of its first
    input.

    An input without a count of tokens is floats."""

    def write(path: Path) -> None:
        transformers = import_module("transformers")
        model = getattr(transformers, name)(getattr(transformers, config)(**given))
        model.config.return_dict, model.config.use_cache = True, False
        tokens = len(shape) == 2
        if any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules()):
            model = settle(model, shape[-1])
        example = torch.full(shape, 1) if tokens else torch.rand(shape)
        trace(Named(model, output), (example,), path)

    return write


def detector(path: Path) -> None:
    """Export a detector, followed by non-maximum suppression."""
    import onnx
    from onnx import helper, numpy_helper

    trace(settle(Detector(320), 320), (torch.rand(1, 3, 320, 320),), path, outputs=("corners", "scores"))
    model = onnx.load(path)
    limits = {"most": np.array([100]), "overlap": np.array([0.5], "f4"), "least": np.array([0.25], "f4")}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in limits.items())
    boxes = helper.make_node("Transpose", ["corners"], ["boxes"], perm=[0, 2, 1])
    chosen = helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["chosen"])
    model.graph.node.extend([boxes, chosen])
    model.graph.output.append(helper.make_tensor_value_info("chosen", onnx.TensorProto.INT64, ["found", 3]))
    onnx.save(model, path)


def encoder(frames: int) -> Callable[[Path], None]:
    """Return a writer of Whisper's encoder for sounds of `frames` hundredths of a second."""

    def make(path: Path) -> None:
        from transformers import WhisperConfig, WhisperModel

        config = WhisperConfig(
            attn_implementation="eager", d_model=384, encoder_layers=4, encoder_attention_heads=6,
            encoder_ffn_dim=1536, decoder_layers=1, max_source_positions=frames // 2,
        )  # fmt: skip
        model = Named(WhisperModel(config).get_encoder(), "last_hidden_state")
        trace(model, (torch.rand(1, 80, frames),), path)

    return make


def deeplab(path: Path) -> None:
    from pytorchcv.models.deeplabv3 import deeplabv3_resnetd50b_voc

    model = deeplabv3_resnetd50b_voc(
        pretrained=False, pretrained_backbone=False, aux=False, in_size=(256, 256)
    )
    trace(settle(model, 256), (torch.rand(1, 3, 256, 256),), path)


def llama_step(path: Path) -> None:
    examples = torch.rand(1, 1, 512), torch.rand(4, 2, 2, 1000, 64)
    trace(DecoderStep(), examples, path, ("row", "cache"), ("output", "added"))


def graph(path: Path) -> None:
    edges = torch.randint(0, 2000, (2, 10_000))
    trace(GraphNetwork(), (torch.rand(2000, 64), edges), path, ("nodes", "edges"))


def trees(path: Path, count: int = 200, depth: int = 5, features: int = 28) -> None:
    """Export boosted trees in the form of LightGBM's converter, for 1,000 rows."""
    import onnx
    from onnx import helper

    rng, inner, all_nodes = np.random.default_rng(SEED), (1 << depth) - 1, (2 << depth) - 1
    numbers = np.tile(np.arange(all_nodes), count)
    ids, leaf = np.repeat(np.arange(count), all_nodes), numbers >= inner
    node = helper.make_node(
        "TreeEnsembleRegressor", ["input"], ["output"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=ids, nodes_nodeids=numbers, nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_featureids=np.where(leaf, 0, rng.integers(0, features, len(ids))),
        nodes_values=np.where(leaf, 0.0, rng.uniform(-1, 1, len(ids))).astype(np.float32),
        nodes_truenodeids=np.where(leaf, 0, 2 * numbers + 1),
        nodes_falsenodeids=np.where(leaf, 0, 2 * numbers + 2),
        target_treeids=ids[leaf], target_nodeids=numbers[leaf], target_ids=np.zeros(leaf.sum(), np.int64),
        target_weights=rng.normal(size=leaf.sum()).astype(np.float32),
    )  # fmt: skip
    kinds = ("input", features), ("output", 1)
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1000, w]) for n, w in kinds]
    made = helper.make_graph([node], "trees", ends[:1], ends[1:])
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(made, opset_imports=domains, ir_version=9), path)


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
    "mobilenetv3": classifier("mobilenetv3", "mobilenetv3_large_w1"),
    "shufflenetv2": classifier("shufflenetv2", "shufflenetv2_w1"),
    "resnext50": classifier("resnext", "resnext50_32x4d"),
    "regnety": classifier("regnet", "regnety008"),
    "convnext": library(
        "ConvNextForImageClassification", "ConvNextConfig", (1, 3, 224, 224), "logits", num_labels=1000
    ),
    "replknet": traced(RepLKNet, 1, 3, 224, 224, size=224),
    "swin": library("SwinForImageClassification", "SwinConfig", (1, 3, 224, 224), "logits", num_labels=1000),
    "mobilevit": library(
        "MobileViTForImageClassification", "MobileViTConfig", (1, 3, 256, 256), "logits", num_labels=1000
    ),
    "unet": traced(UNet, 1, 1, 256, 256),
    "deeplabv3": deeplab,
    "ssd": traced(SSD, 1, 3, 320, 320, size=320, outputs=("scores", "boxes")),
    "detector": detector,
    "esrgan": traced(SuperResolution, 1, 3, 64, 64),
    "style": traced(StyleTransfer, 1, 3, 224, 224),
    "vocoder": traced(Vocoder, 1, 80, 60),
    "conformer": traced(Conformer, 1, 400, 80),
    "whisper_encoder": encoder(3000),
    "whisper_encoder_3s": encoder(300),
    "t5_encoder": library("T5EncoderModel", "T5Config", (1, 128), "last_hidden_state"),
    "llama_step": llama_step,
    "distilbert": library("DistilBertModel", "DistilBertConfig", (32, 32), "last_hidden_state"),
    "tcn": traced(TemporalConvolutions, 1, 16, 1000),
    "spectrograms": traced(Spectrograms, 1, 1, 64, 400),
    "resnet3d": traced(Volumes, 1, 3, 8, 112, 112),
    "graph": graph,
    "trees": trees,
    "autoencoder": traced(Autoencoder, 64, 1, 28, 28),
}
assert MAKERS.keys() == {model.file for model in {**CATALOGUE, **BRIEF}.values()}


def write_golden(path: Path) -> None:
    """Write PyTorch's sentence embeddings (mean over tokens, unit length) of `packages.SENTENCES`."""
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
