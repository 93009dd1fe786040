"""Networks over sounds, text, series and graphs that no package defines, in PyTorch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Vocoder(nn.Module):
    """A generator like HiFi-GAN's third configuration (J. Kong et al., 2020): mel spectrograms [n, 80,
    frames] -> samples [n, 1, 256 * frames]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, 256, 7, padding=3)
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(a, b, 2 * s, s, s // 2)
            for (a, b), s in zip(pairwise((256, 128, 64, 32)), (8, 8, 4), strict=True)
        )
        self.mix = nn.ModuleList(
            nn.ModuleList(self.block(w, k, d) for k, d in ((3, 1), (5, 2), (7, 3))) for w in (128, 64, 32)
        )
        self.last = nn.Conv1d(32, 1, 7, padding=3)

    @staticmethod
    def block(width: int, kernel: int, dilation: int) -> nn.Sequential:
        reach = dilation * (kernel // 2)
        wide = nn.Conv1d(width, width, kernel, padding=reach, dilation=dilation)
        return nn.Sequential(
            nn.LeakyReLU(0.1), wide, nn.LeakyReLU(0.1), nn.Conv1d(width, width, kernel, padding=kernel // 2)
        )

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for up, blocks in zip(self.up, self.mix, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(x + block(x) for block in blocks) / 3
        return torch.tanh(self.last(functional.leaky_relu(x, 0.01)))


class TemporalConvolutions(nn.Module):
    """TCN (S. Bai et al., 2018): causal convolutions of growing dilation, [n, 16, 1000] -> [n, 10]."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, dilation: int) -> None:
            super().__init__()
            self.reach = 2 * dilation
            self.first = nn.Conv1d(inputs, width, 3, dilation=dilation)
            self.second = nn.Conv1d(width, width, 3, dilation=dilation)
            self.skip = nn.Conv1d(inputs, width, 1) if inputs != width else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.first(functional.pad(x, (self.reach, 0))))
            y = functional.relu(self.second(functional.pad(y, (self.reach, 0))))
            return functional.relu(y + self.skip(x))

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self.Block(width if n else 16, width, 1 << n) for n in range(8)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(x)[:, :, -1])


class Spectrograms(nn.Module):
    """A classifier of sounds by spectrograms of one channel: [n, 1, 64, 400] -> [n, 50]."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for a, b in pairwise((1, 32, 64, 128, 256)):
            parts += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.trunk, self.head = nn.Sequential(*parts), nn.Linear(256, 50)

    def forward(self, x: Any) -> Any:
        x = self.trunk(x).mean(2)
        return self.head(x.amax(2) + x.mean(2)).log_softmax(1)


class Conformer(nn.Module):
    """Four blocks of Conformer (A. Gulati et al., 2020) of width 144, with attention without relative
    positions: [n, frames, 80] -> [n, frames / 4, 144]."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.feed = nn.ModuleList(
                nn.Sequential(
                    nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
                )
                for _ in range(2)
            )
            self.norm, self.project, self.out = (
                nn.LayerNorm(width),
                nn.Linear(width, 3 * width),
                nn.Linear(width, width),
            )
            self.before, self.widen = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
            self.deep = nn.Conv1d(width, width, 31, padding=15, groups=width)
            self.batch, self.narrow, self.last = (
                nn.BatchNorm1d(width),
                nn.Conv1d(width, width, 1),
                nn.LayerNorm(width),
            )

        def attend(self, x: Any) -> Any:
            n, frames, width = x.shape
            q, k, v = self.project(x).view(n, frames, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            scores = (q @ k.transpose(-1, -2)) / (width // 4) ** 0.5
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, frames, width))

        def forward(self, x: Any) -> Any:
            x = x + 0.5 * self.feed[0](x)
            x = x + self.attend(self.norm(x))
            y = functional.glu(self.widen(self.before(x).transpose(1, 2)), 1)
            x = x + self.narrow(functional.silu(self.batch(self.deep(y)))).transpose(1, 2)
            return self.last(x + 0.5 * self.feed[1](x))

    def __init__(self, width: int = 144) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.project = nn.Linear(20 * width, width)
        self.blocks = nn.Sequential(*(self.Block(width) for _ in range(4)))

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.second(functional.relu(self.first(x[:, None]))))
        return self.blocks(self.project(x.transpose(1, 2).flatten(2)))


class RootMeanSquare(nn.Module):
    """RMS normalization, in operations that every opset has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return self.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class DecoderStep(nn.Module):
    """One token through 4 layers like LLaMA's (H. Touvron et al., 2023), with 8 heads over 2 cached ones.

    A token's row [1, 1, 512] and caches [4, 2, 2, past, 64] -> the row, and the new entries of the cache."""

    def __init__(self, width: int = 512, heads: int = 8, shared: int = 2) -> None:
        super().__init__()
        self.heads, self.shared, self.each = heads, shared, width // heads
        linear = lambda a, b: nn.Linear(a, b, bias=False)  # noqa: E731
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norm": RootMeanSquare(width), "q": linear(width, width),
                "kv": linear(width, 2 * shared * self.each),
                "out": linear(width, width), "feed": RootMeanSquare(width), "gate": linear(width, 1376),
                "up": linear(width, 1376), "down": linear(1376, width),
            })
            for _ in range(4)
        )  # fmt: skip

    def forward(self, x: Any, cache: Any) -> Any:
        added = []
        for n, p in enumerate(self.layers):
            y = p["norm"](x)
            q = p["q"](y).view(1, self.shared, self.heads // self.shared, self.each)
            kv = p["kv"](y).view(2, self.shared, 1, self.each)
            added.append(kv)
            k, v = torch.cat([cache[n], kv], 2).unbind(0)
            scores = (q[0] @ k.transpose(-1, -2)) / self.each**0.5
            x = x + p["out"]((scores.softmax(-1) @ v).reshape(1, 1, -1))
            y = p["feed"](x)
            x = x + p["down"](functional.silu(p["gate"](y)) * p["up"](y))
        return x, torch.stack(added)


class GraphNetwork(nn.Module):
    """Three layers of messages along edges, summed where they arrive (W. Hamilton et al., 2017).

    Nodes' features [2000, 64] and edges [2, 10000] -> scores [2000, 7]."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 128, 7)
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.others = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges[0], edges[1]
        for n, (own, others) in enumerate(zip(self.own, self.others, strict=True)):
            index = target[:, None].expand(-1, x.shape[1])
            arrived = torch.zeros_like(x).scatter_add(0, index, x[source])
            x = own(x) + others(arrived)
            x = functional.relu(x) if n < 2 else x
        return x
