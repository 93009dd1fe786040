"""Steps of training on an NVIDIA GPU: their losses beside the processor's, and their times beside
torch.compile's."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from cuda_onnx import torch_module
from cuda_peers import Row, run_seconds, torch_with_cuda
from cuda_place import Place, Prepared
from gpu_networks import NETWORKS, SEED

import jangin
from jangin.runtime.device import LoadError
from jangin.training.texts import parsed_optimizer

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


def prepare(target: str, name: str, batch: int, small: bool) -> None:
    """Make a step's kernels, which the cache's folder keeps. The step can't be loaded here."""
    with suppress(LoadError):
        model, example = network(name, batch, small)
        trainer(model, target, example)
    raise Prepared


def training_error(on: Place, name: str, small: bool) -> Row:
    """Return the largest relative difference of the first losses from the processor's."""
    if on.prepares:
        prepare(on.target, name, 2, small)
    model, batch = network(name, 2, small)
    got, want = (
        np.array([made.step(batch) for _ in range(STEPS)])
        for made in (trainer(model, target, batch) for target in (on.target, "cpu"))
    )
    return {"error": float(np.abs(got / want - 1).max()), "steps": STEPS}


def training_time(on: Place, name: str, batch: int, small: bool) -> Row:
    """Measure a step of training: forward, backward and update. The batch and the parameters come from the
    host. PyTorch, if it is here, trains the same network by torch.compile, with all on the device."""
    if on.prepares:
        prepare(on.target, name, batch, small)
    model, (x, y) = network(name, batch, small)
    made = trainer(model, on.target, (x, y))
    row = {"step": run_seconds(lambda: made.step((x, y)))}
    torch = torch_with_cuda()
    if torch is None:
        return {**row, "absent": "PyTorch with CUDA"}
    net, _ = torch_module(torch, model)
    theirs = _compiled_step(torch, net.cuda(), *(torch.from_numpy(v).cuda() for v in (x, y)))
    return {**row, "torch.compile": theirs, "of torch.compile": theirs / row["step"]}


def _compiled_step(torch: Any, net: Any, x: Any, y: Any) -> float:
    run, change = torch.compile(net), torch.optim.SGD(net.parameters(), lr=RATE)

    def step() -> None:
        change.zero_grad()
        torch.nn.functional.mse_loss(run(x), y).backward()
        change.step()
        torch.cuda.synchronize()

    return run_seconds(step)
