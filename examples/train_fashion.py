"""Train a residual network of CIFAR's size on Fashion-MNIST, by Jangin and by PyTorch.

    pip install 'jangin[torch]'
    python examples/train_fashion.py [--epochs 5] [--pictures 60000] [--ways jangin,torch]

Both train in turns of a few steps, with the same batches. Says the accuracy on the test pictures, and the
time of a step. The data is Debian's dataset-fashion-mnist. `--ways` may name targets, such as opencl.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from fashion import Trained, accuracy, add_options, in_turns, mixed, pictures
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions with a way around them (He et al. 2016)."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = convolution(ins, outs, 3, stride), convolution(outs, outs, 3, 1)
        self.around = convolution(ins, outs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.around(x) + self.second(F.relu(self.first(x))))


def convolution(ins: int, outs: int, size: int, stride: int) -> nn.Module:
    made = nn.Conv2d(ins, outs, size, stride, size // 2, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outs))


def network(blocks: int = 1, channels: int = 1) -> nn.Module:
    """Return a network of three stages with so many blocks each: 1 is ResNet-8, and 3 is ResNet-20."""
    layers: list[nn.Module] = [convolution(channels, 16, 3, 1), nn.ReLU()]
    for ins, outs in ((16, 16), (16, 32), (32, 64)):
        layers.append(Residual(ins, outs, outs // ins))
        layers += [Residual(outs, outs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main(given: Sequence[str] | None = None) -> list[tuple[Trained, float]]:
    """Train, and return each way's run and accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=60_000)
    parser.add_argument("--tested", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=1)
    add_options(parser)
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    data, test = pictures("train", asked.pictures), pictures("t10k", asked.tested)
    steps = len(data[0]) // asked.batch * asked.epochs
    runs = []
    for way in asked.ways.split(","):
        torch.manual_seed(0)
        model = network(asked.blocks)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4)
        runs.append(Trained(way, model, optimizer, next(mixed(data, asked.batch, 1)), steps))
    in_turns(runs, mixed(data, asked.batch, asked.epochs))
    shares = [accuracy(run.trained(), test) for run in runs]
    for run, share in zip(runs, shares, strict=True):
        print(f"{run.way}: {share:.2%} of {len(test[0])} test pictures are recognised; {run}")
    return [*zip(runs, shares, strict=True)]


if __name__ == "__main__":
    main()
