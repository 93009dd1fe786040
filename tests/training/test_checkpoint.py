"""A step within a budget of memory: kernels run again, and every bit is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

import jangin
from jangin.ir.graph import CompileError
from jangin.training.trainer import Trainer


def deep(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "dense":
        layers = [m for _ in range(12) for m in (nn.Linear(64, 64), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(64, 4))
    body = [
        m for _ in range(5) for m in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(3, 8, 1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def batch(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    shape = (256, 64) if kind == "dense" else (4, 3, 24, 24)
    return rng.random(shape, np.float32), rng.integers(0, 4, shape[0])


def trainer(kind: str, checkpoint: int | None) -> Trainer:
    return jangin.train(
        deep(kind), "cross_entropy", jangin.optim.SGD(0.1, 0.9), batch(kind), threads=1, checkpoint=checkpoint
    )


@pytest.mark.usefixtures("plain_memory")
@pytest.mark.parametrize(
    ("kind", "share"), [("dense", 0.7), pytest.param("convolutions", 0.75, marks=pytest.mark.slow)]
)
def test_a_budget_is_kept_with_the_same_bits(kind: str, share: float) -> None:
    plain = trainer(kind, None)
    assert plain.repeated_share == 0
    budget = int(plain.arena_bytes * share)
    small = trainer(kind, budget)
    assert small.arena_bytes <= budget
    assert 0 < small.repeated_share < 0.5  # a forward pass is a third of a step
    for _ in range(3):
        assert small.step(batch(kind)) == plain.step(batch(kind))
    wanted = plain.state_dict()
    for name, array in small.state_dict().items():
        np.testing.assert_array_equal(array, wanted[name], name)
    assert small.state_bytes == plain.state_bytes


@pytest.mark.usefixtures("plain_memory")
def test_no_gradient_waits_for_its_update() -> None:
    """Without a budget, a step holds little more than what the backward pass reads: each layer's result."""
    results = 12 * 256 * 64 * 4
    assert trainer("dense", None).arena_bytes < 1.15 * results


class Words(nn.Module):
    """Layers behind a sum of embeddings. Each embedding has a check of its indices, which lasts as long as
    the step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.ModuleList(nn.Embedding(9, 16) for _ in range(6))
        self.layers = nn.Sequential(*(m for _ in range(9) for m in (nn.Linear(16, 16), nn.Tanh())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = sum(words(x[:, n]) for n, words in enumerate(self.words))
        result: torch.Tensor = self.layers(found)
        return result


@pytest.mark.usefixtures("plain_memory")
def test_a_budget_counts_the_checks_of_indices() -> None:
    rng = np.random.default_rng(5)
    example = rng.integers(0, 9, (32, 6)), rng.integers(0, 16, 32)

    def arena(checkpoint: int | None) -> int:
        made = jangin.train(Words(), "cross_entropy", "sgd", example, threads=1, checkpoint=checkpoint)
        return made.arena_bytes

    most = arena(None)
    less = arena(int(most * 0.9))
    assert less <= int(most * 0.9)
    assert arena(less - 1) < less  # no budget is taken for kept by the bytes of the checks


def test_a_budget_that_cant_be_kept() -> None:
    with pytest.raises(CompileError, match=r"the arena takes \d+ bytes even .* checkpoint=1000: give"):
        trainer("dense", 1000)
