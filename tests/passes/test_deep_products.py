"""Products of few rows by a computed matrix are made in parts along their sums, with the same result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from guarded import Memory, watched
from onnx import helper

import jangin
from jangin.ir.core import MatMul, Reduce
from jangin.ir.dtype import F16, F32, DType
from jangin.ir.expr import const
from jangin.ir.graph import Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.passes.fusion.deep_products import deep_products
from jangin.targets import NAMED

TARGET = NAMED["x86-64-v3"]


def product(left: Sequence[int], right: Sequence[int], dtype: DType = F32, held: bool = False) -> Graph:
    b = Builder("product", {})
    x, w = (b.input(n, dtype, tuple(const(d) for d in s)) for n, s in (("x", left), ("w", right)))
    graph = b.graph([b.matmul(x, w)], ["y"])
    constants = {"w": np.ones(right, np.float32)}
    return replace(graph, inputs=("x",), constants=constants) if held else graph


@pytest.mark.parametrize(
    ("left", "right", "parts"),
    [
        ((1, 3072), (3072, 96), 16),
        ((1, 2049), (2049, 160), 0),  # a part of 683 terms is one of 3 alone
        ((5, 1900), (1900, 144), 19),
        ((1, 1, 4092), (1, 4092, 72), 22),
        ((1, 384), (384, 4096), 4),
    ],
    ids=str,
)
def test_parts(left: tuple[int, ...], right: tuple[int, ...], parts: int) -> None:
    graph = product(left, right)
    apart = deep_products(graph, TARGET)
    assert [n.attrs for n in apart.nodes if isinstance(n.attrs, Reduce)] == [Reduce("sum", (0,))] * bool(
        parts
    )
    made = next(n for n in apart.nodes if isinstance(n.attrs, MatMul))
    if parts:
        assert apart.shape(made.outputs[0])[0] == const(parts)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (left, right))
    got = run_graph(apart, {"x": x, "w": w})["y"]
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert got.shape == exact.shape
    # Terms are about 1 and are summed by a few hundred: far below one running sum's error.
    assert np.abs(got - exact).max() <= 2e-4


@pytest.mark.parametrize(
    ("left", "right", "dtype", "held"),
    [
        ((1, 3072), (3072, 96), F32, True),  # constants are packed, and panels lie side by side
        ((9, 3072), (3072, 96), F32, False),  # each task copies its panels
        ((1, 256), (256, 1000), F32, False),  # a thread's waking would cost more
        ((1, 256), (256, 16384), F32, False),  # the columns are tasks enough
        ((3, 1, 3072), (3, 3072, 96), F32, False),  # so are several products, or nearly
        ((1, 3072), (3072, 96), F16, False),  # the sums of parts would be rounded
    ],
    ids=str,
)
def test_what_is_multiplied_at_once(
    left: tuple[int, ...], right: tuple[int, ...], dtype: DType, held: bool
) -> None:
    graph = product(left, right, dtype, held)
    assert deep_products(graph, TARGET).nodes == graph.nodes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize(("terms", "columns"), [(2176, 192), (1156, 256), (1031, 320), (4097, 1056)])
def test_few_rows_touch_no_other_memory(terms: int, columns: int, rows: int, threads: int) -> None:
    """Depths have parts of rows that no block divides, or are prime numbers."""
    rng = np.random.default_rng(terms + rows)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, terms), (terms, columns)))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    infos = [helper.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", x), ("w", w))]
    y = helper.make_tensor_value_info("y", 1, (rows, columns))
    graph = helper.make_graph([node], "g", infos, [y])
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    memory = Memory()
    with watched(memory):
        exe = jangin.compile(model, threads=threads, cache=False, isolated=False)
        got = exe(memory.copy(x), memory.copy(w))
    assert not memory.faults()
    # The errors of sums of blocks of 8 terms, which are added up one after the other.
    assert np.abs(got - x.astype(np.float64) @ w.astype(np.float64)).max() < 4e-4
