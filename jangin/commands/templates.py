"""`jangin templates`: show which template makes the kernels of core operators, by classes of shapes and
element types.

A class has shapes at which kernels tend to become slow: few channels, many groups, short rows, odd axes. A
kernel without a loop over vectors is `SCALAR`. A test ensures that there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
from rich.table import Table

from jangin.commands.common import terminal
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.ir.core import MatMul, Pool, Reduce, Softmax, Transpose
from jangin.ir.dtype import F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.expr import Const, const
from jangin.ir.loop import For, statements
from jangin.ops.builder import Builder
from jangin.ops.conv import conv, conv_transpose
from jangin.ops.index import gather, gather_nd
from jangin.ops.normalize import layer_norm
from jangin.ops.reduce import arg_extreme
from jangin.ops.scan import cumulate
from jangin.ops.select import top_k
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.targets import resolve
from jangin.targets.target import Target
from jangin.templates.scheduled import Scheduled

DTYPES = (F32, F64, F16, I8, U8, I32, I64)
SCALAR = "scalar"
NEST = "nest"
"""The template of kernels that are given as loop nests, such as a sort or a recurrence. Their work is serial
within a row."""
Make = Callable[[Builder, DType], Tensor]


def _input(b: Builder, dtype: DType, *shape: int, name: str = "x") -> Tensor:
    return b.input(name, dtype, tuple(map(const, shape)))


def _weights(b: Builder, dtype: DType, *shape: int) -> Tensor:
    return b.const((np.arange(prod(shape)) % 100).reshape(shape).astype(dtype.numpy))


def _conv(
    x: tuple[int, ...], w: tuple[int, ...], groups: int = 1, stride: int = 1, dilation: int = 1, pad: int = 0
) -> Make:
    rank = len(x) - 2

    def make(b: Builder, dtype: DType) -> Tensor:
        return conv(
            b, _input(b, dtype, *x), _weights(b, dtype, *w), groups=groups, strides=(stride,) * rank,
            dilations=(dilation,) * rank, pads=(pad,) * (2 * rank),
        )  # fmt: skip

    return make


def _transposed(x: tuple[int, ...], w: tuple[int, ...], stride: int) -> Make:
    def make(b: Builder, dtype: DType) -> Tensor:
        strides = (stride,) * (len(x) - 2)
        return conv_transpose(b, _input(b, dtype, *x), _weights(b, dtype, *w), strides=strides)

    return make


def _pool(x: tuple[int, ...], kernel: int, stride: int, combiner: str = "max") -> Make:
    rank = len(x) - 2
    extents = tuple(const((n - kernel) // stride + 1) for n in x[2:])
    window = (kernel,) * rank, (stride,) * rank, (1,) * rank, (0,) * (2 * rank)
    return lambda b, dtype: b.node(Pool(combiner, *window, extents), [_input(b, dtype, *x)])


def _product(x: tuple[int, ...], y: tuple[int, ...], *, held: bool = True, turned: str = "") -> Make:
    def make(b: Builder, dtype: DType) -> Tensor:
        right = _weights(b, dtype, *y) if held else _input(b, dtype, *y, name="w")
        attrs = MatMul(transpose_a="a" in turned, transpose_b="b" in turned)
        return b.node(attrs, [_input(b, dtype, *x), right])

    return make


def _reduce(x: tuple[int, ...], *axes: int, combiner: str = "sum") -> Make:
    return lambda b, dtype: b.node(Reduce(combiner, axes, True), [_input(b, dtype, *x)])


def _turned(x: tuple[int, ...], *perm: int) -> Make:
    return lambda b, dtype: b.node(Transpose(perm), [_input(b, dtype, *x)])


CLASSES: Mapping[str, Mapping[str, Make]] = {
    "conv": {
        "many channels": _conv((1, 64, 28, 28), (64, 64, 3, 3), pad=1),
        "pointwise": _conv((1, 64, 28, 28), (96, 64, 1, 1)),
        "few channels": _conv((1, 3, 60, 60), (32, 3, 7, 7), stride=2, pad=3),
        "one channel": _conv((1, 1, 61, 63), (32, 1, 3, 3), pad=1),
        "one output": _conv((1, 64, 40, 41), (1, 64, 3, 3), pad=1),
        "21 outputs": _conv((1, 256, 30, 30), (21, 256, 1, 1)),
        "odd channels": _conv((1, 13, 57, 61), (27, 13, 3, 3), pad=1),
        "32 groups of 4": _conv((1, 128, 28, 28), (128, 4, 3, 3), 32, pad=1),
        "groups of 12": _conv((1, 96, 28, 28), (96, 12, 3, 3), 8, pad=1),
        "depthwise": _conv((1, 96, 28, 28), (96, 1, 3, 3), 96, pad=1),
        "depthwise, 2 outputs each": _conv((1, 48, 28, 28), (96, 1, 3, 3), 48, pad=1),
        "depthwise 31×31": _conv((1, 32, 32, 32), (32, 1, 31, 31), 32, pad=15),
        "stride and dilation": _conv((1, 32, 40, 40), (32, 32, 3, 3), stride=2, dilation=2, pad=2),
        "patches": _conv((1, 3, 64, 64), (96, 3, 16, 16), stride=16),
        "1 axis": _conv((1, 64, 500), (64, 64, 9), pad=4),
        "1 axis, depthwise": _conv((1, 64, 500), (64, 1, 31), 64, pad=15),
        "3 axes": _conv((1, 16, 8, 20, 20), (16, 16, 3, 3, 3), pad=1),
        "transposed": _transposed((1, 32, 16, 16), (32, 16, 4, 4), 2),
        "transposed, 1 axis": _transposed((1, 32, 50), (32, 16, 16), 8),
    },
    "pool": {
        "3×3": _pool((1, 64, 56, 56), 3, 2),
        "odd planes": _pool((1, 17, 57, 61), 3, 1),
        "mean": _pool((1, 32, 28, 28), 2, 2, "sum"),
        "1 axis": _pool((1, 32, 300), 3, 2),
        "3 axes": _pool((1, 8, 8, 20, 20), 2, 2),
    },
    "matmul": {
        "square": _product((128, 128), (128, 128)),
        "one row": _product((1, 512), (512, 512)),
        "few rows": _product((7, 256), (256, 100)),
        "one column": _product((512, 256), (256, 1)),
        "few columns": _product((512, 256), (256, 5)),
        "many columns": _product((16, 128), (128, 3000)),
        "deep, few rows and columns": _product((4, 4096), (4096, 8)),
        "batched": _product((12, 64, 64), (12, 64, 64), held=False),
        "batched, tiny": _product((64, 8, 8), (64, 8, 8), held=False),
        "left transposed": _product((128, 96), (128, 112), held=False, turned="a"),
        "right transposed": _product((96, 128), (112, 128), held=False, turned="b"),
        "both transposed": _product((128, 96), (112, 128), held=False, turned="ab"),
    },
    "reduce": {
        "leading axis": _reduce((300, 65), 0),
        "middle axis": _reduce((8, 60, 65), 1),
        "trailing axis": _reduce((100, 300), 1),
        "trailing axis, short": _reduce((3000, 5), 1),
        "all": _reduce((20, 300), 0, 1),
        "first and last": _reduce((8, 60, 65), 0, 2),
        "largest": _reduce((100, 300), 1, combiner="max"),
        "where the largest stands": lambda b, t: arg_extreme(b, _input(b, t, 100, 300), 1, "max"),
        "where in a middle axis": lambda b, t: arg_extreme(b, _input(b, t, 8, 60, 65), 1, "max"),
    },
    "transpose": {
        "2 axes": _turned((200, 300), 1, 0),
        "inner axes stay": _turned((1, 128, 12, 64), 0, 2, 1, 3),
        "all reversed": _turned((12, 14, 16, 24), 3, 2, 1, 0),
        "channels last": _turned((1, 64, 28, 28), 0, 2, 3, 1),
    },
    "map": {
        "one shape": lambda b, t: b.map(lambda v: v + v, _input(b, t, 64, 1000)),
        "by channel": lambda b, t: b.map(
            lambda v, c: v + c, _input(b, t, 1, 64, 28, 28), _weights(b, t, 64, 1, 1)
        ),
        "by row": lambda b, t: b.map(lambda v, c: v + c, _input(b, t, 640, 7), _weights(b, t, 640, 1)),
        "expand": lambda b, t: b.expand(_input(b, t, 1, 64, 1, 1), [const(n) for n in (1, 64, 28, 28)]),
    },
    "gather": {
        "rows": lambda b, t: gather(b, _input(b, t, 500, 64), _input(b, I64, 40, name="i")),
        "columns": lambda b, t: gather(b, _input(b, t, 64, 500), _input(b, I64, 40, name="i"), axis=1),
        "tuples": lambda b, t: gather_nd(b, _input(b, t, 16, 16, 64), _input(b, I64, 400, 2, name="i")),
    },
    "rows": {
        "softmax": lambda b, t: b.node(Softmax(1), [_input(b, t, 64, 1000)]),
        "softmax of channels": lambda b, t: b.node(Softmax(1), [_input(b, t, 1, 21, 40, 40)]),
        "layer norm": lambda b, t: layer_norm(b, _input(b, t, 64, 768), _weights(b, t, 768)),
    },
    "nest": {
        "cumulative sum": lambda b, t: cumulate(b, _input(b, t, 64, 300), "sum", axis=1),
        "top k": lambda b, t: top_k(b, _input(b, t, 4, 2000), const(20))[0],
    },
}  # fmt: skip
"""For each operator and class, a function that makes a tensor of a given type."""
FLOATS = ("rows",)
"""Operators that exist only for floats."""


def dtypes_of(operator: str) -> tuple[DType, ...]:
    return tuple(t for t in DTYPES if t.is_float or operator not in FLOATS)


def kernels(make: Make, dtype: DType, target: Target) -> list[Scheduled]:
    """Return the scheduled kernels for one operator and class. Kernels with a scalar result, which check
    indices, are left out."""
    b, options = Builder("case", {}), Options(target=target)
    graph = b.graph([make(b, dtype)], ["y"])
    kernels = [k for k, _ in schedule_kernels(optimize(graph, options), options).values()]
    return [k for k in kernels if k.func.results[0].shape]


def name_of(kernel: Scheduled) -> str:
    """Return the name of a kernel's template. `SCALAR` is added if no loop of the kernel runs over
    vectors."""
    whole = [s for s in statements(kernel.func.body) if isinstance(s, For) and s.kind == "vector"]
    wide = any(isinstance(s.extent, Const) and int(s.extent.value) > 1 for s in whole)
    return kernel.template if wide or kernel.template == NEST else f"{kernel.template} ({SCALAR})"


def templates() -> None:
    """Print the table of templates for this machine."""
    target, console = resolve(), terminal()
    table = Table("operator", "class", *map(str, DTYPES))
    for operator, classes in CLASSES.items():
        for title, make in classes.items():
            row = {t: " + ".join(map(name_of, kernels(make, t, target))) for t in dtypes_of(operator)}
            table.add_row(operator, title, *(row.get(t, "–") for t in DTYPES))
    console.print(table)
