"""Twelve models of pytorchcv, transformers and torch.nn that train, small for a test or larger to be timed.

Weights and batches are random, and follow from seeds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

VISION = {
    "ResNet-20": ("resnet_cifar.resnet20_cifar10", "resnet_cifar.resnet20_cifar10"),
    "DenseNet-40": ("densenet_cifar.densenet40_k12_bc_cifar10", "densenet_cifar.densenet40_k12_bc_cifar10"),
    "MobileNetV2": ("mobilenetv2.mobilenetv2_wd4", "mobilenetv2.mobilenetv2_w1"),
    "SqueezeNet": ("squeezenet.squeezenet_v1_1", "squeezenet.squeezenet_v1_1"),
    "ShuffleNetV2": ("shufflenetv2.shufflenetv2_wd2", "shufflenetv2.shufflenetv2_w1"),
    "EfficientNet-B0": ("efficientnet.efficientnet_b0", "efficientnet.efficientnet_b0"),
}
"""The small and the large model of pytorchcv."""
LANGUAGE = ("DistilBERT", "GPT-2", "T5", "Whisper", "LSTM")
MODELS = (*VISION, "ViT", *LANGUAGE)
WORDS = 500


class Training(NamedTuple):
    """A model in training mode. `batch` returns a step's batch by the step's number. `loss` takes a function
    that runs the model, and the batch by keywords."""

    model: nn.Module
    batch: Callable[[int], dict[str, torch.Tensor]]
    loss: Callable[..., torch.Tensor]


class Lstm(nn.Module):
    """A classifier of token sequences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.lstm(self.words(x))[0][:, -1])
        return made


def training(name: str, small: bool) -> Training:
    """Return a model with its batches and its loss."""
    torch.manual_seed(0)
    if name in VISION:
        return _vision(name, small)
    count, length = (2, 16) if small else (8, 64)
    if name == "LSTM":
        return Training(Lstm(64 if small else 256).train(), _tokens(count, length, 10), classified)
    kind, config = _configured(name, small, length)
    model = kind(config).train()
    model.config.use_cache = False

    def loss(run: Any, **batch: torch.Tensor) -> Any:
        return run(**batch).loss

    def batch(step: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(step)
        words = torch.randint(3, WORDS, (count, length), generator=drawn)
        labels = torch.randint(0, 2, (count,), generator=drawn)
        if name == "ViT":
            size = config.image_size
            return {"pixel_values": torch.randn(count, 3, size, size, generator=drawn), "labels": labels}
        if name == "Whisper":
            sounds = torch.randn(count, config.num_mel_bins, 2 * length, generator=drawn)
            return {"input_features": sounds, "labels": words[:, : length // 2].contiguous()}
        answers = {"GPT-2": words, "T5": words[:, : length // 2].contiguous()}
        return {"input_ids": words, "labels": answers.get(name, labels)}

    return Training(model, batch, loss)


def _vision(name: str, small: bool) -> Training:
    file, _, maker = VISION[name][not small].partition(".")
    make = getattr(importlib.import_module(f"pytorchcv.models.{file}"), maker)
    cifar = "cifar" in maker
    size, count = (32 if cifar else 224), (2 if small else 4)
    model = make() if cifar else make(num_classes=10)

    def batch(step: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(step)
        x = torch.randn(count, 3, size, size, generator=drawn)
        return {"x": x, "y": torch.randint(0, 10, (count,), generator=drawn)}

    return Training(model.train(), batch, classified)


def classified(run: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(run(x), y)


def _tokens(count: int, length: int, classes: int) -> Callable[[int], dict[str, torch.Tensor]]:
    def batch(step: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(step)
        x = torch.randint(0, WORDS, (count, length), generator=drawn)
        return {"x": x, "y": torch.randint(0, classes, (count,), generator=drawn)}

    return batch


def _configured(name: str, small: bool, length: int) -> tuple[Any, Any]:
    """Return the class of a model of transformers, and its configuration."""
    import transformers as t

    width, layers, heads = (64, 2, 4) if small else (256, 4, 4)
    wide = 2 * width
    marks = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "ViT":
        config: Any = t.ViTConfig(
            image_size=32 if small else 64, patch_size=8, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, intermediate_size=wide,
        )  # fmt: skip
        return t.ViTForImageClassification, config
    if name == "DistilBERT":
        config = t.DistilBertConfig(
            vocab_size=WORDS, dim=width, n_layers=layers, n_heads=heads, hidden_dim=wide
        )
        return t.DistilBertForSequenceClassification, config
    if name == "GPT-2":
        config = t.GPT2Config(
            vocab_size=WORDS, n_positions=64, n_embd=width, n_layer=layers, n_head=heads, **marks
        )
        return t.GPT2LMHeadModel, config
    if name == "T5":
        config = t.T5Config(
            vocab_size=WORDS, d_model=width, d_kv=width // heads, d_ff=wide, num_layers=layers,
            num_heads=heads, decoder_start_token_id=0,
        )  # fmt: skip
        return t.T5ForConditionalGeneration, config
    config = t.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=16, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=wide,
        decoder_ffn_dim=wide, max_source_positions=length, max_target_positions=length,
        decoder_start_token_id=1, **marks,
    )  # fmt: skip
    return t.WhisperForConditionalGeneration, config
