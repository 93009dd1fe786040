"""Products of bfloat16 pairs, and of float16, where a machine has an instruction for them. Values in memory
have 16 bits, and sums are f32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Conv, Kernel, MatMul, Pool
from jangin.ir.dtype import BF16, F16, F32, I32, DType
from jangin.ir.expr import call, cast, const, maximum
from jangin.ir.graph import Array, Graph
from jangin.ir.interpret import run_plan
from jangin.ir.products import DOT1H, DOT2BF, DOT4BF, Product
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import Target, resolve
from jangin.targets.arm import NEOVERSE_N1, NEOVERSE_V1
from jangin.targets.x86 import V4_AMX, V4_BF16, V4_VNNI

Net = Callable[[Builder, np.random.Generator], Tensor]
ROUNDING = 2.0**-8
"""The largest relative error of rounding to bfloat16: half the distance of two numbers."""


def weight(b: Builder, random: np.random.Generator, *shape: int, dtype: DType = BF16) -> Tensor:
    numbers = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return b.const(numbers.astype(dtype.numpy))


def conv(
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    size: int = 11,
    pad: bool = True,
    dtype: DType = BF16,
) -> Net:
    def net(b: Builder, random: np.random.Generator) -> Tensor:
        x = b.input("x", dtype, tuple(const(d) for d in (2, channels, size, size + 3)))
        w = weight(b, random, outputs, channels // groups, kernel, kernel, dtype=dtype)
        pads = (kernel // 2 if pad else 0,) * 4
        return b.conv(x, w, strides=(stride,) * 2, dilations=(1, 1), pads=pads, groups=groups)

    return net


def product(
    rows: int,
    depth: int,
    columns: int,
    *,
    turned: str = "",
    batch: tuple[int, ...] = (),
    dtype: DType = BF16,
) -> Net:
    """Make a network of one product. `turned` names the operands that are transposed: "a", "b" or both."""

    def net(b: Builder, random: np.random.Generator) -> Tensor:
        left = (depth, rows) if "a" in turned else (rows, depth)
        right = (columns, depth) if "b" in turned else (depth, columns)
        x = b.input("x", dtype, tuple(const(d) for d in (*batch, *left)))
        w = weight(b, random, *batch, *right, dtype=dtype)
        return b.matmul(x, w, transpose_a="a" in turned, transpose_b="b" in turned)

    return net


NETS: dict[str, Net] = {
    "a window": conv(32, 48, 3, size=5),
    "a window, odd channels": conv(35, 24, 3, size=5),
    "few channels": conv(3, 40, 3),
    "few channels, rows of words": conv(3, 40, 7, stride=2),
    "strided": conv(17, 33, 3, stride=2),
    "a point": conv(64, 40, 1),
    "no padding": conv(20, 21, 3, pad=False),
    "groups": conv(24, 32, 3, groups=2),
    "many groups": conv(32, 32, 3, groups=8),
    "a product": product(13, 67, 37),
    "a deep product": product(7, 1031, 40),
    "a row": product(1, 258, 50),
    "turned": product(9, 34, 37, turned="ab"),
    "batches": product(5, 21, 33, batch=(3,)),
}
OTHERS: dict[str, Net] = {
    "groups of odd channels": conv(15, 30, 3, groups=3),
    "depthwise": conv(16, 16, 3, groups=16),
    "two terms": product(5, 2, 33),
}
OF_F16: dict[str, Net] = {
    "a window": conv(32, 48, 3, size=5, dtype=F16),
    "odd channels": conv(35, 23, 3, stride=2, dtype=F16),
    "a point": conv(64, 40, 1, dtype=F16),
    "groups": conv(24, 32, 3, groups=2, dtype=F16),
    "a product": product(13, 67, 37, dtype=F16),
    "a deep product": product(7, 1031, 40, dtype=F16),
    "a row": product(1, 258, 50, dtype=F16),
    "turned": product(9, 34, 37, turned="ab", dtype=F16),
    "batches": product(5, 21, 33, batch=(3,), dtype=F16),
}
OTHERS_OF_F16: dict[str, Net] = {
    "few channels": conv(3, 40, 7, stride=2, dtype=F16),
    "groups of few channels": conv(32, 32, 3, groups=8, dtype=F16),
    "depthwise": conv(16, 16, 3, groups=16, dtype=F16),
}


def built(net: Net, seed: int = 0) -> tuple[Graph, dict[str, Array]]:
    random, b = np.random.default_rng(seed), Builder("net", {})
    graph = b.graph([net(b, random)], ["out"])
    sizes = {n: [int(str(d)) for d in graph.shape(n)] for n in graph.inputs}
    return graph, {n: random.standard_normal(s).astype(graph.dtype(n).numpy) for n, s in sizes.items()}


def code(graph: Graph, options: Options, arrays: dict[str, Array]) -> Array:
    graph = optimize(graph, options)
    artifact = build(make_plan(graph, schedule_kernels(graph, options), options), options.target)
    out: Array = Executable(artifact, threads=2)(*arrays.values())
    return out


def in_f64(graph: Graph, arrays: dict[str, Array]) -> tuple[Array, Array]:
    """Return the result in f64, and the result for absolute values, by which rounding is measured."""
    b = Builder("wide", {})
    (node,) = (n for n in graph.nodes if isinstance(n.attrs, (Conv, MatMul)))
    (weights,) = graph.constants.values()
    found = []
    for change in (lambda a: a, np.abs):
        b = Builder("wide", {})
        x = b.input("x", F32, graph.shape("x"))
        wide = {"x": change(arrays["x"].astype(np.float32))}
        w = b.const(change(weights.astype(np.float32)))
        attrs = node.of(Conv) if isinstance(node.attrs, Conv) else node.of(MatMul)
        found.append(run_graph(b.graph([b.node(attrs, [x, w])], ["out"]), wide)["out"].astype(np.float64))
    return found[0], found[1]


def products(graph: Graph) -> list[Conv | MatMul]:
    graphs = [graph, *(n.of(Kernel).body for n in graph.nodes if isinstance(n.attrs, Kernel))]
    return [n.attrs for g in graphs for n in g.nodes if isinstance(n.attrs, (Conv, MatMul))]


def here(target: Target, dot: Product) -> Target:
    """Return this machine's target with the product, even if it lacks the instruction."""
    others = tuple(d for d in target.machine.products if d not in (dot, DOT2BF))
    return target.with_figures(products=(*others, *dict.fromkeys((dot, DOT2BF))))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dot", [DOT2BF, DOT4BF])
@pytest.mark.parametrize("net", NETS)
def test_rounds_the_result_alone(net: str, dot: Product) -> None:
    """Sums of exact products are in f32, and only the result is rounded, in the interpreter and in code."""
    graph, arrays = built(NETS[net])
    want, size = in_f64(graph, arrays)
    options = Options(here(resolve(), dot), winograd=False, verify=True)
    made = optimize(graph, options)
    assert [p.dot for p in products(made)] == [dot if net != "a row" else DOT2BF]
    for got in (run_graph(made, arrays)["out"], code(graph, options, arrays)):
        assert got.dtype == BF16.numpy
        wrong = np.abs(got.astype(np.float64) - want)
        assert (wrong <= ROUNDING * np.abs(want) + 2.0**-20 * size).all()


def of_two(rows: int, depth: int, columns: int, turned: str) -> Graph:
    """Return the graph of a product of two inputs. `turned` names the operands that are transposed."""
    b = Builder("net", {})
    x = b.input("x", BF16, tuple(map(const, (depth, rows) if "a" in turned else (rows, depth))))
    w = b.input("w", BF16, tuple(map(const, (columns, depth) if "b" in turned else (depth, columns))))
    return b.graph([b.matmul(x, w, transpose_a="a" in turned, transpose_b="b" in turned)], ["out"])


@pytest.mark.parametrize("depth", [130, 67])
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_two_computed_matrices_are_paired_in_each_run(turned: str, depth: int) -> None:
    """A training step's products are of this kind: no operand is constant."""
    graph, random = of_two(131, depth, 149, turned), np.random.default_rng(0)
    options = Options(here(resolve(), DOT2BF), verify=True)
    made = optimize(graph, options)
    assert [p.dot for p in products(made)] == [DOT2BF]
    sizes = {n: [int(str(d)) for d in graph.shape(n)] for n in graph.inputs}
    arrays = {n: random.standard_normal(s).astype(BF16.numpy) for n, s in sizes.items()}
    x, w = (arrays[n].astype(np.float64) for n in ("x", "w"))
    x, w = x.T if "a" in turned else x, w.T if "b" in turned else w
    want, size = x @ w, np.abs(x) @ np.abs(w)
    for got in (run_graph(made, arrays)["out"], code(graph, options, arrays)):
        wrong = np.abs(got.astype(np.float64) - want)
        assert (wrong <= ROUNDING * np.abs(want) + 2.0**-20 * size).all()


def test_matrices_of_few_uses_are_not_transposed_in_each_run() -> None:
    """Reading a large matrix once takes less time than transposing it. Nothing is transposed if the terms lie
    side by side."""
    for turned, dot in (("", None), ("a", None), ("b", DOT2BF), ("ab", None)):
        rows, columns = (200, 9) if "a" in turned else (9, 200)
        made = products(optimize(of_two(rows, 64, columns, turned), Options(V4_BF16)))
        assert [p.dot for p in made] == [dot], turned


@pytest.mark.parametrize("on", [V4_BF16, V4_AMX, NEOVERSE_V1], ids=lambda t: t.name)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_empty_computed_matrices_are_not_paired(turned: str, on: Target) -> None:
    """A product without rows, terms or columns compiles. Its numbers, if there are any, are 0."""
    for sizes in ((0, 64, 64), (64, 0, 64), (64, 64, 0), (0, 0, 0)):
        graph = of_two(*sizes, turned)
        made = optimize(graph, Options(on, verify=True))
        arrays = {n: np.ones([int(str(d)) for d in graph.shape(n)], BF16.numpy) for n in graph.inputs}
        got = run_graph(made, arrays)["out"]
        assert got.shape == (sizes[0], sizes[2]) and not got.any()


@pytest.mark.parametrize("on", [V4_BF16, NEOVERSE_V1], ids=lambda t: t.name)
@pytest.mark.parametrize("net", [*NETS, *OTHERS])
def test_pairs_where_terms_are_paired(net: str, on: Target) -> None:
    """A convolution or product of bfloat16 reads pairs. With matrix instructions it reads four terms, except
    for products of one row."""
    graph, _ = built((NETS | OTHERS)[net])
    dot = DOT4BF if on is NEOVERSE_V1 and net != "a row" else DOT2BF
    made = products(optimize(graph, Options(on, winograd=False)))
    assert [p.dot for p in made] == [dot if net in NETS else None]


@pytest.mark.parametrize("net", [*OF_F16, *OTHERS_OF_F16])
def test_f16_is_multiplied_as_it_is(net: str) -> None:
    """f16 is multiplied directly if the machine has a multiply-add for it, except for few channels.
    `bf16=False` turns it off."""
    graph, _ = built((OF_F16 | OTHERS_OF_F16)[net])
    for on, dot in (
        (Options(NEOVERSE_V1, winograd=False), DOT1H if net in OF_F16 else None),
        (Options(NEOVERSE_V1, winograd=False, bf16=False), None),
        (Options(NEOVERSE_N1, winograd=False), None),
    ):
        assert [p.dot for p in products(optimize(graph, on))] == [dot]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("net", OF_F16)
def test_sums_of_f16_are_of_f32(net: str) -> None:
    """Sums of f16 products are f32, in the interpreter and in code, even without the instruction."""
    graph, arrays = built(OF_F16[net])
    want, size = in_f64(graph, arrays)
    cpu = resolve()
    options = Options(cpu.with_figures(products=(*cpu.machine.products, DOT1H)), winograd=False, verify=True)
    made = optimize(graph, options)
    assert [p.dot for p in products(made)] == [DOT1H]
    for got in (run_graph(made, arrays)["out"], code(graph, options, arrays)):
        assert got.dtype == F16.numpy
        wrong = np.abs(got.astype(np.float64) - want)
        assert (wrong <= 2.0**-11 * np.abs(want) + 2.0**-20 * size + 2.0**-25).all()


@pytest.mark.parametrize("options", [Options(V4_VNNI), Options(V4_BF16, bf16=False)], ids=("lacking", "off"))
@pytest.mark.parametrize("net", ["a point", "a product"])
def test_products_of_f32_elsewhere(net: str, options: Options) -> None:
    (made,) = products(optimize(built(NETS[net])[0], options))
    assert made.dot is None


@pytest.mark.parametrize("size", [8, 56])
def test_winograds_method_where_it_is_quicker(size: int) -> None:
    """Winograd's method is chosen for large images of many channels, where it needs a quarter of the
    products. `winograd=False` turns it off."""
    graph, _ = built(conv(128, 128, 3, size=size))
    for winograd in (True, False):
        made = products(optimize(graph, Options(V4_BF16, winograd=winograd)))
        assert [p.dot for p in made] == [None if winograd and size == 56 else DOT2BF]


def test_no_winograd_where_matrices_are_multiplied() -> None:
    graph, _ = built(conv(128, 128, 3, size=56))
    assert [p.dot for p in products(optimize(graph, Options(V4_AMX)))] == [DOT2BF]


def network(b: Builder, random: np.random.Generator) -> Tensor:
    """Add convolutions with rectifiers, a pool, an addition, a concatenation and a depthwise convolution
    between them."""
    x = b.input("x", BF16, tuple(const(d) for d in (1, 3, 20, 20)))

    def convolved(x: Tensor, outputs: int, kernel: int, groups: int = 1) -> Tensor:
        w = weight(b, random, outputs, int(str(x.shape[1])) // groups, kernel, kernel)
        bias = weight(b, random, outputs, 1, 1)
        pads = (kernel // 2,) * 4
        y = b.conv(x, w, strides=(1, 1), dilations=(1, 1), pads=pads, groups=groups)
        return b.map(lambda v, w: maximum(v + w, 0), y, bias)

    first = convolved(x, 16, 3)
    window = (2, 2), (2, 2), (1, 1), (0,) * 4
    pooled = b.node(Pool("max", *window, (const(10), const(10)), ""), [first])
    second = b.map(lambda v, w: v + w, convolved(pooled, 16, 1), pooled)
    joined = b.concat([second, convolved(second, 16, 1)], 1)
    apart = b.map(lambda v: call("tanh", v), convolved(joined, 32, 3, groups=32))
    return convolved(apart, 8, 1)


def test_nothing_wider_goes_from_product_to_product() -> None:
    """Only a depthwise convolution, whose products are in f32, reads values wider than 16 bits."""
    made = optimize(built(network)[0], Options(V4_BF16))
    kinds = [n.of(Kernel).body for n in made.nodes if isinstance(n.attrs, Kernel)]
    depthwise = [
        name
        for body in kinds
        for n in body.nodes
        if isinstance(n.attrs, Conv) and n.attrs.groups > 1
        for name in body.inputs
    ]
    wide = {n for n, v in made.values.items() if v.dtype is F32 and n not in made.constants}
    read = {n for node in made.nodes for n in node.inputs}
    assert wide & read <= set(depthwise)
    large = [a for a in made.constants.values() if a.ndim > 1 and a.size > 128 and a.shape[0] > 1]
    assert large and {a.dtype for a in large} <= {np.dtype(np.int32), np.dtype(np.float32)}
    assert [p.dot for p in products(made)].count(DOT2BF) == 4


def test_a_network_is_as_exact_as_in_f32() -> None:
    """Results differ from f32 by no more than the rounding of the values in memory allows."""
    graph, arrays = built(network)
    options = Options(here(resolve(), DOT2BF), verify=True)
    got, want = (code(graph, o, arrays).astype(np.float32) for o in (options, options.but(bf16=False)))
    assert np.abs(got - want).max() <= 8 * ROUNDING * np.abs(want).max()
    made = run_graph(optimize(graph, options), arrays)["out"].astype(np.float32)
    assert np.abs(got - made).max() <= 2 * ROUNDING * np.abs(want).max()


def test_words_of_bfloat16_are_summed_in_f32() -> None:
    """The function multiplies pairs and sums in f32. The first of a pair is in the low bits."""
    pair = np.array([[2.0, -3.0]], np.float32).astype(BF16.numpy).view(np.int32)
    b = Builder("words", {})
    x, y = (b.input(n, I32, (const(1),)) for n in "xy")
    graph = b.graph([b.map(lambda v, w: call(DOT2BF.name, v, w), x, y)], ["out"])
    other = np.array([[0.5, 7.0]], np.float32).astype(BF16.numpy).view(np.int32)
    arrays = {"x": pair[0], "y": other[0]}
    assert graph.dtype("out") is F32
    for got in (run_graph(graph, arrays)["out"], code(graph, Options(resolve()), arrays)):
        np.testing.assert_array_equal(got, np.float32([-20.0]))


def test_widened_operands_are_read_as_16_bits() -> None:
    """A product of f32 whose operands are widened and moved is one of pairs, with the same sums."""
    b, random = Builder("net", {}), np.random.default_rng(1)
    x, w = b.input("x", BF16, (const(2), const(66), const(40))), b.input("w", BF16, (const(130), const(40)))
    wide = b.map(lambda v: cast(F32, cast(BF16, cast(F32, v) * 0.5)), x)
    rows = b.reshape(wide, (const(132), const(40)))
    graph = b.graph([b.matmul(rows, b.cast(w, F32), transpose_b=True)], ["out"])
    options = Options(here(resolve(), DOT2BF), verify=True)
    made = optimize(graph, options)
    assert [p.dot for p in products(made)] == [DOT2BF]
    arrays = {
        n: random.standard_normal([int(str(d)) for d in graph.shape(n)]).astype(BF16.numpy) for n in "xw"
    }
    halved = (arrays["x"].astype(np.float64) * 0.5).reshape(132, 40)
    right = arrays["w"].astype(np.float64).T
    for got in (run_graph(made, arrays)["out"], code(graph, options, arrays)):
        assert got.dtype == np.float32
        assert (np.abs(got - halved @ right) <= 2.0**-20 * (np.abs(halved) @ np.abs(right))).all()


@pytest.mark.parametrize("on", [V4_BF16, V4_AMX, NEOVERSE_V1], ids=lambda t: t.name)
def test_computed_matrices_by_each_machines_instruction(on: Target) -> None:
    """The plan's interpreter gives the sums, although only one of the machines is here."""
    graph, random = of_two(9, 34, 17, "b"), np.random.default_rng(2)
    options = Options(on, verify=True)
    made = optimize(graph, options)
    assert [p.dot for p in products(made)] == [DOT2BF]
    arrays = {n: random.standard_normal(s).astype(BF16.numpy) for n, s in (("x", (9, 34)), ("w", (17, 34)))}
    x, w = (a.astype(np.float64) for a in arrays.values())
    got = run_plan(make_plan(made, schedule_kernels(made, options), options), arrays)["out"]
    wrong, size = np.abs(got.astype(np.float64) - x @ w.T), np.abs(x) @ np.abs(w.T)
    assert (wrong <= ROUNDING * np.abs(x @ w.T) + 2.0**-20 * size).all()
