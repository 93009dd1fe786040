"""Depthwise convolutions of bytes become products of words of their windows' rows. They give the same
integers at any size."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Conv, Kernel
from jangin.ir.dtype import U8
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ir.products import DOT4U, Product
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import integer_conv, requantize
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.runtime.processor import why_not
from jangin.targets import resolve
from jangin.targets.arm import NEOVERSE_N1
from jangin.targets.target import Target
from jangin.targets.x86 import V3, V4, V4_BF16, V4_VNNI

Size = tuple[int, ...]
Case = tuple[int, Size, Size, Size, Size, Size, int]
CASES: list[Case] = [
    # channels, kernel, strides, pads, dilations, size, zero point
    (16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (9, 11), 0),
    (32, (3, 3), (2, 2), (0, 0, 1, 1), (1, 1), (11, 14), 0),
    (24, (3, 3), (2, 1), (1, 1, 1, 1), (1, 1), (7, 20), 0),
    (19, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), (5, 9), 0),
    (40, (5, 5), (2, 2), (2, 2, 2, 2), (1, 1), (13, 13), 0),
    (17, (4, 3), (1, 1), (2, 0, 1, 2), (1, 1), (6, 7), 0),
    (33, (3, 5), (1, 1), (2, 4, 2, 4), (2, 2), (9, 9), 0),
    (48, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), (8, 21), 77),
    (8, (5, 3), (1, 1), (0, 0, 0, 0), (1, 1), (8, 5), 255),
    (16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (2, 1), 0),
    (24, (3, 3), (2, 1), (1, 1, 1, 1), (1, 1), (7, 20), 131),
    (17, (4, 3), (1, 1), (2, 0, 1, 2), (1, 1), (6, 7), 200),
    (16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (9, 9), 4),
]


def net(case: Case, rescaled: bool = False) -> tuple[Graph, dict[str, Array]]:
    channels, kernel, strides, pads, dilations, size, zero = case
    random, b = np.random.default_rng(), Builder("net", {})
    x = b.input("x", U8, tuple(const(n) for n in (2, channels, *size)))
    w = b.const(random.integers(-128, 127, (channels, 1, *kernel), np.int8, endpoint=True))
    out = integer_conv(
        b, x, w, b.scalar(zero, U8), strides=strides, pads=pads, dilations=dilations, groups=channels
    )
    if rescaled:
        more = random.integers(-5000, 5000, (channels, 1, 1), np.int32)
        scales = random.uniform(1e-3, 1e-1, (channels, 1, 1)).astype(np.float32)
        out = b.map(lambda v, m: v + m, out, b.const(more))
        out = requantize(b, out, b.const(scales), b.scalar(9, U8))
    shape = (2, channels, *size)
    return b.graph([out], ["out"]), {"x": random.integers(0, 256, shape, np.uint8)}


def code(graph: Graph, target: Target, arrays: dict[str, Array]) -> Array:
    options = Options(target, verify=True)
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    return Executable(build(plan, target), 1).run(arrays)["out"]


def dots(graph: Graph, target: Target) -> list[Product | None]:
    fused = optimize(graph, Options(target))
    bodies = (n.attrs.body.nodes for n in fused.nodes if isinstance(n.attrs, Kernel))
    return [n.attrs.dot for nodes in bodies for n in nodes if isinstance(n.attrs, Conv)]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("rescaled", [False, True], ids=["sums", "bytes"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_integers(case: Case, rescaled: bool) -> None:
    """The interpreter checks all targets, and code checks the targets that this machine runs."""
    graph, arrays = net(case, rescaled)
    want = run_graph(graph, arrays)["out"]
    for target in (V3, V4, V4_VNNI, V4_BF16, NEOVERSE_N1):
        fused = optimize(graph, Options(target, verify=True))
        np.testing.assert_array_equal(run_graph(fused, arrays)["out"], want)
        if target is not NEOVERSE_N1 and not why_not(str(target)):
            np.testing.assert_array_equal(code(graph, target, arrays), want)
    np.testing.assert_array_equal(code(graph, resolve(), arrays), want)


def test_where_words_are_read() -> None:
    """Words are read only where instructions sum four products exactly, also if the padding is a zero point
    other than 0."""
    for graph, _ in map(net, CASES[-3:]):
        for target, dot in ((V4_BF16, DOT4U), (V4_VNNI, DOT4U), (V4, None), (V3, None), (NEOVERSE_N1, None)):
            assert dots(graph, target) == [dot]
