"""The Winograd pass gives the same results within its rounding, copies nothing for padding, and applies only
where it should pay."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from guarded import Memory, watched
from nets import TARGET, N, Net, feeds
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler.pipeline import build_plan, graph_passes, plan_model
from jangin.ir.core import Kernel, Reshape
from jangin.ir.dtype import F32, I32, I64
from jangin.ir.expr import Var, const
from jangin.ir.graph import Array, Graph
from jangin.ir.graph_text import print_graph
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.passes.algebra.cse import cse
from jangin.passes.algebra.simplify import simplify
from jangin.passes.fusion.fuse import fuse
from jangin.passes.layouts.layout import channels_last
from jangin.passes.partition import prune
from jangin.passes.windows.winograd import match, winograd
from jangin.passes.windows.winograd_cost import Estimate
from jangin.passes.windows.winograd_transform import F2, F4, Transform
from jangin.runtime.load import executable
from jangin.targets import NAMED
from jangin.targets.figures import WinogradFigures

pytestmark = pytest.mark.sampled(2)

TRANSFORMS = [pytest.param(F2, id="F2"), pytest.param(F4, id="F4")]
TOLERANCE = 1e-5
H = Var("H")


def fused(graph: Graph) -> Graph:
    return fuse(simplify(channels_last(graph, TARGET)), TARGET)


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a graph's inputs, which are known."""
    return {n: tuple(int(str(d)) for d in graph.shape(n)) for n in graph.inputs}


def direct(x: Array, w: Array, pad: int, dilations: tuple[int, int] = (1, 1)) -> Array:
    """Return the convolution in float64, channels first."""
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    down, across = dilations
    windows = np.lib.stride_tricks.sliding_window_view(wide, (2 * down + 1, 2 * across + 1), axis=(2, 3))
    windows = windows[..., ::down, ::across]
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))


def close(got: Array, want: Array) -> None:
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def forced(monkeypatch: pytest.MonkeyPatch, transform: Transform | None, blocks: bool = False) -> None:
    monkeypatch.setattr(Estimate, "best", lambda _: transform)
    monkeypatch.setattr(Estimate, "by_blocks", lambda _, t: blocks)


def kernels(graph: Graph) -> list[list[str]]:
    """Return the operators of each kernel, in order."""
    return [[n.op for n in k.of(Kernel).body.nodes] for k in graph.nodes if k.op == "kernel"]


THREE = [["loop_nest"], ["matmul"], ["loop_nest"]]
OF_PANELS = [["loop_nest"], ["compute"], ["loop_nest"]]
ONE = [["loop_nest", "compute", "loop_nest"]]
WAYS = [pytest.param(False, id="whole"), pytest.param(True, id="blocks")]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("blocks", WAYS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("height", "width", "channels", "outputs", "pad"),
    [(7, 6, 13, 19, 1), (8, 9, 17, 3, 0), (5, 4, 9, 2, 0), (1, 5, 8, 16, 1), (6, 6, 16, 4, 2)],
)
def test_equals_the_plain_convolution(
    monkeypatch: pytest.MonkeyPatch,
    transform: Transform,
    height: int,
    width: int,
    channels: int,
    outputs: int,
    pad: int,
    blocks: bool,
) -> None:
    forced(monkeypatch, transform, blocks)
    t = Net()
    graph = t.done(t.conv(t.input("x", N, channels, height, width), outputs, 3, pad=pad))
    (w,) = graph.constants.values()
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert kernels(new)[1:-1] == (ONE if blocks else THREE)  # the first and the last kernel change the layout
    x = np.random.default_rng(1).standard_normal((2, channels, height, width)).astype(np.float32)
    close(run_graph(new, {"x": x})["y0"], direct(x, w, pad))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("blocks", WAYS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("channels", "outputs", "panels"), [(13, 3, 0), (16, 19, 0), (12, 16, 0), (9, 96, 6)]
)
def test_weights_that_change(
    monkeypatch: pytest.MonkeyPatch,
    transform: Transform,
    channels: int,
    outputs: int,
    panels: int,
    blocks: bool,
    compiled: bool,
) -> None:
    """Weights that are an input are transformed by a kernel of their own, to panels if there are several."""
    forced(monkeypatch, transform, blocks)
    t = Net()
    x, w = t.input("x", 2, channels, 7, 6), t.input("w", outputs, channels, 3, 3)
    graph = prune(t.done(t.b.conv(x, w, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)))
    random = np.random.default_rng(1)
    given = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes_of(graph).items()}
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert kernels(new)[1:-1] == [["loop_nest"], *(ONE if blocks else OF_PANELS if panels else THREE)]
    if panels and not blocks:
        u = next(n for n in new.nodes if n.inputs == ("w",)).outputs[0]
        assert new.shape(u)[1] == const(panels)
    run = executable(build_plan(graph, Options()), 2).run if compiled else partial(run_graph, new)
    close(run(given)["y0"], direct(given["x"], given["w"], 1))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_weights_that_are_turned(
    monkeypatch: pytest.MonkeyPatch, transform: Transform, compiled: bool
) -> None:
    """The gradient of a convolution's input turns the weights. Their transform reads them as they were."""
    forced(monkeypatch, transform)
    t = Net()
    x, w = t.input("x", 2, 12, 7, 6), t.input("w", 12, 19, 3, 3)
    turned = t.b.slice(t.b.transpose(w, [1, 0, 2, 3]), [0, 0, 2, 2], [19, 12, 3, 3], [1, 1, -1, -1])
    turned = t.b.reshape(t.b.reshape(turned, [1, 19, 12, 3, 1, 3]), [19, 12, 3, 3])
    graph = prune(t.done(t.b.conv(x, turned, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)))
    random = np.random.default_rng(1)
    given = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes_of(graph).items()}
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert kernels(new)[1:-1] == [["loop_nest"], *THREE]
    run = executable(build_plan(graph, Options()), 2).run if compiled else partial(run_graph, new)
    close(run(given)["y0"], direct(given["x"], given["w"].transpose(1, 0, 2, 3)[..., ::-1, ::-1], 1))


def test_weights_that_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run chooses the outputs. A kernel that reads its weights by indices has two operands, so that the
    transform reads its result."""
    forced(monkeypatch, F2)
    t = Net()
    x, w, chosen = t.input("x", 1, 9, 3, 2), t.input("w", 5, 9, 3, 3), t.b.input("i", I64, (const(3),))
    taken = t.b.gather(w, chosen, 0)
    graph = prune(t.done(t.b.conv(x, taken, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)))
    random = np.random.default_rng()
    given = {n: random.standard_normal(shapes_of(graph)[n]).astype(np.float32) for n in ("x", "w")}
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert ["loop_nest"] in kernels(new)
    given["i"] = random.integers(0, 5, 3)
    close(run_graph(new, given)["y0"], direct(given["x"], given["w"][given["i"]], 1))


def test_weights_whose_bytes_were_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that moves words makes floats of the same bytes. The transform can't read the words."""
    forced(monkeypatch, F2)
    t = Net()
    x, words = t.input("x", 1, 9, 3, 2), t.b.input("w", I32, tuple(map(const, (9, 3, 3, 3))))
    turned = t.b.transpose(words, [1, 0, 2, 3])
    w = t.b.node(Reshape(turned.shape, F32), [turned])
    graph = prune(t.done(t.b.conv(x, w, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)))
    random = np.random.default_rng()
    given = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes_of(graph).items()}
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert ["loop_nest"] in kernels(new)
    got = run_graph(new, {**given, "w": given["w"].view(np.int32)})["y0"]
    close(got, direct(given["x"], given["w"].transpose(1, 0, 2, 3), 1))


def test_the_choice_for_weights_that_change() -> None:
    """The transform of the weights pays for many images. It doesn't for a single small one."""
    deep = 7, 7, 512, 512, WinogradFigures()
    assert Estimate(*deep).best() is not None
    assert Estimate(*deep, changing=True).best() is None
    assert Estimate(*deep, images=32, changing=True).best() is not None


@pytest.mark.parametrize(
    ("channels", "size", "images", "way"),
    [
        (16, 32, 4, ""), (64, 8, 4, ""), (64, 13, 4, ""), (32, 16, 32, "blocks"), (64, 8, 32, "blocks"),
        (64, 56, 4, "blocks"), (128, 28, 4, "whole"), (512, 7, 8, "whole"),
    ],
)  # fmt: skip
def test_the_choice_in_training_on_avx512(channels: int, size: int, images: int, way: str) -> None:
    """The faster of direct sums, blocks of tiles and whole kernels, as they were timed on Zen 5. Direct sums
    of 64 channels took 0.5 of three kernels' time for 8 x 8, and 2.3 times that of blocks for 56 x 56."""
    figures = NAMED["x86-64-v4-bf16"].machine.winograd
    estimate = Estimate(size, size, channels, channels, figures, images=images, changing=True)
    best = estimate.best()
    assert way == ("" if best is None else "blocks" if estimate.by_blocks(best) else "whole")


@pytest.mark.parametrize("blocks", WAYS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("pad", [0, 1])
def test_images_of_any_size(
    monkeypatch: pytest.MonkeyPatch, transform: Transform, pad: int, blocks: bool
) -> None:
    """One executable takes images of all sizes, smaller than a tile and with a part of one, and touches no
    other memory."""
    forced(monkeypatch, transform, blocks)
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((19, 13, 3, 3)) / 11).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[pad] * 4)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 13, "height", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "any", [x], [y], [numpy_helper.from_array(w, "w")])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    memory = Memory()
    with watched(memory):
        exe = jangin.compile(data.SerializeToString(), threads=2, cache=False, isolated=False)
        assert any("nest" in n.template or "winograd" in n.template for n in exe.plan.launches)
        for shape in ((1, 3, 4), (2, 7, 5), (1, 12, 17), (3, 4, 30)):
            image = rng.standard_normal((shape[0], 13, *shape[1:])).astype(np.float32)
            close(exe(memory.copy(image)), direct(image, w, pad))
    assert not memory.faults()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("blocks", WAYS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("height", "width", "pad", "dilations"),
    [(8, 16, 2, (2, 2)), (9, 7, 3, (3, 2)), (5, 6, 6, (6, 1)), (4, 3, 5, (5, 5)), (12, 11, 0, (1, 4))],
)
def test_dilated(
    monkeypatch: pytest.MonkeyPatch,
    transform: Transform,
    height: int,
    width: int,
    pad: int,
    dilations: tuple[int, int],
    blocks: bool,
) -> None:
    forced(monkeypatch, transform, blocks)
    t = Net()
    x = t.input("x", N, 9, height, width)
    graph = t.done(t.relu(t.bias(t.conv(x, 10, 3, pad=pad, dilations=dilations))))
    w, bias = graph.constants.values()
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert kernels(new)[1:-1] == (ONE if blocks else THREE)
    given = np.random.default_rng(1).standard_normal((2, 9, height, width)).astype(np.float32)
    want = np.maximum(direct(given, w, pad, dilations) + bias, 0)
    close(run_graph(new, {"x": given})["y0"], want)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("blocks", WAYS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("frames", "height", "width", "pad"), [(4, 8, 7, 1), (3, 5, 6, 0), (1, 4, 9, 1), (2, 3, 4, 2)]
)
def test_videos(
    monkeypatch: pytest.MonkeyPatch,
    transform: Transform,
    frames: int,
    height: int,
    width: int,
    pad: int,
    blocks: bool,
) -> None:
    """Windows over three frames, with fused operators."""
    forced(monkeypatch, transform, blocks)
    t = Net()
    x = t.input("x", N, 9, frames, height, width)
    y = t.bias(t.conv(x, 9, 3, pad=pad))
    graph = t.done(t.relu(t.add(y, x) if pad == 1 else y))
    w, bias = graph.constants.values()
    new = winograd(fused(graph), TARGET)
    verify_graph(new, CORE)
    assert [k for k in kernels(new) if "loop_nest" in k] == (ONE if blocks else [["loop_nest"]] * 2)
    given = np.random.default_rng(1).standard_normal((2, 9, frames, height, width)).astype(np.float32)
    wide = np.pad(given.astype(np.float64), [(0, 0), (0, 0), *[(pad, pad)] * 3])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3, 3), axis=(2, 3, 4))
    want = np.einsum("ncdhwijk,ocijk->nodhw", windows, w.astype(np.float64)) + bias
    close(run_graph(new, {"x": given})["y0"], np.maximum(want + (given if pad == 1 else 0), 0))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_takes_in_the_padding_and_what_follows(monkeypatch: pytest.MonkeyPatch, transform: Transform) -> None:
    forced(monkeypatch, transform)
    t = Net()
    a = t.relu(t.conv(t.input("x", N, 8, 6, 7), 12, 1))
    before = fused(t.done(t.relu(t.add(t.bias(t.conv(a, 12, 3)), a))))
    after = winograd(before, TARGET)
    verify_graph(after, CORE)
    assert kernels(before)[-3:-1] == [["pad"], ["conv", "map", "map", "map"]]
    assert kernels(after) == [*kernels(before)[:-3], *THREE, *kernels(before)[-1:]]
    x = feeds(before)
    close(run_graph(after, x)["y0"], run_graph(before, x)["y0"])


def test_maps_before_the_padding_and_a_padded_copy_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, F4)
    t = Net()
    a = t.conv(t.input("x", N, 4, 6, 6), 8, 1)
    p = t.relu(t.bias(t.pool(a, 1, 1)))
    before = cse(fused(t.done(t.conv(p, 4, 3), t.conv(p, 6, 3, stride=2))))
    after = winograd(before, TARGET)
    assert ["conv"] in [k[:1] for k in kernels(after)]
    x = feeds(before)
    for name, want in run_graph(before, x).items():
        close(run_graph(after, x)[name], want)


def sizes(height: int, width: int, channels: int, outputs: int) -> Graph:
    t = Net()
    x = t.conv(t.input("x", N, 8, height, width), channels, 1)
    return fused(t.done(t.conv(x, outputs, 3)))


@pytest.mark.parametrize(
    ("shape", "transform"),
    [
        ((56, 56, 64, 64), F4),
        ((28, 28, 128, 128), F4),
        ((14, 14, 256, 256), F4),
        ((7, 7, 512, 512), F2),
        ((3, 3, 512, 512), None),  # the weights stream from memory, and Winograd's are larger
        ((512, 512, 16, 16), F4),
        ((512, 512, 4, 4), None),  # the transformed tiles stream from memory
        ((8, 8, 8, 8), None),
    ],
)
def test_the_choice(shape: tuple[int, int, int, int], transform: Transform | None) -> None:
    graph = sizes(*shape)
    (m,) = [m for n in graph.nodes if (m := match(n, graph)) is not None]
    assert (m.height, m.width, m.channels, m.outputs) == (*map(const, shape[:2]), *shape[2:])
    assert Estimate(*shape, WinogradFigures()).best() == transform


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((224, 224, 64, 64), True),
        ((112, 112, 64, 128), True),
        ((56, 56, 256, 256), False),  # each block would read all weights again
        ((56, 56, 64, 64), False),  # the transformed tiles stay in the cache anyway
        ((20, 20, 96, 24), False),
        ((14, 14, 512, 512), False),
    ],
)
def test_blocks_of_tiles_for_large_images(shape: tuple[int, int, int, int], blocks: bool) -> None:
    assert Estimate(*shape, WinogradFigures()).by_blocks(F4) == blocks


@pytest.mark.parametrize(
    ("dilation", "transform"), [(1, F4), (2, F4), (4, F4), (12, F4), (24, None), (36, None)]
)
def test_the_choice_of_dilated_ones(dilation: int, transform: Transform | None) -> None:
    """Winograd's method isn't chosen for large dilations, because most tiles would be partial."""
    shape = 32, 32, 512, 512
    found = Estimate(*shape, WinogradFigures(), dilations=(dilation, dilation))
    assert found.best() == transform


@pytest.mark.parametrize("what", ["stride", "groups", "kernel", "dilation"])
def test_other_convolutions_stay(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    forced(monkeypatch, F2)
    t = Net()
    x = t.conv(t.input("x", 1, 4, H if what == "dilation" else 9, 9), 8, 1)
    two = {"stride": 1 + (what == "stride"), "groups": 1 + (what == "groups")}
    y = t.conv(x, 8, 5 if what == "kernel" else 3, **two, dilations=(2, 2) if what == "dilation" else (1, 1))
    graph = fused(t.done(y))
    assert winograd(graph, TARGET) is graph


def model(height: int, channels: int) -> bytes:
    """Return an ONNX model of two 3 x 3 convolutions with biases around a residual connection, with a
    symbolic batch."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        scale = math.sqrt(2 / math.prod(shape[1:] or (1,)))
        return numpy_helper.from_array((random.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w1", "b1"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["d", "a"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    weights = [
        weight("w0", channels, 8, 1, 1),
        weight("w1", channels + 3, channels, 3, 3),
        weight("b1", channels + 3),
        weight("w2", channels, channels + 3, 3, 3),
    ]
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, height, height + 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("transform", "height", "channels", "batch", "blocks"),
    [
        pytest.param(F2, 13, 24, 1, False, id="F2"),
        pytest.param(F4, 16, 32, 3, False, id="F4"),
        pytest.param(F4, 13, 24, 3, True, id="F4-blocks"),
    ],
)
def test_compiled(
    monkeypatch: pytest.MonkeyPatch,
    transform: Transform,
    height: int,
    channels: int,
    batch: int,
    blocks: bool,
) -> None:
    forced(monkeypatch, transform, blocks)
    data = model(height, channels)
    exe = jangin.compile(data, threads=2, cache=False)
    if blocks:
        assert sum(x.template.startswith("winograd") for x in exe.plan.launches) == 2
    else:
        assert sum(k.startswith("k_") and "_m_" in k for k in exe.plan.kernels) == 2
    x = np.random.default_rng(2).standard_normal((batch, 8, height, height + 1)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    close(exe(x), want)


def test_it_can_be_left_out() -> None:
    data, target = model(28, 32), NAMED["x86-64-v3"]
    assert "winograd" in [p.name for p in graph_passes(Options(target))]
    assert "winograd" not in [p.name for p in graph_passes(Options(target, winograd=False))]
    assert Options(target).key() != Options(target, winograd=False).key()
    (plan,) = plan_model(data, Options(target)).plans
    without = jangin.build(data, target.name, cache=False, winograd=False).plan
    assert len(plan.launches) > len(without.launches)


def test_the_same_each_time() -> None:
    graph = sizes(28, 28, 32, 32)
    assert print_graph(winograd(graph, TARGET)) == print_graph(winograd(graph, TARGET))


def test_an_estimate_of_no_images() -> None:
    """A batch of 0 doesn't divide the cost of a launch."""
    figures = NAMED["x86-64-v4"].machine.winograd
    Estimate(16, 16, 8, 16, figures, batch=0).best()
