"""Gradients of gradients, against PyTorch's, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.trace import traced_graph
from jangin.gradients.reverse import differentiate
from jangin.ops.interpret import run_graph

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "two layers": (lambda x, w: torch.tanh(x @ w).pow(2).sum(), (3, 4), (4, 5)),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1, stride=2).pow(3).sum(),
        (1, 2, 5, 5),
        (3, 2, 3, 3),
    ),
    "transposed": (lambda x, w: F.conv_transpose1d(x, w, stride=2).exp().sum(), (1, 2, 4), (2, 3, 3)),
    "softmax": (lambda x, w: (torch.softmax(x, -1) * w).pow(2).sum(), (3, 4), (4,)),
    "log_softmax": (lambda x, w: (torch.log_softmax(x, -1) * w).pow(2).sum(), (3, 4), (4,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w).pow(3).sum(), (3, 4), (4,)),
    "average": (lambda x, w: F.avg_pool2d(x * w, 2).pow(3).sum(), (1, 2, 4, 4), (4, 4)),
    "maximum": (lambda x, w: F.max_pool2d(x.pow(2) * w, 2, 1).pow(2).sum(), (1, 1, 4, 4), (4, 4)),
    "running sum": (lambda x, w: torch.cumsum(x * w, 1).pow(3).sum(), (3, 4), (4,)),
    "picked": (lambda x, w: (x[:, [0, 2, 0]].pow(3) * w).sum(), (3, 4), (3,)),
    "several channels": (
        lambda x, w: F.conv2d(x, w, dilation=2, groups=2).sigmoid().sum(),
        (2, 4, 6, 5),
        (4, 2, 2, 3),
    ),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w).pow(3).sum(), (2, 4, 3), (4,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True).pow(3).sum(), (5, 3, 2), (3,)),
    "attention": (
        lambda x, w: (torch.softmax(x @ (x * w).transpose(-1, -2), -1) @ x).pow(2).sum(),
        (1, 2, 4, 3),
        (3,),
    ),
    "gelu": (lambda x, w: (F.gelu(x) * w).pow(2).sum(), (3, 4), (4,)),
    "gates": (lambda x, w: (F.silu(x * w) + F.softplus(x) * torch.sigmoid(w)).pow(2).sum(), (3, 4), (4,)),
    "products": (lambda x, w: x.add(2).prod(1).pow(2).sum() * w.sum(), (3, 4), (2,)),
    "logsumexp": (lambda x, w: (torch.logsumexp(x * w, 1)).pow(3).sum(), (3, 4), (4,)),
    "sorted": (lambda x, w: (x.pow(3).sort(1).values * w).pow(2).sum(), (3, 4), (4,)),
    "scattered": (
        lambda x, w: (
            torch.zeros(3, 2, dtype=x.dtype)
            .scatter_add(1, torch.tensor([[0, 1, 1, 0]] * 3), x.pow(2) * w)
            .pow(2)
            .sum()
        ),
        (3, 4),
        (4,),
    ),
    "resized": (
        lambda x, w: F.interpolate(x * w, (5, 7), mode="bilinear").pow(3).sum(),
        (1, 2, 3, 4),
        (3, 4),
    ),
    "solved": (
        lambda x, w: (
            torch.linalg.solve_triangular(torch.eye(3).double() * 3 + x.tril(), w, upper=False).pow(2).sum()
        ),
        (3, 3),
        (3, 2),
    ),
    "gammas": (lambda x, w: (torch.lgamma(x + 2) * torch.erf(w)).pow(2).sum(), (3, 4), (4,)),
    "loss": (lambda x, w: F.cross_entropy(x @ w, torch.tensor([1, 0, 2])), (3, 4), (4, 5)),
    "norm": (lambda x, w: torch.linalg.vector_norm(x, dim=1).pow(3).sum() * w.sum(), (3, 4), (1,)),
}


@pytest.mark.parametrize("case", CASES)
def test_second_gradients(case: str) -> None:
    fn, *shapes = CASES[case]
    rng = np.random.default_rng(1)
    x, w = (torch.tensor(rng.uniform(-1, 1, s), requires_grad=True) for s in shapes)
    (once,) = torch.autograd.grad(fn(x, w), [x], create_graph=True)
    wanted = torch.autograd.grad(once.sum(), [x, w])
    with torch.no_grad():
        made = make_fx(lambda *ts: (fn(*ts),), decomposition_table=table(), tracing_mode="fake")(x, w)
    traced = traced_graph(made.graph, {})
    graph = lower(Imported(traced.model.bound({}), ATEN, {}), unchecked=True)
    first = differentiate(graph, graph.outputs[0], traced.inputs[:1])
    second = differentiate(first, first.outputs[1], traced.inputs)
    feeds = {n: t.detach().numpy() for n, t in zip(traced.inputs, (x, w), strict=True)}
    found = run_graph(second, feeds)
    for name, g in zip(second.outputs[2:], wanted, strict=True):
        np.testing.assert_allclose(found[name], g.numpy(), 1e-9, 1e-10)
