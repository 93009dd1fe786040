"""Train MLPerf Tiny's four networks (Banbury et al. 2021) by Jangin and by PyTorch, and compare the losses.

    pip install 'jangin[torch]'
    python examples/train_tiny.py [--steps 200] [--networks DS-CNN,ResNet-8,MobileNet,autoencoder] [--double]
    python examples/train_tiny.py --ways jangin,opencl,torch  # on an OpenCL device too

The pictures are Fashion-MNIST's, in each network's size, with their own labels. MobileNet tells footwear from
all else, and the autoencoder makes its 640 numbers again.

Adam trains them. With SGD at a rate of 0.01, MobileNet enlarges each rounding. PyTorch's own fifth loss in
float64 then moves by 0.8 % if the weights move by a share of 1e-14. `--double` trains in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from fashion import Batch, Trained, add_options, in_turns, mixed, pictures, resized
from torch import nn
from train_fashion import network

FOOTWEAR = 5, 7, 9
"""Sandals, sneakers and ankle boots."""
RATE = 1e-3
"""The rate of Adam, as MLPerf Tiny trains three of the networks."""
SPAN = 10
"""Steps whose mean loss is compared. Two runs of float32 differ more in a single batch."""


def separable(ins: int, outs: int, stride: int = 1) -> nn.Module:
    """Return a convolution of each channel, and one over channels (Howard et al. 2017)."""
    return nn.Sequential(
        nn.Conv2d(ins, ins, 3, stride, 1, groups=ins, bias=False), nn.BatchNorm2d(ins), nn.ReLU(),
        nn.Conv2d(ins, outs, 1, bias=False), nn.BatchNorm2d(outs), nn.ReLU(),
    )  # fmt: skip


def spotter() -> nn.Module:
    """Return DS-CNN, which finds keywords in 49 x 10 features."""
    first = nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(64), nn.ReLU()
    layers = (separable(64, 64) for _ in range(4))
    return nn.Sequential(*first, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


def mobile() -> nn.Module:
    """Return MobileNet of a quarter's width for pictures of 96 x 96."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    plan = (16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *((128, 1),) * 5, (256, 2), (256, 1)
    ins = 8
    for outs, stride in plan:
        layers.append(separable(ins, outs, stride))
        ins = outs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 2))


def autoencoder() -> nn.Module:
    """Return the network that finds anomalies in 640 numbers."""
    widths = 640, 128, 128, 128, 128, 8, 128, 128, 128, 128
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), nn.BatchNorm1d(outs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640))


def examples(name: str, data: Batch) -> Batch:
    """Return the pictures as a network reads them, with its targets."""
    x, labels = data
    if name == "DS-CNN":
        return resized(x, (49, 10)), labels
    if name == "ResNet-8":
        return resized(x, (32, 32), 3), labels
    if name == "MobileNet":
        return resized(x, (96, 96), 3), sum(labels == kind for kind in FOOTWEAR).long()
    numbers = x.flatten(1)[:, 72:712].contiguous()  # the middle rows
    return numbers, numbers


NETWORKS = {
    "DS-CNN": spotter, "ResNet-8": lambda: network(channels=3), "MobileNet": mobile,
    "autoencoder": autoencoder,
}  # fmt: skip


def main(given: Sequence[str] | None = None) -> dict[str, list[Trained]]:
    """Train, and return each network's runs. The last run is the one with which the others are compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--double", action="store_true", help="train in float64")
    add_options(parser)
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    dtype = torch.float64 if asked.double else torch.float32
    (x, labels), runs = pictures("train", 2000), {}
    for name in asked.networks.split(","):
        own = examples(name, (x.to(dtype), labels))
        epochs = -(-asked.steps // (len(own[0]) // asked.batch))
        batches = [*mixed(own, asked.batch, epochs)][: asked.steps]
        runs[name] = [start(way, name, dtype, batches) for way in asked.ways.split(",")]
        in_turns(runs[name], batches)
        *others, last = runs[name]
        for run in others:
            first, final, apart = compared(run, last)
            print(f"{name}, {run.way}: from {first:.4f} to {final:.4f}, {apart:.2%} from {last.way}'s; {run}")
    return runs


def start(way: str, name: str, dtype: torch.dtype, batches: Sequence[Batch]) -> Trained:
    """Return a network that a way will train with the batches."""
    torch.manual_seed(0)
    model = NETWORKS[name]().to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    loss = "mse" if name == "autoencoder" else "cross_entropy"
    return Trained(way, model, optimizer, batches[0], len(batches), loss)


def compared(run: Trained, other: Trained) -> tuple[float, float, float]:
    """Return the mean losses of the run's first and last steps, and the largest difference from the other's
    curve as a share."""
    ours, theirs = (np.convolve(r.losses, np.ones(SPAN) / SPAN, "valid") for r in (run, other))
    return float(ours[0]), float(ours[-1]), float((np.abs(ours - theirs) / theirs).max())


if __name__ == "__main__":
    main()
