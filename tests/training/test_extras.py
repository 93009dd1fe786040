"""A step has more than the optimizer's update: parts of a batch, running means, float32 copies of small
parameters, scaled losses, and optimizers by names."""

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
from jangin.ir.graph import CompileError
from jangin.training.trainer import Trainer

NEAR = {"rtol": 1e-11, "atol": 1e-13}
"""Float64 sums in another order."""
STEPS = 3


def net(dtype: Any = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batch(step: int, dtype: Any = torch.float64) -> tuple[Any, Any]:
    drawn = torch.Generator().manual_seed(step)
    x = torch.randn(12, 6, dtype=torch.float64, generator=drawn).to(dtype)
    return x, torch.randint(0, 3, (12,), generator=drawn)


def trainer(optimizer: Any = "sgd", dtype: Any = torch.float64, **settings: Any) -> Trainer:
    return jangin.train(net(dtype), "cross_entropy", optimizer, batch(0, dtype), threads=1, **settings)


def same(found: Any, wanted: Any) -> None:
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, err_msg=name, **NEAR)


def test_parts_of_a_batch_have_the_gradient_of_the_whole() -> None:
    whole, parts = (trainer(optim.AdamW(lr=0.01), clip_norm=0.1, accumulate=n) for n in (1, 3))
    for n in range(STEPS):
        assert parts.step(batch(n)) == pytest.approx(whole.step(batch(n)), rel=1e-12)
    same(parts.state_dict(), whole.state_dict())
    assert parts.evaluate(batch(0)) == pytest.approx(whole.evaluate(batch(0)), rel=1e-12)
    with pytest.raises(ValueError, match="no 5 equal parts"):
        trainer(accumulate=5)
    with pytest.raises(ValueError, match="accumulate=0"):
        trainer(accumulate=0)


def test_statistics_see_one_part_after_the_other() -> None:
    """Batch normalization does as PyTorch's does in a loop over parts. A part that fails changes nothing."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    x, y = batch(0)
    ours = jangin.train(model, "cross_entropy", optim.SGD(lr=0.1), (x, y), threads=1, accumulate=2)
    before = ours.state_dict()
    wrong = y.clone()
    wrong[-1] = 7
    with pytest.raises(IndexError, match="index 7"):
        ours.step((x, wrong))
    assert all((ours.state_dict()[n] == a).all() for n, a in before.items())
    theirs = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        theirs.zero_grad()
        losses = [F.cross_entropy(model(x[i : i + 6]), y[i : i + 6]) / 2 for i in (0, 6)]
        for loss in losses:
            loss.backward()
        theirs.step()
        assert ours.step((x, y)) == pytest.approx(float(sum(losses).detach()), rel=1e-11)
    wanted = model.state_dict()
    same(ours.state_dict(), {n: a.numpy() for n, a in wanted.items() if "num_batches" not in n})


def test_running_means_of_parameters(tmp_path: Path) -> None:
    ours = trainer(optim.SGD(lr=0.5), average=0.8)
    means = ours.state_dict()
    for n in range(STEPS):
        ours.step(batch(n))
        now = ours.state_dict()
        means = {name: 0.8 * mean + 0.2 * now[name] for name, mean in means.items()}
    same(ours.averaged(), means)
    model = net()
    model.load_state_dict({n: torch.from_numpy(a) for n, a in means.items()})
    wanted = float(F.cross_entropy(model(batch(0)[0]), batch(0)[1]).detach())
    assert ours.evaluate(batch(0), averaged=True) == pytest.approx(wanted, rel=1e-11)
    assert abs(ours.evaluate(batch(0)) - wanted) > 1e-3
    ours.save(tmp_path / "state.npz")
    other = trainer(optim.SGD(lr=0.5), average=0.8)
    other.load(tmp_path / "state.npz")
    same(other.averaged(), means)
    other.load_state_dict(now)
    same(other.averaged(), now)
    with pytest.raises(ValueError, match="average="):
        trainer().averaged()
    with pytest.raises(ValueError, match="between 0 and 1"):
        trainer(average=1.5)


def test_copies_of_small_parameters_add_up_small_steps() -> None:
    """Steps smaller than half a rounding of bfloat16 change nothing without copies in float32."""
    start = {n: t.double().numpy() for n, t in net(torch.bfloat16).state_dict().items()}
    lr, given = 2e-4, batch(0, torch.bfloat16)
    plain, master = (
        trainer(optim.SGD(lr=lr), torch.bfloat16, master_weights=m, average=a)
        for m, a in ((False, None), (True, 0.5))
    )
    for _ in range(100):
        plain.step(given)
        master.step(given)
    model = net(torch.float32).to(torch.bfloat16).float()
    theirs = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(100):
        theirs.zero_grad()
        F.cross_entropy(model(given[0].float()), given[1]).backward()
        theirs.step()
    wanted = {n: t.double().numpy() for n, t in model.state_dict().items()}
    name = "2.weight"
    far = np.abs(wanted[name] - start[name]).max()
    held = master.optimizer_state()[name]["master"]
    assert held.dtype == np.float32
    # bfloat16 rounds activations and gradients by 2^-9 each, a few of them in a row
    assert np.abs(held - wanted[name]).max() < 0.05 * far
    assert np.abs(plain.state_dict()[name].astype(float) - wanted[name]).max() > 0.3 * far
    assert (master.state_dict()[name] == held.astype(master.state_dict()[name].dtype)).all()
    assert master.averaged()[name].dtype == master.state_dict()[name].dtype


class Quarter(nn.Module):
    """A quarter of a weighted sum of float16."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, dtype=torch.float16))

    def forward(self, x: Any) -> Any:
        return (self.w * x).sum() * 0.25


@pytest.mark.parametrize(("scale", "kept"), [(None, 0.0), (1024.0, 1.0), ("dynamic", 1.0)])
def test_scaled_losses_keep_small_gradients(scale: Any, kept: float) -> None:
    """A quarter of float16's smallest number is 0 without a scale."""
    smallest = 2.0**-24
    x = torch.full((4,), smallest, dtype=torch.float16)
    settings = {"threads": 1, "loss_scale": scale, "master_weights": True}
    ours = jangin.train(Quarter(), None, optim.SGD(lr=1e4), (x,), **settings)
    ours.step((x,))
    moved = 1 - ours.optimizer_state()["w"]["master"]
    # 1 - 0.00015 is rounded to float32, by 6e-8 at most
    np.testing.assert_allclose(moved, kept * 1e4 * 0.25 * smallest, atol=1e-7)


def test_a_step_whose_gradients_overflow_only_halves_the_scale(tmp_path: Path) -> None:
    ours = trainer(optim.Adam(lr=0.1), torch.float16, loss_scale="dynamic", average=0.9)
    x, y = batch(0, torch.float16)
    before, state = ours.state_dict(), ours.optimizer_state()
    assert ours.loss_scale == 2.0**15
    ours.step((x * 6e4, y))
    assert ours.loss_scale == 2.0**14
    assert all((ours.state_dict()[n] == a).all() for n, a in before.items())
    assert all((ours.optimizer_state()[n][s] == a).all() for n, own in state.items() for s, a in own.items())
    ours.step((x, y))
    assert ours.loss_scale == 2.0**14
    assert all((ours.state_dict()[n] != a).any() for n, a in before.items())
    ours._kept["finite_steps"] = np.array(1999, np.float32)
    assert (ours.count, ours.updates) == (2, 1)
    ours.step((x, y))
    assert ours.loss_scale == 2.0**15
    ours.save(tmp_path / "state.npz")
    other = trainer(optim.Adam(lr=0.1), torch.float16, loss_scale="dynamic", average=0.9)
    other.step((x * 6e4, y))
    other.load(tmp_path / "state.npz")
    assert other.loss_scale == 2.0**15
    assert other.step((x, y)) == ours.step((x, y))
    assert trainer().loss_scale is None
    for wrong in (0, "static", -1.0):
        with pytest.raises(ValueError, match="loss_scale="):
            trainer(loss_scale=wrong)


class Scaled(nn.Module):
    """A net of parameters named like a loss scale's state."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_scale = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.register_buffer("finite_steps", torch.zeros(1, dtype=torch.float16))

    def forward(self, x: Any) -> Any:
        self.finite_steps.add_(1)
        return (self.loss_scale * x).sum()


BIG = float("inf")
"""Gradients by it aren't finite."""
PARTS: tuple[dict[str, Any], ...] = (
    {},
    {"accumulate": 2},
    {"processes": 2},
    {"clip_value": 1e-3},
    {"clip_norm": 1e-3},
)
"""Ways to a step whose gradients are scaled: one plan, two, two in each of two processes, and limits."""


@pytest.mark.parametrize("way", PARTS, ids=str)
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_skipped_steps_are_those_of_pytorch(name: str, way: dict[str, Any]) -> None:
    """A step is skipped if any part's gradients overflow. PyTorch's optimizer doesn't count it then."""
    settings = {"Adam": {"lr": 0.01}, "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}}[name]
    ours, model = trainer(getattr(optim, name)(**settings), loss_scale="dynamic", **way), net()
    theirs = getattr(torch.optim, name)(model.parameters(), **settings)
    for n, overflows in enumerate((True, False, True, False, False)):
        x, y = batch(n)
        if overflows:
            x[-1] *= BIG  # of the last part alone
        ours.step((x, y))
        assert ours.loss_scale == 2.0 ** (15 - sum((True, False, True, False, False)[: n + 1]))
        if overflows:
            continue
        theirs.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if "clip_value" in way:
            nn.utils.clip_grad_value_(model.parameters(), way["clip_value"])
        if "clip_norm" in way:
            nn.utils.clip_grad_norm_(model.parameters(), way["clip_norm"])
        theirs.step()
    assert ours.count == 5 and ours.updates == 3
    same(ours.state_dict(), {own: p.detach().numpy() for own, p in model.named_parameters()})


def test_a_scale_beside_parameters_of_its_name(tmp_path: Path) -> None:
    x = torch.ones(3, dtype=torch.float16)
    for parts in (1, 3):
        ours = jangin.train(Scaled(), None, "sgd", (x,), threads=1, loss_scale="dynamic", accumulate=parts)
        ours.step((x,))
        assert ours.loss_scale == 2.0**15 and ours.updates == 1
        assert ours.state_dict()["finite_steps"] == parts
        ours.save(tmp_path / "state.npz")
        ours.step((x * BIG,))
        assert ours.loss_scale == 2.0**14 and ours.updates == 1
        ours.load(tmp_path / "state.npz")
        assert ours.loss_scale == 2.0**15 and ours.updates == 1


def test_optimizers_by_names() -> None:
    """Biases have no weight decay and another rate, as in PyTorch's groups."""
    ours = trainer({"*.bias": optim.AdamW(lr=0.1, weight_decay=0.0), "*": optim.AdamW(lr=0.01)})
    model = net()
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if ("bias" in n) == of], "lr": lr, "weight_decay": decay}
        for of, lr, decay in ((True, 0.1, 0.0), (False, 0.01, 0.01))
    ]
    theirs = torch.optim.AdamW(groups)
    for n in range(STEPS):
        theirs.zero_grad()
        loss = F.cross_entropy(model(batch(n)[0]), batch(n)[1])
        loss.backward()
        theirs.step()
        assert ours.step(batch(n)) == pytest.approx(float(loss.detach()), rel=1e-11)
    same(ours.state_dict(), {n: p.detach().numpy() for n, p in named.items()})
    with pytest.raises(CompileError, match="no optimizer for 0"):
        trainer({"*.bias": "sgd"})


class Tied(nn.Module):
    """Words in and out share their vectors, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.last = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.words(x)))


def test_a_shared_parameter_has_the_optimizer_of_either_name() -> None:
    """An optimizer of PyTorch's has it by its first name, and its state goes on."""
    model, x = Tied().double(), torch.tensor([0, 3, 3, 1])
    given, losses = torch.optim.AdamW(model.parameters(), 0.1), []

    def step() -> None:
        given.zero_grad()
        loss = F.cross_entropy(model(x), x.flip(0))
        loss.backward()
        given.step()
        losses.append(float(loss.detach()))

    step()
    ours = jangin.train(model, "cross_entropy", given, (x, x.flip(0)), threads=1)
    for name in ("words.*", "last.*"):
        jangin.train(model, "cross_entropy", {name: "sgd"}, (x, x.flip(0)), threads=1)
    step(), step()
    assert [ours.step((x, x.flip(0))) for _ in range(2)] == pytest.approx(losses[1:], rel=1e-11)
