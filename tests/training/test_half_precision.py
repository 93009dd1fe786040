"""Models of 16-bit floats train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch.nn import functional as F

import jangin
from jangin import optim
from jangin.gradients.scalars import adjoints
from jangin.ir.dtype import BF16, F32
from jangin.ir.expr import Select, Var, cast, const, select


def halved() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(72, 4), nn.LayerNorm(4),
    )  # fmt: skip


def losses_of(model: nn.Module, x: Any, labels: Any, run: Any = None) -> np.ndarray[Any, Any]:
    """PyTorch's losses of 10 steps, with `run` in place of the model if it is given."""
    optimizer, found = torch.optim.SGD(model.parameters(), 0.05, 0.9), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy((run or model)(x), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return np.array(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_models_of_16_bits_train(dtype: Any, tmp_path: Path) -> None:
    """Losses are as near to float32's as PyTorch's own are, by a trainer and by `torch.compile`. A state that
    was saved goes on with the same bits."""
    torch.manual_seed(3)
    x, labels = torch.randn(16, 3, 6, 6), torch.randint(0, 4, (16,))
    precise, eager = losses_of(halved(), x, labels), losses_of(halved().to(dtype), x.to(dtype), labels)
    model = halved().to(dtype)
    given = (x.to(dtype), labels)
    trainer = jangin.train(model, "cross_entropy", optim.SGD(0.05, 0.9), given, threads=1)
    found = {"train": np.array([trainer.step(given) for _ in range(10)])}
    found["compile"] = losses_of(model, given[0], labels, torch.compile(model, backend="jangin"))
    allowed = 2 * np.abs(eager - precise).max() + torch.finfo(dtype).eps * precise.max()
    for way, own in found.items():
        assert np.abs(own - precise).max() <= allowed, way
        assert own[-1] < 0.8 * own[0], f"{way}: nothing was trained"
    trainer.save(tmp_path / "state.npz")
    wanted = trainer.step(given)
    trainer.load(tmp_path / "state.npz")
    assert trainer.step(given) == wanted
    assert {a.dtype.name for a in trainer.state_dict().values()} == {
        str(dtype).removeprefix("torch."),
        "int64",
    }


def test_types_of_a_choice_must_agree() -> None:
    """An adjoint of another type keeps the type of its zeros too."""
    x, g = Var("x", BF16), Var("g", F32)
    clipped = cast(F32, x)
    (slope,) = adjoints(select(clipped < 0.0, const(0, F32), clipped), g, [x]).values()
    assert isinstance(slope, Select) and slope.a.dtype is slope.b.dtype is BF16
    with pytest.raises(TypeError, match="select of f32 and bf16"):
        select(clipped < 0.0, clipped, x)
