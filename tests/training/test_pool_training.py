"""Gradients of pooling in a compiled step are PyTorch's, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

from jangin import value_and_grad

NEAR = 1e-12
"""The largest difference of a gradient in float64, as a share of its largest number. Its sums have some
hundred terms."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        ((10, 10), {"kernel_size": 2}),
        ((11, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((11, 9), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
        ((7, 12), {"kernel_size": (2, 5), "stride": (3, 2), "padding": (1, 2)}),
        ((9, 9), {"kernel_size": 3, "stride": 1, "padding": 1}),
        ((9, 9), {"kernel_size": 2, "stride": 1, "dilation": 2}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [6, 17])
@pytest.mark.sampled(3)
def test_maximum(channels: int, size: tuple[int, int], settings: dict[str, Any], threads: int) -> None:
    """A window with equal maxima, as relu makes them, gives its gradient to the first."""
    torch.manual_seed(0)
    pool = nn.MaxPool2d(**settings)
    first = nn.Sequential(nn.Conv2d(2, channels, 3, padding=1), nn.ReLU(), pool)
    count = first(torch.zeros(1, 2, *size)).numel()
    net = nn.Sequential(first, nn.Flatten(), nn.Linear(count, 5)).double()
    x, y = torch.randn(3, 2, *size, dtype=torch.float64), torch.randint(0, 5, (3,))
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    step = value_and_grad(net, "cross_entropy", example=(x, y), threads=threads)
    value, gradients = step(step.parameters, (x, y))
    assert value == pytest.approx(loss.item(), rel=NEAR)
    for name, p in net.named_parameters():
        wanted = p.grad.numpy()  # type: ignore[union-attr]
        assert np.abs(gradients[name] - wanted).max() <= NEAR * np.abs(wanted).max(), name
