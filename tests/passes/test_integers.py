"""Products of small integers, on words of two int16 or four int8, are exact. Nothing wider lies between
them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from integer_nets import Net, built, code, compiled, conv, image, layer, product, products, weights

from jangin.compiler.pipeline import optimize
from jangin.ir.core import Compute, Conv, Kernel, Map, Reshape
from jangin.ir.dtype import F32, I8, I16, I32, U8
from jangin.ir.expr import Call, Var, cast, const
from jangin.ir.graph import Graph
from jangin.ir.products import DOT2, DOT2B, DOT4, DOT4S, DOT4U, DOT8U, Product
from jangin.ops.blocks import Rounding, matmul_blocks
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import dequantize, integer_conv, integer_matmul, quantize, requantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.windows.winograd_cost import Estimate
from jangin.passes.windows.winograd_transform import PAIRED, PairTransform
from jangin.targets import Target, resolve
from jangin.targets.arm import CORTEX_A72, NEOVERSE_N1, NEOVERSE_V1
from jangin.targets.figures import FusionFigures
from jangin.targets.x86 import V2, V3, V4_VNNI


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


@pytest.mark.parametrize("net", [n for n in NETS if n != "groups of odd channels"])
def test_products_are_of_pairs(net: str) -> None:
    graph, _ = built(NETS[net], 0)
    made = products(optimize(graph, Options(V3)))
    assert made and all(p.dot == DOT2 for p in made) == (net != "depthwise")


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
