"""`torch.compile` with Jangin trains: PyTorch's losses, gradients and changed buffers."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import ddp_worker
import torch
import training_models
from torch import nn

import jangin
from jangin import torch_backend
from jangin.frontends.torch.openmp import lender
from jangin.frontends.torch.tensors import _ByAddress
from jangin.frontends.torch.trace import traced_graph
from jangin.ir.errors import CompileError
from jangin.torch_backend import backend

F = nn.functional
ROUNDING = 1e-5
"""The largest difference of two losses, as a share. Float32 sums of up to some thousand products are taken in
another order, and small differences of weights grow from step to step."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch_backend, "_SAID", set())
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Dropout(0.3), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8), nn.GELU(), nn.AvgPool2d(2),
        nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.layer.self_attn.dropout = 0.0  # so that attention is PyTorch's fused operator
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        y = self.layer(F.dropout(F.dropout(self.words(x), 0.2), 0.2))  # equal masks only by chance
        return self.head(y.mean(1))


def images(step: int) -> tuple[Any, Any]:
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 16, 16, generator=drawn), torch.randint(0, 5, (4,), generator=drawn)


def tokens(step: int) -> tuple[Any, Any]:
    drawn = torch.Generator().manual_seed(step)
    return torch.randint(0, 50, (4, 8), generator=drawn), torch.randint(0, 5, (4,), generator=drawn)


def trained(make: Any, batch: Any, compiled: bool, steps: int = 20) -> tuple[list[float], Any]:
    """Train a new model. Return the losses and the model."""
    torch.manual_seed(0)
    net = make().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    run: Any = torch.compile(net, backend=backend) if compiled else net
    torch.manual_seed(1)
    found = []
    for step in range(steps):
        x, wanted = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x), wanted)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, net


@pytest.mark.parametrize(("make", "batch"), [(convolutions, images), (Transformer, tokens)])
def test_training_follows_eager(make: Any, batch: Any) -> None:
    """Losses are eager's, dropout included, and so are batch normalization's statistics. Everything is
    compiled."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mine, net = trained(make, batch, True)
    theirs, wanted = trained(make, batch, False)
    assert mine == pytest.approx(theirs, rel=ROUNDING)
    for name, tensor in net.state_dict().items():
        if "running" in name or "num_batches" in name:
            torch.testing.assert_close(tensor, wanted.state_dict()[name], rtol=ROUNDING, atol=ROUNDING)
    assert not [w for w in told if "jangin" in str(w.message)]
    assert len({*mine}) == len(mine), "nothing was trained"


OPERATORS = {
    "convolution": lambda x, w: F.conv2d(x, w[:, :2], w[:, 0, 0, 0], 2, 1, (1, 2), 2),
    "transposed": lambda x, w: F.conv_transpose2d(x, w[:4], None, 2, 1, 1, 2),
    "one axis": lambda x, w: F.conv1d(x[0, :, 0], w[:, :, 0], padding=1),
    "means": lambda x, w: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "shares": lambda x, w: F.avg_pool2d(x, 3, 2, divisor_override=7),
    "means of boxes": lambda x, w: F.avg_pool3d(x, 2, 1, 1),
    "adaptive": lambda x, w: F.adaptive_avg_pool2d(x, (4, 3)) + F.adaptive_avg_pool2d(x, 1),
    "adaptive boxes": lambda x, w: F.adaptive_avg_pool3d(x, (3, 4, 5)),
    "maxima": lambda x, w: F.max_pool2d(x, 3, 2, 1),
    "maxima of boxes": lambda x, w: F.max_pool3d(x, 3, 2, 1),
    "adaptive maxima": lambda x, w: F.adaptive_max_pool2d(x, (4, 3)),
    "edges": lambda x, w: F.pad(x, (1, 2, 3, 0), mode="replicate"),
    "reflected": lambda x, w: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "nearest": lambda x, w: F.interpolate(x, scale_factor=2),
    "linear": lambda x, w: F.interpolate(x, (9, 5), mode="bilinear"),
    "cubic": lambda x, w: F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True),
    "grid": lambda x, w: F.grid_sample(x, w[:3, :, :, :2].tanh(), align_corners=False),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x * 2, x + w.sum(), is_causal=True),
    "masked": lambda x, w: F.scaled_dot_product_attention(x, x * 2, x, (x < 1).detach()),
    "dropout": lambda x, w: F.dropout(x.transpose(1, 2), 0.4) + F.alpha_dropout(x, 0.3).transpose(1, 2),
    "norms": lambda x, w: F.group_norm(F.layer_norm(x, x.shape[2:]), 2, w[0, :, 0, 0], w[1, :, 0, 0]),
    "windows": lambda x, w: x.unfold(2, 3, 2).square() * w.sum(),
    "looked up": lambda x, w: F.embedding(torch.tensor([3, 1, 3]), w.flatten(1)) * x.mean(),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of(name: str) -> None:
    """Gradients of operators are eager's, and Jangin's kernels compute them."""
    function: Any = OPERATORS[name]
    torch.manual_seed(0)
    x, w = torch.randn(3, 4, 6, 6), torch.randn(6, 4, 3, 3)
    found = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for run in (function, torch.compile(function, backend=backend)):
            given = [t.clone().requires_grad_() for t in (x, w)]
            torch.manual_seed(1)
            y = run(*given)
            y.square().sum().backward()
            found.append([y.detach(), *(t.grad for t in given if t.grad is not None)])
    assert not [w for w in told if "jangin" in str(w.message)]
    for got, wanted in zip(*found[::-1], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(3, 5), (1, 1), (40, 50)])
@pytest.mark.parametrize("name", ["upsample_nearest2d", "upsample_bilinear2d", "_upsample_nearest_exact2d"])
def test_gradients_of_resizings_that_are_called_directly(name: str, size: tuple[int, int]) -> None:
    """Small ones were 0, because an image of known numbers stood for the operand."""
    corners = [False] if "linear" in name else []

    def function(g: Any) -> Any:
        return getattr(torch.ops.aten, f"{name}_backward")(g, [6, 12], [2, 3, *size], *corners)

    torch.manual_seed(0)
    g = torch.randn(2, 3, 6, 12)
    torch.testing.assert_close(torch.compile(function, backend=backend)(g), function(g), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:jangin leaves")  # PyTorch makes the gradient of sums
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_gradients_of_bags(mode: str) -> None:
    """PyTorch's backward operators read what the compiled forward graph keeps: bags, sizes and places."""

    def function(w: Any) -> Any:
        return F.embedding_bag(torch.tensor([[3, 1], [3, 0]]), w, mode=mode)

    torch.manual_seed(0)
    given, found = torch.randn(4, 6), []
    for run in (function, torch.compile(function, backend=backend)):
        w = given.clone().requires_grad_()
        run(w).square().sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """With `DistributedDataParallel`, two processes with half a batch each give one process's parameters."""
    command = [sys.executable, ddp_worker.__file__]
    meeting, result = tmp_path / "meeting", tmp_path / "trained.pt"
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    started = [
        subprocess.Popen(
            [*command, str(rank), str(meeting), str(result)], env=around, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert not any("jangin leaves" in text for text in said), said
    net = ddp_worker.module()
    ddp_worker.trained(net, net.parameters(), slice(None))
    torch.testing.assert_close(torch.load(result), net.state_dict(), rtol=ROUNDING, atol=ROUNDING)


def test_training_runs_on_pytorchs_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward and the backward graph take the threads of PyTorch's OpenMP library, and inference the
    model's own. Graphs for another number of threads than PyTorch's take their own too."""
    lent: list[Any] = []
    original = torch_backend.on_tensors

    def seen(executable: Any, lender: Any = None) -> Any:
        lent.append(lender)
        return original(executable, lender)

    monkeypatch.setattr(torch_backend, "on_tensors", seen)
    count, net, x = torch.get_num_threads(), nn.Linear(6, 5), torch.randn(4, 6)
    torch.compile(net, backend=backend)(x).sum().backward()
    assert lent == [lender(), lender()]
    assert not torch.backends.openmp.is_available() or lender() is not None
    torch.compile(net, backend=backend, options={"threads": count + 1})(x).sum().backward()
    with torch.no_grad():
        torch.compile(net, backend=backend)(x)
    assert lent[2:] == [None, None, None]


def test_the_number_of_threads_may_change_between_the_passes() -> None:
    """Gradients are the same to the bit, whatever PyTorch's number of threads is when each graph runs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    x, before, found = torch.randn(48, 64), torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        run = torch.compile(net, backend=backend)
        for count in (2, 1, 3, 8, 2):
            loss = run(x).square().sum()
            torch.set_num_threads(count)
            found.append(torch.autograd.grad(loss, [*net.parameters()]))
            torch.set_num_threads(2)
    finally:
        torch.set_num_threads(before)
    wanted = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(a, b) for other in found for a, b in zip(other, found[0], strict=True))


def test_parameters_that_change_again_become_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A validation between epochs doesn't compile the graph each time. Its results are those of the present
    parameters."""
    made, original = [], jangin.compile
    monkeypatch.setattr(
        jangin, "compile", lambda model, **given: made.append(model) or original(model, **given)
    )
    net, x = nn.Linear(6, 5), torch.randn(4, 6)
    run = torch.compile(net, backend=backend)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(run(x), net(x))
            net.weight.add_(1)
    assert len(made) == 3


def test_saved_images_lie_as_kernels_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward graph reads images channels-last without a copy. The program's own results are row-major."""
    read: list[Any] = []
    call = _ByAddress.__call__
    monkeypatch.setattr(_ByAddress, "__call__", lambda self, given: read.append(given) or call(self, given))
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1), nn.Sigmoid()
    )
    x, found = torch.randn(2, 3, 9, 9), []
    for run in (torch.compile(net, backend=backend), net):
        y = run(x)
        assert y.is_contiguous()
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), [*net.parameters()])))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    images = [t for given in read[1:] for t in given if t.dim() == 4]
    assert sum(t.shape in ((2, 7, 7, 8), (2, 7, 7, 6)) for t in images) > 1
    assert all(t.is_contiguous() for t in images)


@pytest.mark.filterwarnings("ignore:jangin leaves")
def test_pytorch_reads_what_lies_channels_last() -> None:
    """PyTorch runs the backward graph's refused operators, and views need the traced strides."""

    def function(x: Any, w: Any) -> Any:
        y = F.relu(F.conv2d(x, w))
        return torch.cumprod(y.flatten(1)[:, :9] + 2, 1) * torch.fft.rfft(y.flatten(1)).abs().sum()

    torch.manual_seed(0)
    x, w, found = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), []
    for run in (torch.compile(function, backend=backend), function):
        given = [t.clone().requires_grad_() for t in (x, w)]
        run(*given).sum().backward()
        found.append([t.grad for t in given])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-2)


def test_a_write_isnt_dropped() -> None:
    """A graph that writes to its input, without being made functional, is refused instead of compiled
    without the write."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    for node in (x, y):
        node.meta["val"] = torch.ones(3)
    written = graph.call_function(torch.ops.aten.copy_.default, (x, y))
    doubled = graph.call_function(torch.ops.aten.add.Tensor, (y, y))
    written.meta["val"] = doubled.meta["val"] = torch.ones(3)
    graph.output((doubled,))
    with pytest.raises(CompileError, match=r"copy_.*writes to its operand"):
        traced_graph(graph, {})


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other. On a busy machine several take many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", training_models.MODELS)
def test_models_train(name: str) -> None:
    """Models of pytorchcv and transformers have eager's losses in 20 steps.

    The vision models train in float64. Their normalizations enlarge each rounding: eager's own losses of
    MobileNetV2 in float32 move by 2.8 % if all weights move by a share of 1e-7."""
    pytest.importorskip("pytorchcv", reason="pytorchcv isn't installed: it has the vision models")
    pytest.importorskip("transformers", reason="transformers isn't installed: it has the language models")
    precise = name in training_models.VISION
    mine, theirs = (_losses(name, compiled, precise) for compiled in (True, False))
    assert mine == pytest.approx(theirs, rel=10 * ROUNDING)


def _losses(name: str, compiled: bool, precise: bool) -> list[float]:
    """Return the losses of 20 steps of a model, compiled or not. `precise`: in float64."""
    model, batch, loss = training_models.training(name, small=True)
    if precise:
        model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    run: Any = torch.compile(model, backend=backend) if compiled else model
    torch.manual_seed(1)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        given = batch(step)
        if precise:
            given = {n: x.double() if x.is_floating_point() else x for n, x in given.items()}
        made = loss(run, **given)
        made.backward()
        optimizer.step()
        losses.append(made.item())
    return losses


@pytest.mark.sampled(3)
def test_batches_of_other_sizes_train() -> None:
    """The last batch of an epoch is often smaller. PyTorch then makes the size a symbol."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, 3)
    )
    run = torch.compile(net, backend=backend)
    for count in (4, 3, 5):
        x = torch.randn(count, 2, 8, 8)
        found = []
        for function in (net, run):
            torch.manual_seed(count)
            found.append(torch.autograd.grad(function(x).square().mean(), [*net.parameters()]))
        for wanted, got in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
