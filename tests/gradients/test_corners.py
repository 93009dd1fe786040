"""At corners the slopes are PyTorch's: the convention comes with the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.trace import traced_graph
from jangin.gradients.reverse import differentiate
from jangin.ops.interpret import run_graph

NAN = float("nan")
TIES = [-1.0, 0.0, -0.0, 2.0]
TORCH: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "relu": (F.relu, [TIES]),
    "relu of NaN": (F.relu, [[NAN, 0.0, 1.0]]),
    "relu6": (F.relu6, [[-1.0, 0.0, 3.0, 6.0, 7.0]]),
    "hardtanh": (F.hardtanh, [[-2.0, -1.0, 0.0, 1.0, 2.0]]),
    "hardsigmoid": (F.hardsigmoid, [[-4.0, -3.0, 0.0, 3.0, 4.0]]),
    "hardswish": (F.hardswish, [[-4.0, -3.0, 0.0, 3.0, 4.0]]),
    "hardshrink": (F.hardshrink, [[-1.0, -0.5, 0.0, 0.5, 1.0]]),
    "softshrink": (F.softshrink, [[-1.0, -0.5, 0.0, 0.5, 1.0]]),
    "leaky_relu": (F.leaky_relu, [TIES]),
    "elu": (F.elu, [TIES]),
    "celu": (F.celu, [TIES]),
    "selu": (F.selu, [TIES]),
    "softplus": (F.softplus, [TIES]),
    "threshold": (lambda x: F.threshold(x, 0.0, 3.0), [TIES]),
    "prelu": (F.prelu, [TIES, [0.25]]),
    "maximum": (torch.maximum, [TIES, [0.0, 0.0, 0.0, 3.0]]),
    "minimum": (torch.minimum, [TIES, [0.0, 0.0, 0.0, 3.0]]),
    "fmax": (torch.fmax, [TIES, [0.0, 0.0, 0.0, 3.0]]),
    "clamp": (lambda x: torch.clamp(x, 0.0, 2.0), [[-1.0, 0.0, 1.0, 2.0, 3.0]]),
    "clamp by tensors": (torch.clamp, [[-1.0, 0.0, 1.0, 2.0, 3.0], [0.0] * 5, [2.0] * 5]),
    "abs": (torch.abs, [TIES]),
    "sign": (torch.sign, [TIES]),
    "sqrt": (torch.sqrt, [[0.0, 1.0, 4.0]]),
    "round": (torch.round, [[0.5, 1.0, 1.5]]),
    "norm": (torch.linalg.vector_norm, [[0.0, 0.0]]),
    "std": (torch.std, [[2.0, 2.0, 2.0]]),
    "std along": (lambda x: torch.std_mean(x.reshape(2, 2), 1, correction=0)[0], [[2.0, 2.0, 1.0, 3.0]]),
    "sinc": (torch.sinc, [TIES]),
    "atan2": (torch.atan2, [[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, -1.0, 0.0]]),
    "quotient rounded down": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"), [[0.0, 1.0, 2.0], [0.0, 0.0, 1.0]],
    ),
    "norm 3": (lambda x: torch.linalg.vector_norm(x, 3.0), [[0.0, 0.0]]),
    "norm 1": (lambda x: torch.linalg.vector_norm(x, 1.0), [[0.0, 1.0]]),
    "norm inf": (lambda x: torch.linalg.vector_norm(x, float("inf")), [[-2.0, 2.0, 1.0]]),
    "pow": (torch.pow, [[0.0, 0.0, 2.0, 1.0], [0.0, 2.0, 0.0, 3.0]]),
    "pow 2": (lambda x: x**2, [TIES]),
    "copysign": (torch.copysign, [TIES, [1.0, -1.0, 1.0, -1.0]]),
    "where": (lambda x, y: torch.where(x > 0, x, y * NAN), [[1.0, 2.0], [1.0, 2.0]]),
    "where of infinities": (lambda x: torch.where(x > 0, x, torch.exp(x * 1000)), [[1.0, 2.0]]),
    "amax": (torch.amax, [[1.0, 3.0, 3.0, 2.0, 3.0]]),
    "max": (torch.max, [[1.0, 3.0, 3.0, 2.0]]),
    "max along": (lambda x: torch.max(x, 0).values, [[1.0, 3.0, 3.0, 2.0]]),
    "min along": (lambda x: torch.min(x, 0).values, [[1.0, 3.0, 1.0, 2.0]]),
    "max_pool": (lambda x: F.max_pool1d(x[None, None], 3, 1, 1), [[2.0, 2.0, 1.0, 2.0, 2.0]]),
    "max_pool2d": (
        lambda x: F.max_pool2d(x.reshape(1, 1, 3, 3), 2, 1), [[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]],
    ),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool1d(x[None, None], 2), [[1.0, 1.0, 2.0, 2.0]]),
    "prod": (torch.prod, [[0.0, 3.0, 2.0]]),
    "prod of zeros": (torch.prod, [[0.0, 0.0, 2.0]]),
    "cumprod": (lambda x: torch.cumprod(x, 0), [[2.0, 0.0, 3.0]]),
    "sort": (lambda x: torch.sort(x, stable=True).values, [[1.0, 1.0, 0.0]]),
    "detach": (lambda x: x * x.detach(), [TIES]),
}  # fmt: skip


def loss(fn: Callable[..., Any], *tensors: Any) -> Any:
    """The results' sum, to which each element counts otherwise."""
    out = fn(*tensors)
    weight = torch.linspace(1.0, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape)
    return (out * weight).sum()


def by_torch(fn: Callable[..., Any], given: list[Any]) -> list[Any]:
    tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in given]
    found = torch.autograd.grad(loss(fn, *tensors), tensors, allow_unused=True)
    return [torch.zeros_like(t) if f is None else f for f, t in zip(found, tensors, strict=True)]


@pytest.mark.parametrize("case", TORCH)
def test_ties(case: str) -> None:
    fn, given = TORCH[case]
    wanted = by_torch(fn, given)
    tensors = [torch.tensor(x, dtype=torch.float64) for x in given]
    whole = torch.func.functionalize(lambda *ts: (loss(fn, *ts),), remove="mutations_and_views")
    with torch.no_grad():
        made = make_fx(whole, decomposition_table=table(), tracing_mode="fake")(*tensors)
    traced = traced_graph(made.graph, {})
    lowered = lower(Imported(traced.model.bound({}), ATEN, {}))
    graph = differentiate(lowered, lowered.outputs[0], traced.inputs)
    found = run_graph(graph, {n: t.numpy() for n, t in zip(traced.inputs, tensors, strict=True)})
    for name, w in zip(graph.outputs[1:], wanted, strict=True):
        np.testing.assert_allclose(found[name], w.numpy(), 1e-6)


ONNX = {
    "Relu": (1, {}, [0.0, 0.0, 0.0, 1.0]),
    "Clip": (1, {}, [1.0, 1.0, 1.0, 1.0]),
    "Max": (2, {}, [0.0, 0.5, 0.5, 1.0]),
    "Abs": (1, {}, [-1.0, 0.0, 0.0, 1.0]),
    "Softplus": (1, {}, [0.26894142, 0.5, 0.5, 0.88079708]),
    "ParametricSoftplus": (1, {}, [0.26894142, 0.5, 0.5, 0.88079708]),
}


@pytest.mark.parametrize("name", ONNX)
def test_onnx_s_gradient_at_ties(name: str) -> None:
    inputs, attributes, wanted = ONNX[name]
    xs = ["x", "z"][:inputs]
    nodes = [
        helper.make_node(name, xs, ["y"], **attributes),
        helper.make_node("Gradient", ["x"], ["g"], domain="ai.onnx.preview.training", xs=["x"], y="y"),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [4]) for n in (*xs, "y", "g")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:-2], info[-2:]),
        opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid("ai.onnx.preview.training", 1)],
    )
    onnx.checker.check_model(model)
    found = run_graph(lower(load(model)), {"x": np.array(TIES), "z": np.zeros(4)})
    np.testing.assert_allclose(found["g"], wanted, 1e-6)
