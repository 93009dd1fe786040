"""Inner loops with RISC-V's vector instructions: as many as by hand, and no spills."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from loops import innermost
from machine import target
from test_arm_assembly import CASES, kernel
from test_assembly import micro_kernel

from jangin.backends.llvm.objects import assembly
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.options import Options
from jangin.compiler.pipeline import optimize
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, Var, call, const, maximum, minimum
from jangin.ops import activation, attention
from jangin.ops import conv as operators
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

ON = target("riscv64-v")
SPILL = re.compile(r"\(sp\)|^v[ls]\dr")
ROWS = Var("rows")
_RNG = np.random.default_rng(0)


def sums(text: str) -> list[str]:
    """The shortest loop with multiply-adds."""
    return min((b for b in innermost(text) if any("vfmacc" in line for line in b)), key=len)


def weights(b: Builder, *shape: int) -> Tensor:
    return b.const(_RNG.standard_normal(shape, np.float32))


def convolution(
    channels: int, size: int, filters: int, window: int, stride: int, end: Callable[[Expr], Expr]
) -> Callable[[Builder], Tensor]:
    """With padding, a bias and what comes behind. No filters: one a channel."""

    def built(b: Builder) -> Tensor:
        x = b.input("x", F32, tuple(map(const, (1, channels, size, size))))
        w = weights(b, filters or channels, channels if filters else 1, window, window)
        pads, groups = (window // 2,) * 4, 1 if filters else channels
        bias = weights(b, filters or channels)
        return b.map(end, operators.conv(b, x, w, bias, strides=(stride,) * 2, pads=pads, groups=groups))

    return built


def product(rows: Expr, terms: int, columns: int, end: Callable[[Expr], Expr]) -> Callable[[Builder], Tensor]:
    def built(b: Builder) -> Tensor:
        x = b.input("x", F32, (const(1), rows, const(terms)))
        y = b.matmul(x, weights(b, terms, columns))
        return b.map(lambda v, c: end(v + c), y, weights(b, columns))

    return built


def head(b: Builder) -> Tensor:
    q, k, v = (b.input(n, F32, tuple(map(const, (1, 12, 128, 32)))) for n in "qkv")
    return attention.attention(b, q, k, v).y


def relu(v: Expr) -> Expr:
    return maximum(v, 0.0)


def relu6(v: Expr) -> Expr:
    return minimum(maximum(v, 0.0), 6.0)


def swish(v: Expr) -> Expr:
    return v * call("sigmoid", v)


def most(b: Builder) -> Tensor:
    x = b.input("x", F32, tuple(map(const, (1, 64, 56, 56))))
    pads, extents = (0, 0, 1, 1), (const(28),) * 2
    return b.pool(
        x, combiner="max", kernel=(3, 3), strides=(2, 2), dilations=(1, 1), pads=pads, extents=extents
    )


def normal(b: Builder) -> Tensor:
    return b.normalize(b.input("x", F32, (const(128), const(384))), (1,), 1e-5)


def softmax(b: Builder) -> Tensor:
    return b.softmax(b.input("x", F32, (const(128), const(384))), 1)


def elementwise(fn: str) -> Callable[[Builder], Tensor]:
    return lambda b: b.map(lambda v: call(fn, v), b.input("x", F32, (const(4096),)))


GRAPHS = {
    "conv 1x1": convolution(64, 28, 128, 1, 1, relu),
    "conv 1x1, swish": convolution(64, 28, 96, 1, 1, swish),
    "conv 3x3 by Winograd": convolution(64, 28, 64, 3, 1, relu),
    "conv 3x3, few channels": convolution(3, 112, 32, 3, 2, relu6),
    "conv 3x3 strided": convolution(64, 56, 128, 3, 2, relu),
    "conv 7x7 strided": convolution(3, 112, 64, 7, 2, relu),
    "depthwise 3x3": convolution(96, 56, 0, 3, 1, relu6),
    "depthwise 3x3 strided": convolution(144, 56, 0, 3, 2, relu6),
    "depthwise 3x3, odd channels": convolution(37, 29, 0, 3, 1, relu),
    "depthwise 5x5": convolution(120, 28, 0, 5, 1, swish),
    "attention": head,
    "product, erf": product(const(128), 384, 1536, activation.gelu),
    "product, tanh": product(const(128), 384, 1536, activation.gelu_tanh),
    "product of any rows": product(ROWS, 384, 384, relu),
    "deep product": product(const(128), 1536, 384, relu),
    "pool": most,
    "normalization": normal,
    "softmax": softmax,
    **{fn: elementwise(fn) for fn in ("exp", "erf", "tanh", "sigmoid", "log")},
}


def texts(build: Callable[[Builder], Tensor]) -> Iterator[tuple[str, str]]:
    """The template of each kernel of a graph, and its assembly."""
    b, options = Builder("graph", {ROWS: (const(1), None)}), Options(ON)
    made = schedule_kernels(optimize(b.graph([build(b)], ["y"]), options), options)
    for k, _ in made.values():
        yield k.template, assembly(k.func, ON)


@pytest.mark.parametrize("graph", GRAPHS)
def test_inner_loops_spill_nothing(graph: str) -> None:
    for template, text in texts(GRAPHS[graph]):
        spilled = [[line for line in loop if SPILL.search(line)] for loop in innermost(text)]
        assert spilled and not any(spilled), template


@pytest.mark.parametrize("case", CASES)
def test_products_as_they_are_scheduled(case: str) -> None:
    inner = sums(assembly(kernel(*CASES[case], ON), ON))
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not [line for line in inner if "v0.t" in line], "a mask"
    assert sum(line.startswith(("vfmacc.vf", "vfmadd.vf")) for line in inner) >= 0.5 * len(inner)


@pytest.mark.parametrize(
    ("rows", "vectors", "unroll"), [(4, 3, 1), (6, 2, 4), (6, 4, 1), (6, 4, 4), (7, 3, 2)]
)
def test_gemm(rows: int, vectors: int, unroll: int) -> None:
    """Each element of a row is loaded once, into a scalar register that the multiply-add takes as it is."""
    inner = sums(assembly(micro_kernel(rows, vectors, ON.lanes(4), unroll), ON))
    words = [line.split()[0] for line in inner]
    assert words.count("vfmacc.vf") + words.count("vfmadd.vf") == rows * vectors * unroll
    assert words.count("vle32.v") == vectors * unroll and words.count("flw") == rows * unroll
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not {"vsetvli", "vsetivli"} & {*words}
    assert len(inner) <= (rows * vectors + rows + 3 * vectors) * unroll + 4
