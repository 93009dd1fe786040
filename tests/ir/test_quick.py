"""NumPy's operations on whole arrays compute what the reference computes, within rounding."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.ir import quick
from jangin.ir.core import Conv, Pool
from jangin.ir.dtype import BOOL, F16, F32, I8, I32, I64, U8
from jangin.ir.expr import Buffer, Expr, Load, Var, call, cast, const, land, select
from jangin.ir.graph import Array
from jangin.ir.interpret import evaluate_stage
from jangin.ir.te import Stage, compute, reduction
from jangin.ops.core_window import conv_te, pool_te
from jangin.ops.operands import multiplied

SEED = 39


def array(buffer: Buffer, sizes: dict[str, int]) -> Array:
    rng = np.random.default_rng([SEED, *buffer.name.encode()])
    shape = [int(getattr(d, "value", 0)) or sizes[d.name] for d in buffer.shape]  # type: ignore[attr-defined]
    if buffer.dtype is I64:
        return rng.integers(-9, 9, shape)
    if buffer.dtype.is_int or buffer.dtype is BOOL:
        return rng.integers(0, 2, shape).astype(buffer.dtype.numpy) * (100 if buffer.dtype.is_int else 1)
    return rng.standard_normal(shape).astype(buffer.dtype.numpy)


def of(*shape: int | Expr) -> tuple[Expr, ...]:
    return tuple(const(d) if isinstance(d, int) else d for d in shape)


N = Var("n")
X, W = Buffer("x", F32, of(2, 6, 9, 7)), Buffer("w", F32, of(4, 3, 3, 2))
EACH = Buffer("each", F32, of(6, 1, 3, 3))
ROW, INDEX = Buffer("row", F32, of(N, 5)), Buffer("index", I64, of(8))
LEFT, RIGHT = Buffer("left", I8, of(5, 7)), Buffer("right", I8, of(7, 4))
HALF = Buffer("half", F16, of(3, 5))
FLAT: Stage = compute(Buffer("out", F32, of(4, N)), lambda i, j: Load(ROW, (j, i)) * Load(ROW, (j, i + 1)))


def windows(attrs: Conv, w: Buffer, *shape: int) -> Stage:
    (stage,) = conv_te((X, w), Buffer("out", F32, of(*shape)), attrs)
    return stage


STAGES = {
    "padded convolution": windows(
        Conv((3, 2), (2, 1), (1, 2), (1, 0, 2, 1), 2, "first"), W, 2, 4, 5, 6
    ),
    "depthwise convolution": windows(
        Conv((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 6, "first"), EACH, 2, 6, 9, 7
    ),
    "shifted rows": FLAT,
    "gather by data": compute(
        Buffer("out", F32, of(8, 5)), lambda i, j: Load(ROW, (Load(INDEX, (i,)) + 2, j))
    ),
    "a choice that isn't padding": compute(
        Buffer("out", F32, of(N + 2, 5)),
        lambda i, j: select(land(i >= 2, i < N), Load(ROW, (i - 1, j)), const(-1.0, F32)),
    ),
    "reversed": compute(Buffer("out", F32, of(N, 5)), lambda i, j: Load(ROW, (N - 1 - i, j))),
    "integer products": reduction(
        Buffer("out", I32, of(5, 4)), [7], "sum",
        lambda at, k: multiplied(Load(LEFT, (at[0], k[0])), Load(RIGHT, (k[0], at[1])), I32),
    ),
    "terms without an axis": reduction(
        Buffer("out", F32, of(5)), [3, 4], "sum", lambda at, k: Load(ROW, (k[0], at[0])) * const(0.5, F32)
    ),
    "sum of one operand": reduction(
        Buffer("out", F32, of(N)), [5], "sum", lambda at, k: Load(ROW, (at[0], k[0])),
        lambda acc, at: acc / call("exp", Load(ROW, (at[0], const(0)))),
    ),
    "maximum of halves": reduction(
        Buffer("out", F16, of(3)), [5], "max", lambda at, k: Load(HALF, (at[0], k[0]))
    ),
    "nothing to add": reduction(
        Buffer("out", F32, of(5)), [0], "sum", lambda at, k: Load(ROW, (k[0], at[0]))
    ),
    "cast": compute(Buffer("out", I32, of(N, 5)), lambda i, j: cast(I32, Load(ROW, (i, j)) * 9.0)),
}  # fmt: skip


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("name", [*STAGES, "pooling"])
def test_it_agrees_with_the_reference(name: str, parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, no array has more than 120 elements."""
    if name == "pooling":
        window = Pool("max", (3, 2), (2, 1), (1, 1), (1, 0, 1, 1), of(5, 7))
        (stage,) = pool_te((X,), Buffer("out", F32, of(2, 6, 5, 7)), window)
    else:
        stage = STAGES[name]
    if parts:
        monkeypatch.setattr(quick, "MOST", 120)
    sizes = {"n": 6}
    arrays = {b.name: array(b, sizes) for b in (X, W, EACH, ROW, INDEX, LEFT, RIGHT, HALF)}
    try:
        made = quick.quick_stage(stage, arrays, sizes)
    except quick.TooLarge:
        pytest.skip("one result takes more than 120 elements")
    wanted = evaluate_stage(stage, arrays, sizes)
    assert made.dtype == wanted.dtype and made.shape == wanted.shape
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)  # sums of up to 54 terms of size 1


def test_a_result_that_can_t_be_halved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "MOST", 2)
    with pytest.raises(quick.TooLarge):
        quick.quick_stage(STAGES["sum of one operand"], {"row": np.ones((9, 5), np.float32)}, {"n": 9})


@pytest.mark.parametrize("depth", [30, 515, 516, 1031, 1500, 70000])
def test_long_sums_of_integers_are_exact(depth: int) -> None:
    """Sums are single floats while these are exact, then several of them, and then double floats."""
    left, right = Buffer("left", U8, of(2, depth)), Buffer("right", I8, of(depth, 3))
    stage = reduction(
        Buffer("out", I32, of(2, 3)), [depth], "sum",
        lambda at, k: multiplied(Load(left, (at[0], k[0])), Load(right, (k[0], at[1])), I32),
    )  # fmt: skip
    x, w = np.full((2, depth), 255, np.uint8), np.full((depth, 3), -128, np.int8)
    x[1, ::3], w[::2, 1], w[1::5, 2] = 254, 127, 1
    made = quick.quick_stage(stage, {"left": x, "right": w}, {})
    assert np.array_equal(made, (x.astype(np.int64) @ w.astype(np.int64)).astype(np.int32))


def test_numbers_of_a_window_may_be_nan() -> None:
    x = np.random.default_rng(SEED).standard_normal((2, 6, 9, 7)).astype(np.float32)
    x[0, 0, 2, 3], x[1, 2] = np.nan, -np.inf
    (stage,) = pool_te(
        (X,), Buffer("out", F32, of(2, 6, 5, 7)), Pool("max", (3, 2), (2, 1), (1, 1), (1, 0, 1, 1), of(5, 7))
    )
    made = quick.quick_stage(stage, {"x": x}, {})
    assert np.array_equal(made, evaluate_stage(stage, {"x": x}, {}), equal_nan=True)


def test_sigmoids_of_large_numbers_are_0_and_1() -> None:
    x = np.array([[-1e30, -90, -20, 0, 1e-7], [20, 90, 1e30, np.inf, -np.inf]], np.float32)
    stage = compute(Buffer("out", F32, of(2, 5)), lambda i, j: call("sigmoid", Load(ROW, (i, j))))
    made, wanted = quick.quick_stage(stage, {"row": x}, {}), evaluate_stage(stage, {"row": x}, {})
    tiny = np.finfo(np.float32).tiny  # smaller results are 0
    np.testing.assert_allclose(made, wanted, rtol=1e-6, atol=float(tiny))
