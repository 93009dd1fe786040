"""Benchmark networks in PyTorch that no package defines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class YoloTiny(nn.Module):
    """YOLOv3-tiny (J. Redmon, A. Farhadi: YOLOv3, 2018) up to the raw maps of its two heads, as in Darknet's
    yolov3-tiny.cfg.

    It maps [n, 3, 416, 416] to [n, 255, 13, 13] and [n, 255, 26, 26]."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128, 256, 512, 1024)
        self.trunk = nn.ModuleList(self.block(a, b, 3) for a, b in pairwise(widths))
        self.neck = self.block(1024, 256, 1)
        self.coarse = nn.Sequential(self.block(256, 512, 3), nn.Conv2d(512, 255, 1))
        self.lateral = self.block(256, 128, 1)
        self.fine = nn.Sequential(self.block(128 + 256, 256, 3), nn.Conv2d(256, 255, 1))

    @staticmethod
    def block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))

    def forward(self, x: Any) -> Any:
        for i, block in enumerate(self.trunk):
            x = block(x)
            if i == 4:
                early = x
            if i < 5:
                x = functional.max_pool2d(x, 2, 2)
            elif i == 5:  # Darknet's pool of stride 1 pads only right and below
                x = functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=float("-inf")), 2, 1)
        x = self.neck(x)
        up = functional.interpolate(self.lateral(x), scale_factor=2, mode="nearest")
        return self.coarse(x), self.fine(torch.cat([up, early], 1))


class Recurrent(nn.Module):
    """The core of a speech model: features [n, steps, 80] -> scores of 29 characters a step."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], layers: int, width: int = 512) -> None:
        super().__init__()
        self.layers = kind(80, width, layers, batch_first=True)
        self.head = nn.Linear(width, 29)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)[0])


class Positional(nn.Module):
    """A BERT encoder for export to ONNX, with positional inputs and the last hidden state as its output.

    The mask becomes additive here, as in BERT's own exports, and isn't gathered element by element."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        mask = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        return self.model(input_ids, mask, token_type_ids, return_dict=True).last_hidden_state


class Logits(nn.Module):
    """A transformers model that returns only its logits. `keywords` go to every call."""

    def __init__(self, model: Any, **keywords: Any) -> None:
        super().__init__()
        self.model = model
        self.keywords = keywords

    def forward(self, x: Any) -> Any:
        return self.model(x, **self.keywords).logits


class Named(nn.Module):
    """One result of a transformers model, by name."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Any) -> Any:
        return getattr(self.model(x), self.name)
