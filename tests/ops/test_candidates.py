"""The best elements of long rows, against the interpreter and NumPy. Most elements of the rows are passed
over."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.dtype import F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.candidates import block_size
from jangin.ops.interpret import run_graph
from jangin.ops.select import top_k
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import resolve

TYPES = [F32, F64, F16, I8, U8, I32, I64]


def best_of(dtype: DType, rows: int, n: int, k: int, *, largest: bool) -> Graph:
    assert block_size(const(n), const(k))
    b = Builder("top", {})
    x = b.input("x", dtype, (const(rows), const(n)))
    return b.graph(list(top_k(b, x, const(k), largest=largest)), ["values", "places"])


def run(graph: Graph, x: Array) -> dict[str, Array]:
    options = Options(target=resolve())
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    return Executable(build(plan, options.target), 1).run({"x": x})


def assert_best(x: Array, got: dict[str, Array], k: int, *, largest: bool) -> None:
    """Check the best elements and their indices. They are sorted, and the first of equals comes first."""
    key = -x.astype(np.float64) if largest else x.astype(np.float64)
    places = np.argsort(key, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(got["places"], places)
    np.testing.assert_array_equal(got["values"], np.take_along_axis(x, places, 1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_all_types(dtype: DType, largest: bool) -> None:
    x = (np.random.default_rng(0).uniform(0, 120, (3, 333))).astype(dtype.numpy)
    graph = best_of(dtype, 3, 333, 7, largest=largest)
    got = run(graph, x)
    assert_best(x, got, 7, largest=largest)
    for name, want in run_graph(graph, {"x": x}).items():
        np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize("what", ["equal", "ascending", "descending", "infinite"])
def test_rows_that_are_hard_to_halve(what: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 1003)).astype(np.float32)
    x = {
        "equal": np.ones_like(x),
        "ascending": np.sort(x),
        "descending": -np.sort(-x),
        "infinite": np.where(x > 0, np.inf, -np.inf).astype(np.float32),
    }[what]
    for largest in (True, False):
        assert_best(x, run(best_of(F32, 2, 1003, 20, largest=largest), x), 20, largest=largest)


def test_numbers_beside_some_that_are_none() -> None:
    """The indices are distinct and within the row, also in rows with NaN."""
    x = np.random.default_rng(0).standard_normal((2, 1003)).astype(np.float32)
    x[:, ::9] = np.nan
    got = run(best_of(F32, 2, 1003, 20, largest=True), x)
    np.testing.assert_array_equal(got["values"], np.take_along_axis(x, got["places"], 1))
    assert all(len(set(row)) == 20 for row in got["places"])


def test_which_rows_are_long() -> None:
    sizes = [(8400, 300), (30000, 1), (1000, 5), (1000, 100), (40, 1)]
    assert [block_size(const(n), const(k)) for n, k in sizes] == [8, 64, 32, 0, 0]
