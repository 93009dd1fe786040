"""Products of small integers, on words of two int16 or four int8, are exact. Nothing wider lies between
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Compute, Conv, Kernel, Map, MatMul, Reshape
from jangin.ir.dtype import F32, I8, I16, I32, U8, DType
from jangin.ir.expr import Call, Var, cast, const, maximum, minimum
from jangin.ir.graph import Array, Graph
from jangin.ir.products import DOT2, DOT2B, DOT4, DOT4S, DOT4U, DOT8U, Product
from jangin.ops.blocks import Rounding, matmul_blocks
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import dequantize, integer_conv, integer_matmul, quantize, requantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.windows.winograd_cost import Estimate
from jangin.passes.windows.winograd_transform import PAIRED, PairTransform
from jangin.runtime.executable import Executable
from jangin.targets import Target, resolve
from jangin.targets.arm import CORTEX_A72, NEOVERSE_N1, NEOVERSE_V1
from jangin.targets.figures import FusionFigures
from jangin.targets.micro import CORTEX_M4
from jangin.targets.x86 import V2, V3, V4, V4_VNNI

Net = Callable[[Builder, np.random.Generator], Tensor]


def weights(random: np.random.Generator, *shape: int, most: int = 128) -> Array:
    return random.integers(-most, min(most, 127), shape, np.int8, endpoint=True)


def image(b: Builder, channels: int, height: int, width: int, dtype: DType = U8) -> Tensor:
    return b.input("x", dtype, tuple(const(d) for d in (2, channels, height, width)))


def conv(channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, size: int = 11) -> Net:
    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = image(b, channels, size, size + 3)
        w = b.const(weights(random, outputs, channels // groups, kernel, kernel))
        pads = (kernel // 2,) * 4
        return integer_conv(b, x, w, b.scalar(101, U8), strides=(stride,) * 2, pads=pads, groups=groups)

    return net


def product(left: DType, right: DType, depth: int) -> Net:
    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = b.input("x", left, (const(13), const(depth)))
        y = b.input("y", right, (const(depth), const(37)))
        zero = b.scalar(7, right) if right is not I16 else None
        return integer_matmul(b, x, y, None, zero)

    return net


def layer(depth: int, batch: tuple[int, ...] = (), given: bool = False, most: int = 128) -> Net:
    """Make a product with weights. A row's numbers are padded to whole words. `given`: the zero point is an
    input."""

    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = b.input("x", U8, tuple(const(n) for n in (*batch, 13, depth)))
        zero = b.input("zero", U8, ()) if given else b.scalar(101, U8)
        return integer_matmul(b, x, b.const(weights(random, *batch, depth, 37, most=most)), zero)

    return net


def rescaled(b: Builder, random: np.random.Generator) -> Tensor:
    """Add an integer convolution of rescaled bytes, as after a Concat. Only a clamp bounds what it reads."""
    x = dequantize(b, image(b, 24, 9, 9), b.scalar(0.3, F32), b.scalar(3, U8))
    x = quantize(b, x, b.scalar(0.5, F32), b.scalar(10, U8), dtype=U8)
    return integer_conv(b, x, b.const(weights(random, 16, 24, 1, 1)), b.scalar(10, U8))


NETS: dict[str, Net] = {
    "a window": conv(32, 48, 3, size=5),
    "a window, odd channels": conv(35, 24, 3, size=5),
    "few channels": conv(3, 40, 3),
    "few channels, rows of words": conv(3, 40, 7, stride=2),
    "few channels, rows of half words": conv(3, 24, 3, stride=2, size=10),
    "strided": conv(17, 33, 3, stride=2),
    "a point": conv(64, 40, 1),
    "rescaled": rescaled,
    "groups": conv(24, 32, 3, groups=2),
    "groups of odd channels": conv(15, 30, 3, groups=3),
    "depthwise": conv(16, 16, 3, groups=16),
    "a product": product(U8, I8, 67),
    "a deep product": product(I8, U8, 4099),
    "int16": product(I16, I16, 21),
    "weights": layer(66),
    "batches of weights": layer(24, (3,)),
    "a zero point that a run gives": layer(66, (), given=True),
    "batches, one zero point": layer(21, (3,), given=True),
}


def built(net: Net, seed: int) -> tuple[Graph, dict[str, Array]]:
    random = np.random.default_rng(seed)
    b = Builder("net", {})
    out = net(b, random)
    graph = b.graph([out], ["out"])
    arrays = {}
    for name in graph.inputs:
        info = np.iinfo(graph.dtype(name).numpy)
        shape = [int(str(d)) for d in graph.shape(name)]
        arrays[name] = np.asarray(random.integers(info.min, info.max, shape, info.dtype, endpoint=True))
    return graph, arrays


@pytest.mark.parametrize(("height", "width"), [(9, 64), (6, 37), (5, 10)])
def test_images_of_floats_are_quantized_plane_by_plane(height: int, width: int) -> None:
    """Vectors along a row quantize floats, with padding, for rows of words and of pixels."""
    random, b = np.random.default_rng(width), Builder("net", {})
    x = b.input("x", F32, tuple(const(n) for n in (2, 3, height, width)))
    zero = b.scalar(101, U8)
    small = quantize(b, x, b.scalar(0.05, F32), zero, dtype=U8)
    w = b.const(weights(random, 16, 3, 3, 3))
    graph = b.graph([integer_conv(b, small, w, zero, strides=(2, 2), pads=(1, 1, 1, 1))], ["out"])
    arrays = {"x": (5 * random.standard_normal((2, 3, height, width))).astype(np.float32)}
    want, options = run_graph(graph, arrays)["out"], Options(resolve(), verify=True)
    np.testing.assert_array_equal(run_graph(optimize(graph, options), arrays)["out"], want)
    np.testing.assert_array_equal(code(graph, options, arrays), want)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("net", NETS)
def test_sums_are_exact(net: str) -> None:
    """The optimized graph and its code give the lowered graph's integers. All values are as large as
    possible."""
    graph, arrays = built(NETS[net], len(net))
    want = run_graph(graph, arrays)["out"]
    for target in (V3, V4_VNNI, NEOVERSE_N1, NEOVERSE_V1, CORTEX_A72):
        fused = optimize(graph, Options(target, verify=True))
        np.testing.assert_array_equal(run_graph(fused, arrays)["out"], want)
    here = resolve()
    # This target takes the schedule for matrices, and each product in it is done lane by lane.
    pairs_of_rows = V2.with_figures(products=NEOVERSE_V1.machine.products)
    for target in (here, here.with_figures(products=V4_VNNI.machine.products), pairs_of_rows):
        np.testing.assert_array_equal(code(graph, Options(target, verify=True), arrays), want)


def compiled(graph: Graph, options: Options) -> Executable:
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    return Executable(build(plan, options.target), 1)


def code(graph: Graph, options: Options, arrays: dict[str, Array]) -> Array:
    return compiled(graph, options).run(arrays)["out"]


def test_any_number_of_images() -> None:
    random, n = np.random.default_rng(5), Var("n")
    b = Builder("net", {n: (const(1), None)})
    x = b.input("x", U8, (n, const(14), const(9), const(7)))
    w = b.const(weights(random, 24, 14, 3, 3))
    graph = b.graph([integer_conv(b, x, w, b.scalar(101, U8), pads=(1, 1, 1, 1))], ["out"])
    exe = compiled(graph, Options(resolve(), verify=True))
    for count in (1, 3):
        arrays = {"x": random.integers(0, 255, (count, 14, 9, 7), np.uint8, endpoint=True)}
        found = exe.run(arrays)["out"]
        np.testing.assert_array_equal(found, run_graph(graph, arrays)["out"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("stored", [False, True], ids=["as words", "as bytes"])
@pytest.mark.parametrize("transform", PAIRED, ids=["F2", "F4"])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 5, 5), (10, 6, 3), (180, 9, 10)])
def test_winograd_is_exact(
    monkeypatch: pytest.MonkeyPatch,
    transform: PairTransform,
    stored: bool,
    blocks: bool,
    channels: int,
    height: int,
    width: int,
) -> None:
    """Winograd's method is exact, also at the ends of the ranges. With 180 channels, sums nearly reach the
    limit of F(4x4). A run may transform weights that are stored as bytes."""
    monkeypatch.setattr(Estimate, "best", lambda e: transform if transform in e.transforms else None)
    monkeypatch.setattr(Estimate, "by_blocks", lambda _, t: blocks)
    random, b = np.random.default_rng(channels), Builder("net", {})
    w = weights(random, 24, channels, 3, 3)
    w[:2] = np.array([127, -128], np.int8).reshape(2, 1, 1, 1)
    x = image(b, channels, height, width)
    out = integer_conv(b, x, b.const(w), b.scalar(101, U8), pads=(1, 0, 2, 1))
    graph = b.graph([out], ["out"])
    array = random.integers(0, 255, (2, channels, height, width), np.uint8, endpoint=True)
    array[1, :, :, : width // 2] = 255
    target, host = (t.with_figures(fusion=FusionFigures(byte_weights=stored)) for t in (V3, resolve()))
    want, fused = run_graph(graph, {"x": array})["out"], optimize(graph, Options(target, verify=True))
    assert any("matmul" in k or "compute" in k for k in kinds(fused))
    small = [a for a in fused.constants.values() if a.size * a.itemsize == 24 * (channels + channels % 2) * 9]
    assert len(small) == stored
    if channels <= 10:  # the interpreter is quick enough
        np.testing.assert_array_equal(run_graph(fused, {"x": array})["out"], want)
    np.testing.assert_array_equal(code(graph, Options(host), {"x": array}), want)


def kinds(graph: Graph) -> list[list[str]]:
    """Return the operators of each kernel."""
    return [[n.op for n in k.of(Kernel).body.nodes] for k in graph.nodes if isinstance(k.attrs, Kernel)]


@pytest.mark.parametrize(
    ("channels", "low", "high", "exact"),
    [(180, -128, 155, 2), (230, -101, 154, 1), (230, 0, 127, 2), (3000, -128, 127, 1)],
)
def test_results_beyond_what_winograd_leaves(channels: int, low: int, high: int, exact: int) -> None:
    words = np.full((1, channels // 2, 3, 3), 127 * 0x10001, np.int32)
    assert sum(t.exact(words, low, high) for t in PAIRED) == exact


def test_weights_that_winograd_makes_too_large() -> None:
    words = np.full((1, 1, 3, 3), 255, np.int32)
    assert [t.exact(words, -1, 1) for t in PAIRED] == [True, False]


def test_sums_that_are_floats_stay_so() -> None:
    """The sums of a depthwise convolution stay floats if its bias is as large as f32 holds exactly."""
    random, b = np.random.default_rng(7), Builder("net", {})
    sums = integer_conv(
        b,
        image(b, 16, 7, 6),
        b.const(weights(random, 16, 1, 3, 3)),
        b.scalar(101, U8),
        groups=16,
        pads=(1,) * 4,
    )
    bias = random.integers(-(1 << 24), 1 << 24, (16, 1, 1), np.int32, endpoint=True)
    biased = b.map(lambda v, c: v + c, sums, b.const(bias))
    scale = random.uniform(2e-6, 1e-5, (16, 1, 1)).astype(np.float32)
    graph = b.graph([requantize(b, biased, b.const(scale), b.scalar(128, U8))], ["out"])
    arrays = {"x": random.integers(0, 255, (2, 16, 7, 6), np.uint8, endpoint=True)}
    fused = optimize(graph, Options(V3, verify=True))
    bodies = [n.of(Kernel).body for n in fused.nodes if isinstance(n.attrs, Kernel)]
    assert not any(body.dtype(o) is I32 for body in bodies for n in body.nodes for o in n.outputs)
    want = run_graph(graph, arrays)["out"]
    np.testing.assert_array_equal(run_graph(fused, arrays)["out"], want)
    np.testing.assert_array_equal(code(graph, Options(resolve()), arrays), want)


@pytest.mark.parametrize(
    ("kernel", "stride", "size", "words"),
    [(7, 2, 11, (7, 11)), (3, 2, 11, (3, 5)), (3, 1, 11, (3, 3)), (3, 2, 10, (3, 3))],
)
def test_words_across_pixels(kernel: int, stride: int, size: int, words: tuple[int, ...]) -> None:
    """A word of three channels has neighbours of a window's row, if all windows and rows begin at a word."""
    graph, _ = built(conv(3, 8, kernel, stride, size=size), 0)
    (made,) = products(optimize(graph, Options(V3, winograd=False)))
    assert isinstance(made, Conv) and made.kernel == words
    assert made.strides == (stride, 3 if words[1] != kernel else stride)


def products(graph: Graph) -> list[Conv | MatMul]:
    bodies = [n.of(Kernel).body for n in graph.nodes if isinstance(n.attrs, Kernel)]
    return [n.attrs for body in bodies for n in body.nodes if isinstance(n.attrs, (Conv, MatMul))]


@pytest.mark.parametrize("net", [n for n in NETS if n != "groups of odd channels"])
def test_products_are_of_pairs(net: str) -> None:
    graph, _ = built(NETS[net], 0)
    made = products(optimize(graph, Options(V3)))
    assert made and all(p.dot == DOT2 for p in made) == (net != "depthwise")


def test_pairs_are_transformed_by_vectors_alone() -> None:
    """Winograd's transforms of pairs need vectors. Without them, sums of pairs take six instructions each,
    and microcontrollers lack memory."""
    graph, _ = built(NARROW["Winograd's"][0], 0)
    for target, kind in ((V4, MatMul), (CORTEX_M4, Conv)):
        assert [type(p) for p in products(optimize(graph, Options(target)))] == [kind]


@pytest.mark.parametrize("net", NETS)
def test_products_are_of_pairs_of_bytes(net: str) -> None:
    """Pairs of bytes are multiplied if there are enough channels and no weight is -128. With -128, two
    products would exceed int16."""
    graph, _ = built(NETS[net], 0)
    assert not any(p.dot for p in products(optimize(graph, Options(CORTEX_A72))))
    found = {n: c for n, c in graph.constants.items() if c.dtype == np.int8}
    held = {n: np.maximum(c, np.int8(-127)) for n, c in found.items()}
    made = products(optimize(replace(graph, constants={**graph.constants, **held}), Options(CORTEX_A72)))
    few = ("depthwise", "few channels", "groups of odd channels", "a product", "a deep product", "int16")
    assert made and all(p.dot == (None if net.startswith(few) else DOT2B) for p in made)


def test_integers_are_not_multiplied_as_floats() -> None:
    """A machine with instructions for 16-bit floats, but not for int16, doesn't multiply int16 as floats."""
    random, b = np.random.default_rng(0), Builder("net", {})
    x = b.input("x", I16, (const(13), const(24)))
    w = random.integers(0, 1 << 15, (24, 37), np.int16)
    graph = b.graph([integer_matmul(b, x, b.const(w), None, None)], ["out"])
    made = products(optimize(graph, Options(NEOVERSE_V1)))
    assert made and not any(p.dot for p in made)


def test_depthwise_products_are_of_int16_where_multiply_adds_widen() -> None:
    graph, _ = built(NETS["depthwise"], 0)
    fused = optimize(graph, Options(CORTEX_A72))
    (kernel,) = (n for n in fused.nodes if any(isinstance(m.attrs, Conv) for m in n.of(Kernel).body.nodes))
    (made,) = products(fused)
    assert made.dtype is I32 and all(fused.dtype(name) is I16 for name in kernel.inputs)
    (made,) = products(optimize(graph, Options(V3)))
    assert made.dtype is F32


OF_FOURS = {n: n not in ("groups of odd channels", "depthwise", "int16") for n in NETS}
# two inputs with zero points are multiplied, without weights
OF_FOURS |= {"a product": False, "a deep product": False}


@pytest.mark.parametrize("net", NETS)
def test_products_are_of_fours(net: str) -> None:
    graph, _ = built(NETS[net], 0)
    made = products(optimize(graph, Options(NEOVERSE_N1)))
    assert made and all((p.dot == DOT4) == OF_FOURS[net] for p in made)


OF_EIGHTS = {n: fours and n != "few channels" for n, fours in OF_FOURS.items()}
"""Products that read words of eight. With three channels, a word of 64 bits has as many numbers as one of 32,
unless it has a row's pixels."""
OF_EIGHTS |= {"few channels, rows of half words": False, "groups": False}


@pytest.mark.parametrize("net", NETS)
def test_products_are_of_matrices(net: str) -> None:
    """Matrix instructions multiply rows and columns of eight numbers, if words of eight are fewer than words
    of four."""
    graph, _ = built(NETS[net], 0)
    made = products(optimize(graph, Options(NEOVERSE_V1)))
    assert made and all((p.dot == DOT8U) == OF_EIGHTS[net] for p in made), [p.dot for p in made]


def test_one_row_is_no_matrix() -> None:
    b = Builder("net", {})
    x = b.input("x", I8, (const(1), const(64)))
    w = b.const(weights(np.random.default_rng(0), 64, 48))
    graph = b.graph([integer_matmul(b, x, w)], ["out"])
    (made,) = products(optimize(graph, Options(NEOVERSE_V1)))
    assert made.dot == DOT4U


@pytest.mark.parametrize("net", NETS)
def test_products_of_bytes_without_sign_are_of_fours(net: str) -> None:
    """Unsigned bytes are multiplied by four. If that is impossible, they become pairs of int16. Depthwise
    convolutions take four rows."""
    graph, _ = built(NETS[net], 0)
    made = products(optimize(graph, Options(V4_VNNI)))
    other = None if net == "groups of odd channels" else DOT2
    of_fours = OF_FOURS[net] or net == "depthwise"
    assert made and all(p.dot == (DOT4U if of_fours else other) for p in made)


def narrow(
    channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, size: int = 9, zero: int = 0
) -> Net:
    """Make a convolution with 7-bit weights. `zero` is the zero point of its input."""

    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = image(b, channels, size, size + 2)
        w = weights(random, outputs, channels // groups, kernel, kernel, most=64)
        w[: len(w) // 4], w[-1] = 64, -64
        pads = (kernel // 2,) * 4
        sums = integer_conv(
            b, x, b.const(w), b.scalar(zero, U8), strides=(stride,) * 2, pads=pads, groups=groups
        )
        bias = random.integers(-(1 << 20), 1 << 20, (outputs, 1, 1), np.int32)
        return b.map(lambda v, c: v + c, sums, b.const(bias))

    return net


def narrow_product(left: DType, depth: int) -> Net:
    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = b.input("x", left, (const(7), const(depth)))
        return integer_matmul(b, x, b.const(weights(random, depth, 21, most=64)), b.scalar(101, left))

    return net


NARROW: dict[str, tuple[Net, str]] = {
    "a point": (narrow(66, 40, 1), DOT4S),
    "a point, a zero point": (narrow(37, 24, 1, zero=101), DOT4S),
    "strided": (narrow(19, 33, 3, stride=2, zero=77), DOT4S),
    "few channels": (narrow(3, 24, 3, stride=2, zero=114), DOT4S),
    "groups": (narrow(24, 32, 3, groups=2), DOT4S),
    "a product": (narrow_product(U8, 67), DOT4S),
    "a product with a sign": (narrow_product(I8, 129), DOT4S),
    "a zero point that a run gives": (layer(70, given=True, most=64), DOT4S),
    "Winograd's": (narrow(64, 64, 3, size=8), DOT2),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("net", NARROW)
def test_small_weights_are_multiplied_by_bytes(net: str) -> None:
    """Words of four bytes are read without VNNI if no sum of two products exceeds 16 bits. Results are exact
    with all inputs at either end of their range."""
    graph, arrays = built(NARROW[net][0], len(net))
    low, high = np.iinfo(arrays["x"].dtype).min, np.iinfo(arrays["x"].dtype).max
    exe = compiled(graph, Options(resolve(), verify=True))
    for n, values in enumerate((None, low, high)):
        given = arrays if values is None else {n: np.full_like(a, values) for n, a in arrays.items()}
        want = run_graph(graph, given)["out"]
        np.testing.assert_array_equal(exe.run(given)["out"], want)
        for target in (V2, V3, V4) if n == 2 else ():
            fused = optimize(graph, Options(target, verify=True, winograd=net == "Winograd's"))
            assert {p.dot for p in products(fused)} == {NARROW[net][1]}
            np.testing.assert_array_equal(run_graph(fused, given)["out"], want)


@pytest.mark.parametrize(
    ("pair", "most", "dot"),
    [
        ((64, 64), 255, DOT4S),
        ((-64, -64), 255, DOT4S),
        ((127, 1), 255, DOT4S),
        ((127, -128), 255, DOT4S),
        ((127, 2), 255, DOT2),
        ((-128, -1), 255, DOT2),
        ((127, 127), 255, DOT2),
        ((127, 127), 129, DOT4S),
        ((127, 127), 130, DOT2),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_no_sum_of_two_products_saturates(pair: tuple[int, int], most: int, dot: Product, at: int) -> None:
    """One pair of weights decides, together with the known range of the inputs that it multiplies."""
    b, w = Builder("net", {}), np.ones((24, 32, 1, 1), np.int8)
    w[5, 12 + at : 14 + at, 0, 0] = pair
    x = b.input("x", F32, tuple(const(d) for d in (1, 32, 5, 7)))
    q = b.map(lambda v: cast(U8, minimum(maximum(v, const(0.0, F32)), const(float(most), F32))), x)
    graph = b.graph([integer_conv(b, q, b.const(w), b.scalar(0, U8))], ["out"])
    (made,) = products(optimize(graph, Options(V3)))
    assert made.dot == dot
    exe = compiled(graph, Options(resolve(), verify=True))
    for value in (0, most):
        arrays = {"x": np.full((1, 32, 5, 7), value, np.float32)}
        found = exe.run(arrays)["out"]
        np.testing.assert_array_equal(found, run_graph(graph, arrays)["out"])
        assert found[0, 5, 0, 0] == value * (30 + sum(pair))


@pytest.mark.parametrize(("most", "dot"), [(128, DOT4U), (64, DOT4S)])
@pytest.mark.parametrize("zero", [0, 101])
def test_one_row_reads_weights_of_bytes(most: int, dot: Product, zero: int) -> None:
    """A product of one row reads weights of bytes, because it waits for memory, and pairs are twice as large.
    With several rows, weights are stored as pairs."""
    random = np.random.default_rng()
    w = weights(random, 131, 37, most=most)
    for rows, wanted in ((1, {V2: dot, V3: dot, V4: dot}), (3, {V3: dot if most == 64 else DOT2})):
        b = Builder("net", {})
        x = b.input("x", U8, (const(rows), const(131)))
        graph = b.graph([integer_matmul(b, x, b.const(w), b.scalar(zero, U8))], ["out"])
        for target, name in wanted.items():
            fused = optimize(graph, Options(target, verify=True))
            assert [p.dot for p in products(fused)] == [name]
            for value in (0, 255, None):
                given = random.integers(0, 256, (rows, 131), np.uint8)
                arrays = {"x": given if value is None else np.full_like(given, value)}
                want = run_graph(graph, arrays)["out"]
                np.testing.assert_array_equal(run_graph(fused, arrays)["out"], want)
        exe = compiled(graph, Options(resolve(), verify=True))
        np.testing.assert_array_equal(exe.run(arrays)["out"], want)


def test_numbers_lie_once_for_pairs_and_bytes() -> None:
    """Two products share their input. The one with small weights reads pairs too, so that the input is stored
    once."""
    random, b = np.random.default_rng(3), Builder("net", {})
    x = image(b, 32, 6, 6)
    q = requantize(b, b.map(lambda v: cast(I32, v), x), b.scalar(0.7, F32), b.scalar(9, U8))
    made = [
        integer_conv(b, q, b.const(weights(random, 16, 32, 1, 1, most=most)), b.scalar(9, U8))
        for most in (64, 128)
    ]
    fused = optimize(b.graph(made, ["narrow", "wide"]), Options(V3))
    assert [p.dot for p in products(fused)] == [DOT2, DOT2]


def block(b: Builder, random: np.random.Generator) -> Tensor:
    """Add a quantized residual block between convolutions."""
    x = b.input("x", F32, tuple(const(d) for d in (1, 16, 14, 14)))
    zero, scale = b.scalar(90, U8), b.scalar(0.01, F32)

    def layer(q: Tensor, kernel: int) -> Tensor:
        w = b.const(weights(random, 16, 16, kernel, kernel))
        sums = integer_conv(b, q, w, zero, pads=(kernel // 2,) * 4)
        return requantize(b, sums, b.const(random.uniform(1e-4, 1e-3, (16, 1, 1)).astype("f4")), zero)

    def real(q: Tensor) -> Tensor:
        return b.map(lambda v: (cast(F32, v) - 90.0) * 0.01, q)

    first = layer(quantize(b, x, scale, zero, dtype=U8), 1)
    second = layer(layer(first, 3), 1)
    total = quantize(b, b.map(lambda p, q: p + q, real(first), real(second)), scale, zero, dtype=U8)
    return layer(total, 1)


def joined(b: Builder, random: np.random.Generator, number: int = 90) -> Tensor:
    """Add two quantized layers whose results are joined as floats, and quantized."""
    x = b.input("x", F32, tuple(const(d) for d in (1, 16, 14, 14)))
    zero, scale = b.scalar(number, U8), b.scalar(0.01, F32)

    def layer(q: Tensor, inputs: int, kernel: int) -> Tensor:
        w = b.const(weights(random, 16, inputs, kernel, kernel))
        sums = integer_conv(b, q, w, zero, pads=(kernel // 2,) * 4)
        return requantize(b, sums, b.const(random.uniform(1e-4, 1e-3, (16, 1, 1)).astype("f4")), zero)

    q = quantize(b, x, scale, zero, dtype=U8)
    both = b.concat([dequantize(b, layer(q, 16, k), scale, zero) for k in (1, 3)], 1)
    return layer(quantize(b, both, b.scalar(0.013, F32), zero, dtype=U8), 32, 1)


def separable(b: Builder, random: np.random.Generator) -> Tensor:
    """Add a quantized depthwise layer between two others."""
    zero, out = b.scalar(90, U8), image(b, 16, 9, 9)
    for kernel, groups in ((1, 1), (3, 16), (1, 1)):
        w = b.const(weights(random, 16, 16 // groups, kernel, kernel))
        sums = integer_conv(b, out, w, zero, pads=(kernel // 2,) * 4, groups=groups)
        out = requantize(b, sums, b.const(random.uniform(1e-4, 1e-3, (16, 1, 1)).astype("f4")), zero)
    return out


@pytest.mark.parametrize("net", [block, joined, separable])
def test_nothing_wider_than_int16_lies_between_integer_operators(net: Net) -> None:
    random = np.random.default_rng(3)
    b = Builder("net", {})
    out = net(b, random)
    graph = b.graph([out], ["out"])
    fused = optimize(graph, Options(V3, winograd=False))
    values = [n.outputs[0] for n in fused.nodes if not isinstance(n.attrs, Reshape)]
    kept = {n: fused.dtype(n) for n in values if n not in fused.outputs}
    assert all(t in (I16, U8) or n.endswith("words") for n, t in kept.items()), kept
    if net is block:
        assert sum(t is I16 for t in kept.values()) == len(products(fused)), "each product's operand, once"
    shape = [int(str(d)) for d in graph.shape("x")]
    arrays = {"x": (90 * random.standard_normal(shape)).astype(graph.dtype("x").numpy)}
    np.testing.assert_array_equal(run_graph(fused, arrays)["out"], run_graph(graph, arrays)["out"])


def test_bytes_that_are_joined_are_made_bytes_before() -> None:
    """int16 values are made bytes before they are joined. No kernel exists only to convert them."""
    random, b = np.random.default_rng(), Builder("net", {})
    graph = b.graph([joined(b, random, 0)], ["out"])
    options = Options(resolve(), verify=True)
    bodies = [n.attrs.body for n in optimize(graph, Options(V4_VNNI)).nodes if isinstance(n.attrs, Kernel)]
    alone = [body for body in bodies if [type(n.attrs) for n in body.nodes] == [Map]]
    assert not any(body.dtype(name) is I16 for body in alone for name in body.inputs)
    arrays = {"x": random.standard_normal((1, 16, 14, 14)).astype(np.float32)}
    want = run_graph(graph, arrays)["out"]
    np.testing.assert_array_equal(run_graph(optimize(graph, Options(V4_VNNI)), arrays)["out"], want)
    np.testing.assert_array_equal(code(graph, options, arrays), want)


@pytest.mark.parametrize(("target", "small", "large"), [
    (V4_VNNI, DOT4U, DOT4U), (V3, DOT4S, DOT4U), (NEOVERSE_N1, DOT4, DOT4U),
    (CORTEX_A72, DOT4U, DOT4U),
], ids=lambda v: getattr(v, "name", v))  # fmt: skip
def test_instructions_of_weights_in_blocks(target: Target, small: Product, large: Product) -> None:
    """The instruction must be exact for the weights' bytes. With weights beyond 127, some instructions
    saturate or take a sign."""
    for most, wanted in ((7, small), (127, large)):
        b = Builder("m", {})
        numbers = np.arange(-most - 1, most + 1).astype(np.int8)[None].repeat(3, 0)
        x = b.input("x", F32, (const(2), const(numbers.shape[1])))
        factors = np.ones((3, numbers.shape[1] // 16), np.float32)
        graph = b.graph([matmul_blocks(b, x, numbers, factors, None, 16, Rounding(16))], ["y"])
        optimized = optimize(graph, Options(target, verify=True))
        bodies = [
            s.body for n in optimized.nodes if isinstance(n.attrs, Kernel)
            for inner in n.of(Kernel).body.nodes if isinstance(inner.attrs, Compute)
            for s in inner.of(Compute).stages
        ]  # fmt: skip
        sums, product = (e.product for e in bodies if isinstance(e, Call))
        assert product == wanted and sums == small, "sums are products with 1"
