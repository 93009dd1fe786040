"""Functions of 8-bit numbers become one table, which is read where the numbers are made."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Gather, Kernel, Map, MatMul
from jangin.ir.dtype import F32, I8, I16, U8, DType
from jangin.ir.expr import Var, call, cast, const
from jangin.ir.graph import Array, Graph, Node
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import dequantize, integer_matmul, quantize, requantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.algebra.simplify import simplify
from jangin.passes.precision.lookups import lookups
from jangin.runtime.executable import Executable
from jangin.targets import resolve
from jangin.targets.x86 import V3


def rounded(b: Builder, x: Tensor, scale: float, zero: int) -> Tensor:
    """Quantize the tensor to 8 bits, and dequantize it."""
    given = b.scalar(scale, F32), b.scalar(zero, U8)
    return dequantize(b, quantize(b, x, *given, dtype=U8), *given)


def gelu(b: Builder, x: Tensor) -> Tensor:
    """Add GELU of u8 or s8 as quantizers write it, with every part rounded."""
    real = dequantize(b, x, b.scalar(0.03, F32), b.scalar(10, x.dtype))
    half = rounded(b, b.map(lambda v: call("erf", v / const(2**0.5, F32)), real), 2 / 255, 128)
    gate = rounded(b, b.map(lambda v: (v + const(1.0, F32)) * const(0.5, F32), half), 1 / 255, 0)
    whole = quantize(b, b.map(lambda v, g: v * g, real, gate), b.scalar(0.02, F32), b.scalar(9, U8), dtype=U8)
    return b.map(lambda v: cast(I16, v) - const(9, I16), whole)


def ran(graph: Graph, arrays: dict[str, Array]) -> Array:
    options = Options(resolve(), verify=True)
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    return Executable(build(plan, options.target), 1).run(arrays)["out"]


def gathers(graph: Graph) -> list[Node]:
    inside = [
        n for k in graph.nodes for n in (k.of(Kernel).body.nodes if isinstance(k.attrs, Kernel) else (k,))
    ]
    return [n for n in inside if isinstance(n.attrs, Gather)]


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize("shape", [(256,), (3, 5, 7)])
def test_parts_of_gelu_are_one_table(dtype: DType, shape: tuple[int, ...]) -> None:
    b, random = Builder("net", {}), np.random.default_rng(len(shape))
    graph = b.graph([gelu(b, b.input("x", dtype, tuple(map(const, shape))))], ["out"])
    low, high = dtype.limits
    x = np.arange(low, high + 1) if shape == (256,) else random.integers(low, high, shape, endpoint=True)
    arrays = {"x": x.astype(dtype.numpy)}
    want, made = run_graph(graph, arrays)["out"], lookups(graph, V3)
    assert len(gathers(made)) == 1
    # for I8, maps compute the index in the table
    assert [n for n in made.nodes if isinstance(n.attrs, Map)] == [] or dtype is I8
    np.testing.assert_array_equal(run_graph(made, arrays)["out"], want)
    np.testing.assert_array_equal(ran(graph, arrays), want)


def test_a_product_looks_up_what_it_writes() -> None:
    """A product looks up its results in a table. The bias of each column lies between, so its sums have many
    values."""
    b, random = Builder("net", {}), np.random.default_rng(3)
    x = b.input("x", U8, (const(19), const(64)))
    w = b.const(random.integers(-127, 127, (64, 43), np.int8))
    sums = integer_matmul(b, x, w, b.scalar(101, U8))
    small = requantize(b, sums, b.const(random.uniform(2e-4, 2e-3, 43).astype(np.float32)), b.scalar(90, U8))
    real = dequantize(b, small, b.scalar(0.05, F32), b.scalar(90, U8))
    biased = b.map(lambda v, c: v + c, real, b.const(random.standard_normal(43).astype(np.float32)))
    out = gelu(b, quantize(b, biased, b.scalar(0.03, F32), b.scalar(100, U8), dtype=U8))
    graph = b.graph([out], ["out"])
    fused = optimize(graph, Options(V3, verify=True))
    (kernel,) = [k for k in fused.nodes if isinstance(k.attrs, Kernel) and gathers(fused.with_nodes([k]))]
    assert any(isinstance(n.attrs, MatMul) for n in kernel.of(Kernel).body.nodes)
    arrays = {"x": random.integers(0, 255, (19, 64), np.uint8, endpoint=True)}
    np.testing.assert_array_equal(ran(graph, arrays), run_graph(graph, arrays)["out"])


def test_cheap_maps_and_those_of_several_numbers_stay() -> None:
    b = Builder("net", {})
    x, y = (b.input(n, U8, (const(40),)) for n in "xy")
    real = [dequantize(b, t, b.scalar(0.1, F32), b.scalar(3, U8)) for t in (x, y)]
    product = b.map(lambda v, w: call("tanh", v * w), *real)
    graph = b.graph([product, real[0]], ["out", "real"])
    assert lookups(graph, V3) is graph


def test_an_inner_result_that_is_read_elsewhere_has_a_table_too() -> None:
    b, n = Builder("net", {Var("n"): (const(1), None)}), Var("n")
    x = b.input("x", U8, (n, const(6)))
    real = dequantize(b, x, b.scalar(0.1, F32), b.scalar(3, U8))
    gate = b.map(lambda v: call("tanh", call("exp", -v) / (call("erf", v) + const(2.0, F32))), real)
    graph = b.graph([gate, b.map(lambda v, g: call("exp", v * g), real, gate)], ["gate", "out"])
    arrays = {"x": np.random.default_rng(1).integers(0, 255, (7, 6), np.uint8, endpoint=True)}
    made = lookups(graph, V3)
    assert len(gathers(made)) == 2 and not any(isinstance(n.attrs, Map) for n in made.nodes)
    for name, want in run_graph(graph, arrays).items():
        np.testing.assert_array_equal(run_graph(made, arrays)[name], want)


def test_several_readers_of_bytes_make_floats_themselves() -> None:
    """Readers of bytes dequantize them by themselves. A mean and a gate read a swish, as in
    squeeze-and-excite, and only bytes lie in memory."""
    b, random = Builder("net", {}), np.random.default_rng()
    x = b.input("x", U8, (const(6), const(40), const(16)))
    real = dequantize(b, x, b.scalar(0.03, F32), b.scalar(10, U8))
    gate = rounded(b, b.map(lambda v: call("sigmoid", v), real), 1 / 255, 0)
    swish = rounded(b, b.map(lambda v, g: v * g, real, gate), 0.02, 14)
    mean = b.reduce("sum", swish, [1], True)
    graph = b.graph([b.map(lambda v, m: v * m, swish, mean)], ["out"])
    looked = lookups(simplify(graph), V3)
    (table,) = gathers(looked)
    assert looked.dtype(table.outputs[0]) is U8
    fused = optimize(graph, Options(V3))
    between = {n for k in fused.nodes for n in k.inputs if n not in (*fused.inputs, *fused.constants)}
    assert {str(fused.dtype(n)) for n in between if fused.shape(n) == x.shape} == {"u8"}
    arrays = {"x": random.integers(0, 256, (6, 40, 16), np.uint8)}
    want = run_graph(graph, arrays)["out"]
    np.testing.assert_allclose(ran(graph, arrays), want, rtol=1e-5)
    np.testing.assert_allclose(run_graph(looked, arrays)["out"], want, rtol=1e-6)
