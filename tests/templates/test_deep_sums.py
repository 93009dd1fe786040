"""Deep sums are made in blocks of terms, for constant panels and for those that tasks copy, at any depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from guarded import Memory, watched
from onnx import helper, numpy_helper

import jangin
from jangin.targets import NAMED, Target
from jangin.templates.choose import TEMPLATES

from .kernels import Built, assert_equal_to_stages, matmul, workload

SMALL = [NAMED[n].with_figures(l1=512, l2=2048) for n in ("x86-64-v3", "x86-64-v4", "cortex-a72")]
"""Targets with caches so small that sums of some dozens of terms are deep."""
PRODUCTS = {
    "prime": matmul((11, 61), (61, 20)),
    "even": matmul((11, 64), (64, 20)),
    "transposed": matmul((9, 61), (20, 61), transposed=True),
    "batches": matmul((2, 9, 59), (2, 59, 17)),
}


def blocked(built: Built, constants: Sequence[str], target: Target) -> list[int]:
    """Check two candidates that sum in blocks, of different register tiles. Return their numbers of terms."""
    found = TEMPLATES["contraction"](workload(built, {}, constants, target))
    assert found is not None
    space = {(p["mr"], p["nv"]): p for p in found.space() if p.get("terms")}
    some = [*space.values()][:: max(1, len(space) - 1)]
    for params in some:
        made = found.schedule(params)
        assert "block_sum" in {s.name for s in made.steps}
        assert_equal_to_stages(made, built)
    return [p["terms"] for p in some]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target", SMALL, ids=["v3", "v4", "a72"])
@pytest.mark.parametrize("constants", [(), ("w",)], ids=["computed", "constant"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_depth_has_blocks(name: str, constants: Sequence[str], target: Target) -> None:
    """A depth that no block divides ends in a shorter block."""
    assert blocked(PRODUCTS[name], constants, target)


def test_blocks_of_a_transposed_matrix_are_turned_in_registers() -> None:
    """Their elements were copied one by one, which took as long as the multiply-adds of 80 rows."""
    target = NAMED["x86-64-v4"].with_figures(l2=1 << 15)
    built = matmul((9, 200), (40, 200), transposed=True)
    found = TEMPLATES["contraction"](workload(built, {}, (), target))
    assert found is not None
    deep = [p for p in found.space() if p.get("terms", 0) >= 16]
    assert deep
    for params in deep[:3]:
        made = found.schedule(params)
        assert "turned" in str(made.func)
        assert_equal_to_stages(made, built)


@pytest.mark.parametrize("target", SMALL, ids=["v3", "v4", "a72"])
def test_a_matrix_is_read_row_by_row(target: Target) -> None:
    """A few rows take blocks of a computed matrix's rows. The last block is shorter."""
    assert blocked(matmul((3, 27), (27, 256)), (), target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["x86-64-v4", "cortex-a72", "wasm32"])
@pytest.mark.parametrize("constants", [(), ("w",)], ids=["computed", "constant"])
def test_every_candidate_of_a_very_long_sum(constants: Sequence[str], target: str) -> None:
    found = TEMPLATES["contraction"](workload(matmul((12, 8209), (8209, 16)), {}, constants, NAMED[target]))
    assert found is not None
    for params in found.space():
        made = found.schedule(params)
        once = "panel" in str(made.func) or "rows_packed" in params or params.get("terms")
        assert once or "partial_sums" in {s.name for s in made.steps}, params


@pytest.mark.parametrize("constant", [False, True])
def test_few_rows_sum_in_parts(constant: bool) -> None:
    """A very long sum of a single tile is made of partial sums too, although no panel is copied. One running
    sum of so many terms has errors of 2e-3, and partial sums of 1,000 terms have less than half of it."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 65521), (65521, 16)))
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    infos = [helper.make_tensor_value_info(n, 1, x.shape) for n, x in (("a", a), ("b", b))]
    y = helper.make_tensor_value_info("y", 1, (3, 16))
    held = [numpy_helper.from_array(b, "b")] if constant else []
    graph = helper.make_graph([node], "g", infos[: 2 - constant], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    exe = jangin.compile(model.SerializeToString(), threads=1, cache=False, isolated=False)
    got = exe(a) if constant else exe(a, b)
    assert np.abs(got - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-3


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_deep_product_of_computed_operands(transposed: bool, threads: int) -> None:
    """The product touches no other memory, and its rounding errors are those of the blocks' sums.

    One running sum of so many terms of size 1 has errors of 1.5e-3 and more. Sums of blocks of 700 terms have
    a third of it at most."""
    rows, depth, columns = 13, 12553, 37
    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if transposed else (depth, columns)).astype(np.float32)
    infos = [helper.make_tensor_value_info(n, 1, x.shape) for n, x in (("a", a), ("b", b))]
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transB=int(transposed))
    y = helper.make_tensor_value_info("y", 1, (rows, columns))
    model = helper.make_model(
        helper.make_graph([node], "g", infos, [y]), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    onnx.checker.check_model(model)
    memory = Memory()
    with watched(memory):
        exe = jangin.compile(model.SerializeToString(), threads=threads, cache=False, isolated=False)
        got = exe(memory.copy(a), memory.copy(b))
    assert not memory.faults()
    exact = a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64)
    assert np.abs(got - exact).max() < 5e-4
