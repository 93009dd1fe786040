"""Products with weights of at most 7 bits, whose sums of two products fit 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from integer_nets import Net, built, compiled, image, layer, products, weights

from jangin.compiler.pipeline import optimize
from jangin.ir.core import Conv, MatMul
from jangin.ir.dtype import F32, I8, I16, I32, U8, DType
from jangin.ir.expr import cast, const, maximum, minimum
from jangin.ir.products import DOT2, DOT4S, DOT4U, Product
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import integer_conv, integer_matmul, requantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.targets import Target, resolve
from jangin.targets.micro import CORTEX_M0PLUS, CORTEX_M4
from jangin.targets.x86 import V2, V3, V4


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


def test_pairs_are_transformed_by_vectors_alone() -> None:
    """Winograd's transforms of pairs need vectors. Without them, sums of pairs take six instructions each,
    and microcontrollers lack memory."""
    graph, _ = built(NARROW["Winograd's"][0], 0)
    for target, kind in ((V4, MatMul), (CORTEX_M4, Conv)):
        assert [type(p) for p in products(optimize(graph, Options(target)))] == [kind]


def tall(b: Builder, random: np.random.Generator) -> Tensor:
    """Add a product of all that a convolution of one channel makes. Its window has even sizes."""
    x = b.input("x", I8, tuple(const(d) for d in (1, 1, 17, 14)))
    w = b.const(weights(random, 8, 1, 10, 8))
    sums = integer_conv(b, x, w, b.scalar(-5, I8), strides=(2, 2), pads=(4, 3, 5, 3))
    scales = b.const(random.uniform(1e-4, 1e-3, (8, 1, 1)).astype(np.float32))
    out = b.transpose(requantize(b, sums, scales, b.scalar(-128, I8)), (0, 2, 3, 1))
    flat = b.reshape(out, (const(1), const(504)))
    return integer_matmul(b, flat, b.const(weights(random, 504, 4)), b.scalar(-128, I8))


@pytest.mark.parametrize("target", [CORTEX_M4, CORTEX_M0PLUS, V3, V4], ids=lambda t: t.name)
def test_bytes_that_are_moved_and_padded_stay_bytes(target: Target) -> None:
    """No kernel makes int16 of bytes only for another to make bytes of them again."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    graph, arrays = built(tall, seed)
    fused = optimize(graph, Options(target))
    np.testing.assert_array_equal(run_graph(fused, arrays)["out"], run_graph(graph, arrays)["out"])
    wide = {v for n in fused.nodes for v in n.outputs if fused.dtype(v) is I16}
    again = [
        n for n in fused.nodes if wide.intersection(n.inputs) and all(fused.dtype(v) is I8 for v in n.outputs)
    ]
    assert not again
