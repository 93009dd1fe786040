"""Warp loops: a warp's lanes multiply matrices of which each holds a part.

The elements of each lane are written twice: in the compiler's map, and in the mock by the words of NVIDIA's
manual (see `mock/shim.h`)."""

from __future__ import annotations

import re
from typing import Any

import alone
import machine
import ml_dtypes
import mocked
import numpy as np
import pytest
from templates.kernels import packed, small_conv, small_matmul, workload
from test_cuda_compile import _able

from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import source
from jangin.compiler.kernels import kernel_workload, schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.ir.core import Conv, Kernel, MatMul, Pad
from jangin.ir.dtype import dtype_of
from jangin.ir.expr import const, maximum
from jangin.ir.fragments import WARP, Fragment
from jangin.ir.graph import Array, CompileError, Graph, Node
from jangin.ir.interpret import run_func, size
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.products import DOT1BF, DOT1H, Product
from jangin.ir.verify import VerifyError, verify_func
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.targets import resolve
from jangin.targets.cuda import MATRICES
from jangin.templates.gpu import warps

TYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}

needs_nvrtc = pytest.mark.skipif(
    not _able("sm_80"), reason="NVIDIA's compiler isn't here: pip install 'jangin[cuda]'"
)

PRODUCT = """func product(x: T[32, 64], y: T[Y], bias: f32[32], o: out f32[32, 32]) {
  block t in 1 {
    alloc shared left: T[32, 40]
    alloc shared right: T[32, 40]
    alloc tile sums: f32[2, 4, 16, 8]
    warp w0 in 2 { unroll j0 in 4 { serial r0 in 16 { serial c0 in 8 { sums[w0, j0, r0, c0] = 0.0 } } } }
    serial panel in 2 {
      thread i in 64 {
        unroll e in 2 { vector u in 8 {
          left[i // 2, i % 2 * 16 + e * 8 + u] = x[i // 2, panel * 32 + i % 2 * 16 + e * 8 + u] } }
        unroll f in 2 { vector v in 8 { RIGHT } }
      }
      warp w in 2 {
        unroll k in 2 {
          alloc tile a: T[16, 16]
          alloc tile b: T[4, 16, 8]
          serial r1 in 16 { serial k1 in 16 { a[r1, k1] = left[w * 16 + r1, k * 16 + k1] } }
          unroll j2 in 4 { serial k2 in 16 { serial c2 in 8 { b[j2, k2, c2] = FROM } } }
          unroll j3 in 4 { serial r3 in 16 { serial c3 in 8 { serial k3 in 16 {
            sums[w, j3, r3, c3] = sums[w, j3, r3, c3] + f32(a[r3, k3]) * f32(b[j3, k3, c3]) } } } }
        }
      }
    }
    warp w4 in 2 { unroll j4 in 4 { serial r4 in 16 { serial c4 in 8 {
      if w4 * 16 + r4 < 27 { if j4 * 8 + c4 < 29 {
        o[w4 * 16 + r4, j4 * 8 + c4] = max(sums[w4, j4, r4, c4] + bias[j4 * 8 + c4], 0.0) } } } } } }
  }
}"""
BY_TERMS = {
    "Y": "64, 32", "FROM": "right[k * 16 + k2, j2 * 8 + c2]",
    "RIGHT": "right[i // 2, i % 2 * 16 + f * 8 + v] = y[panel * 32 + i // 2, i % 2 * 16 + f * 8 + v]",
}  # fmt: skip
BY_COLUMNS = {
    "Y": "32, 64", "FROM": "right[j2 * 8 + c2, k * 16 + k2]",
    "RIGHT": "right[i // 2, i % 2 * 16 + f * 8 + v] = y[i // 2, panel * 32 + i % 2 * 16 + f * 8 + v]",
}  # fmt: skip


def product(kind: str, words: dict[str, str], old: str = "", new: str = "") -> Func:
    """Return the product of one type, with one change of its text."""
    assert old in PRODUCT
    text = PRODUCT.replace(old, new, 1) if old else PRODUCT
    return parse_func(re.sub(r"\b(T|Y|RIGHT|FROM)\b", lambda m: {"T": kind, **words}[m[1]], text))


def given(func: Func, rng: np.random.Generator) -> dict[str, Array]:
    types = {**TYPES, "f32": np.dtype(np.float32)}
    arrays = {}
    for p in func.params:
        shape = [size(d, {}) for d in p.shape]
        arrays[p.name] = (rng.standard_normal(shape) / 4).astype(types[p.dtype.name])
    return arrays


@pytest.mark.sampled(3)
@mocked.needed
@pytest.mark.parametrize("kind", TYPES)
def test_a_product_has_the_bits_of_its_loops(kind: str, driver: Any) -> None:
    """The right operand's rows in shared memory are terms or columns. The mock's instruction adds terms one
    by one, as the loops do, and the products of 16-bit numbers are exact."""
    rng, on = np.random.default_rng(7), resolve("cuda:sm_80")
    for words in (BY_TERMS, BY_COLUMNS):
        func = product(kind, words)
        verify_func(func)
        arrays = given(func, rng)
        want = {n: v.copy() for n, v in arrays.items()}
        run_func(func, want, {})
        y = arrays["y"].astype(np.float64)
        exact = arrays["x"].astype(np.float64) @ (y if words is BY_TERMS else y.T) + arrays["bias"]
        # 64 sums of numbers below 4, each rounded by at most 2^-24 of itself
        np.testing.assert_allclose(want["o"][:27, :29], np.maximum(exact, 0)[:27, :29], atol=64 * 4 * 2**-24)
        runs = alone.Program([func], on).run(func, arrays, {}, 1, driver)
        for got in (*runs, machine.run(func, arrays, {}, machine.target(machine.runnable()[0]))):
            np.testing.assert_array_equal(got["o"], want["o"])
        text = source(func, on)
        assert f"mma_{kind}(" in text and "load_matrices<4, false>(" in text
        assert f"load_matrices<4, {str(words is BY_TERMS).lower()}>(" in text
        assert "load_matrices<2" not in text, "two neighbouring matrices are loaded at a time"


def graph(kind: str, rows: int, terms: int, columns: int, constant: bool) -> Graph:
    """Return a product with a bias, an activation and a second operand in its epilogue."""
    b, small = Builder("graph", {}), dtype_of(kind)
    rng = np.random.default_rng(terms)
    x, z = (
        b.input("x", small, (const(rows), const(terms))),
        b.input("z", small, (const(rows), const(columns))),
    )
    if constant:
        w = b.const((rng.standard_normal((terms, columns)) / 4).astype(small.numpy))
    else:
        w = b.input("w", small, (const(terms), const(columns)))
    bias = b.const(rng.standard_normal(columns).astype(small.numpy))
    y = b.map(lambda v, c: maximum(v + c, const(0, small)), b.matmul(x, w), bias)
    return b.graph([b.map(lambda v, c: v + c, y, z)], ["y"])


SIZES = (33, 40, 19, False), (17, 64, 50, True), (1, 33, 24, True), (70, 130, 72, False)
"""Rows, terms and columns, and whether the right operand is constant."""


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_have_the_bits_of_native_code(
    sizes: tuple[int, int, int, bool], kind: str, driver: Any
) -> None:
    """A model's product of any size, with its epilogue, is one kernel."""
    same_bits(graph(kind, *sizes), driver)


def same_bits(model: Graph, driver: Any, tf32: bool = False) -> None:
    """Check the kernel of a model's product, with the best and with random parameters. The products' sums
    must equal those of native code of the same loops, bit for bit."""
    options = Options(resolve("cuda:sm_80"), verify=True, tf32=tf32)
    optimized, rng = optimize(model, options), np.random.default_rng()
    node = next(n for n in optimized.nodes if of_product(n))
    _, wanted, names = kernel_workload(node, optimized, options)
    template = warps.match(wanted)
    assert template is not None
    space = template.space()
    for params in (min(space, key=template.estimate), space[rng.integers(len(space))]):
        scheduled, arrays = template.schedule(params), dict[str, Array]()
        verify_func(scheduled.func)
        for p, name in zip(scheduled.func.inputs, names, strict=False):
            shape = [size(d, {}) for d in optimized.shape(name)]
            dtype = optimized.dtype(name).numpy
            arrays[p.name] = optimized.constants.get(name, (rng.standard_normal(shape) / 4).astype(dtype))
        arrays = packed(scheduled, arrays)
        out = scheduled.func.results[0]
        arrays[out.name] = np.zeros([size(d, {}) for d in out.shape], out.dtype.numpy)
        native = machine.run(scheduled.func, arrays, {}, machine.target(machine.runnable()[0]))
        for groups in (1 << 20, 1):
            program = alone.Program([scheduled.func], options.target)
            for got in program.run(scheduled.func, arrays, {}, groups, driver):
                np.testing.assert_array_equal(got[out.name], native[out.name], err_msg=str(params))


def of_product(node: Node) -> bool:
    """Return whether a node is a kernel with a product or a convolution."""
    body = node.of(Kernel).body if isinstance(node.attrs, Kernel) else None
    return body is not None and any(isinstance(n.attrs, (Conv, MatMul)) for n in body.nodes)


def window(
    kind: str, batch: int, channels: int, outputs: int, image: int, kernel: int, stride: int, pad: int,
    dilation: int, constant: bool,
) -> Graph:  # fmt: skip
    """Return a convolution with a bias, a residual and an activation."""
    b, small, rng = Builder("graph", {}), dtype_of(kind), np.random.default_rng(channels)
    x = b.input("x", small, tuple(map(const, (batch, channels, image, image + 2))))
    shape = outputs, channels, kernel, kernel
    if constant:
        w = b.const((rng.integers(-4, 5, shape) / 4).astype(small.numpy))
    else:
        w = b.input("w", small, tuple(map(const, shape)))
    y = b.conv(x, w, strides=(stride,) * 2, dilations=(dilation,) * 2, pads=(pad, 0, pad, pad))
    bias = b.const((rng.integers(-4, 5, (outputs, 1, 1)) / 4).astype(small.numpy))
    z = b.input("z", small, y.shape)
    return b.graph([b.map(lambda v, c, r: maximum(v + c + r, const(0, small)), y, bias, z)], ["y"])


WINDOWS = {
    "pointwise": (1, 24, 19, 7, 1, 1, 0, 1, True),
    "padded": (2, 16, 24, 5, 3, 1, 1, 1, True),
    "strided": (1, 8, 17, 9, 3, 2, 1, 1, True),
    "dilated": (1, 8, 8, 9, 3, 1, 2, 2, True),
    "odd channels": (1, 3, 20, 11, 5, 2, 2, 1, True),
    "computed weights": (2, 6, 9, 6, 3, 1, 1, 1, False),
    "one pixel": (1, 40, 33, 1, 1, 1, 0, 1, True),
}
"""Batch, channels, outputs, image, window, stride, padding, dilation, and whether weights are constant."""


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sizes", WINDOWS)
def test_convolutions_have_the_bits_of_native_code(sizes: str, kind: str, driver: Any) -> None:
    """A convolution is a product whose rows are gathered, and 0 outside of the image."""
    same_bits(window(kind, *WINDOWS[sizes]), driver)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sizes", WINDOWS)
def test_convolutions_are_right(sizes: str, kind: str) -> None:
    """The optimized graph gives the exact result, rounded once. Every product and sum of these numbers is
    exact in float32. The border is tested for where the image is read, so nothing pads it alone."""
    model = window(kind, *WINDOWS[sizes])
    rng = np.random.default_rng(5)
    shapes = {n: [size(d, {}) for d in model.shape(n)] for n in model.inputs}
    arrays = {n: rng.integers(-8, 9, shape) / 4 for n, shape in shapes.items()}
    (exact,) = run_graph(window("f64", *WINDOWS[sizes]), arrays).values()
    optimized = optimize(model, Options(resolve("cuda:sm_80")))
    (got,) = run_graph(optimized, {n: a.astype(TYPES[kind]) for n, a in arrays.items()}).values()
    np.testing.assert_array_equal(got, exact.astype(TYPES[kind]))
    bodies = [n.of(Kernel).body for n in optimized.nodes if isinstance(n.attrs, Kernel)]
    (conv,) = (n.attrs for b in bodies for n in b.nodes if isinstance(n.attrs, Conv))
    assert isinstance(conv, Conv) and conv.dot in (DOT1BF, DOT1H)
    pads = [n for b in bodies for n in b.nodes if isinstance(n.attrs, Pad)]
    assert len(pads) == (sizes == "odd channels")


def test_options_and_types_decide() -> None:
    """A product of float32 stays one, and so does any product without the option."""
    for options, kind, template in (
        (Options(resolve("cuda:sm_80")), "bf16", "warps"),
        (Options(resolve("cuda:sm_80"), bf16=False), "bf16", "contraction"),
        (Options(resolve("cuda:sm_75")), "f16", "contraction"),
        (Options(resolve("cuda:sm_90a")), "f32", "contraction"),
    ):
        made = schedule_kernels(optimize(graph(kind, 512, 512, 512, True), options), options)
        assert template in [s.template for s, _ in made.values()], (options, kind)


def test_maps_place_each_element_once() -> None:
    for row in MATRICES:
        p = row.product
        assert p is not None
        words = p.words
        shapes = (p.rows, words), (words, p.columns), (p.rows, p.columns)
        for fragment, (rows, columns) in zip(row.fragments, shapes, strict=True):
            places = {
                tuple(size(e, {}) for e in fragment.place(const(lane), const(n)))
                for lane in range(WARP)
                for n in range(fragment.count)
            }
            assert places == {(r, c) for r in range(rows) for c in range(columns)}
            assert fragment.count * WARP == rows * columns
        assert all(fragment.matrices(p.word.bytes) is not None for fragment in row.fragments[:2])
    words = Fragment(((4, 0, 1), (8, 1, 0)), ((2, 8, 0), (2, 0, 4)))
    assert words.matrices(2) is None and words.matrices(4) == words.elements


def test_a_wrong_map_gives_a_wrong_result(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock doesn't take its maps from the compiler, so it would notice an error in them."""
    func, on = product("f16", BY_TERMS), resolve("cuda:sm_80")
    arrays = given(func, np.random.default_rng(7))
    right = alone.Program([func], on).run(func, arrays, {}, 1, driver)[0]["o"]
    mirrored = Fragment(((4, 0, 2), (8, 1, 0)), ((2, 8, 0), (2, 0, 1)))
    for row in MATRICES:
        monkeypatch.setitem(row.__dict__, "fragments", (*row.fragments[:2], mirrored))
    wrong = alone.Program([func], on).run(func, arrays, {}, 1, driver)[0]["o"]
    assert not np.array_equal(right, wrong, equal_nan=True)


LAST = "    warp w4 in 2"
WRONG = {
    "another number of work-items": ("warp w in 2 {", "warp w in 3 {", "are for 64 and 96 work-items"),
    "a matrix of one work-item": (
        LAST,
        f"thread q in 64 {{ alloc tile z: f32[16, 8] }} {LAST}",
        "lanes of a",
    ),
    "registers": (
        LAST,
        f"warp q in 2 {{ alloc register z: f32[1] z[0] = 1.0 }} {LAST}",
        "may have only tiles",
    ),
    "sums of another warp": ("sums[w, j3, r3, c3] = ", "sums[1 - w, j3, r3, c3] = ", "no axis of its own"),
    "two elements in one place": ("o[w4 * 16 + r4, ", "o[w4 * 16 + r4 // 2, ", "may write one place"),
    "what lanes read and write": (
        "r4, c4] + bias",
        "r4, c4] + o[w4 * 16 + (r4 + 1) % 16, c4] + bias",
        "reads and writes o",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_warp_loops_that_are_refused(case: str) -> None:
    old, new, error = WRONG[case]
    with pytest.raises(VerifyError, match=error):
        verify_func(product("bf16", BY_TERMS, old, new))


def test_what_lanes_have_no_code_for() -> None:
    """A warp's work that isn't a matrix's, and matrices that no instruction multiplies, are errors that name
    the kernel."""
    for old, new, error in (
        ("alloc tile a", "left[0, 0] = T(0.0) alloc tile a", "product: a warp stores to left over no loops"),
        (
            "max(sums[w4, j4, r4, c4]",
            "max(sums[w4, j4, 0, c4]",
            "product: a warp stores to o over c4 in 8, which",
        ),
    ):
        with pytest.raises(CompileError, match=re.escape(error)):
            source(product("bf16", BY_TERMS, old, new), resolve("cuda:sm_80"))
    with pytest.raises(CompileError, match=r"matrices of f32 .* no instruction of cuda:sm_75 multiplies"):
        source(product("bf16", BY_TERMS), resolve("cuda:sm_75"))


PRODUCTS = {
    "whole": lambda dot: small_matmul(dot, 512, 512, 512),
    "odd": lambda dot: small_matmul(dot, 333, 341, 331),
    "one row": lambda dot: small_matmul(dot, 1, 768, 3072),
    "window": lambda dot: small_conv(dot, (28, 28), 64, 64, 3, batch=4),
    "strided": lambda dot: small_conv(dot, (57, 55), 40, 72, 3, 2),
    "few channels": lambda dot: small_conv(dot, (112, 112), 8, 64, 7, 2),
    "odd channels": lambda dot: small_conv(dot, (20, 20), 6, 30, 3, 1),
}


@needs_nvrtc
@pytest.mark.slow  # NVIDIA's compiler takes half a second for each kernel
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dot", [DOT1BF, DOT1H], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_nothing_is_spilled(target: str, dot: Product, name: str) -> None:
    """All parameters keep their sums and matrices in registers, at sizes that fill tiles and at others."""
    on = resolve(f"cuda:{target}")
    compiler = nvrtc.for_architecture(on.cpu)
    constants = ["w"] if dot is DOT1H and name != "odd channels" else []
    template = warps.match(workload(PRODUCTS[name](dot), constants=constants, target=on))
    assert template is not None
    for params in template.space():
        usage = compiler.compiled(source(template.schedule(params).func, on), on.cpu).usage
        assert (usage.spilled, usage.stack) == (0, 0), (params, usage)
