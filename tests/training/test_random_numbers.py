"""Random numbers of training: dropped channels, and numbers of distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

import jangin
from jangin.ir.expr import const
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.dropout import chosen
from jangin.ops.interpret import run_graph


class Channels(nn.Module):
    """Layers that drop whole channels, and one that drops to its own lowest value."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.drop, self.low = (
            nn.Parameter(torch.ones(40, 50, 3, 3)),
            nn.Dropout2d(0.25),
            nn.AlphaDropout(0.4),
        )

    def forward(self, x: Any) -> Any:
        return (self.low(self.drop(self.w)) * x).sum()


def test_dropout_of_channels() -> None:
    """A channel's elements are dropped together, independently of single elements."""
    ones = (torch.ones(40, 50, 3, 3),)
    f = jangin.value_and_grad(Channels().train(), None, example=ones, threads=1)
    slopes = f(f.parameters, ones)[1]["w"].reshape(2000, 9)
    kept = (slopes != 0).any(1)
    assert 0.71 < kept.mean() < 0.79  # four deviations of 2,000 draws
    assert 0.58 < (slopes[kept] != 0).mean() < 0.62
    alpha = ((1 - 0.4) * (1 + 0.4 * 1.7580993408473766**2)) ** -0.5
    np.testing.assert_allclose(slopes[slopes != 0], alpha / 0.75, 1e-6)


class Noise(nn.Module):
    """The gradients of its parameters are random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.bell, self.some = (nn.Parameter(torch.ones(100, 1001)) for _ in range(3))

    def forward(self, x: Any) -> Any:
        flat, bell = (self.flat * torch.rand_like(x)).sum(), (self.bell * torch.randn(100, 1001)).sum()
        return flat + bell + (self.some * torch.bernoulli(x * 0.3)).sum()


def test_numbers_of_distributions() -> None:
    """Moments, shares and neighbours are those of 100,100 independent numbers, within four deviations."""
    given = (torch.ones(100, 1001),)
    f = jangin.value_and_grad(Noise(), None, example=given, threads=1)
    found = f(f.parameters, given)[1]
    flat, bell = found["flat"], found["bell"]
    assert flat.min() >= 0 and flat.max() < 1 and abs(flat.mean() - 0.5) < 4e-3
    np.testing.assert_allclose(np.histogram(flat, 10, (0, 1))[0] / flat.size, 0.1, atol=4e-3)
    np.testing.assert_allclose([(bell**n).mean() for n in (1, 2, 3, 4)], [0, 1, 0, 3], atol=0.13)
    assert abs(np.corrcoef(bell[:, :-1].ravel(), bell[:, 1:].ravel())[0, 1]) < 0.013
    assert {*np.unique(found["some"])} == {0, 1} and abs(found["some"].mean() - 0.3) < 6e-3


def test_all_or_none_draw_nothing() -> None:
    b = Builder("chosen", {}, trained=True)
    found = run_graph(b.graph([chosen(b, (const(3),), p) for p in (0, 1)], ["none", "all"]), {})
    assert not found["none"].any() and found["all"].all()


def test_random_numbers_need_training() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    with pytest.raises(CompileError, match="randn_like draws other numbers in each run"):
        jangin.compile(Noisy().eval(), example_inputs=(torch.ones(3),))
