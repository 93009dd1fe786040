"""Steps of training on an NVIDIA GPU: their losses beside the processor's, and their times beside
torch.compile's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from cuda_peers import Row, module, run_seconds, torch_with_cuda
from cuda_place import Place, Prepared
from gpu_networks import NETWORKS, SEED

import jangin
from jangin.training.trainer import parsed_optimizer

STEPS = 3
"""The steps whose losses are compared."""
RATE = 0.01


def network(name: str, batch: int, small: bool) -> tuple[onnx.ModelProto, tuple[np.ndarray, np.ndarray]]:
    """Return one of two networks, and a random input with a target. Small ones have one layer, or few
    pixels."""
    random, side = np.random.default_rng(SEED), 32 if small else 224
    rows, width = (8, 64) if small else (128, 768)
    if name == "bert":
        model = NETWORKS[name]("float32", batch, rows, layers=1 if small else 12, width=width)
        shapes = [(batch, rows, width)] * 2
    else:
        model = NETWORKS[name]("float32", batch, size=side)
        shapes = [(batch, 3, side, side), (batch, 1000)]
    x, y = (random.standard_normal(shape, np.float32) for shape in shapes)
    return model, (x, y)


def trainer(model: Any, target: str, batch: tuple[Any, Any]) -> Any:
    named = ["*"] if isinstance(model, onnx.ModelProto) else None
    change = parsed_optimizer(f"sgd:lr={RATE}")
    return jangin.train(model, "mse", change, batch, trainable=named, target=target)


def training_error(on: Place, name: str, small: bool) -> Row:
    """Return the largest relative difference of the first losses from the processor's. Steps aren't kept
    in the folder of kernels."""
    if on.prepares:
        raise Prepared
    model, batch = network(name, 2, small)
    got, want = (
        np.array([made.step(batch) for _ in range(STEPS)])
        for made in (trainer(model, target, batch) for target in (on.target, "cpu"))
    )
    return {"error": float(np.abs(got / want - 1).max()), "steps": STEPS}


def training_time(on: Place, name: str, batch: int, small: bool) -> Row:
    """Measure a step of training: forward, backward and update. The batch and the parameters come from the
    host. PyTorch, if it is here, trains the same module, by torch.compile with its batch on the device."""
    if on.prepares:
        raise Prepared
    torch = torch_with_cuda()
    if torch is None:
        model, example = network(name, batch, small)
        made = trainer(model, on.target, example)
        return {"step": run_seconds(lambda: made.step(example)), "absent": "PyTorch with CUDA"}
    try:
        net, x = module(torch, name, batch, small)
    except ImportError as error:
        return {"absent": str(error)}
    for part in net.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    whole = _of_one_result(torch, net)
    y = torch.randn_like(whole(x))
    made = trainer(whole, on.target, (x, y))
    ours = run_seconds(lambda: made.step((x, y)))
    theirs = _compiled_step(torch, whole.cuda(), x.cuda(), y.cuda())
    return {"step": ours, "torch.compile": theirs, "of torch.compile": theirs / ours}


def _of_one_result(torch: Any, net: Any) -> Any:
    """Return a module whose result is one tensor: the network's first."""

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            y = self.net(x)
            return getattr(y, "last_hidden_state", y)

    return First()


def _compiled_step(torch: Any, net: Any, x: Any, y: Any) -> float:
    run, change = torch.compile(net), torch.optim.SGD(net.parameters(), lr=RATE)

    def step() -> None:
        change.zero_grad()
        torch.nn.functional.mse_loss(run(x), y).backward()
        change.step()
        torch.cuda.synchronize()

    return run_seconds(step)
