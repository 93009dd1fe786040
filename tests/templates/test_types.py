"""Every template with every element type, at odd sizes, through the passes. A kernel of any type has a
template, not a scalar nest, if f32 has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Pool
from jangin.ir.dtype import BF16, F16, F32, F64, I8, I32, I64, U8, U32, DType
from jangin.ir.expr import Const, const
from jangin.ir.graph import Array, Graph
from jangin.ir.loop import For, Stmt, Store, sub_statements
from jangin.ir.products import PRODUCTS, Product
from jangin.ops.blocks import matmul_blocks
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import integer_conv, integer_matmul, requantize
from jangin.ops.reduce import arg_extreme
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, Target, resolve
from jangin.templates.scheduled import Scheduled

pytestmark = pytest.mark.sampled(3)

HERE = resolve()
"""The target that runs. For the others, only the kernels are checked."""
TARGETS = [NAMED["x86-64-v3"], NAMED["x86-64-v4"]]
FLOATS, WHOLE = (F32, F64, F16, BF16), (I32, I64, U32)
SCALAR = 0.35
"""The largest share of elements that may be processed one by one: the rests of rows and of short vectors."""
CHANNELS, OUTPUTS = 20, 44
ALLOWED = {F32: 2e-6, F64: 1e-14, F16: 2**-10, BF16: 2**-7}
"""The largest difference, as a share of the largest value, for sums in another order and one rounding to the
type."""


class Layers:
    """A graph of one layer on elements of a type. Integers are as large as possible, so that sums wrap
    around."""

    def __init__(self, dtype: DType) -> None:
        self.b, self.dtype = Builder("one", {}), dtype
        self.random = np.random.default_rng(0)

    def numbers(self, dtype: DType, *shape: int) -> Array:
        if dtype.is_float:
            return self.random.standard_normal(shape).astype(dtype.numpy)
        info = np.iinfo(dtype.numpy)
        return self.random.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)

    def input(self, *shape: int, dtype: DType | None = None, name: str = "x") -> Tensor:
        return self.b.input(name, dtype or self.dtype, tuple(const(d) for d in shape))

    def weight(self, *shape: int, dtype: DType | None = None) -> Tensor:
        return self.b.const(self.numbers(dtype or self.dtype, *shape))

    def conv(
        self, kernel: int, stride: int = 1, pad: int = 0, groups: int = 1, outputs: int = OUTPUTS
    ) -> Tensor:
        w = self.weight(outputs, CHANNELS // groups, kernel, kernel)
        x = self.input(1, CHANNELS, 13, 15)
        return self.b.conv(x, w, strides=(stride,) * 2, dilations=(1, 1), pads=(pad,) * 4, groups=groups)

    def pool(self, combiner: str, average: str) -> Tensor:
        window = (3, 3), (2, 2), (1, 1), (1,) * 4
        attrs = Pool(combiner, *window, (const(7), const(8)), average)
        return self.b.node(attrs, [self.input(1, CHANNELS, 13, 15)])


Layer = Callable[[Layers], Tensor]
ANY: dict[str, Layer] = {
    "3x3": lambda t: t.conv(3, pad=1),
    "strided": lambda t: t.conv(3, stride=2, pad=1),
    "grouped": lambda t: t.conv(3, pad=1, groups=2),
    "depthwise": lambda t: t.conv(3, pad=1, groups=CHANNELS, outputs=CHANNELS),
    "depthwise-strided": lambda t: t.conv(5, stride=2, pad=2, groups=CHANNELS, outputs=CHANNELS),
    "1x1": lambda t: t.conv(1),
    "product": lambda t: t.b.matmul(t.input(37, 67), t.weight(67, 45)),
    "one-row": lambda t: t.b.matmul(t.input(1, 67), t.weight(67, 45)),
    "transposed": lambda t: t.b.matmul(t.input(37, 67), t.weight(45, 67), transpose_b=True),
    "of-two": lambda t: t.b.matmul(t.input(37, 67), t.input(67, 45, name="y")),
    "batched": lambda t: t.b.matmul(t.input(3, 21, 33), t.input(3, 33, 29, name="y")),
    "batched-turned": lambda t: t.b.matmul(
        t.input(3, 21, 33), t.input(3, 29, 33, name="y"), transpose_b=True
    ),
    "batched-few-turned": lambda t: t.b.matmul(
        t.input(4, 4, 32), t.input(4, 22, 32, name="y"), transpose_b=True
    ),
    "max-pool": lambda t: t.pool("max", ""),
    "sum-last": lambda t: t.b.reduce("sum", t.input(13, 75), [1]),
    "sum-first": lambda t: t.b.reduce("sum", t.input(13, 75), [0]),
    "max-last": lambda t: t.b.reduce("max", t.input(13, 75), [1]),
    "turned": lambda t: t.b.transpose(t.input(75, 13), [1, 0]),
    "turned-strips": lambda t: t.b.transpose(t.input(2101, 19), [1, 0]),
    "arg-max": lambda t: arg_extreme(t.b, t.input(13, 75), 1, "max"),
    "arg-min-short": lambda t: arg_extreme(t.b, t.input(3, 83, 5), 2, "min", last=True),
    "arg-max-many": lambda t: arg_extreme(t.b, t.input(601, 13), 1, "max"),
    "arg-max-first": lambda t: arg_extreme(t.b, t.input(13, 75), 0, "max", keepdims=True),
}  # fmt: skip
OF_FLOATS: dict[str, Layer] = {
    "average-pool": lambda t: t.pool("sum", "valid"),
    "softmax": lambda t: t.b.softmax(t.input(13, 75), 1),
    "log-softmax": lambda t: t.b.softmax(t.input(13, 75), 1, log=True),
    "normalize": lambda t: t.b.normalize(t.input(13, 75), [1], 1e-5),
    "normalize-rms": lambda t: t.b.normalize(t.input(13, 75), [1], 1e-5, rms=True),
}


def quantized_conv(t: Layers, kernel: int, stride: int, groups: int, outputs: int = OUTPUTS) -> Tensor:
    """Return sums of bytes that f32 doesn't hold, because all weights are as large as possible."""
    depth = 100 * groups
    x = t.input(1, depth, 9, 11, dtype=U8)
    w = t.b.const(np.full((outputs, 100, kernel, kernel), -127, np.int8))
    pads = (kernel // 2,) * 4
    return integer_conv(t.b, x, w, t.b.scalar(7, U8), strides=(stride,) * 2, pads=pads, groups=groups)


def of_bytes(t: Layers, depth: int, zero: Tensor | None = None) -> Tensor:
    x, y = t.input(7, depth, dtype=U8), t.input(depth, 45, dtype=U8, name="y")
    return integer_matmul(t.b, x, y, zero, zero)


OF_BYTES: dict[str, Layer] = {
    "3x3": lambda t: quantized_conv(t, 3, 1, 1),
    "strided": lambda t: quantized_conv(t, 3, 2, 1),
    "grouped": lambda t: quantized_conv(t, 3, 1, 2),
    "1x1": lambda t: quantized_conv(t, 1, 1, 1),
    "product": lambda t: integer_matmul(t.b, t.input(37, 767, dtype=U8), t.weight(767, 45, dtype=I8)),
    "of-two": lambda t: of_bytes(t, 767, t.b.scalar(9, U8)),
    "deep": lambda t: of_bytes(t, 9001),
    "sums": lambda t: t.b.matmul(t.input(37, 67, dtype=U8), t.weight(67, 45, dtype=I8), dtype=I32),
    "max-pool": lambda t: Layers.pool(t, "max", ""),
}  # fmt: skip


def requantized(
    t: Layers, kernel: int, stride: int = 1, channels: int = CHANNELS, outputs: int = OUTPUTS,
    groups: int = 1, pad: bool = True, most: int = 64, dtype: DType = U8,
) -> Tensor:  # fmt: skip
    """Return a convolution of a quantized network, with weights up to `most`."""
    w = np.random.default_rng(0).integers(-most, most, (outputs, channels // groups, kernel, kernel))
    sums = integer_conv(
        t.b, t.input(1, channels, 31, 33, dtype=dtype), t.b.const(w.astype(np.int8)), t.b.scalar(7, dtype),
        strides=(stride,) * 2, pads=(kernel // 2 * pad,) * 4, groups=groups,
    )  # fmt: skip
    return requantize(t.b, sums, t.b.scalar(0.01, F32), t.b.scalar(3, dtype))


def symmetric_row(t: Layers) -> Tensor:
    """Return the product of one row, with weights from -127 to 127."""
    w = np.random.default_rng(0).integers(-127, 128, (768, 45)).astype(np.int8)
    return integer_matmul(t.b, t.input(1, 768, dtype=I8), t.b.const(w))


def in_blocks(t: Layers, rows: int, bits: int) -> Tensor:
    """Return a product with block-quantized weights, in blocks of 32."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 1 << bits, (45, 64)).astype(np.uint8)
    scales = (random.random((45, 2)).astype(np.float16).astype(np.float32) for _ in range(2))
    return matmul_blocks(t.b, t.input(rows, 64, dtype=F32), numbers, *scales, 32)


OF_NETS: dict[str, Layer] = {
    "3x3, 7 bits": lambda t: requantized(t, 3),
    "3x3, 8 bits": lambda t: requantized(t, 3, most=127),
    "signed": lambda t: requantized(t, 3, most=127, dtype=I8),
    "1x1": lambda t: requantized(t, 1, most=127),
    "signed, one row": symmetric_row,
    "grouped": lambda t: requantized(t, 3, groups=2, most=127),
    "image": lambda t: requantized(t, 3, 2, channels=3),
    "one channel": lambda t: requantized(t, 3, 2, channels=1),
    "turned": lambda t: integer_matmul(
        t.b, t.b.transpose(t.input(67, 37, dtype=I8), [1, 0]), t.weight(67, 45, dtype=I8)
    ),
    "depthwise": lambda t: requantized(t, 3, groups=CHANNELS, outputs=CHANNELS),
    "depthwise, unpadded": lambda t: requantized(t, 3, groups=CHANNELS, outputs=CHANNELS, pad=False),
    "depthwise-strided": lambda t: requantized(t, 5, 2, groups=CHANNELS, outputs=CHANNELS, most=127),
    "4 bits, one row": lambda t: in_blocks(t, 1, 4),
    "4 bits": lambda t: in_blocks(t, 37, 4),
    "8 bits, one row": lambda t: in_blocks(t, 1, 8),
    "8 bits": lambda t: in_blocks(t, 37, 8),
}  # fmt: skip
WIDENED = [*ANY][: [*ANY].index("max-pool")]
WIDENED.remove("one-row")
"""Products of 16-bit floats whose operands are widened before."""
IN_RUNS = ("3x3", "strided", "1x1", "product")
"""Products of bytes that f32 holds exactly in a few parts, for machines without products of pairs."""
AS_GOOD = {"one-row": ("rows", "contraction"), "max-pool": ("planes",), "turned": ("transpose",)}
"""Templates that may be quicker for other types than f32's template, as their vectors have fewer lanes."""
CASES = [
    *((layer, dtype, make) for layer, make in ANY.items() for dtype in (*FLOATS, *WHOLE)),
    *((layer, dtype, make) for layer, make in OF_FLOATS.items() for dtype in FLOATS),
    *((layer, U8, make) for layer, make in OF_BYTES.items()),
]


def elements(s: Stmt, times: int = 1, vector: bool = False) -> Iterator[tuple[int, bool]]:
    """Yield how often each store is done, and whether it is a vector's."""
    if isinstance(s, For):
        extent = int(s.extent.value) if isinstance(s.extent, Const) else 1
        times, vector = times * extent, vector or s.kind == "vector"
    if isinstance(s, Store):
        yield times, vector
    for sub in sub_statements(s):
        yield from elements(sub, times, vector)


def scalar_share(kernel: Scheduled) -> float:
    counts = list(elements(kernel.func.body))
    return sum(n for n, by_lanes in counts if not by_lanes) / sum(n for n, _ in counts)


def kernels(graph: Graph, options: Options) -> tuple[Graph, dict[str, tuple[Scheduled, tuple[str, ...]]]]:
    graph = optimize(graph, options)
    return graph, schedule_kernels(graph, options)


def anchor(chosen: Mapping[str, tuple[Scheduled, tuple[str, ...]]]) -> Scheduled:
    """Return the kernel that does the layer's main work."""
    return max(
        (k for k, _ in chosen.values()), key=lambda k: (int(str(k.flops)), k.template != "elementwise")
    )


@cache
def template_of_floats(layer: str, target: Target) -> str:
    options = Options(target, winograd=False, verify=True)
    return anchor(kernels(graph_of(F32, ANY[layer])[0], options)[1]).template


def graph_of(dtype: DType, make: Layer) -> tuple[Graph, Layers]:
    t = Layers(dtype)
    y = make(t)
    return t.b.graph([y], ["out"]), t


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(("layer", "dtype", "make"), CASES, ids=lambda v: "" if callable(v) else str(v))
def test_every_type(layer: str, dtype: DType, make: Layer, target: Target) -> None:
    options = Options(target, winograd=False, verify=True)
    graph, t = graph_of(dtype, make)
    _, chosen = kernels(graph, options)
    if layer in ANY:
        like = template_of_floats(layer, target)
        assert anchor(chosen).template in {like, *AS_GOOD.get(layer, ())}
    read = {p.dtype for p in anchor(chosen).func.inputs}
    if layer in WIDENED and dtype in (F16, BF16):
        assert read == {F32}
    if dtype is U8 and layer != "max-pool":
        assert read == {I32}, "pairs of int16"
    hold(chosen)
    if target is TARGETS[0]:
        runs(graph, t, HERE)


@pytest.mark.parametrize("layer", OF_BYTES)
def test_bytes_where_pairs_are_not_multiplied(layer: str) -> None:
    options = Options(TARGETS[0].with_figures(products=()), winograd=False, verify=True)
    graph, t = graph_of(U8, OF_BYTES[layer])
    _, chosen = kernels(graph, options)
    if layer in IN_RUNS:
        assert {p.dtype for p in anchor(chosen).func.inputs} == {F32}
    hold(chosen)
    runs(graph, t, HERE.with_figures(products=()))


@pytest.mark.parametrize("layer", OF_NETS)
def test_quantized_nets(layer: str) -> None:
    graph, t = graph_of(U8, OF_NETS[layer])
    hold(kernels(graph, Options(TARGETS[-1], winograd=False, verify=True))[1])
    runs(graph, t, HERE)


def alike(target: Target) -> tuple[Any, ...]:
    """Return the properties of a processor that decide its kernels."""
    machine = target.processor
    return (
        machine.vector_bytes, machine.registers, machine.products, machine.wide_products,
        machine.lane_operands,        machine.index_bits,
    )  # fmt: skip


OTHERS = {alike(t): t for t in NAMED.values() if t.machine.vector_bytes >= 16 and t not in TARGETS}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", OTHERS.values(), ids=lambda t: t.name)
def test_every_processor(target: Target) -> None:
    """No kernel is a scalar nest on processors that this machine may not run. The cases must use each kind of
    product instruction that a processor has. One product of bytes is a plain multiplication."""
    options, used = Options(target, winograd=False, verify=True), set[Product]()
    floats = dict.fromkeys(t for dot in target.machine.products for t in (dot.left, dot.right) if t.is_float)
    types = (F32, *(floats or (F16,)))
    cases = [*((layer, U8) for layer in (*OF_BYTES.values(), *OF_NETS.values()))]
    cases += [(ANY[layer], dtype) for layer in (*WIDENED, "one-row") for dtype in types]
    for make, dtype in cases:
        _, chosen = kernels(graph_of(dtype, make)[0], options)
        hold(chosen)
        used |= {
            p for kernel, _ in chosen.values() for p in PRODUCTS.values() if f"{p.name}(" in str(kernel.func)
        }
    wanted = {(p.terms, p.total) for p in target.machine.products if p.terms > 1 or p.total.is_float}
    assert wanted <= {(p.terms, p.total) for p in used}


def hold(chosen: Mapping[str, tuple[Scheduled, tuple[str, ...]]]) -> None:
    """Check that no kernel is a scalar nest."""
    for kernel, _ in chosen.values():
        assert scalar_share(kernel) <= SCALAR, f"{kernel.label}\n{kernel.func}"


def runs(graph: Graph, t: Layers, target: Target) -> None:
    """Check that the code gives the interpreter's results."""
    options = Options(target, winograd=False, verify=True)
    fused, chosen = kernels(graph, options)
    model = Executable(build(make_plan(fused, chosen, options), options.target), 1)
    arrays = {n: t.numbers(graph.dtype(n), *(int(str(d)) for d in graph.shape(n))) for n in graph.inputs}
    want, got = run_graph(graph, arrays)["out"], model.run(arrays)["out"]
    if want.dtype.kind not in "f" and str(want.dtype) != "bfloat16":
        np.testing.assert_array_equal(got, want)
        return
    scale = np.abs(want.astype(np.float64)).max()
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max() / scale
    assert error <= ALLOWED[graph.dtype("out")], error
