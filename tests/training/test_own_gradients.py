"""Operators with gradients of their own, operators of the caller's, and labels of bytes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch.nn import functional as F
from training_cases import batch, onnx_model

import jangin
from jangin.ir.expr import call, const, select
from jangin.ir.graph import CompileError


def rounded(b: Any, x: Any, *, steps: float = 4.0) -> Any:
    """Rounds to a grid; by itself it has no slope."""
    return b.map(lambda v: call("round", v * steps) / steps, x)


def straight_through(b: Any, inputs: Any, outputs: Any, gradients: Any, **_: Any) -> Any:
    (x,), (g,) = inputs, gradients
    return b.map(lambda d, v: select(call("abs", v) <= 1.0, d, const(0, v.dtype)), g, x)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.round(x * 4.0) / 4.0

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1.0)


def test_an_operator_with_a_gradient_of_its_own() -> None:
    model, w, c = onnx_model("Rounded")
    x, target = batch("numbers")
    given = (x.numpy(), target.numpy())
    tensors = [torch.tensor(w, requires_grad=True), torch.tensor(c, requires_grad=True)]
    loss = F.mse_loss(Rounded.apply(x @ tensors[0] + tensors[1]), target)
    wanted = torch.autograd.grad(loss, tensors)
    for gradient, slope in ((straight_through, 1), (None, 0)):
        own = jangin.operator("Rounded", domain="mine", gradient=gradient)(rounded)
        f = jangin.value_and_grad(model, "mse", ["w", "c"], example=given, operators=[own], threads=1)
        found, gradients = f({"w": w, "c": c}, given)
        assert found == pytest.approx(loss.item(), rel=1e-6)
        for name, g in zip("wc", wanted, strict=True):
            np.testing.assert_allclose(gradients[name], g.numpy() * slope, 1e-5, 1e-6)


def test_a_wrong_gradient_of_its_own_is_said() -> None:
    model, _, _ = onnx_model("Rounded")
    given = tuple(t.numpy() for t in batch("numbers"))
    for made, message in (
        (lambda b, inputs, *_: (None, inputs[0]), "returns 2 tensors"),
        (
            lambda b, inputs, *_: b.reduce("sum", inputs[0], [0]),
            "own gradient of the input f32[5, 4] is f32[4]",
        ),
    ):
        own = jangin.operator("Rounded", domain="mine", gradient=made)(rounded)
        with pytest.raises(CompileError, match=re.escape(message)):
            jangin.value_and_grad(model, "mse", ["w"], example=given, operators=[own])


def test_an_operator_of_ones_own() -> None:
    """By the general rule."""

    @jangin.operator("Swish", domain="mine")
    def swish(b: Any, x: Any) -> Any:
        return b.map(lambda v: v / (call("exp", -v) + 1.0), x)

    model, w, c = onnx_model("Swish")
    x, target = batch("numbers")
    given = (x.numpy(), target.numpy())
    f = jangin.value_and_grad(model, "mse", ["w", "c"], example=given, operators=[swish], threads=1)
    tensors = [torch.tensor(w, requires_grad=True), torch.tensor(c, requires_grad=True)]
    loss = F.mse_loss(F.silu(x @ tensors[0] + tensors[1]), target)
    found, gradients = f({"w": w, "c": c}, given)
    assert found == pytest.approx(loss.item(), rel=1e-6)
    for name, g in zip("wc", torch.autograd.grad(loss, tensors), strict=True):
        np.testing.assert_allclose(gradients[name], g.numpy(), 1e-5, 1e-6)


class Logits(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.shift = nn.Parameter(torch.randn(classes, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


def test_a_label_of_a_byte_isnt_an_ignored_one() -> None:
    """The label 156 has the byte of -100, which stands for labels that don't count."""
    model, x, labels = Logits(200), np.zeros((3, 200)), np.array([156, 3, 156], np.uint8)
    f = jangin.value_and_grad(model, "cross_entropy", example=(x, labels), threads=1)
    loss, gradients = f(f.parameters, (x, labels))
    truth = nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(labels).long())
    truth.backward()
    assert loss == pytest.approx(float(truth.detach()), rel=1e-12)
    np.testing.assert_allclose(gradients["shift"], model.shift.grad.numpy(), rtol=1e-10, atol=1e-12)


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.0, 1.0, 0.0, 1.0, 0.3, 1e-20, 1 - 1e-7]))

    def forward(self) -> Any:
        return self.p * 1


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 2.0, 7)], ids=["", "weighted"])
def test_probabilities_of_0_and_1_have_finite_slopes(reduction: str, weight: Any) -> None:
    """A sigmoid gives exactly 0 or 1 for large operands. PyTorch bounds the divisor of the slope."""
    model, target = Probabilities(), torch.tensor([0.0, 0.0, 1.0, 1.0, 0.4, 1.0, 0.0])
    loss = nn.BCELoss(weight, reduction=reduction)
    wanted = loss(model(), target)
    wanted.backward()
    f = jangin.value_and_grad(model, loss, example=(target,), threads=1)
    found, gradients = f(f.parameters, (target,))
    assert found == pytest.approx(float(wanted.detach()), rel=1e-6)
    assert model.p.grad is not None
    np.testing.assert_allclose(gradients["p"], model.p.grad.numpy(), 2e-6)
