"""Networks over pictures and volumes that no package defines, in PyTorch, by the architectures of papers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution, batch normalization and SiLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class RepLKBlock(nn.Module):
    """A depthwise convolution with a large window between pointwise ones, then two pointwise ones as a
    feed-forward layer.

    The small window is merged into the large one (X. Ding et al.: RepLKNet, 2022)."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.mix = nn.Sequential(
            nn.BatchNorm2d(width), nn.Conv2d(width, width, 1), nn.ReLU(),
            nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width), nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )  # fmt: skip
        self.feed = nn.Sequential(
            nn.BatchNorm2d(width), nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1)
        )

    def forward(self, x: Any) -> Any:
        x = x + self.mix(x)
        return x + self.feed(x)


class RepLKNet(nn.Module):
    """RepLKNet of half its width and depth: [n, 3, 224, 224] -> [n, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        widths, kernels, depths = (64, 128, 256, 512), (31, 29, 27, 13), (1, 1, 6, 1)
        parts: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1, groups=64)]
        for n, (width, kernel, depth) in enumerate(zip(widths, kernels, depths, strict=True)):
            parts += [RepLKBlock(width, kernel) for _ in range(depth)]
            if n < 3:
                parts += [
                    nn.Conv2d(width, widths[n + 1], 1), nn.ReLU(),
                    nn.Conv2d(widths[n + 1], widths[n + 1], 3, 2, 1, groups=widths[n + 1]),
                ]  # fmt: skip
        self.trunk = nn.Sequential(*parts)
        self.head = nn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        return self.head(self.trunk(x).mean((2, 3)))


class UNet(nn.Module):
    """U-Net (O. Ronneberger et al., 2015) with padded convolutions: [n, 1, 256, 256] -> [n, 2, 256, 256]."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << n for n in range(5)]
        self.down = nn.ModuleList(self.pair(a, b) for a, b in pairwise([1, *widths]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(self.pair(b, a) for a, b in pairwise(widths))
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Sequential:
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Any) -> Any:
        kept = []
        for n, pair in enumerate(self.down):
            x = pair(x if n == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for n in reversed(range(4)):
            x = self.join[n](torch.cat([kept[n], self.up[n](x)], 1))
        return self.head(x)


class SuperResolution(nn.Module):
    """A generator like ESRGAN's (X. Wang et al., 2018), with 4 of its 23 residual blocks of dense blocks.

    It enlarges four times: [n, 3, 64, 64] -> [n, 3, 256, 256]."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [32, 32, 32, 32, 64]
            self.parts = nn.ModuleList(nn.Conv2d(64 + 32 * n, w, 3, padding=1) for n, w in enumerate(widths))

        def forward(self, x: Any) -> Any:
            made = [x]
            for part in self.parts[:-1]:
                made.append(functional.leaky_relu(part(torch.cat(made, 1)), 0.2))
            return x + 0.2 * self.parts[-1](torch.cat(made, 1))

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.trunk = nn.Sequential(
            *(self.Dense() for _ in range(3 * blocks)), nn.Conv2d(64, 64, 3, padding=1)
        )
        self.up = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(3))
        self.last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = x + self.trunk(x)
        for up in self.up[:2]:
            x = functional.leaky_relu(up(functional.interpolate(x, scale_factor=2, mode="nearest")), 0.2)
        return self.last(functional.leaky_relu(self.up[2](x), 0.2))


class StyleTransfer(nn.Module):
    """The network of Perceptual Losses (J. Johnson et al., 2016), with instance normalization and reflected
    borders: [n, 3, 224, 224] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        down = [self.block(3, 32, 9), self.block(32, 64, 3, 2), self.block(64, 128, 3, 2)]
        up = [nn.Upsample(scale_factor=2), self.block(128, 64, 3), nn.Upsample(scale_factor=2)]
        self.down = nn.Sequential(*down)
        self.residual = nn.ModuleList(
            nn.Sequential(self.block(128, 128, 3), *self.block(128, 128, 3)[:-1]) for _ in range(5)
        )
        self.up = nn.Sequential(*up, self.block(64, 32, 3), nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9))

    @staticmethod
    def block(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
        pad, convolution = nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inputs, outputs, kernel, stride)
        return nn.Sequential(pad, convolution, nn.InstanceNorm2d(outputs, affine=True), nn.ReLU())

    def forward(self, x: Any) -> Any:
        x = self.down(x)
        for block in self.residual:
            x = x + block(x)
        return self.up(x)


class Detector(nn.Module):
    """A detector like YOLOv8: a trunk of blocks that split and join (C2f), and three scales.

    [n, 3, size, size] -> boxes [n, 4, places] with scores [n, 80, places]."""

    class Split(nn.Module):
        def __init__(self, inputs: int, outputs: int, depth: int) -> None:
            super().__init__()
            half = outputs // 2
            self.first, self.last = unit(inputs, outputs, 1), unit((2 + depth) * half, outputs, 1)
            self.parts = nn.ModuleList(
                nn.Sequential(unit(half, half, 3), unit(half, half, 3)) for _ in range(depth)
            )

        def forward(self, x: Any) -> Any:
            made = list(self.first(x).chunk(2, 1))
            for part in self.parts:
                made.append(made[-1] + part(made[-1]))
            return self.last(torch.cat(made, 1))

    def __init__(self, size: int) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256)
        self.stem = unit(3, 16, 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(unit(a, b, 3, 2), self.Split(b, b, n))
            for (a, b), n in zip(pairwise(widths), (1, 2, 2, 1), strict=True)
        )
        self.up = nn.ModuleList([self.Split(256 + 128, 128, 1), self.Split(128 + 64, 64, 1)])
        self.heads = nn.ModuleList(
            nn.Sequential(unit(w, 80, 3), unit(80, 80, 3), nn.Conv2d(80, 64 + 80, 1)) for w in (64, 128, 256)
        )
        places = [torch.stack(torch.meshgrid([torch.arange(size // s) + 0.5] * 2, indexing="xy")).flatten(1)
                  for s in (8, 16, 32)]  # fmt: skip
        self.register_buffer("places", torch.cat(places, 1))
        strides = [torch.full((1, p.shape[1]), float(s)) for p, s in zip(places, (8, 16, 32), strict=True)]
        self.register_buffer("strides", torch.cat(strides, 1))

    def forward(self, x: Any) -> Any:
        x, made = self.stem(x), []
        for stage in self.stages:
            made.append(x := stage(x))
        _, fine, middle, coarse = made
        double = lambda x: functional.interpolate(x, scale_factor=2, mode="nearest")  # noqa: E731
        middle = self.up[0](torch.cat([double(coarse), middle], 1))
        fine = self.up[1](torch.cat([double(middle), fine], 1))
        maps = zip(self.heads, (fine, middle, coarse), strict=True)
        found = torch.cat([head(m).flatten(2) for head, m in maps], 2)
        edges, scores = found.split((64, 80), 1)
        bins = torch.arange(16.0).view(1, 1, 16, 1)
        near, far = (edges.unflatten(1, (4, 16)).softmax(2) * bins).sum(2).chunk(2, 1)
        corners = torch.cat([self.places - near, self.places + far], 1)
        return corners * self.strides, scores.sigmoid()


class SSD(nn.Module):
    """SSD (W. Liu et al., 2015) over a MobileNet: [n, 3, 320, 320] -> scores [n, boxes, 21] and offsets [n,
    boxes, 4]."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512)
        strides = (1, 2, 1, 2, 1, 2, 1, 1, 1)
        pairs = zip(pairwise(widths), strides, strict=True)
        self.trunk = nn.Sequential(unit(3, 32, 3, 2), *(self.block(a, b, s) for (a, b), s in pairs))
        self.extra = nn.ModuleList(self.block(a, b, 2) for a, b in pairwise((512, 1024, 512, 256, 256, 128)))
        outputs = (512, 1024, 512, 256, 256, 128)
        self.scores = nn.ModuleList(nn.Conv2d(w, 6 * 21, 3, padding=1) for w in outputs)
        self.boxes = nn.ModuleList(nn.Conv2d(w, 6 * 4, 3, padding=1) for w in outputs)

    @staticmethod
    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(unit(inputs, inputs, 3, stride, inputs), unit(inputs, outputs, 1))

    def forward(self, x: Any) -> Any:
        maps = [self.trunk(x)]
        for part in self.extra:
            maps.append(part(maps[-1]))

        def rows(heads: Any, width: int) -> Any:
            found = zip(heads, maps, strict=True)
            return torch.cat([h(m).permute(0, 2, 3, 1).reshape(len(x), -1, width) for h, m in found], 1)

        return rows(self.scores, 21).softmax(2), rows(self.boxes, 4)


class Volumes(nn.Module):
    """A residual network of 18 layers over videos (D. Tran et al., 2018): [n, 3, 8, 112, 112] -> [n, 400]."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv3d(inputs, outputs, 3, stride, 1), nn.ReLU(), nn.Conv3d(outputs, outputs, 3, 1, 1)
            )
            self.skip = nn.Conv3d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return functional.relu(self.body(x) + self.skip(x))

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3)), nn.ReLU()]
        for a, b in pairwise((64, 64, 128, 256, 512)):
            parts += [self.Block(a, b, 1 if a == b else 2), self.Block(b, b, 1)]
        self.trunk, self.head = nn.Sequential(*parts), nn.Linear(512, 400)

    def forward(self, x: Any) -> Any:
        return self.head(self.trunk(x).mean((2, 3, 4)))


class Autoencoder(nn.Module):
    """Pictures of digits to 32 numbers and back: [n, 1, 28, 28] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 49, 32),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(32, 64 * 49), nn.ReLU(), nn.Unflatten(1, (64, 7, 7)),
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))
