"""Eight networks that train through `jangin.train`. Weights and batches are random, by seeds."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import nn
from training_models import Training, classified

F = nn.functional
NETWORKS = (
    "MLP",
    "LeNet",
    "ResNet-8",
    "encoder",
    "ResNet-18",
    "MobileNetV2",
    "GPT-2 of 2 layers",
    "LSTM 2x512",
)
CONVOLUTIONS = ("LeNet", "ResNet-8", "ResNet-18", "MobileNetV2")
"""The networks of pictures, which PyTorch also runs with channels last."""
WORDS = {"encoder": 30522, "GPT-2 of 2 layers": 50257}


class ResNet8(nn.Module):
    """MLPerf Tiny's residual network for pictures of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()

        def layer(ins: int, outs: int, size: int = 3, stride: int = 1) -> nn.Module:
            made = nn.Conv2d(ins, outs, size, stride, size // 2, bias=False)
            return nn.Sequential(made, nn.BatchNorm2d(outs))

        self.stem = layer(3, 16)
        self.first, self.second = nn.ModuleList(), nn.ModuleList()
        self.around = nn.ModuleList([nn.Identity()])
        for ins, outs, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            self.first.append(layer(ins, outs, stride=stride))
            self.second.append(layer(outs, outs))
            if stride > 1:
                self.around.append(layer(ins, outs, 1, stride))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        for first, second, around in zip(self.first, self.second, self.around, strict=True):
            x = F.relu(around(x) + second(F.relu(first(x))))
        made: torch.Tensor = self.head(x.mean((2, 3)))
        return made


class Block(nn.Module):
    """A transformer's layer. With `causal` it normalizes before each part, otherwise behind."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        shape = count, length, self.heads, width // self.heads
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        made: torch.Tensor = self.out(y.transpose(1, 2).reshape(count, length, width))
        return made

    def widened(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.narrow(F.gelu(self.wide(x)))
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.norms
        if self.causal:
            x = x + self.attention(first(x))
            return self.widened(second(x)) + x
        x = first(x + self.attention(x))
        made: torch.Tensor = second(self.widened(x) + x)
        return made


class Transformer(nn.Module):
    """An encoder that classifies by its first token, or a causal decoder with logits for each token."""

    def __init__(self, words: int, width: int, layers: int, length: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Block(width, 12, causal) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False) if causal else nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.places
        x = x if self.causal else self.norm(x)
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.head(self.norm(x).flatten(0, 1) if self.causal else x[:, 0])
        return made


class Lstm(nn.Module):
    """A classifier of sequences of 40 numbers a step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return made


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


def _mlp() -> nn.Module:
    layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*layers)


def _pytorchcv(file: str, maker: str) -> nn.Module:
    made: nn.Module = getattr(importlib.import_module(f"pytorchcv.models.{file}"), maker)()
    return made


MADE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "MLP": (_mlp, (64, 784), 10),
    "LeNet": (_lenet, (32, 1, 28, 28), 10),
    "ResNet-8": (ResNet8, (32, 3, 32, 32), 10),
    "encoder": (lambda: Transformer(WORDS["encoder"], 384, 6, 128, False), (8, 128), 2),
    "ResNet-18": (lambda: _pytorchcv("resnet", "resnet18"), (8, 3, 224, 224), 1000),
    "MobileNetV2": (lambda: _pytorchcv("mobilenetv2", "mobilenetv2_w1"), (8, 3, 224, 224), 1000),
    "GPT-2 of 2 layers": (lambda: Transformer(50257, 768, 2, 64, True), (1, 64), 50257),
    "LSTM 2x512": (Lstm, (16, 100, 40), 12),
}
"""The networks: how each is made, the shape of a batch, and the number of classes."""


def network(name: str) -> Training:
    """Return a network with its batches `x` and `y` and its loss, the cross entropy."""
    make, shape, classes = MADE[name]
    torch.manual_seed(0)
    model = make().train()

    def batch(step: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(step)
        if name in WORDS:
            x = torch.randint(0, WORDS[name], shape, generator=drawn)
        else:
            x = torch.randn(*shape, generator=drawn)
        count = x.numel() if classes == WORDS.get(name) else shape[0]
        return {"x": x, "y": torch.randint(0, classes, (count,), generator=drawn)}

    return Training(model, batch, classified)
