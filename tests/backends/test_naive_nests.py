"""Naive nests of real operators, whose loops are made vector, unrolled or parallel at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from machine import run, runnable, target

from jangin.ir import te
from jangin.ir.core import (
    Concat,
    Conv,
    CoreAttributes,
    Map,
    MatMul,
    Normalize,
    Pad,
    Reduce,
    Softmax,
    Transpose,
)
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Const, Expr, Var, binary, call, const, select
from jangin.ir.graph import Array, Value
from jangin.ir.interpret import run_func, size
from jangin.ir.loop import (
    Alloc,
    For,
    Func,
    If,
    Stmt,
    block,
    expressions,
    statements,
    sub_statements,
    substitute_stmt,
)
from jangin.ops.core import CORE

N = Var("n")
SYMBOLS = {N: (const(1), const(64))}
X, Y = Var("x0", F32), Var("x1", F32)
_WINDOW: Mapping[str, Any] = {"kernel": (3, 3), "strides": (2, 1), "dilations": (1, 2), "pads": (1, 2, 1, 2)}

PADS = tuple(map(const, (0, 1, 2, 0, 3, 1)))


def tensor(name: str, *shape: int | Expr) -> Buffer:
    return Buffer(name, F32, tuple(const(d) if isinstance(d, int) else d for d in shape))


def lowered(attrs: CoreAttributes, ins: list[Buffer]) -> Func:
    dtype, shape = CORE[attrs.op].infer([Value(b.name, b.dtype, b.shape) for b in ins], attrs)
    return te.lower(attrs.op, CORE[attrs.op].te(ins, Buffer("out", dtype, shape), attrs), ins, SYMBOLS)


NESTS = {
    "conv": lowered(
        Conv(**_WINDOW, groups=2, layout="last"), [tensor("x", 1, 7, 9, 4), tensor("w", 6, 2, 3, 3)]
    ),
    "matmul": lowered(MatMul(), [tensor("x", 2, N, 5), tensor("w", 5, 11)]),
    "softmax": lowered(Softmax(axis=1, log=False), [tensor("x", 3, N)]),
    "normalize": lowered(Normalize(axes=(1,), epsilon=1e-5, rms=False), [tensor("x", 3, 13)]),
    "reduce": lowered(Reduce(combiner="max", axes=(0,), keepdims=False), [tensor("x", 5, 13)]),
    "pad": lowered(Pad(pads=PADS, mode="constant", value=7), [tensor("x", 2, N, 9)]),
    "concat": lowered(Concat(axis=1), [tensor("x", 2, N, 9), tensor("y", 2, 5, 9)]),
    "transpose": lowered(Transpose(perm=(2, 0, 1)), [tensor("x", 2, N, 6)]),
    "map": lowered(
        Map(body=select(binary("gt", X, const(0.0, F32)), call("tanh", X * Y), X + Y)),
        [tensor("x", 5, 33), tensor("y", 33)],
    ),
}  # fmt: skip


def varied(s: Stmt, rng: Random, parallel: bool, lanes: bool) -> Stmt:
    """Return the statement with some loops of another kind, which means the same. Each path has one vector
    loop."""
    if isinstance(s, For):
        kinds = ["serial"]
        if isinstance(s.extent, Const):
            kinds += ["vector"] * 2 * lanes + ["unroll"] * (s.extent.value <= 4)
        kind = "parallel" if parallel and rng.random() < 0.7 else rng.choice(kinds)
        return replace(s, kind=kind, body=varied(s.body, rng, False, lanes and kind != "vector"))
    return _rebuilt(s, [varied(sub, rng, False, lanes) for sub in sub_statements(s)])


def _rebuilt(s: Stmt, parts: list[Stmt]) -> Stmt:
    """Return a statement of a naive nest (block, allocation or store) with other sub-statements."""
    if isinstance(s, Alloc):
        return replace(s, body=parts[0])
    return block(*parts) if parts else s


def split_symbolic(s: Stmt, width: int) -> Stmt:
    """Replace innermost symbolic loops by masked tiles of `width` lanes."""
    if isinstance(s, For) and not any(isinstance(k, For) for k in statements(s.body)) and s.extent == N:
        outer, lane = Var(f"{s.var}.o"), Var(f"{s.var}.l")
        body = If(outer * width + lane < N, substitute_stmt(s.body, {s.var: outer * width + lane}))
        return For(outer, (N + (width - 1)) // width, For(lane, const(width), body, "vector"))
    if isinstance(s, For):
        return replace(s, body=split_symbolic(s.body, width))
    return _rebuilt(s, [split_symbolic(k, width) for k in sub_statements(s)])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NESTS)
def test_any_kind_of_loop(name: str) -> None:
    func = NESTS[name]
    assert all(e.dtype == I64 for s in statements(func.body) if isinstance(s, For) for e in expressions(s))
    for seed in range(6):
        rng = Random(seed)
        sizes = {"n": rng.choice([1, 7, 16, 23])}
        data = np.random.default_rng(seed)
        arrays: dict[str, Array] = {
            p.name: data.standard_normal([size(d, sizes) for d in p.shape]).astype(np.float32)
            for p in func.params
        }
        expected = {k: v.copy() for k, v in arrays.items()}
        run_func(func, expected, sizes)
        body = varied(func.body, rng, True, True)
        if seed % 2:
            body = split_symbolic(func.body, rng.choice([3, 8, 16]))
        for on in runnable():
            got = run(replace(func, body=body), arrays, sizes, target(on), pieces=3)
            np.testing.assert_allclose(
                got["out"], expected["out"], rtol=2e-5, atol=2e-5, err_msg=f"{on}, seed {seed}:\n{body}"
            )
