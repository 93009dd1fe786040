"""Compiled training steps follow PyTorch's, step by step."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch.nn import functional as F
from training_cases import batch, onnx_model

import jangin
from jangin import optim
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import const
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.training import losses

STEPS = 20
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
"""Losses after 20 steps in float32, whose sums are in another order; errors grow from step to step."""


def layers(last: int = 4) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, last))


def followed(
    model: nn.Module, loss: Any, by_torch: Callable[..., Any], optimizer: Any, of_torch: Any, given: Any,
    steps: int = STEPS, **settings: Any,
) -> Any:  # fmt: skip
    """A trainer after some steps, whose losses were those of PyTorch."""
    own = copy.deepcopy(model)
    trainer = jangin.train(model, loss, optimizer, given, threads=1, **settings)
    running = of_torch(own.parameters())
    *inputs, target = given
    for n in range(steps):
        expected = by_torch(own(*inputs), target)
        running.zero_grad()
        expected.backward()
        if "clip_norm" in settings:
            nn.utils.clip_grad_norm_(own.parameters(), settings["clip_norm"])
        if "clip_value" in settings:
            nn.utils.clip_grad_value_(own.parameters(), settings["clip_value"])
        running.step()
        np.testing.assert_allclose(trainer.step(given), expected.item(), **CLOSE, err_msg=f"step {n}")
    state = own.state_dict()
    assert trainer.state_dict().keys() == state.keys()
    for name, array in trainer.state_dict().items():
        np.testing.assert_allclose(array, state[name].numpy(), 1e-4, 2e-5, err_msg=name)
    return trainer


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)  # a compilation each


LOSSES: dict[str, tuple[Any, Any, str]] = {
    "cross_entropy": ("cross_entropy", F.cross_entropy, "labels"),
    "mse": ("mse", F.mse_loss, "numbers"),
    "l1": ("l1", F.l1_loss, "numbers"),
    "huber": ("huber", F.huber_loss, "numbers"),
    "bce_with_logits": ("bce_with_logits", F.binary_cross_entropy_with_logits, "truth"),
    "bce of integers": (
        "bce_with_logits", lambda y, t: F.binary_cross_entropy_with_logits(y, t.float()), "integers"
    ),
    "a torch loss": (F.smooth_l1_loss, F.smooth_l1_loss, "numbers"),
    "a torch module": (nn.CrossEntropyLoss(label_smoothing=0.2),) * 2 + ("labels",),
}  # fmt: skip


@pytest.mark.parametrize("case", ["cross_entropy", *(slow(n) for n in LOSSES if n != "cross_entropy")])
def test_losses(case: str) -> None:
    loss, by_torch, kind = LOSSES[case]
    rate = optim.SGD(lr=0.1)
    followed(layers(), loss, by_torch, rate, lambda p: torch.optim.SGD(p, lr=0.1), batch(kind))


@pytest.mark.parametrize("loss", [slow("nll"), slow("kl")])
def test_losses_of_logarithms(loss: str) -> None:
    by_torch = {"nll": F.nll_loss, "kl": lambda y, t: F.kl_div(y, t, reduction="batchmean")}[loss]
    model = nn.Sequential(layers(), nn.LogSoftmax(-1))
    given = batch("labels" if loss == "nll" else "chances")
    followed(model, loss, by_torch, optim.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1), given)


def test_smoothing_and_ignored_labels() -> None:
    settings = {"label_smoothing": 0.1, "ignore_index": 3}
    own = partial(losses.BY_NAME["cross_entropy"], smoothing=0.1, ignored=3)
    x, labels = batch("labels")
    logits, labels = layers()(x).detach(), labels.clamp(min=0)
    b = Builder("loss", {})
    y = b.input("y", F32, (const(5), const(4)))
    graph = b.graph([own(b, y, b.input("t", I64, (const(5),)))], ["loss"])
    found = run_graph(graph, {"y": logits.numpy(), "t": labels.numpy()})
    np.testing.assert_allclose(found["loss"], F.cross_entropy(logits, labels, **settings).item(), 1e-6)


class Lion(torch.optim.Optimizer):  # type: ignore[misc]
    """Lion follows Chen et al. (2023), because PyTorch has no Lion to compare with."""

    def __init__(self, params: Any, lr: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                way = (m * 0.9 + p.grad * 0.1).sign()
                p.mul_(1 - group["lr"] * group["decay"]).sub_(way * group["lr"])
                m.mul_(0.99).add_(p.grad * 0.01)


OPTIMIZERS: dict[str, tuple[optim.Optimizer, Callable[[Any], Any]]] = {
    "momentum": (optim.SGD(0.05, 0.9, 0.1, 0.01), lambda p: torch.optim.SGD(p, 0.05, 0.9, 0.1, 0.01)),
    "nesterov": (optim.SGD(0.05, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True)),
    "adam": (optim.Adam(0.01, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
    "adamw": (optim.AdamW(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
    "adagrad": (
        optim.Adagrad(0.05, 0.1, 0.01, 0.5), lambda p: torch.optim.Adagrad(p, 0.05, 0.1, 0.01, 0.5)
    ),
    "rmsprop": (
        optim.RMSprop(0.01, weight_decay=0.1), lambda p: torch.optim.RMSprop(p, 0.01, weight_decay=0.1)
    ),
    "rmsprop centred": (
        optim.RMSprop(0.01, 0.9, momentum=0.5, centered=True),
        lambda p: torch.optim.RMSprop(p, 0.01, 0.9, momentum=0.5, centered=True),
    ),
    "lion": (optim.Lion(0.01, weight_decay=0.1), lambda p: Lion(p, 0.01, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("case", [slow(n) for n in OPTIMIZERS])
def test_optimizers(case: str) -> None:
    optimizer, of_torch = OPTIMIZERS[case]
    followed(layers(), "mse", F.mse_loss, optimizer, of_torch, batch("numbers"))


@pytest.mark.parametrize("limit", [slow({"clip_norm": 0.1}), slow({"clip_value": 0.01})])
def test_clipping(limit: dict[str, float]) -> None:
    given = batch("numbers")
    followed(
        layers(), "mse", F.mse_loss, optim.SGD(0.5), lambda p: torch.optim.SGD(p, 0.5), given, **limit
    )  # fmt: skip


class Convolutional(nn.Module):
    """Running statistics, windows, groups, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Conv2d(2, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.again = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.last, self.tied = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.last.weight

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2, 1)
        x = F.gelu(self.again(x)).mean((2, 3))
        return self.tied(torch.tanh(self.last(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.cells, self.last = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.cells(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.words, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.words(x))
        return self.last((y + self.attention(y, y, y, need_weights=False)[0]).mean(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "convolutional": (Convolutional, lambda: torch.randn(5, 2, 8, 8)),
    "recurrent": (Recurrent, lambda: torch.randn(5, 4, 3)),
    "attending": (Attending, lambda: torch.randint(0, 11, (5, 6))),
}


@pytest.mark.parametrize("case", [slow(n) for n in MODELS])
def test_models(case: str) -> None:
    """Losses, parameters and running statistics after some steps, and the loss in evaluation mode."""
    make, draw = MODELS[case]
    torch.manual_seed(6)
    model, given = make().train(), (draw(), torch.tensor([0, 3, 1, 1, 2]))
    trainer = followed(
        model, F.cross_entropy, F.cross_entropy, optim.SGD(0.05, 0.9),
        lambda p: torch.optim.SGD(p, 0.05, 0.9), given, steps=8,
    )  # fmt: skip
    state = {n: torch.from_numpy(a) for n, a in trainer.state_dict().items()}
    model.load_state_dict(state)
    expected = F.cross_entropy(model.eval()(given[0]), given[1]).item()
    assert trainer.evaluate(given) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow  # a compilation
def test_an_optimizer_of_torch_is_taken_over() -> None:
    """With its groups, after steps that it has made, and with its schedule."""
    given, model = batch("numbers"), layers()
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}]
    running = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(running, 0.8)

    def step() -> float:
        loss = F.mse_loss(model(given[0]), given[1])
        running.zero_grad()
        loss.backward()
        running.step()
        return float(loss.detach())

    for _ in range(3):
        step()
        schedule.step()
    trainer = jangin.train(model, "mse", running, given, threads=1)
    for _ in range(6):
        assert trainer.step(given) == pytest.approx(step(), rel=2e-5)
        schedule.step()


def test_state_is_saved_and_taken_up(tmp_path: Path) -> None:
    given, path = batch("numbers"), tmp_path / "state.npz"
    trainer = jangin.train(layers(), "mse", optim.Adam(0.05), given, threads=1)
    for _ in range(3):
        trainer.step(given)
    trainer.save(path)
    after = [trainer.step(given) for _ in range(3)]
    trainer.load(path)
    assert trainer.count == 3 and [trainer.step(given) for _ in range(3)] == after
    trainer.lr = 0.0
    before = trainer.state_dict()
    trainer.step(given)
    assert all((before[n] == a).all() for n, a in trainer.state_dict().items())
    with pytest.raises(ValueError, match=r"0\.weight has shape"):
        trainer.load_state_dict({**before, "0.weight": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"0\.weight is of complex64, which can't become float32"):
        trainer.load_state_dict({**before, "0.weight": before["0.weight"].astype(np.complex64)})
    with pytest.raises(ValueError, match=r"lacks the array 0\.weight"):
        trainer.load_state_dict({})
    with pytest.raises(ValueError, match="2 arrays, as the example had, not 1"):
        trainer.step(given[:1])
    with pytest.raises(ValueError, match="shape"):
        trainer.step((torch.randn(7, 6), given[1]))
    with pytest.raises(TypeError, match="is float64, and the example's is float32"):
        trainer.step((given[0].double(), given[1]))


def test_values_and_gradients() -> None:
    """Frozen parameters have no gradient, nor has what a module detaches."""

    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.frozen = (
                nn.Parameter(torch.tensor([1.0, 2.0])),
                nn.Parameter(torch.tensor([3.0, 4.0])),
            )
            self.frozen.requires_grad = False

        def forward(self, x: Any) -> Any:
            return (self.w * self.w.detach() * self.frozen * x).sum()

    f = jangin.value_and_grad(Detached(), None, example=(torch.ones(2),), threads=1)
    assert list(f.parameters) == ["w"]
    loss, gradients = f(f.parameters, (torch.ones(2),))
    assert loss == 19.0
    np.testing.assert_allclose(gradients["w"], [3.0, 8.0])


class Padded(nn.Module):
    """An embedding whose row 2 gets no gradient by its lookups, but one by another way."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3, **settings)

    def forward(self, x: Any) -> Any:
        return (self.words(x).square().sum(1) + self.words.weight.mean(0)).square().mean()


def test_the_padding_of_an_embedding_has_no_gradient() -> None:
    torch.manual_seed(8)
    given, model = torch.tensor([[2, 1, 2], [0, 4, 4]]), Padded(padding_idx=2)
    f = jangin.value_and_grad(model, None, example=(given,), threads=1)
    _, found = f(f.parameters, (given,))
    model(given).backward()
    np.testing.assert_allclose(found["words.weight"], model.words.weight.grad, 1e-5, 1e-6)
    with pytest.raises(CompileError, match="scale_grad_by_freq"):
        jangin.value_and_grad(Padded(scale_grad_by_freq=True), None, example=(given,))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_embedding_learns_its_rows_alone(threads: int) -> None:
    """Words come several times, or not at all. Widths and counts fill no whole vectors."""
    torch.manual_seed(10)
    model = nn.Sequential(nn.Embedding(61, 37), nn.Flatten(0, 1), nn.Linear(37, 5))
    given, labels = torch.randint(0, 20, (3, 7)) * 3, torch.randint(0, 5, (21,))
    wanted = copy.deepcopy(model).double()
    ours = jangin.train(model, "cross_entropy", optim.SGD(0.5, 0.9), example=(given, labels), threads=threads)
    theirs = torch.optim.SGD(wanted.parameters(), 0.5, 0.9)
    for _ in range(3):
        ours.step((given, labels))
        theirs.zero_grad()
        F.cross_entropy(wanted(given), labels).backward()
        theirs.step()
    for name, value in wanted.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value, 1e-5, 2e-6)


class Regions(nn.Module):
    """Parts without gradients: a part of the result, and running means that a region changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        with torch.no_grad():
            self.mean.view(2, 2)[0].mul_(0.9).add_(y.mean(0)[:2])
            high, low = y.mul(4).round().div(4).split(2, 1)
        return (self.last(y - self.mean) * torch.cat([low, high], 1)).square().mean()


def test_regions_without_gradients() -> None:
    given, model = torch.randn(3, 4), Regions()
    f = jangin.value_and_grad(model, None, example=(given,), threads=1)
    for _ in range(2):
        loss, found = f(f.parameters, (given,))
        model.zero_grad()
        expected = model(given)
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        for name, p in model.named_parameters():
            np.testing.assert_allclose(found[name], p.grad, 1e-4, 1e-6, err_msg=name)


class Written(nn.Module):
    """Writes without gradients to anything but a buffer itself."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.layer, self.words, self.case = nn.Linear(4, 4), nn.Embedding(3, 4, max_norm=1.0), case
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if self.case == "embedding":
            return (y + self.words(torch.tensor([0, 1, 2]))).mean()
        if self.case == "detached":
            self.scale.detach().mul_(0.9)
            return (y * self.scale).mean()
        with torch.no_grad():
            (y.split(2, 1)[0] if self.case == "value" else self.layer.weight).clamp_(0)
        return self.layer(y).mean()


@pytest.mark.parametrize("case", ["embedding", "value", "weight", "detached"])
def test_other_writes_without_gradients_are_told(case: str) -> None:
    with pytest.raises(CompileError, match="only a buffer itself can be written so"):
        jangin.value_and_grad(Written(case), None, example=(torch.randn(3, 4),))


def test_dropout_is_drawn_anew_in_each_step() -> None:
    """With its chance and scale, the same numbers for the same seed, and everything in evaluation."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.drop = nn.Parameter(torch.ones(3, 1001)), nn.Dropout(0.25)

        def forward(self, x: Any) -> Any:
            return (self.drop(self.w) * x).sum()

    ones = (torch.ones(3, 1001),)
    runs = []
    for seed in (1, 1, 2):
        f = jangin.value_and_grad(Dropped().train(), None, example=ones, seed=seed, threads=1)
        runs.append([f(f.parameters, ones)[1]["w"] for _ in range(2)])
    kept = runs[0][0] != 0
    assert (runs[0][0][kept] == np.float32(1 / 0.75)).all() and 0.72 < kept.mean() < 0.78
    assert all((a == b).all() for a, b in zip(runs[0], runs[1], strict=True))
    different = [(runs[0][1] != 0), (runs[2][0] != 0)]
    assert all(0.3 < (kept != other).mean() < 0.45 for other in different)  # 2 * 0.25 * 0.75 of all
    trainer = jangin.train(Dropped().train(), None, "sgd", ones, threads=1)
    assert trainer.evaluate(ones) == 3003.0


class Many(nn.Module):
    """A layer of a transformer, and recurrent ones, with dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)
        self.cells = nn.GRU(6, 4, 2, batch_first=True, dropout=0.4)

    def forward(self, x: Any) -> Any:
        return self.cells(self.layer(x))[0].square().mean()


@pytest.mark.slow  # a compilation
def test_dropout_inside_of_layers() -> None:
    """Losses scatter about PyTorch's mean: that of 40 runs within four of its deviations."""
    given = (torch.randn(4, 5, 6),)
    model = Many().train()
    f = jangin.value_and_grad(model, None, example=given, threads=1)
    ours = np.array([f(f.parameters, given)[0] for _ in range(40)])
    theirs = np.array([model(*given).item() for _ in range(400)])
    assert len(set(ours)) == 40
    assert abs(ours.mean() - theirs.mean()) < 4 * theirs.std() / np.sqrt(40)
    assert 0.5 < ours.std() / theirs.std() < 2


def test_what_cant_be_trained_is_said() -> None:
    given = batch("numbers")
    with pytest.raises(CompileError, match="is none of cross_entropy"):
        jangin.train(layers(), "mean", "sgd", given)
    with pytest.raises(CompileError, match="is none of sgd"):
        jangin.train(layers(), "mse", "sdg", given)
    with pytest.raises(CompileError, match=r"none of the parameters 0\.weight"):
        jangin.train(layers(), "mse", "sgd", given, trainable=["first.*"])
    with pytest.raises(CompileError, match="must be a single float"):
        jangin.train(layers(), None, "sgd", given[:1])
    with pytest.raises(CompileError, match="amsgrad can't be taken over"):
        model = layers()
        jangin.train(model, "mse", torch.optim.Adam(model.parameters(), amsgrad=True), given)


def test_the_guide_s_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "guides" / "train.md"
    examples = re.findall(r"```python\n(.*?)```", guide.read_text(), re.S)
    (code,) = [c for c in examples if "jangin.train(" in c]
    x, labels = batch("labels")
    module = layers()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"jangin": jangin, "torch": torch, "module": module, "x": x, "labels": labels}
    exec(code, names)
    names["trainer"].load("state.npz")
    assert names["loss"] == pytest.approx(F.cross_entropy(layers()(x), labels).item(), rel=1e-5)
    assert all((t != before[n]).any() for n, t in module.state_dict().items())


def test_a_model_of_another_format() -> None:
    model, w, c = onnx_model()
    x, target = batch("numbers")
    given = (x.numpy(), target.numpy())
    with pytest.raises(CompileError, match=r"trainable=\[\.\.\.\] of w, c"):
        jangin.train(model, "mse", "sgd", given)
    trainer = jangin.train(model, "mse", optim.SGD(0.1), given, trainable=["w"], threads=1)
    own, bias = torch.tensor(w, requires_grad=True), torch.tensor(c)
    for _ in range(3):
        loss = F.mse_loss(F.relu(x @ own + bias), target)
        (g,) = torch.autograd.grad(loss, [own])
        own = (own - 0.1 * g).detach().requires_grad_()
        assert trainer.step(given) == pytest.approx(loss.item(), rel=1e-5)
    assert list(trainer.state_dict()) == ["w"]
    np.testing.assert_allclose(trainer.state_dict()["w"], own.detach().numpy(), 1e-5, 1e-6)
