"""Fashion-MNIST (Xiao et al. 2017) from Debian's package, and training on it by Jangin or by PyTorch."""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from packages import debian
from torch.nn import functional as F

import jangin

Batch = tuple[torch.Tensor, torch.Tensor]


def pictures(part: str, count: int) -> Batch:
    """Return the first pictures [count, 1, 28, 28] in 0..1 of "train" or "t10k", and their labels 0..9.

    Raises OSError if the package can't be fetched."""
    folder = debian("dataset-fashion-mnist") / "usr" / "share" / "datasets" / "fashion-mnist"
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / f"{part}-{kind}-ubyte.gz").read_bytes()), np.uint8, -1, skip)
        for kind, skip in (("images-idx3", 16), ("labels-idx1", 8))
    )
    x = pixels.reshape(-1, 1, 28, 28)[:count].astype(np.float32) / 255
    return torch.from_numpy(x), torch.from_numpy(labels[:count].astype(np.int64))


def resized(x: torch.Tensor, size: tuple[int, int], channels: int = 1) -> torch.Tensor:
    """Return grey pictures in another size, in -1..1, with equal channels."""
    wide = F.interpolate(x, size, mode="bilinear", align_corners=False) * 2 - 1
    return wide.expand(-1, channels, -1, -1).contiguous()


def mixed(data: Batch, size: int, epochs: int, seed: int = 0) -> Iterator[Batch]:
    """Yield batches of `size` examples, in another order in each epoch."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(data[0])))
        for at in order[: len(order) // size * size].split(size):
            yield data[0][at], data[1][at]


class Trained:
    """The losses and the median seconds of steps that have trained a module in place.

    The first step compiles, and its seconds are `compiled`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        batches: list[Batch],
        by_torch: bool,
        loss: str = "cross_entropy",
    ) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        self.losses: list[float] = []
        seconds: list[float] = []
        begin = time.perf_counter()
        trainer = None if by_torch else jangin.train(model.train(), loss, optimizer, batches[0])
        self.compiled = time.perf_counter() - begin
        for n, (x, target) in enumerate(batches):
            share = 0.5 + 0.5 * math.cos(math.pi * n / len(batches))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share  # the trainer reads it too
            begin = time.perf_counter()
            if trainer is None:
                optimizer.zero_grad()
                value = LOSSES[loss](model.train()(x), target)
                value.backward()
                optimizer.step()
                self.losses.append(value.item())
            else:
                self.losses.append(trainer.step((x, target)))
            seconds.append(time.perf_counter() - begin)
        self.step = float(np.median(seconds))
        if trainer is not None:
            model.load_state_dict({n: torch.from_numpy(a) for n, a in trainer.state_dict().items()})


LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


def accuracy(model: torch.nn.Module, data: Batch) -> float:
    """Return the share of pictures that a module recognises."""
    with torch.no_grad():
        found = torch.cat([model.eval()(x).argmax(1) for x in data[0].split(100)])
    return (found == data[1]).double().mean().item()
