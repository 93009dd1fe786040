"""Several vectors are processed at a time: for functions, for sums whose rows leave some over, and for
gathered rows."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Reduce
from jangin.ir.dtype import F16, F32, F64, I8, I32, I64, DType
from jangin.ir.expr import Expr, call
from jangin.ir.graph import Array, Graph
from jangin.ir.loop import For, Let, Stmt, statements
from jangin.ops.builder import Builder
from jangin.ops.index import gather, gather_nd
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, resolve
from jangin.templates.common import CHAINS, TOGETHER

from .kernels import SYMBOL, SYMBOLS, dims

TYPES = [F32, F64, F16, I8, I32, I64]
MADE = NAMED["x86-64-v3"]
"""The target whose nests are checked."""


def compiled(graph: Graph) -> Executable:
    options = Options(target=resolve())
    fused = optimize(graph, options)
    return Executable(build(make_plan(fused, schedule_kernels(fused, options), options), options.target), 1)


def random(dtype: DType, *shape: int) -> Array:
    x = np.random.default_rng(sum(shape)).uniform(0.1, 3, shape)
    return (x if dtype.is_float else x * 20).astype(dtype.numpy)


def function(fn: str, *shape: int | Expr) -> Graph:
    b = Builder("functions", SYMBOLS if SYMBOL in shape else {})
    return b.graph([b.map(lambda v: call(fn, v), b.input("x", F32, dims(*shape)))], ["y"])


@pytest.mark.parametrize("fn", sorted(CHAINS))
def test_functions(fn: str) -> None:
    for shape in ((3, 7), (5, 33), (1, 131), (2, 1003)):
        x, graph = random(F32, *shape), function(fn, *shape)
        want = run_graph(graph, {"x": x})["y"]
        np.testing.assert_allclose(compiled(graph).run({"x": x})["y"], want, rtol=4e-7, atol=1e-7)


def test_a_symbolic_size_runs_every_remainder() -> None:
    exe = compiled(function("exp", SYMBOL))
    for n in (1, 7, 8, 31, 32, 45, 131):
        x = random(F32, n)
        np.testing.assert_allclose(exe.run({"x": x})["y"], np.exp(x), rtol=2e-7)


def test_functions_run_several_vectors_at_a_time() -> None:
    widest = max(int(str(s.extent)) for s in body(function("exp", 4, 1003)) if is_vector(s))
    assert widest == TOGETHER * MADE.machine.lanes(4)


def body(graph: Graph) -> list[Stmt]:
    """Return all statements of the graph's kernels."""
    options = Options(target=MADE)
    made = schedule_kernels(optimize(graph, options), options).values()
    return [s for k, _ in made for s in statements(k.func.body)]


def is_vector(s: Stmt) -> TypeGuard[For]:
    return isinstance(s, For) and s.kind == "vector"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_rows_that_leave_some_vectors_over(combiner: str, dtype: DType) -> None:
    for width in (37, 61, 63, 100):
        b = Builder("rows", {})
        y = b.node(Reduce(combiner, (1,), False), [b.input("x", dtype, dims(5, width))])
        graph, x = b.graph([y], ["y"]), random(dtype, 5, width)
        want = run_graph(graph, {"x": x})["y"]
        got = compiled(graph).run({"x": x})["y"]
        np.testing.assert_allclose(got, want, rtol=2e-3 if dtype is F16 else 1e-6)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gathered_rows(dtype: DType) -> None:
    """The index of a gathered row is read once for each row."""
    b = Builder("gathered", {})
    x, i = b.input("x", dtype, dims(9, 5, 37)), b.input("i", I64, dims(2, 7))
    at = b.input("at", I64, dims(6, 2))
    graph = b.graph([gather(b, x, i), gather_nd(b, x, at)], ["y", "z"])
    assert any(isinstance(s, Let) for s in body(graph))
    rng = np.random.default_rng(0)
    given = {"i": rng.integers(-9, 9, (2, 7)), "at": rng.integers(-5, 5, (6, 2))}
    given["x"] = random(dtype, 9, 5, 37)
    want, got = run_graph(graph, given), compiled(graph).run(given)
    for name in ("y", "z"):
        np.testing.assert_array_equal(got[name], want[name])
