"""Kernels for work-groups access shared memory with bank conflicts of at most two ways."""

from __future__ import annotations

import pytest

from jangin.ir.parse import parse_func
from jangin.ir.products import DOT1BF, DOT1H
from jangin.targets.cuda import CUDA
from jangin.templates.gpu.table import TEMPLATES
from jangin.templates.template import Workload

from .banks import accesses
from .kernels import attention, conv, matmul, small_conv, small_matmul, workload
from .test_gpu import KERNELS, asked

TARGET = CUDA["cuda:sm_80"]
WAYS = 2
LARGE = {
    "product": workload(matmul((512, 512), (512, 512)), target=TARGET),
    "transposed": workload(matmul((2, 256, 256), (2, 256, 256), transposed=True), target=TARGET),
    "packed": workload(matmul((512, 512), (512, 512)), constants=["w"], target=TARGET),
    "conv": workload(conv((28, 28), 64, 64, 3, pad=1), constants=["w"], target=TARGET),
    "warps": workload(small_matmul(DOT1BF, 512, 512, 512), target=TARGET),
    "warps, transposed": workload(small_matmul(DOT1H, 512, 512, 512, transposed=True), target=TARGET),
    "warps, packed": workload(small_matmul(DOT1BF, 512, 512, 512), constants=["w"], target=TARGET),
    "warps, window": workload(small_conv(DOT1BF, (28, 28), 64, 64, 3), constants=["w"], target=TARGET),
    "warps, few channels": workload(small_conv(DOT1H, (28, 28), 8, 64, 7, 2), constants=["w"], target=TARGET),
    "attention-64": workload(attention(2, 128, 128, 64, 64), target=TARGET),
    "attention-128": workload(attention(2, 128, 256, 128, 128), target=TARGET),
}


def worst(wanted: Workload, count: int) -> dict[str, float]:
    """Return the most ways of each buffer, over the best kernels of each template."""
    found: dict[str, float] = {}
    for match in TEMPLATES.values():
        template = match(wanted)
        for params in sorted(template.space(), key=template.estimate)[:count] if template else ():
            for access in accesses(template.schedule(params).func):
                found[access.buffer] = max(found.get(access.buffer, 0.0), access.ways)
    return found


@pytest.mark.parametrize("name", LARGE)
def test_large_kernels(name: str) -> None:
    for buffer, ways in worst(LARGE[name], 3).items():
        assert ways <= WAYS, (buffer, ways)


@pytest.mark.parametrize("size", [2, 5, 17, 36, 80])
def test_heads_of_any_size(size: int) -> None:
    """Neighbours of a row are stored in columns, also if eight of them don't divide it."""
    found = worst(workload(attention(2, 64, 64, size, size), target=TARGET), 2)
    assert {"queries", "keys"} <= found.keys() and max(found.values()) <= WAYS, found


def test_small_kernels() -> None:
    for name in KERNELS:
        for buffer, ways in worst(asked(name, TARGET), 1).items():
            assert ways <= WAYS, (name, buffer, ways)


@pytest.mark.parametrize(
    ("width", "place", "ways"), [(32, "x, 0", 32), (33, "x, 0", 1), (32, "0, x", 1), (36, "x, 0", 4)]
)
def test_the_count(width: int, place: str, ways: int) -> None:
    text = f"""func k(y: out f32[32]) {{ block b in 1 {{
      alloc shared s: f32[32, {width}]
      thread x in 32 {{ s[{place}] = 1.0 }}
    }} }}"""
    assert [a.ways for a in accesses(parse_func(text))] == [ways]
