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
from jangin.ops import dropout
from jangin.ops.builder import Builder
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


def test_numbers_of_distributions() -> None:
    b = Builder("random", {}, trained=True)
    shape = (const(100), const(1001))
    tensors = [dropout.uniform(b, shape), dropout.normal(b, shape)]
    tensors += [dropout.chosen(b, shape, p) for p in (0, 0.3, 1)]
    names = ["uniform", "normal", "none", "some", "all"]
    found = run_graph(b.graph(tensors, names), {"random": np.array([7, 0, 3], np.uint32)})
    flat, bell = found["uniform"], found["normal"]
    assert flat.min() >= 0 and flat.max() < 1 and abs(flat.mean() - 0.5) < 4e-3
    np.testing.assert_allclose(np.histogram(flat, 10, (0, 1))[0] / flat.size, 0.1, atol=4e-3)
    np.testing.assert_allclose([(bell**n).mean() for n in (1, 2, 3, 4)], [0, 1, 0, 3], atol=0.13)
    assert abs(np.corrcoef(bell[:, :-1].ravel(), bell[:, 1:].ravel())[0, 1]) < 0.013
    assert not found["none"].any() and found["all"].all() and abs(found["some"].mean() - 0.3) < 6e-3


def test_random_numbers_need_training() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    with pytest.raises(CompileError, match="randn_like draws other numbers in each run"):
        jangin.compile(Noisy().eval(), example_inputs=(torch.ones(3),))
