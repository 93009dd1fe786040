"""A PyTorch module for tests, and the tolerance of its results."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

TOLERANCE = 2e-6
"""The largest difference, as a share of the largest value. Sums of at most a few hundred float32 products are
taken in another order."""


def near(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    error = (got.double() - wanted.double()).abs().max()
    assert error <= TOLERANCE * wanted.double().abs().max(), float(error)


class Net(nn.Module):
    """A convolutional classifier with all common kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.SiLU())
        self.depth = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.up = nn.ConvTranspose2d(12, 6, 3, stride=2, padding=1, output_padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        y = self.stem(x)
        y = nn.functional.max_pool2d(torch.relu(self.depth(y)) + y, 3, 2, 1)
        y = nn.functional.interpolate(self.norm(self.up(y)), scale_factor=2, mode="bilinear")
        return self.head(y.mean((2, 3))).softmax(-1)


def seeded(module: Any) -> Any:
    torch.manual_seed(0)
    for p in module.parameters():
        p.data = torch.randn_like(p) * 0.3
    for b in module.buffers():
        if b.is_floating_point():
            b.data = torch.rand_like(b) + 0.5
    return module.eval()
