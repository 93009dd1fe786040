"""Windows over planes against their stages, interpreted, at odd sizes, and which kernels keep their
planes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jangin.compiler.pipeline import optimize
from jangin.ir.core import Conv, Kernel, Pool
from jangin.ir.dtype import F32
from jangin.ir.expr import const
from jangin.ops.builder import Builder
from jangin.ops.core_window import window_extent
from jangin.options import Options
from jangin.targets import NAMED, Target
from jangin.templates.choose import TEMPLATES

from .kernels import Built, assert_equal_to_stages, buffer, dims, node, workload

pytestmark = pytest.mark.sampled(2)

TARGETS = [NAMED[n] for n in ("x86-64-v2", "x86-64-v3", "x86-64-v4")]


def convolved(
    size: tuple[int, ...], channels: int, outputs: int, kernel: int, stride: int = 1, pad: int = 0,
    groups: int = 1, dilation: int = 1, batch: int = 1,
) -> Built:  # fmt: skip
    """Return a convolution in the order of its planes."""
    rank = len(size)
    window = (kernel,) * rank, (stride,) * rank, (dilation,) * rank, (pad,) * (2 * rank)
    weights = buffer("w", outputs, channels // groups, *(kernel,) * rank)
    return node(Conv(*window, groups, "first"), [buffer("x", batch, channels, *size), weights])


def pooled(
    size: tuple[int, ...], kernel: int, stride: int, pad: int, combiner: str = "max", average: str = ""
) -> Built:
    rank = len(size)
    window = (kernel,) * rank, (stride,) * rank, (1,) * rank, (pad,) * (2 * rank)
    extents = tuple(window_extent(const(s), kernel, stride, 1, 2 * pad) for s in size)
    return node(Pool(combiner, *window, extents, average, "first"), [buffer("x", 2, 3, *size)])


def assert_planes(built: Built, target: Target, constants: tuple[str, ...] = ()) -> None:
    found = TEMPLATES["planes"](workload(built, {}, constants, target))
    assert found is not None
    best = sorted(found.space(), key=found.estimate)
    for params in (best[0], best[-1]):
        assert_equal_to_stages(found.schedule(params), built)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("built", [
    convolved((6, 37), 1, 6, 3, pad=1), convolved((5, 40), 20, 1, 3, pad=1, batch=2),
    convolved((7, 33), 3, 3, 5, stride=2, pad=2, groups=3), convolved((50,), 2, 4, 3, dilation=4, pad=4),
    convolved((3, 4, 19), 2, 2, 3, pad=1), convolved((4, 21), 24, 2, 1), convolved((90,), 1, 2, 20, stride=3),
    node(
        Conv((3, 1), (1, 1), (1, 1), (1, 0, 1, 0), 1, "first"),
        [buffer("x", 1, 2, 5, 19), buffer("w", 10, 2, 3, 1)],
    ),
], ids=[
    "one input", "one output", "depthwise", "dilated", "3-D", "pointwise", "long row", "one column",
])  # fmt: skip
def test_convolution(built: Built, target: Target) -> None:
    assert_planes(built, target, ("w",))


@pytest.mark.parametrize(("combiner", "average"), [("max", ""), ("sum", "valid"), ("sum", "all")])
@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), [
    ((7, 35), 3, 2, 1), ((6, 20), 2, 2, 0), ((77,), 4, 4, 1), ((4, 5, 18), 2, 2, 0),
])  # fmt: skip
def test_pool(size: tuple[int, ...], kernel: int, stride: int, pad: int, combiner: str, average: str) -> None:
    assert_planes(pooled(size, kernel, stride, pad, combiner, average), TARGETS[1])


@settings(max_examples=12)
@given(
    st.integers(1, 50), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.integers(1, 4),
    st.sampled_from(TARGETS), st.data(),
)  # fmt: skip
def test_any_convolution(
    width: int, kernel: int, stride: int, pad: int, outputs: int, target: Target, data: st.DataObject
) -> None:
    built = convolved((kernel, width + kernel), 2, outputs, kernel, stride, pad)
    found = TEMPLATES["planes"](workload(built, {}, ("w",), target))
    assert found is not None
    assert_equal_to_stages(found.schedule(data.draw(st.sampled_from(found.space()))), built)


def test_channels_last_is_none_of_its() -> None:
    product = node(Conv((3, 3), (1, 1), (1, 1), (1,) * 4, 1, "first"), [
        buffer("x", 1, 32, 20, 20), buffer("w", 32, 32, 3, 3),
    ])  # fmt: skip
    last = node(Pool("max", (2, 2), (2, 2), (1, 1), (0,) * 4, dims(10, 10), "", "last"), [
        buffer("x", 1, 20, 20, 16),
    ])  # fmt: skip
    assert TEMPLATES["planes"](workload(product, {}, ("w",))) is None
    assert TEMPLATES["planes"](workload(last)) is None


@pytest.mark.parametrize(("more", "order"), [(False, "first"), (True, "last")])
def test_a_pool_alone_keeps_its_planes(more: bool, order: str) -> None:
    """A pool keeps its planes. Copies with channels last pay only beside convolutions of many channels."""
    b = Builder("net", {})
    x = b.input("x", F32, dims(1, 64, 112, 112))
    if more:
        weights = b.const(np.ones((64, 64, 3, 3), np.float32))
        x = b.conv(x, weights, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)
    pool = Pool("max", (3, 3), (2, 2), (1, 1), (1,) * 4, dims(56, 56), "")
    graph = optimize(b.graph([b.node(pool, [x])], ["y"]), Options(target=TARGETS[1]))
    kernels = [n.of(Kernel).body for n in graph.nodes if isinstance(n.attrs, Kernel)]
    found = [n.attrs.layout for body in kernels for n in body.nodes if isinstance(n.attrs, Pool)]
    assert found == [order]
    assert len(kernels) == 1 or more
