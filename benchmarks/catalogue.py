"""The benchmark models: their names, and the sizes at which they are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".cache" / "models"


@dataclass(frozen=True)
class Model:
    """A benchmark model. `sizes` are those of its symbolic dimensions.

    An entry with a `batch` other than 1 repeats another entry's network, and is left out of the means."""

    title: str
    file: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    batch: int = 1

    @property
    def path(self) -> Path:
        return MODELS / f"{self.file}.onnx"

    @property
    def tflite(self) -> Path:
        """The model's path for LiteRT, if benchmarks/make_tflite.py made it."""
        return self.path.with_suffix(".tflite")


def quantized(model: Model, kind: str = "int8") -> Model:
    """Return the model's quantized form, by a kind of benchmarks/make_quantized.py."""
    return replace(model, file=f"{model.file}_{kind}")


def halved(model: Model, precision: str) -> Model:
    """Return the model's 16-bit form, made by benchmarks/make_halves.py."""
    return replace(model, file=f"{model.file}_{precision}")


def program(name: str) -> Path:
    """Return the path of an entry's exported PyTorch program."""
    return MODELS / f"{name}.pt2"


TOKENS = {"batch": 1, "seq": 128}
CATALOGUE = {
    "squeezenet1_1": Model("SqueezeNet 1.1", "squeezenet1_1"),
    "mobilenet_v1": Model("MobileNet v1", "mobilenet_v1"),
    "mobilenetv2": Model("MobileNetV2", "mobilenetv2"),
    "resnet18": Model("ResNet-18", "resnet18"),
    "resnet50": Model("ResNet-50", "resnet50"),
    "efficientnet_b0": Model("EfficientNet-B0", "efficientnet_b0"),
    "efficientnet_lite0": Model("EfficientNet-Lite0", "efficientnet_lite0", {"batch": 1}),
    "vgg16": Model("VGG-16", "vgg16"),
    "densenet121": Model("DenseNet-121", "densenet121"),
    "inceptionv3": Model("Inception-v3", "inceptionv3"),
    "vit_b16": Model("ViT-B/16", "vit_b16"),
    "bert_base": Model("BERT-base, 128 tokens", "bert_base", TOKENS),
    "minilm": Model("MiniLM-L6, 128 tokens", "minilm", TOKENS),
    "gpt2": Model("GPT-2 small, 64 tokens", "gpt2", {"batch": 1, "seq": 64}),
    "lstm": Model("LSTM 2×512, 200 steps", "lstm"),
    "gru": Model("GRU 3×512, 200 steps", "gru"),
    "ocr_recogniser": Model("PP-OCRv4 recogniser", "ocr_recogniser"),
    "ocr_detector": Model("PP-OCRv4 detector", "ocr_detector"),
    "yolov3_tiny": Model("YOLOv3-tiny", "yolov3_tiny"),
    "mobilenetv3": Model("MobileNetV3 large", "mobilenetv3"),
    "shufflenetv2": Model("ShuffleNetV2", "shufflenetv2"),
    "resnext50": Model("ResNeXt-50 32×4d", "resnext50"),
    "regnety": Model("RegNetY-800MF", "regnety"),
    "convnext": Model("ConvNeXt tiny", "convnext"),
    "replknet": Model("RepLKNet, windows of 31", "replknet"),
    "swin": Model("Swin tiny", "swin"),
    "mobilevit": Model("MobileViT small", "mobilevit"),
    "unet": Model("U-Net, 256 pixels", "unet"),
    "deeplabv3": Model("DeepLabV3 ResNet-50", "deeplabv3"),
    "ssd": Model("SSD MobileNet, 320 pixels", "ssd"),
    "detector": Model("YOLOv8 nano, 320 pixels, suppressed", "detector"),
    "esrgan": Model("ESRGAN of 4 blocks, 64 pixels", "esrgan"),
    "style": Model("Style transfer", "style"),
    "vocoder": Model("HiFi-GAN v3, 60 frames", "vocoder"),
    "conformer": Model("Conformer, 400 frames", "conformer"),
    "whisper_encoder": Model("Whisper tiny, encoder", "whisper_encoder"),
    "t5_encoder": Model("T5 small, encoder, 128 tokens", "t5_encoder"),
    "llama_step": Model("LLaMA-like step, cache of 1,000", "llama_step"),
    "distilbert": Model("DistilBERT, 32 of 32 tokens", "distilbert"),
    "tcn": Model("TCN, 1,000 steps", "tcn"),
    "spectrograms": Model("CNN of spectrograms", "spectrograms"),
    "resnet3d": Model("3-D ResNet-18, 8 frames", "resnet3d"),
    "graph": Model("GraphSAGE, 10,000 edges", "graph"),
    "trees": Model("200 trees, 1,000 rows", "trees"),
    "autoencoder": Model("Autoencoder, 64 digits", "autoencoder"),
    "resnet50_batch8": Model("ResNet-50, batch 8", "resnet50_batch8", batch=8),
    "bert_base_batch8": Model("BERT-base, batch 8", "bert_base", {"batch": 8, "seq": 128}, batch=8),
}
QUANTIZED = (
    "squeezenet1_1", "mobilenet_v1", "mobilenetv2", "resnet18", "resnet50", "efficientnet_lite0",
    "inceptionv3", "bert_base", "minilm",
)  # fmt: skip
"""The models that are also measured in int8."""
BRIEF = {"whisper_encoder_3s": Model("Whisper tiny, encoder, 3 s", "whisper_encoder_3s")}
"""Small sizes of networks, for engines that take minutes for the catalogue's."""
DYNAMIC = ("bert_base", "minilm")
"""The models that are quantized dynamically too, because products take most of their time."""
HALVES = ("float16", "bfloat16")
"""The precisions of 16 bits."""
HALVES_OF = ("squeezenet1_1", "mobilenetv2", "resnet18", "resnet50", "bert_base", "minilm")
"""The models that are also measured in these precisions."""
