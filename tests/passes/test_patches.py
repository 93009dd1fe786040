"""The first layers in patches: the same numbers, in less memory, and a reason if there are no patches."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nets import N, Net

import jangin
from jangin.ahead.emit import for_kind
from jangin.ahead.patches import FIRST, LAST, arena_bytes, choices, fitted, planned
from jangin.compiler.pipeline import lowered_plan, optimize
from jangin.ir.core import Concat, Conv, Pad, Pool, Reduce, Reshape, Slice, Softmax, Transpose
from jangin.ir.dtype import F64
from jangin.ir.expr import const, maximum
from jangin.ir.graph import Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.windows.patches import Region, patched, region, splits

RNG = np.random.default_rng


def shape(*sizes: int) -> tuple[object, ...]:
    return tuple(map(const, sizes))


class Whole(Net):
    """Layers of whole numbers in f64, whose sums are exact in any order."""

    def __init__(self) -> None:
        self.b = Builder("net", {})
        self.random = RNG()

    def weight(self, *sizes: int) -> Tensor:
        return self.b.const(self.random.integers(-3, 4, sizes).astype(np.float64))

    def image(self, *sizes: int) -> Tensor:
        return self.b.input("x", F64, tuple(map(const, sizes)))

    def window(self, x: Tensor, out: int, groups: int = 1) -> Tensor:
        """A convolution with a random window, strides, dilations and pads, some of them negative."""
        r = self.random
        while True:
            kernel, strides, dilations = (tuple(map(int, r.integers(1, n, 2))) for n in (4, 4, 3))
            pads = tuple(map(int, r.integers(-1, 3, 4)))
            attrs = Conv(kernel, strides, dilations, pads, groups)
            try:
                made = self.b.node(attrs, [x, self.weight(out, int(str(x.shape[1])) // groups, *kernel)])
            except jangin.CompileError:
                continue
            if min(int(str(d)) for d in made.shape[2:]) > 1:
                return made


def network() -> Graph:
    """Return a random network: convolutions, depthwise ones, pools, pads, branches that meet, and slices."""
    t = Whole()
    x = t.image(int(t.random.integers(1, 3)), 3, *map(int, t.random.integers(12, 20, 2)))
    x = t.relu(t.bias(t.window(x, 4)))
    kind = int(t.random.integers(6))
    if kind == 0:  # a residual branch
        x = t.relu(t.add(x, t.conv(x, 4, 3)))
    elif kind == 1:  # two branches side by side
        x = t.b.node(Concat(1), [t.conv(x, 2, 1), t.conv(x, 3, 3)])
    elif kind == 2:
        average = ("", "valid", "all")[int(t.random.integers(3))]
        extents = tuple(const((int(str(d)) + 1) // 2) for d in x.shape[2:])
        pads = tuple(map(int, t.random.integers(0, 2, 4)))
        x = t.b.node(Pool("sum", (2, 2), (2, 2), (1, 1), pads, extents, average), [x])
    elif kind == 3:
        pads = [const(n) for n in (0, 0, 1, -1, 0, 0, 2, 1)]
        x = t.b.node(Pad(tuple(pads), "constant", 5), [x])
    elif kind == 4:
        sizes = tuple(-(-int(str(d)) // 2) for d in x.shape[2:])
        cut = Slice(shape(0, 0, 0, 0), (1, 1, 2, 2), (*x.shape[:2], *map(const, sizes)))
        x = t.b.node(cut, [x])
    else:
        x = t.b.node(Transpose((0, 2, 3, 1)), [x])
        x = t.b.map(lambda v, c: v + c, x, t.weight(int(str(x.shape[-1]))))
        x = t.b.node(Transpose((0, 3, 1, 2)), [x])
    x = t.b.map(lambda v: maximum(v, -7.0), t.conv(x, int(str(x.shape[1])), 3, groups=int(str(x.shape[1]))))
    return t.done(t.relu(t.conv(x, 2, 1)))


def whole_region(graph: Graph) -> Region:
    found = region(graph, graph.outputs[0])
    assert isinstance(found, Region), found
    return found


@pytest.mark.parametrize("number", range(12))
def test_patches_give_the_same_numbers(number: int) -> None:
    """Along every axis: the batch and both axes of the image have patches, the channels have none."""
    graph = network()
    x = RNG().integers(-9, 9, [int(str(d)) for d in graph.shape("x")]).astype(np.float64)
    want = run_graph(graph, {"x": x})["y0"]
    axes = set()
    for split, cost in splits(graph, whole_region(graph), 5, 9.0):
        if hasattr(cost, "extra"):
            got = run_graph(patched(graph, split), {"x": x})["y0"]
            np.testing.assert_array_equal(got, want, err_msg=str(split.axis))
            axes.add(split.axis)
    assert axes <= {0, 2, 3} and axes & {2, 3}


def reasons(graph: Graph) -> str:
    options = for_kind(Options("cortex-m4", None, 1), "c", "inside")
    found, why = choices(graph, lowered_plan(graph, options), options)
    assert not found
    return why


def test_a_first_layer_that_needs_the_whole_picture() -> None:
    t = Net()
    x = t.b.node(Softmax(2), [t.input("x", 1, 2, 24, 24)])
    x = t.relu(t.conv(t.b.node(Softmax(3), [x]), 8, 3))
    graph = t.done(t.b.node(Reduce("sum", (2, 3)), [t.conv(x, 1, 3, 2)]))
    assert "softmax" in reasons(graph)


def test_a_global_mean_that_scales_the_picture() -> None:
    """Each patch would compute the whole picture again for the mean."""
    t = Net()
    x = t.relu(t.conv(t.input("x", 1, 2, 24, 24), 8, 3))
    x = t.mul(x, t.b.node(Reduce("sum", (2, 3), keepdims=True), [x]))
    graph = t.done(t.b.node(Reduce("sum", (2, 3)), [t.conv(x, 1, 3, 2)]))
    assert re.search(r"would take [3-9]\.\d times the operations", reasons(graph))


def test_a_value_that_is_read_later() -> None:
    t = Net()
    x = t.relu(t.conv(t.input("x", 1, 2, 24, 24), 8, 3))
    y = t.conv(x, 1, 3, 2)
    graph = t.done(t.b.node(Reduce("sum", (1, 2, 3)), [x]), t.b.node(Reduce("sum", (2, 3)), [y]))
    assert "is read again later" in reasons(graph)


def test_layers_that_flatten_the_picture_first() -> None:
    t = Net()
    x = t.b.node(Reshape(shape(1, 512)), [t.input("x", 1, 2, 16, 16)])
    assert reasons(t.done(t.linear(t.relu(t.linear(x, 64)), 4)))


def test_open_sizes_have_no_patches() -> None:
    t = Net()
    x = t.relu(t.conv(t.input("x", N, 2, 24, 24), 8, 3))
    assert "--shape" in reasons(t.done(t.b.node(Reduce("sum", (2, 3)), [t.conv(x, 1, 3, 2)])))


def wide(t: Net, size: int = 48) -> Graph:
    """Return a network whose first values are its largest."""
    x = t.input("x", 1, 3, size, size)
    x = t.relu(t.bias(t.conv(x, 16, 3, 2)))
    x = t.relu(t.bias(t.conv(x, 16, 3, groups=16)))
    x = t.add(x, t.conv(x, 16, 1))
    x = t.relu(t.bias(t.conv(x, 8, 3, 2)))
    return t.done(t.b.node(Reduce("sum", (2, 3)), [t.relu(t.conv(x, 8, 3, 2))]))


def test_less_memory_with_more_patches() -> None:
    """Each way takes more operations and less memory than those before, and a plan is near its estimate."""
    graph, options = wide(Net()), for_kind(Options("cortex-m4", None, 1), "c", "inside")
    plan = lowered_plan(graph, options)
    found, _ = choices(graph, plan, options)
    assert len(found) > 2 and [c.cost.extra for c in found] == sorted(c.cost.extra for c in found)
    sizes = [arena_bytes(planned(graph, c, options, None)) for c in (found[0], found[-1])]
    assert sizes[1] < sizes[0] < arena_bytes(plan)
    assert sizes[1] < 1.4 * found[-1].bytes
    budget = (sizes[1] + arena_bytes(plan)) // 2
    assert arena_bytes(fitted(graph, plan, options, budget, None).plan) <= budget


def test_patches_of_a_middle_share_their_kernels() -> None:
    """Two more patches add a kernel each, which reads another part of the image."""
    graph, options = wide(Net(), 96), for_kind(Options("cortex-m4", None, 1), "c", "inside")
    graph = optimize(graph, options, until=LAST)
    (maker,) = graph.producers()[graph.outputs[0]].inputs
    found = region(graph, maker)
    assert isinstance(found, Region)
    kernels = []
    for count in (4, 6):
        (way,) = (s for s, _ in splits(graph, found, 12, 9.0) if s.count == count and s.axis == 1)
        kernels.append(len(lowered_plan(patched(graph, way), options, since=FIRST).kernels))
    assert kernels[1] <= kernels[0] + 2  # the kernels that read the image differ in their place
