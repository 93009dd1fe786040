"""LSTM layers are trained by a nest of their own through time: gradients are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

from jangin import value_and_grad
from jangin.ir.core import LoopNest
from jangin.ir.loop import For, Stmt, statements
from jangin.ops.rounds import INNER
from jangin.options import Options
from jangin.training.step import StepBuilder
from jangin.training.task import Task

NEAR = 1e-11
"""The largest difference of a gradient in float64, as a share of its largest number. Its sums have some
thousand terms."""
X, Y = torch.zeros(30, 2, 8), torch.zeros(30, 2, 64)


class Classifier(nn.Module):
    """An LSTM whose output and last states all count."""

    def __init__(self, hidden: int, **settings: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, hidden, batch_first=True, **settings)
        self.start = nn.Linear(7, hidden)
        width = settings.get("proj_size") or hidden
        self.head = nn.Linear(width * (1 + settings.get("bidirectional", False)), 5)
        self.settings = settings

    def forward(self, x: Any) -> Any:
        begin = None
        if not self.settings:  # then gradients reach the initial states
            h = self.start(x[:, 0])[None]
            begin = h, torch.tanh(h)
        y, (h, c) = self.lstm(x, begin)
        return self.head(y.mean(1)) + h.sum() + torch.tanh(c).sum()


@pytest.mark.parametrize(
    ("hidden", "batch", "settings"),
    [
        (20, 3, {}),
        (33, 3, {"bidirectional": True, "num_layers": 2}),
        (20, 3, {"bias": False}),
        (20, 3, {"proj_size": 6}),
        (150, 17, {}),  # whole vectors and more rows a tile
    ],
)  # fmt: skip
def test_gradients_are_pytorchs(hidden: int, batch: int, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = Classifier(hidden, **settings).double()
    x, y = torch.randn(batch, 9, 7, dtype=torch.float64), torch.randint(0, 5, (batch,))
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    step = value_and_grad(net, "cross_entropy", example=(x, y))
    found, gradients = step(step.parameters, (x, y))
    assert found == pytest.approx(loss.item(), rel=NEAR)
    for name, p in net.named_parameters():
        if p.grad is not None:
            wanted = p.grad.numpy()
            assert np.abs(gradients[name] - wanted).max() <= NEAR * np.abs(wanted).max(), name


def nests() -> list[Stmt]:
    """Return the loop nests of an LSTM layer's step."""
    model = Task(
        nn.LSTM(8, 64), lambda found, target: ((found[0] - target) ** 2).mean(), (X, Y), None, Options()
    )
    graph = StepBuilder(model.trainable(), *model.added).with_gradients().graph
    return [n.attrs.body for n in graph.nodes if isinstance(n.attrs, LoopNest)]


def test_threads_share_each_nest() -> None:
    """The general gradient of a nest runs on one thread, one number at a time. It took a hundred times as
    long as PyTorch."""
    assert len(nests()) == 2, "one forward and one backward"
    for body in nests():
        assert any(isinstance(s, For) and s.kind == "parallel" for s in statements(body))


def test_each_gate_has_a_loop_backwards() -> None:
    """A loop over all gates read the rows of four states, which lie in the same sets of the L1 cache. It took
    1.4 times as long."""
    sums = [sum(isinstance(s, For) and s.var == INNER for s in statements(body)) for body in nests()]
    assert sorted(sums) == [1, 4]
