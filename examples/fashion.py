"""Fashion-MNIST (Xiao et al. 2017) from Debian's package, and training on it by Jangin or by PyTorch."""

from __future__ import annotations

import argparse
import gzip
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all examples that train beside PyTorch."""
    parser.add_argument(
        "--ways", default="jangin,torch", help="jangin, torch, torch-channels-last, or targets"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each way")


def mixed(data: Batch, size: int, epochs: int, seed: int = 0) -> Iterator[Batch]:
    """Yield batches of `size` examples, in another order in each epoch."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(data[0])))
        for at in order[: len(order) // size * size].split(size):
            yield data[0][at], data[1][at]


class Trained:
    """A module in training: the losses of its steps, and their seconds.

    `way` is "torch" or "torch-channels-last" for PyTorch itself, or "jangin", or the target for which Jangin
    compiles the step.
    `rates` has a learning rate for each step. The first is that of the optimizer."""

    def __init__(
        self, way: str, model: torch.nn.Module, optimizer: Any, example: Batch, steps: int,
        loss: str = "cross_entropy",
    ) -> None:  # fmt: skip
        self.way, self.model, self.optimizer, self.loss = way, model.train(), optimizer, LOSSES[loss]
        (first,) = {group["lr"] for group in optimizer.param_groups}
        self.rates = [first * (0.5 + 0.5 * math.cos(math.pi * n / steps)) for n in range(steps)]
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.processor = 0.0
        begin, self.trainer = time.perf_counter(), None
        if way == "torch-channels-last":
            model.to(memory_format=torch.channels_last)
        elif way != "torch":
            target = None if way == "jangin" else way
            threads = torch.get_num_threads()
            self.trainer = jangin.train(self.model, loss, optimizer, example, target=target, threads=threads)
        self.compiled = time.perf_counter() - begin

    def train(self, batches: Iterable[Batch]) -> None:
        """Make a step with each batch."""
        began = time.process_time()
        for batch in batches:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rates[len(self.losses)]  # the trainer reads it too
            begin = time.perf_counter()
            self.losses.append(self._step(*batch) if self.trainer is None else self.trainer.step(batch))
            self.seconds.append(time.perf_counter() - begin)
        self.processor += time.process_time() - began

    def _step(self, x: torch.Tensor, target: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        value = self.loss(self.model(x), target)
        value.backward()
        self.optimizer.step()
        return value.item()

    def trained(self) -> torch.nn.Module:
        """Return the module with its trained weights."""
        if self.trainer is not None:
            state = {n: torch.from_numpy(a) for n, a in self.trainer.state_dict().items()}
            self.model.load_state_dict(state)
        return self.model

    def __str__(self) -> str:
        """Describe the steps: how many there were, and the median milliseconds of one."""
        step, processor = np.median(self.seconds), self.processor / len(self.seconds)
        return (
            f"{len(self.losses)} steps of {step * 1e3:.2f} ms ({processor * 1e3:.2f} ms of processor time), "
            f"{self.compiled:.1f} s to compile"
        )


def in_turns(runs: Sequence[Trained], batches: Iterable[Batch], turn: int = 20) -> None:
    """Train all with the same batches. Each makes `turn` steps, then the next, so that all meet the same
    phases of a busy machine."""
    rest = iter(batches)
    while part := [*islice(rest, turn)]:
        for run in runs:
            run.train(part)


LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


def accuracy(model: torch.nn.Module, data: Batch) -> float:
    """Return the share of pictures that a module recognises."""
    with torch.no_grad():
        guessed = torch.cat([model.eval()(x).argmax(1) for x in data[0].split(100)])
    return (guessed == data[1]).double().mean().item()
