"""The gradient of batch normalization is PyTorch's, far from 0 too, and reads its operands twice."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

from jangin import value_and_grad
from jangin.ir.core import Reduce
from jangin.options import Options
from jangin.training.step import StepBuilder
from jangin.training.task import Task


def net() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    nn.init.normal_(made[1].weight)
    return made


@pytest.mark.parametrize(
    ("dtype", "far", "near"),
    [
        pytest.param(torch.float64, 0.0, 1e-11, id="float64"),
        pytest.param(torch.float32, 0.0, 1e-5, id="float32"),
        pytest.param(torch.float32, 300.0, 1e-3, id="far"),
    ],
)
def test_gradients_are_pytorchs(dtype: torch.dtype, far: float, near: float) -> None:
    """`near` is a share of each gradient's largest number. Far from 0 the convolution has rounded its results
    to 1e-4 of their spread already."""
    x, y = (torch.randn(4, 3, 6, 6) + far).to(dtype), torch.randint(0, 5, (4,))
    own = net().to(dtype)
    truth = copy.deepcopy(own).double()
    nn.functional.cross_entropy(truth(x.double()), y).backward()
    step = value_and_grad(own, "cross_entropy", example=(x, y))
    _, found = step(step.parameters, (x, y))
    largest = max(float(p.grad.abs().max()) for p in truth.parameters())
    for name, p in truth.named_parameters():
        wanted = p.grad.numpy()
        most = np.abs(wanted).max() if name != "0.bias" else largest  # batch normalization makes it 0
        assert np.abs(found[name] - wanted).max() <= near * most, name


def test_two_sums_suffice() -> None:
    """Gradients through each step of the mean and the variance took six passes over all numbers."""
    x, y = torch.zeros(4, 3, 6, 6), torch.zeros(4, dtype=torch.int64)
    alone = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 5))
    task = Task(alone, "cross_entropy", (x, y), None, Options())
    graph = StepBuilder(task.trainable(), *task.added).with_gradients().graph
    sums = [n for n in graph.nodes if isinstance(n.attrs, Reduce) and "gradient" in str(n.source)]
    of_pictures = [n for n in sums if graph.shape(n.inputs[0])[-2:] == graph.shape("input")[-2:]]
    assert len(of_pictures) == 2
