"""Matrix products: ranks, broadcasting, Einsum and integer forms."""

from __future__ import annotations

import numpy as np
import pytest
from against import check, onnxruntime_outputs
from one_node import f32, lowered, model, run

from jangin.ir.graph import CompileError

SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 4), (2, 4, 5)), ((4,), (2, 4, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("MatMul", [f32(*left), f32(*right, seed=1)], 13, dims={})


def test_gemm() -> None:
    dims = {0: ["a", "k"], 1: ["b", "k"], 2: ["b"]}
    check("Gemm", [f32(3, 4), f32(5, 4), f32(5)], 11, transB=1, alpha=0.5, beta=2.0, dims=dims)
    check("Gemm", [f32(4, 3), f32(4, 5)], 11, transA=1, dims={0: ["k", "a"], 1: ["k", "b"]})
    check("Gemm", [f32(3, 4), f32(4, 5), f32(3, 1)], 9, dims={0: ["m", "k"], 1: ["k", "n"], 2: ["m", 1]})
    x, c = f32(3, 4), f32(5)
    check("Gemm", [x, x.T @ x, f32(4)], 1, want=[x @ (x.T @ x) + f32(4)], broadcast=1, dims={})
    whole = np.arange(12).reshape(3, 4)
    assert run("Gemm", [whole, whole.T], 13, alpha=2.0)[0].tolist() == (whole @ whole.T * 2).tolist()
    with pytest.raises(CompileError, match="matrices"):
        run("Gemm", [c, c], 13)


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bhqk,bhkd->bqhd", (2, 3, 4, 6), (2, 3, 6, 5)), ("i,j->ij", (3,), (4,)), ("ij->", (3, 4)),
    ("ii->i", (3, 3)), ("ij->ji", (2, 3)), ("...ij,...jk->...ik", (5, 3, 4), (5, 4, 2)),
    ("ij,j", (3, 4), (4,)), ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)), ("bij,b->b", (2, 3, 4), (2,)),
    ("nchw,cd->ndhw", (2, 3, 4, 5), (3, 6)), ("i,i->", (3,), (3,)), ("iij->j", (3, 3, 2)),
    ("a...,b...->ab...", (2, 3), (4, 3)), ("ij,ij->ij", (2, 3), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda c: str(c[0]))
def test_einsum(case: tuple[str, ...]) -> None:
    equation, *shapes = case
    inputs = [f32(*s, seed=i) for i, s in enumerate(shapes)]  # type: ignore[misc]
    labels = [t.replace("...", "") for t in equation.split("->")[0].split(",")]
    plain = all(len(t) == len(s) for t, s in zip(labels, shapes, strict=True))
    dims = {i: [f"size_{c}" for c in t] for i, t in enumerate(labels)} if plain else {}
    check("Einsum", inputs, 13, equation=equation, dims=dims)


def test_attention_products_are_plain_ones() -> None:
    inputs = [f32(2, 3, 4, 5), f32(2, 3, 6, 5)]
    assert [n.op for n in lowered("Einsum", inputs, 13, equation="bhqd,bhkd->bhqk").nodes].count(
        "matmul"
    ) == 1


def test_einsum_errors() -> None:
    for equation in ("ij->ik", "ij,jk->ik", "i1->i"):
        with pytest.raises(CompileError):
            run("Einsum", [f32(2, 3)], 13, equation=equation)


def test_integer_products() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (3, 4)).astype(np.uint8), rng.integers(-9, 9, (4, 5)).astype(np.int8)
    zeros = {2: np.array(7, np.uint8), 3: np.arange(5).astype(np.int8)}
    want = (x.astype(int) - 7) @ (y.astype(int) - np.arange(5))
    check("MatMulInteger", [x, y], 10, want=[want.astype(np.int32)], constants=zeros, dims={0: ["m", 4]})
    scales = {
        1: np.array(0.02, np.float32), 2: np.array(12, np.uint8), 3: y, 4: np.array(0.03, np.float32),
        5: np.array(0, np.int8), 6: np.array(0.01, np.float32), 7: np.array(100, np.uint8),
    }  # fmt: skip
    proto = model("QLinearMatMul", [x], 10, constants=scales)
    check("QLinearMatMul", [x], 10, want=onnxruntime_outputs(proto, {"in0": x}), constants=scales)


@pytest.mark.parametrize("moved", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_rows_before_the_batch(moved: tuple[int, int], transposed: int) -> None:
    """com.microsoft's FusedMatMul takes an operand whose first axis has the rows."""
    x, y = f32(2, 3, 4, 5), f32(2, 3, *((6, 5) if transposed else (5, 6)), seed=1)
    inputs = [np.moveaxis(a, -2, 0).copy() if m else a for a, m in zip((x, y), moved, strict=True)]
    want = 0.5 * x @ (y.swapaxes(-1, -2) if transposed else y)
    flags = {"transBatchA": moved[0], "transBatchB": moved[1], "transB": transposed}
    check("FusedMatMul", inputs, 17, want=[want], domain="com.microsoft", alpha=0.5, **flags)
