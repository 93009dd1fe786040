"""Depthwise convolutions of large windows give the same sums, from an image that is copied by vectors of
channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from nets import TARGET, N, Net

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Kernel, LoopNest
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.loop import Stmt, Store, statements
from jangin.ir.traversal import loads
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.algebra.simplify import simplify
from jangin.passes.fusion.fuse import fuse
from jangin.passes.layouts.layout import channels_last
from jangin.passes.windows.large_windows import large_windows
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, Target, resolve

pytestmark = pytest.mark.sampled(3)

HOST, WIDE = resolve(), NAMED["x86-64-v4"]
TOLERANCE = 2e-6


def depthwise(t: Net, x: Tensor, kernel: Sequence[int], pads: Sequence[int]) -> Tensor:
    channels = int(str(x.shape[1]))
    one = (1,) * len(kernel)
    w = t.weight(channels, 1, *kernel)
    return t.b.conv(x, w, strides=one, dilations=one, pads=tuple(pads), groups=channels)


def fused(graph: Graph) -> Graph:
    return fuse(simplify(channels_last(graph, TARGET)), TARGET)


def operators(graph: Graph) -> list[str]:
    return [n.op for k in graph.nodes if k.op == "kernel" for n in k.of(Kernel).body.nodes]


def direct(x: Array, w: Array, pads: Sequence[int]) -> Array:
    """Return the convolution in float64, channels first."""
    top, left, bottom, right = pads
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,cij->nchw", windows, w[:, 0].astype(np.float64))


def close(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def executable(graph: Graph, threads: int) -> Executable:
    options = Options(HOST, verify=True)
    after = optimize(graph, options)
    plan = make_plan(after, schedule_kernels(after, options), options)
    return Executable(build(plan, HOST), threads)


SHAPES = [
    pytest.param(7, 7, (13, 13), (6, 6, 6, 6), id="mostly padding"),
    pytest.param(9, 31, (7, 9), (3, 4, 3, 4), id="tiles that overhang"),
    pytest.param(10, 12, (9, 7), (0, 0, 0, 0), id="no padding"),
    pytest.param(26, 5, (51, 1), (25, 0, 25, 0), id="one column"),
    pytest.param(3, 30, (1, 51), (0, 25, 0, 25), id="one row"),
    pytest.param(8, 9, (11, 10), (12, 4, 3, 4), id="rows of padding alone"),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", [TARGET, WIDE], ids=["16 registers", "32 registers"])
@pytest.mark.parametrize(("height", "width", "kernel", "pads"), SHAPES)
def test_equals_the_plain_convolution(
    height: int, width: int, kernel: tuple[int, int], pads: tuple[int, ...], target: Target
) -> None:
    t = Net()
    graph = t.done(depthwise(t, t.input("x", N, 16, height, width), kernel, pads))
    (w,) = graph.constants.values()
    before = fused(graph)
    after = large_windows(before, target)
    verify_graph(after, CORE)
    assert operators(after).count("loop_nest") == 1 and "conv" not in operators(after)
    x = np.random.default_rng(1).standard_normal((2, 16, height, width)).astype(np.float32)
    close(run_graph(after, {"x": x})["y0"], direct(x, w, pads))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("height", "width", "kernel", "pads"), SHAPES)
def test_compiled(
    height: int, width: int, kernel: tuple[int, int], pads: tuple[int, ...], threads: int
) -> None:
    t = Net(seed=3)
    channels = 3 * HOST.machine.lanes(4)
    y = depthwise(t, t.relu(t.conv(t.input("x", N, 8, height, width), channels, 1)), kernel, pads)
    graph = t.done(t.relu(t.bias(y)))
    exe = executable(graph, threads)
    assert any(launch.template.startswith("nest") for launch in exe.plan.launches)
    x = np.random.default_rng(2).standard_normal((3, 8, height, width)).astype(np.float32)
    close(exe(x), run_graph(graph, {"x": x})["y0"])


def test_registers_hold_the_weights_of_several_taps() -> None:
    """A multiplicand is loaded once for the taps of a row that share it, if there are registers for these."""
    loaded = {}
    for target in (TARGET, WIDE):
        t = Net()
        graph = t.done(depthwise(t, t.input("x", 1, 16, 14, 14), (7, 7), (3, 3, 3, 3)))
        (nest,) = (n for k in large_windows(fused(graph), target).nodes for n in nests(k))
        stores = [s for s in statements(nest) if isinstance(s, Store) and s.buffer.name == "acc"]
        pixels = {n for s in stores for n in loads(s.value) if n.buffer.name == "plane"}
        loaded[target] = len(pixels)
    assert loaded == {TARGET: 14, WIDE: 20}


def nests(kernel: Node) -> list[Stmt]:
    return [n.attrs.body for n in kernel.of(Kernel).body.nodes if isinstance(n.attrs, LoopNest)]


def test_takes_in_what_is_before_the_padding_and_what_follows() -> None:
    t = Net()
    a = t.conv(t.input("x", N, 8, 11, 13), 16, 1)
    y = depthwise(t, t.relu(t.bias(t.pool(a, 1, 1))), (9, 9), (4, 4, 4, 4))
    before = fused(t.done(t.relu(t.add(t.bias(y), a))))
    after = large_windows(before, TARGET)
    verify_graph(after, CORE)
    assert "pad" in operators(before) and not {"pad"} & {*operators(after)}
    x = {"x": np.random.default_rng(1).standard_normal((2, 8, 11, 13)).astype(np.float32)}
    close(run_graph(after, x)["y0"], run_graph(before, x)["y0"])


def conv(t: Net, x: Tensor, **how: int) -> Tensor:
    return t.conv(x, 16, how.pop("kernel", 9), groups=how.pop("groups", 16), **how)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda t: conv(t, t.input("x", 1, 16, 9, 9), stride=2), id="stride"),
        pytest.param(lambda t: conv(t, t.input("x", 1, 16, 9, 9), kernel=5), id="few taps"),
        pytest.param(lambda t: conv(t, t.input("x", 1, 16, 9, 9), groups=8), id="groups of two"),
        pytest.param(lambda t: conv(t, t.input("x", 1, 8, 9, 9), groups=8), id="a multiplier"),
        pytest.param(lambda t: conv(t, t.input("x", 1, 16, N, 9)), id="rows that aren't known"),
        pytest.param(lambda t: t.conv(t.input("x", 1, 12, 9, 9), 12, 9, groups=12), id="parts of vectors"),
    ],
)
def test_others_stay(make: Callable[[Net], Tensor]) -> None:
    t = Net()
    graph = fused(t.done(make(t)))
    assert large_windows(graph, TARGET) is graph


@pytest.mark.parametrize(("channels", "stride"), [(16, 2), (13, 1)], ids=["stride", "parts of vectors"])
def test_what_stays_slides_in_registers(channels: int, stride: int) -> None:
    """Convolutions that keep the template of windows don't test their padding tap by tap, which would be
    scalar code."""
    t = Net()
    x = t.conv(t.input("x", N, 8, 11, 10), channels, 1)
    graph = t.done(t.conv(x, channels, 9, stride=stride, groups=channels))
    exe = executable(graph, 1)
    assert any(launch.template.startswith("window") for launch in exe.plan.launches)
    given = np.random.default_rng(2).standard_normal((2, 8, 11, 10)).astype(np.float32)
    close(exe(given), run_graph(graph, {"x": given})["y0"])
