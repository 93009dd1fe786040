"""Idioms by which people compute with sizes in PyTorch. Each idiom has the shapes that it is called with, one
after another. Sizes are symbols from the second shape on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Inputs = Sequence[Any]


def image(*shapes: tuple[int, ...]) -> list[Inputs]:
    return [(torch.randn(s),) for s in shapes]


IMAGES = ((1, 2, 9, 12), (1, 2, 16, 20), (1, 2, 11, 31))
ROWS = ((3, 8), (5, 8), (11, 8))
SEQUENCES = ((2, 5, 8), (2, 9, 8), (2, 30, 8))
VECTORS = ((10,), (23,), (57,))


@dataclass
class Idiom:
    """A `function` and the arguments of its `calls`. `options` are those of torch.compile."""

    function: Callable[..., Any]
    calls: Callable[[], list[Inputs]]
    options: dict[str, Any] = field(default_factory=dict)


def _of(shapes: Sequence[tuple[int, ...]], function: Callable[..., Any], **options: Any) -> Idiom:
    return Idiom(function, lambda: image(*shapes), options)


def _numbers(shape: tuple[int, ...], numbers: Sequence[Any], function: Callable[..., Any]) -> Idiom:
    """Make an idiom that is called with one tensor and a number that changes."""
    return Idiom(function, lambda: [(torch.randn(shape), n) for n in numbers])


def _pad_to(x: Any, multiple: int) -> Any:
    return F.pad(x, (0, 0, 0, math.ceil(x.shape[2] / multiple) * multiple - x.shape[2]))


def _centre_crop(x: Any, share: float) -> Any:
    h, w = int(x.shape[2] * share), int(x.shape[3] * share)
    top, left = (x.shape[2] - h) // 2, (x.shape[3] - w) // 2
    return x[:, :, top : top + h, left : left + w] + 1


def _grid(x: Any) -> Any:
    ys, xs = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
    return torch.stack([ys, xs], -1)


def _coordinates(x: Any) -> Any:
    y = torch.linspace(-1, 1, x.shape[2])[None, None, :, None].expand(1, 1, -1, x.shape[3])
    return torch.cat([x, y], 1)


def _windows(x: Any, size: int) -> Any:
    n, c, h, w = x.shape
    x = F.pad(x, (0, -w % size, 0, -h % size))
    h, w = x.shape[2] // size, x.shape[3] // size
    return x.view(n, c, h, size, w, size).permute(0, 2, 4, 1, 3, 5).reshape(n * h * w, c, size, size)


def _sinusoids(x: Any) -> Any:
    at = torch.arange(x.shape[1])[:, None] * torch.exp(torch.arange(0, x.shape[2], 2) * (-math.log(1e4) / 8))
    return x + torch.stack([at.sin(), at.cos()], -1).flatten(1)


def _rotary(x: Any) -> Any:
    t = torch.arange(x.shape[1], dtype=torch.float32)
    angle = torch.outer(t, 1.0 / 10000 ** (torch.arange(0, 4) / 4))
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _causal(x: Any) -> Any:
    n = x.shape[1]
    mask = torch.full((n, n), float("-inf")).triu(1)
    return (x @ x.transpose(1, 2) + mask).softmax(-1) @ x


def _heads(x: Any) -> Any:
    b, n, d = x.shape
    q = x.view(b, n, 2, d // 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(b, n, d)


def _unfolded(x: Any) -> Any:
    return F.unfold(x, 3, padding=1).transpose(1, 2)


def _square(x: Any) -> Any:
    side = int(math.sqrt(x.shape[1]))
    return x[:, : side * side].reshape(x.shape[0], side, side, -1).sum(2)


def _with_sizes(x: Any) -> Any:
    return x * 2, x.shape[2], x.shape[3] / 2, (x.shape[2] + 1) // 2


def _broken(x: Any) -> Any:
    y = x[:, :, : int(x.shape[2] * 0.5)] * 2
    torch._dynamo.graph_break()
    return y.mean() + y.shape[2], int(y.shape[2] * 0.7)


def _branching(x: Any) -> Any:
    return x * 2 if x.shape[2] > 10 else x.sum(2)


def _halved(x: Any) -> Any:
    while x.shape[2] > 4:
        x = F.avg_pool2d(x, 2)
    return x


def _frames(x: Any) -> Any:
    size = x.shape[0] // 4
    return x[: size * 4].view(4, size).sum(1)


def _marked(function: Callable[..., Any], axis: int, shapes: Sequence[tuple[int, ...]]) -> Idiom:
    """Make an idiom that is called with tensors, one axis of which is marked as dynamic from the first call
    on."""

    def calls() -> list[Inputs]:
        found = image(*shapes)
        for (x,) in found:
            torch._dynamo.mark_dynamic(x, axis)
        return found

    return Idiom(function, calls)


def _net(*layers: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*layers).eval()


IDIOMS: dict[str, Callable[[], Idiom]] = {
    # Resizing
    "bilinear by 1.5": lambda: _of(IMAGES, lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear")),
    "bilinear by 0.7": lambda: _of(IMAGES, lambda x: F.interpolate(x, scale_factor=0.7, mode="bilinear")),
    "bilinear by 1.5, the scale recomputed": lambda: _of(
        IMAGES,
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True),
    ),
    "bicubic by 2": lambda: _of(IMAGES, lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "nearest by 2": lambda: _of(IMAGES, lambda x: F.interpolate(x, scale_factor=2, mode="nearest")),
    "nearest by 0.3": lambda: _of(IMAGES, lambda x: F.interpolate(x, scale_factor=0.3, mode="nearest")),
    "area by 2": lambda: _of(IMAGES, lambda x: F.interpolate(x, scale_factor=2, mode="area")),
    "resized to a multiple of 8": lambda: _of(
        IMAGES,
        lambda x: F.interpolate(x, size=(round(x.shape[2] / 8) * 8, round(x.shape[3] / 8) * 8)),
    ),
    "resized to another's size": lambda: _of(
        IMAGES,
        lambda x: F.interpolate(F.avg_pool2d(x, 2), size=x.shape[2:], mode="bilinear", align_corners=True),
    ),
    "a shorter side of 8": lambda: _of(
        IMAGES,
        lambda x: F.interpolate(x, size=(8, int(8 * x.shape[3] / x.shape[2])), mode="bilinear"),
    ),
    "upsampled and cropped to a skip's size": lambda: _of(
        IMAGES,
        lambda x: (
            F.interpolate(F.max_pool2d(x, 2, ceil_mode=True), scale_factor=2)[
                :, :, : x.shape[2], : x.shape[3]
            ]
            + x
        ),
    ),
    # Slices and crops
    "half the rows": lambda: _of(IMAGES, lambda x: x[:, :, : int(x.shape[2] * 0.5)] * 2),
    "a tenth of the rows": lambda: _of(VECTORS, lambda x: x[: int(x.shape[0] * 0.1)] * 2),
    "seven tenths of the rows": lambda: _of(VECTORS, lambda x: x[: int(x.shape[0] * 0.7)] * 2),
    "a centre crop": lambda: _of(IMAGES, lambda x: _centre_crop(x, 0.875)),
    "all but the last third": lambda: _of(VECTORS, lambda x: x[: -(x.shape[0] // 3)] + 1),
    "every second": lambda: _of(VECTORS, lambda x: x[::2] - x[: (x.shape[0] + 1) // 2]),
    "two halves": lambda: _of(((4, 6), (6, 6), (10, 6)), lambda x: x.chunk(2)[0] * x.chunk(2)[1]),
    "rolled by half": lambda: _of(VECTORS, lambda x: torch.roll(x, x.shape[0] // 2)),
    "narrowed to the square root": lambda: _of(VECTORS, lambda x: x[: int(math.sqrt(x.shape[0]))] * 3),
    "the next power of two": lambda: _of(
        VECTORS, lambda x: F.pad(x, (0, 2 ** math.ceil(math.log2(x.shape[0])) - x.shape[0]))
    ),
    # Padding
    "padded to a multiple of 4 by math.ceil": lambda: _of(IMAGES, lambda x: _pad_to(x, 4) * 1),
    "padded to a multiple of 7 by math.ceil": lambda: _of(IMAGES, lambda x: _pad_to(x, 7) * 1),
    "padded to a multiple of 4 by %": lambda: _of(IMAGES, lambda x: F.pad(x, (0, 0, 0, -x.shape[2] % 4))),
    "padded to a square": lambda: _of(IMAGES, lambda x: F.pad(x, (0, 0, 0, max(x.shape[2:]) - x.shape[2]))),
    "mirrored by half": lambda: _of(
        IMAGES, lambda x: F.pad(x, (0, 0, x.shape[2] // 2, x.shape[2] // 2), mode="reflect")
    ),
    "cut into windows": lambda: _of(IMAGES, lambda x: _windows(x, 4)),
    # Idioms that read sizes alone
    "zeros of at least 8": lambda: _of(IMAGES, lambda x: torch.zeros(max(x.shape[2], 8)) + 1),
    "arange": lambda: _of(IMAGES, lambda x: torch.arange(x.shape[2])),
    "a mesh": lambda: _of(IMAGES, _grid),
    "an identity": lambda: _of(VECTORS, lambda x: torch.eye(x.shape[0])),
    "a triangle": lambda: _of(VECTORS, lambda x: torch.ones(x.shape[0], x.shape[0]).tril()),
    "linspace": lambda: _of(VECTORS, lambda x: torch.linspace(0, 1, x.shape[0])),
    "filled with its size": lambda: _of(VECTORS, lambda x: torch.full((3,), x.shape[0])),
    "new zeros behind": lambda: _of(ROWS, lambda x: torch.cat([x, x.new_zeros(x.shape[0] // 2, x.shape[1])])),
    # Pools
    "adaptive average to 3": lambda: _of(IMAGES, lambda x: F.adaptive_avg_pool2d(x, 3)),
    "adaptive maximum to 3": lambda: _of(IMAGES, lambda x: F.adaptive_max_pool2d(x, 3)),
    "adaptive average to 1": lambda: _of(IMAGES, lambda x: F.adaptive_avg_pool2d(x, 1)),
    "a pool as large as the image": lambda: _of(IMAGES, lambda x: F.avg_pool2d(x, x.shape[2:])),
    "pooled while large": lambda: _of(IMAGES, _halved),
    "pooled rounding up": lambda: _of(IMAGES, lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)),
    # Sequences
    "attention": lambda: _of(IMAGES, lambda x: F.scaled_dot_product_attention(x, x, x)),
    "attention of heads": lambda: _of(SEQUENCES, _heads),
    "a causal mask": lambda: _of(SEQUENCES, _causal),
    "positions": lambda: _of(SEQUENCES, _sinusoids),
    "rotary positions": lambda: _of(SEQUENCES, _rotary),
    "scaled by the square root of the length": lambda: _of(SEQUENCES, lambda x: x / math.sqrt(x.shape[1])),
    "a mean by hand": lambda: _of(SEQUENCES, lambda x: x.sum(1) / x.shape[1]),
    "the last half's mean": lambda: _of(SEQUENCES, lambda x: x[:, x.shape[1] // 2 :].mean(1)),
    "distances of positions": lambda: _of(
        VECTORS, lambda x: torch.arange(x.shape[0])[:, None] - torch.arange(x.shape[0])[None]
    ),
    "frames": lambda: _of(((16,), (24,), (64,)), _frames),
    "tokens to a square": lambda: _of(((2, 9, 4), (2, 25, 4), (2, 50, 4)), _square),
    # Whole nets
    "a classifier of any image": lambda: _of(
        ((1, 3, 16, 16), (1, 3, 24, 32), (1, 3, 40, 20)),
        _net(
            nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(16, 5)
        ),
    ),
    "a classifier of batches": lambda: _of(
        ((1, 3, 16, 16), (4, 3, 16, 16), (2, 3, 16, 16)),
        _net(
            nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(16, 5)
        ),
    ),
    "an autoencoder": lambda: _of(
        ((1, 3, 16, 16), (1, 3, 24, 32), (1, 3, 40, 20)),
        _net(nn.Conv2d(3, 4, 3, 2, 1), nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.Conv2d(4, 3, 3)),
    ),
    "a transposed convolution": lambda: _of(IMAGES, _net(nn.ConvTranspose2d(2, 3, 3, 2, 1, 1))),
    "patches": lambda: _of(IMAGES, _unfolded),
    "shuffled pixels": lambda: _of(IMAGES, lambda x: F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2)),
    # Numbers in and out
    "sizes as results": lambda: _of(IMAGES, _with_sizes),
    "a graph break between": lambda: _of(IMAGES, _broken),
    "a branch by size": lambda: _of(IMAGES, _branching),
    "from a number on": lambda: _numbers((20, 3), (2, 5, 17), lambda x, k: x[k:] * 2),
    "times a number": lambda: _numbers((5, 3), (3, -4, 0), lambda x, k: x * k + torch.arange(3)),
    "larger than a number": lambda: _numbers((5, 3), (3, -4, 0), lambda x, k: (x * 3 > k, x // (k + 9))),
    "the best of a number": lambda: _numbers((5, 30), (3, 6, 17), lambda x, k: x.topk(k).values),
    "repeated by a number": lambda: _numbers((5, 3), (2, 3, 7), lambda x, k: x.repeat(k, 1) + 1),
    "numbers alone": lambda: Idiom(lambda a, b: torch.arange(a, b) * 2, lambda: [(2, 5), (3, 9), (-4, 30)]),
    # How sizes become symbols
    "symbols from the first": lambda: _of(IMAGES, lambda x: F.avg_pool2d(x, 2) * 2, dynamic=True),
    "no symbols at all": lambda: _of(IMAGES, lambda x: F.avg_pool2d(x, 2) * 2, dynamic=False),
    "a marked axis": lambda: _marked(lambda x: x.sum(0) / x.shape[0], 0, ((4, 3), (7, 3), (1, 3))),
    "one, then many": lambda: _of(((1, 8), (5, 8), (1, 8), (9, 8)), lambda x: x.softmax(0) @ x.T),
    "none, then many": lambda: _of(((0, 8), (5, 8), (0, 8), (9, 8)), lambda x: (x + 1) @ x.new_ones(8, 2)),
    "many, then none": lambda: _of(((5, 8), (9, 8), (0, 8), (1, 8)), lambda x: (x + 1).sum(0)),
    "a coordinate channel": lambda: _of(IMAGES, _coordinates),
}
