"""Reductions whose vectors run across the rows: of rows shorter than a vector, and of the indices of
maxima."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Reduce
from jangin.ir.dtype import F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.graph import Array, Graph
from jangin.ir.loop import For, statements
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.reduce import arg_extreme
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import resolve

from .kernels import assert_equal_to_stages, buffer, dims, node, scheduled, workload

TYPES = [F32, F64, F16, I8, U8, I32, I64]


def numbers(dtype: DType, *shape: int) -> Array:
    """Return numbers of a type, some of them equal. Some floats are NaN."""
    found = np.random.default_rng(0).integers(0, 9, shape).astype(dtype.numpy)
    if dtype.is_float:
        found[..., 0][::7] = np.nan
    return found


def assert_as_interpreted(graph: Graph, x: Array) -> None:
    options = Options(target=resolve())
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    got = Executable(build(plan, options.target), 1).run({"x": x})["y"]
    np.testing.assert_array_equal(got, run_graph(graph, {"x": x})["y"])


@pytest.mark.parametrize("combiner", ["sum", "max"])
@pytest.mark.parametrize(
    "shape", [(131, 5), (13, 11, 3), (2077, 7), (29, 2), (16, 2), (131, 9), (77, 16), (9, 12)], ids=str
)
def test_short_rows(shape: tuple[int, ...], combiner: str) -> None:
    built = node(Reduce(combiner, (len(shape) - 1,), False), [buffer("x", *shape)])
    found = scheduled("rows", workload(built))
    assert any(isinstance(s, For) and s.kind == "vector" for s in statements(found.func.body))
    assert_equal_to_stages(found, built)


def test_two_short_axes() -> None:
    built = node(Reduce("sum", (1, 2), True), [buffer("x", 75, 2, 3)])
    assert_equal_to_stages(scheduled("rows", workload(built)), built)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_short_rows_of_any_type(combiner: str, dtype: DType) -> None:
    b = Builder("rows", {})
    y = b.node(Reduce(combiner, (1,), False), [b.input("x", dtype, dims(1061, 3))])
    assert_as_interpreted(b.graph([y], ["y"]), numbers(dtype, 1061, 3))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((2, 5, 3, 37), 1), ((19, 43), 0), ((4, 6, 9), 1)])
def test_where_the_largest_stand(shape: tuple[int, ...], axis: int, dtype: DType) -> None:
    for last in (False, True):
        b = Builder("arg", {})
        y = arg_extreme(b, b.input("x", dtype, dims(*shape)), axis, "max", last=last)
        assert_as_interpreted(b.graph([y], ["y"]), numbers(dtype, *shape))
