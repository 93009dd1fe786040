"""A transformer that reads one token trains its last layer for this token alone, with PyTorch's gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

from jangin import value_and_grad
from jangin.ir.core import MatMul
from jangin.ir.graph import static_shape
from jangin.options import Options
from jangin.training.step import StepBuilder
from jangin.training.task import Task

LENGTH, WIDTH = 7, 16


class Classifier(nn.Module):
    """Two layers, a head over the tokens from `first` to `end`, in float64."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head, self.read = nn.Linear(WIDTH * (end - first), 4), slice(first, end)
        self.double().train()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x[:, self.read].flatten(1))
        return logits


def batch() -> tuple[Any, Any]:
    torch.manual_seed(4)
    return torch.randn(3, LENGTH, WIDTH, dtype=torch.float64), torch.tensor([0, 3, 1])


def work(model: nn.Module) -> int:
    """Return the multiply-adds of a step's products."""
    task = Task(model, "cross_entropy", batch(), None, Options())
    graph, total = StepBuilder(task.trainable(), *task.added).with_gradients().graph, 0
    for node in graph.nodes:
        if isinstance(node.attrs, MatMul):
            terms = graph.shape(node.inputs[0])[-2 if node.attrs.transpose_a else -1]
            total += int(np.prod(static_shape((*graph.shape(node.outputs[0]), terms)) or ()))
    return total


@pytest.mark.parametrize(("first", "end"), [(0, 1), (LENGTH - 1, LENGTH), (2, 4)])
def test_gradients_are_pytorchs(first: int, end: int) -> None:
    model, (x, y) = Classifier(first, end), batch()
    truth = copy.deepcopy(model)
    loss = nn.functional.cross_entropy(truth(x), y)
    loss.backward()
    f = value_and_grad(model, "cross_entropy", example=(x, y), threads=1)
    value, gradients = f(f.parameters, (x, y))
    assert value == pytest.approx(float(loss), rel=1e-12)
    for name, p in truth.named_parameters():
        np.testing.assert_allclose(gradients[name], p.grad.numpy(), rtol=1e-10, atol=1e-12, err_msg=name)


def test_one_token_takes_less_work() -> None:
    """The second layer's keys, values and their gradients need all tokens: 3 of 8 products of its size."""
    assert work(Classifier(0, 1)) < 0.75 * work(Classifier(0, LENGTH))
