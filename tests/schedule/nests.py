"""Naive nests to schedule, and the check that a step kept their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from templates.kernels import SYMBOL, SYMBOLS, Built, buffer, conv, matmul, node, pool

from jangin.ir import te
from jangin.ir.core import Map, Normalize, Reduce, Softmax, Transpose
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, call, const, maximum
from jangin.ir.graph import Array
from jangin.ir.interpret import run_func, size
from jangin.ir.loop import Alloc, For, Func, Stmt, map_children, substitute_stmt
from jangin.ir.verify import verify_func
from jangin.schedule.steps import Step, apply

X, Y = Var("x0", F32), Var("x1", F32)
KERNELS: dict[str, Built] = {
    "map": node(Map(body=X * 2.0 + 1.0), [buffer("x", 5, 7)]),
    "bias": node(Map(body=X * Y), [buffer("x", 2, 3, 5), buffer("y", 5)]),
    "symbolic": node(Map(body=call("exp", X)), [buffer("x", SYMBOL, 3)]),
    "transpose": node(Transpose(perm=(2, 0, 1)), [buffer("x", 2, 5, 3)]),
    "matmul": matmul((5, 6), (6, 7)),
    "symbolic-rows": matmul((SYMBOL, 3), (3, 4)),
    "symbolic-sum": matmul((3, SYMBOL), (SYMBOL, 4)),
    "conv": conv((4, 5), 2, 2, 3, pad=1),
    "pool": pool((5, 4), 3, 3, 1, 1, "max", ""),
    "sum": node(Reduce(combiner="sum", axes=(1,), keepdims=False), [buffer("x", 3, 11)]),
    "max": node(Reduce(combiner="max", axes=(1, 2), keepdims=True), [buffer("x", 3, 2, 5)]),
    "softmax": node(Softmax(axis=2, log=False), [buffer("x", 3, 4, 5)]),
    "normalize": node(Normalize(axes=(1,), epsilon=1e-5, rms=False), [buffer("x", SYMBOL, 5)]),
}
ROUNDED = ("softmax", "normalize")
"""Kernels whose terms aren't whole numbers, so that the order of additions shows."""


def _biased(built: Built) -> Built:
    """Add a bias to each column of a product."""
    (stage,), inputs = built
    bias = buffer("bias", stage.axes[-1].extent)
    return (replace(stage, epilogue=maximum(stage.acc + bias[stage.axes[-1].var], const(0.0, F32))),), [
        *inputs,
        bias,
    ]


def _summed_twice() -> Built:
    """Return a sum of sums of blocks, each with a factor."""
    x, y, f = buffer("x", 3, 10), buffer("y", 7, 10), buffer("f", 7, 5)
    dots = te.reduction(buffer("dots", 3, 7, 5), [2], "sum", lambda i, k: (
        x[i[0], i[2] * 2 + k[0]] * y[i[1], i[2] * 2 + k[0]]
    ))  # fmt: skip
    sums = te.reduction(buffer("out", 3, 7), [5], "sum", lambda i, k: dots.out[(*i, *k)] * f[i[1], k[0]])
    return (dots, sums), [x, y, f]


KERNELS["summed twice"] = _summed_twice()
KERNELS["biased"] = _biased(matmul((5, 6), (6, 7)))


def naive(name: str) -> Func:
    """Return the naive nest of one of `KERNELS`."""
    stages, inputs = KERNELS[name]
    symbolic = any(d == SYMBOL for b in inputs for d in b.shape)
    return te.lower(name, stages, inputs, SYMBOLS if symbolic else {})


def arrays_for(func: Func, symbols: Mapping[str, int]) -> dict[str, Array]:
    """Return arrays for a kernel. Inputs are small whole numbers, whose sums of products are exact in any
    order. Results are NaN, or a number that no sum has if they are integers."""
    rng = np.random.default_rng(0)
    shapes = {b.name: tuple(size(d, symbols) for d in b.shape) for b in func.params}
    arrays: dict[str, Array] = {
        b.name: rng.integers(-4, 5, shapes[b.name]).astype(b.dtype.numpy) for b in func.params
    }
    none = {b.name: np.nan if b.dtype.is_float else b.dtype.limits[0] for b in func.results}
    return arrays | {b.name: np.full(shapes[b.name], none[b.name], b.dtype.numpy) for b in func.results}


def result(func: Func, symbols: Mapping[str, int], other_layouts: Mapping[str, Array] | None = None) -> Array:
    """Run a kernel in the interpreter, and return its result."""
    arrays = arrays_for(func, symbols) | dict(other_layouts or {})
    run_func(func, arrays, symbols)
    return arrays[func.results[0].name]


def backwards(s: Stmt) -> Stmt:
    """Return the statement with its loops of independent iterations in reverse order. Groups that share tiles
    stay in their order, in which the last share's is the last."""
    if isinstance(s, Alloc) and s.buffer.memory == "launch" and isinstance(s.body, For):
        return replace(s, body=map_children(s.body, backwards))
    s = map_children(s, backwards)
    if isinstance(s, For) and s.kind in ("parallel", "vector", "block", "thread"):
        return replace(s, body=substitute_stmt(s.body, {s.var: s.extent - 1 - s.var}))
    return s


def assert_same(before: Func, after: Func) -> None:
    """Check that both kernels give the same results, for any value of the symbol, and also with independent
    iterations in reverse order."""
    verify_func(after)
    other_order = after.with_body(backwards(after.body))
    tolerance = 1e-6 if before.name in ROUNDED else 0
    for n in (1, 4, 9) if before.symbols else (0,):
        symbols = {v.name: n for v, _ in before.symbols}
        want = _expected(before, n)
        assert not np.isnan(want).any()
        for nest in {after, other_order}:
            np.testing.assert_allclose(result(nest, symbols), want, rtol=tolerance, atol=tolerance)


@cache
def _expected(func: Func, n: int) -> Array:
    return result(func, {v.name: n for v, _ in func.symbols})


def do(func: Func, *steps: tuple[object, ...]) -> Func:
    """Apply steps given as tuples, and check the kernel after each."""
    for name, *args in steps:
        after = apply(func, [Step(str(name), tuple(args))])
        assert_same(func, after)
        func = after
    return func
