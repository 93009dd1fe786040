"""Small graphs of models' typical operators, and the assembly of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from jangin.backends.llvm.objects import assembly
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, Var, call, const, maximum, minimum
from jangin.ir.graph import MAX_SIZE
from jangin.ops import activation, attention
from jangin.ops import conv as operators
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.targets import Target

ROWS = Var("rows")
_RNG = np.random.default_rng(0)


def weights(b: Builder, *shape: int) -> Tensor:
    return b.const(_RNG.standard_normal(shape, np.float32))


def convolution(
    channels: int, size: int, filters: int, window: int, stride: int, end: Callable[[Expr], Expr]
) -> Callable[[Builder], Tensor]:
    """A convolution with padding, a bias and an epilogue. Without `filters` it is depthwise."""

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
    "depthwise 3x3, 58 channels": convolution(58, 28, 0, 3, 1, relu),
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


def texts(graph: str, on: Target) -> Iterator[tuple[str, str]]:
    """Yield the template of each kernel of a graph, and its assembly."""
    build = GRAPHS[graph]
    b, options = Builder("graph", {ROWS: (const(1), const(MAX_SIZE))}), Options(on)
    made = schedule_kernels(optimize(b.graph([build(b)], ["y"]), options), options)
    for k, _ in made.values():
        yield k.template, assembly(k.func, on)
