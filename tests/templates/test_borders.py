"""Padded rows: vectors inside, and copies of the code for the borders, in every mode and element type."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Pad
from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.loop import For, Store, statements
from jangin.ops.builder import Builder
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import resolve

from .kernels import assert_equal_to_stages, buffer, dims, node, scheduled, workload

AMOUNTS = [
    (0, 1, 2, 0, 0, 3), (0, 0, 8, 1, 0, 8), (1, 0, -3, 0, -1, 9), (0, 2, 40, 0, 2, 33), (0, 0, 90, 0, 0, 100)
]  # fmt: skip
"""Borders of less than a vector, of whole vectors, cropped ones, and borders of several vectors. Some are
longer than the row that is reflected."""


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("amounts", AMOUNTS, ids=str)
def test_padding(mode: str, amounts: tuple[int, ...]) -> None:
    stages, inputs = node(Pad(dims(*amounts), mode), [buffer("x", 2, 3, 67)])
    found = scheduled("elementwise", workload((stages, inputs)))
    assert_equal_to_stages(found, (stages, inputs))


def test_reflected_rows_are_vectors_inside() -> None:
    """Only the ends of a row compute where they read."""
    built = node(Pad(dims(0, 0, 3, 0, 0, 3), "reflect"), [buffer("x", 2, 3, 67)])
    found = scheduled("elementwise", workload(built))
    loops = [s for s in statements(found.func.body) if isinstance(s, For) and s.kind == "vector"]
    values = [str(s.value) for loop in loops for s in statements(loop) if isinstance(s, Store)]
    assert len(values) == 3 and sum("min(" not in v and "max(" not in v for v in values) == 1


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I8, U8, I32, I64, BOOL], ids=str)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding_of_any_type(mode: str, dtype: DType) -> None:
    data = np.random.default_rng(0).integers(0, 2 if dtype is BOOL else 100, (3, 131)).astype(dtype.numpy)
    b = Builder("pad", {})
    x = b.input("x", dtype, dims(3, 131))
    options = Options(target=resolve())
    graph = optimize(b.graph([b.pad(x, dims(1, 11, 0, 20), mode)], ["y"]), options)
    exe = Executable(build(make_plan(graph, schedule_kernels(graph, options), options), options.target), 1)
    want = np.pad(data, ((1, 0), (11, 20)), mode)  # type: ignore[call-overload]
    np.testing.assert_array_equal(exe.run({"x": data})["y"], want)
