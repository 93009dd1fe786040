"""Products in matrix registers: every tile, interpreted and run, against the naive nest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from machine import run
from onnx import TensorProto, helper, numpy_helper
from repeatable import RNG
from templates.kernels import assert_replayed, packed

import jangin
from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.objects import compile_modules
from jangin.ir import te
from jangin.ir.core import Conv, MatMul
from jangin.ir.dtype import BF16, F32
from jangin.ir.expr import Buffer, Expr, Load, Var, const, maximum
from jangin.ir.graph import Array, Value
from jangin.ir.interpret import run_func, size
from jangin.ir.loop import Func
from jangin.ir.products import DOT2BF, DOT4, DOT4U, Product
from jangin.ir.simplify import Range
from jangin.ir.verify import verify_func
from jangin.ops.core import CORE
from jangin.runtime import processor
from jangin.targets import Target, resolve
from jangin.targets.rows import TILES
from jangin.targets.x86 import V3, V4_AMX, V4_BF16
from jangin.templates import contraction
from jangin.templates.choose import choose
from jangin.templates.scheduled import Params
from jangin.templates.template import Workload
from jangin.templates.tiles import SHAPES

pytestmark = pytest.mark.sampled(4)

INTERPRETED = 25_000
"""Products of words up to which a nest is interpreted too."""


def conv(kernel: int, stride: int, groups: int = 1) -> Conv:
    return Conv((kernel,) * 2, (stride,) * 2, (1, 1), (0,) * 4, groups, "last")


PRODUCT = MatMul(transpose_a=False, transpose_b=False)
CASES: dict[str, tuple[Conv | MatMul, tuple[tuple[int | str, ...], ...]]] = {
    "a product": (PRODUCT, ((37, 24), (24, 33))),
    "a product of prime sizes": (PRODUCT, ((29, 13), (13, 19))),
    "a batch that a run tells": (conv(1, 1), (("n", 4, 7, 12), (35, 12, 1, 1))),
    "rows that a run tells": (PRODUCT, (("n", 12), (12, 40))),
    "1x1": (conv(1, 1), ((1, 5, 6, 20), (36, 20, 1, 1))),
    "1x1, stride 2": (conv(1, 2), ((2, 9, 13, 8), (16, 8, 1, 1))),
    "3x3 of few channels": (conv(3, 1), ((1, 10, 10, 5), (20, 5, 3, 3))),
    "3x3": (conv(3, 1), ((1, 8, 16, 16), (48, 16, 3, 3))),
    "3x3, stride 2, groups": (conv(3, 2, 2), ((1, 15, 17, 16), (64, 8, 3, 3))),
    "images whose rows go on": (
        Conv((3, 3), (1, 3), (1, 1), (0,) * 4, 1, "last"),
        ((2, 4, 21, 3), (20, 3, 3, 3)),
    ),
}
OTHERS: dict[str, tuple[Conv | MatMul, tuple[tuple[int | str, ...], ...]]] = {
    "a row": (PRODUCT, ((1, 64), (64, 128))),
    "rows across": (replace(PRODUCT, transpose_a=True), ((24, 37), (24, 33))),
    "groups that share vectors": (conv(3, 2, 2), ((3, 11, 23, 6), (8, 3, 3, 3))),
    "a word": (PRODUCT, ((37, 1), (1, 33))),
}
SIZES = {"n": 5}


def workload(case: str, dot: Product, target: Target = V4_AMX) -> Workload:
    """Return a workload with a bias and a rectifier."""
    attrs, shapes = (CASES | OTHERS)[case]
    attrs = replace(attrs, dot=dot, dtype=dot.total)
    symbols: dict[Var, Range] = {Var("n"): (const(1), const(999))}

    def buffer(name: str, shape: tuple[int | str, ...]) -> Buffer:
        dims = tuple(Var(d) if isinstance(d, str) else const(d) for d in shape)
        return Buffer(name, dot.word, dims)

    x, w = map(buffer, "xw", shapes)
    dtype, shape = CORE[attrs.op].infer([Value(b.name, b.dtype, b.shape) for b in (x, w)], attrs)
    (stage,) = CORE[attrs.op].te([x, w], Buffer("out", dtype, shape), attrs)
    bias = Buffer("bias", dtype, (stage.axes[-1].extent,))
    end: Expr = maximum(stage.acc + Load(bias, (stage.axes[-1].var,)), const(0, dtype))
    stage = te.Stage(stage.out, stage.axes, stage.body, stage.reduce_axes, stage.combiner, end)
    used = symbols if "n" in shapes[0] else {}
    return Workload("k", (stage,), (x, w, bias), used, ("w", "bias"), target)


def arrays(work: Workload, dot: Product) -> dict[str, Array]:
    def numbers(b: Buffer) -> Array:
        shape = tuple(SIZES.get(str(d)) or int(str(d)) for d in b.shape)
        if b.dtype is F32:
            return RNG.standard_normal(shape).astype(np.float32)
        if dot.left is BF16:
            pairs = RNG.standard_normal((*shape[:-1], 2 * shape[-1])).astype(BF16.numpy)
            return pairs.view(np.int32)
        return RNG.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)

    return {b.name: numbers(b) for b in work.inputs}


def tiles(work: Workload) -> Iterator[tuple[contraction.Contraction, Params]]:
    """Yield the candidates in matrix registers, one of each kind."""
    template = contraction.match(work)
    assert template is not None
    kinds = {}
    for params in template.space():
        if "matrix_rows" in params:
            kinds[str({n: v for n, v in params.items() if n not in ("row_tiles", "panels")})] = params
    assert kinds
    yield from ((template, params) for params in kinds.values())


def assert_close(got: Array, want: Array) -> None:
    """Integers must be equal. Sums of up to 300 products of numbers around 1 may be in another order."""
    if want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dot", [DOT4U, DOT2BF])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5)])
def test_random_convolutions(kernel: tuple[int, int], dot: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    stride, dilation = ((int(RNG.integers(1, 4)), int(RNG.integers(1, 3))) for _ in range(2))
    groups, outputs, images = int(RNG.integers(1, 3)), int(RNG.integers(17, 40)), int(RNG.integers(1, 4))
    channels, sizes = int(RNG.integers(2, 12)), RNG.integers(2, 14, 2)
    height, width = (
        (int(n) - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(sizes, stride, kernel, dilation, strict=True)
    )
    attrs = Conv(kernel, stride, dilation, (0,) * 4, groups, "last")
    shapes = (images, height, width, channels * groups), (outputs * groups, channels, *kernel)
    monkeypatch.setitem(CASES, "random", (attrs, shapes))
    check("random", dot)


@pytest.mark.sampled(32)
@pytest.mark.parametrize("dot", [DOT4U, DOT4, DOT2BF])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_naive_nest(case: str, dot: Product) -> None:
    check(case, dot)


def check(case: str, dot: Product) -> None:
    """Run the candidates on this machine with local arrays as matrices. For machines with matrix registers,
    they are compiled."""
    work, host = workload(case, dot), resolve()
    plain = replace(host, rows=tuple(r for r in host.rows if not r.of_tiles))
    given, naive = arrays(work, dot), te.lower("k", work.stages, work.inputs, work.symbols)
    sizes = {v.name: SIZES[v.name] for v in work.symbols}
    shape = tuple(size(d, sizes) for d in naive.results[0].shape)
    given["out"] = np.zeros(shape, naive.results[0].dtype.numpy)
    want = run(naive, given, sizes, plain)["out"]
    for template, params in tiles(work):
        scheduled = template.schedule(params)
        verify_func(scheduled.func)
        assert_replayed(scheduled, naive)
        held = packed(scheduled, given)
        assert_close(run(scheduled.func, held, sizes, plain)["out"], want)
        if want.size * math.prod(given["w"].shape[1:]) <= INTERPRETED:
            held["out"] = given["out"].copy()
            run_func(scheduled.func, held, sizes)
            assert_close(held["out"], want)
        assert matrices(scheduled.func)


def matrices(func: Func) -> bool:
    """Tell if the kernel's code for AMX compiles and multiplies matrices."""
    text = emit_kernel(func, V4_AMX)
    return bool(compile_modules([("k", text)], V4_AMX)) and "llvm.x86.tdp" in text


@pytest.mark.parametrize("down", range(len(SHAPES)))
def test_tiles_fit_the_registers(down: int) -> None:
    rows, columns = SHAPES[down]
    assert rows * columns + rows + columns <= TILES


@pytest.mark.parametrize("case", OTHERS)
def test_vectors_of_what_is_no_product_of_matrices(case: str) -> None:
    scheduled = choose(workload(case, DOT4U))
    assert "matrix_rows" not in scheduled.params and "tdp" not in emit_kernel(scheduled.func, V4_AMX)


def test_chosen_where_there_are_registers() -> None:
    assert "matrix_rows" in choose(workload("3x3", DOT4U)).params
    assert "matrix_rows" not in choose(workload("3x3", DOT4U, V4_BF16)).params


AS_IF = replace(V4_AMX, name="as if", cpu=V3.cpu, features=f"{V3.features},+amx-int8,+amx-bf16")
"""Schedules for AMX on processors with AVX2. Without the feature amx-tile, matrices are local arrays."""


@pytest.mark.parametrize("kernel", [1, 3])
def test_quantized_layers(kernel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epilogue of a sum works in memory: the sum is scaled, clamped and converted to bytes."""
    if why := processor.why_not(str(V3)):
        pytest.skip(f"it runs in AVX2: {why}")
    channels, outputs = (4 * int(RNG.choice((16, 18, 20, 24))) for _ in range(2))
    weights = RNG.integers(-127, 128, (outputs, channels, kernel, kernel)).astype(np.int8)
    scales = (0.001 * RNG.random(outputs) + 0.001).astype(np.float32)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "w": weights, "ws": scales,
        "wz": np.zeros(outputs, np.int8), "ys": np.float32(0.05), "yz": np.uint8(99),
        "bias": RNG.integers(-9999, 9999, outputs).astype(np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    node = helper.make_node(
        "QLinearConv", names, ["y"], pads=[kernel // 2] * 4, strides=[kernel // 2 + 1] * 2
    )
    shape = (2, channels, 15, 18)
    ends = [helper.make_tensor_value_info(n, TensorProto.UINT8, s) for n, s in (("x", shape), ("y", None))]
    initial = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    model = helper.make_model(helper.make_graph([node], "m", ends[:1], ends[1:], initial))
    x = RNG.integers(0, 256, shape).astype(np.uint8)
    want = jangin.compile(model, V3, cache=False, threads=1)(x)
    have = processor.processor_features() | {"amxint8", "amxbf16"}
    monkeypatch.setattr(processor, "processor_features", lambda: have)
    made = jangin.compile(model, AS_IF, cache=False, threads=1)
    assert any("matrix_rows" in n.template for n in made.plan.launches)
    np.testing.assert_array_equal(made(x), want)
