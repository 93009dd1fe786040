"""ONNX's operators that compare, with NaN, infinities, both zeros and ties, against ONNX's reference.

NaN is the largest element, as in NumPy's sort, and the extreme of all elements that it is among. With NaN,
the reference's MaxPool and ScatterElements depend on the order of operands, so NumPy's `maximum` and
`minimum` are the reference there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
from numbers_in_order import LEFT, LINE, RIGHT, ROWS, long_rows
from one_node import Array, model
from onnx.reference import ReferenceEvaluator

import jangin

IMAGE = ROWS.reshape(1, 2, 8, 8)
Case = tuple[str, Sequence[Array], dict[str, Any]]
PAIRS = ("Max", "Min", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
ALONE = (
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Sign",
    "IsNaN", "IsInf", "Abs", "Softsign", "Sigmoid", "Tanh", "Shrink", "Softmax", "LogSoftmax", "Hardmax",
    "Round", "NonZero", "GlobalMaxPool",
)  # fmt: skip
ENDS = ((-1, 2), (np.nan, 2), (2, -1), (-np.inf, np.inf))


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {op: (op, [LEFT, RIGHT], {}) for op in PAIRS}
    found |= {op: (op, [IMAGE if "Pool" in op else ROWS], {}) for op in ALONE}
    found |= {f"Clip {a} {b}": ("Clip", [ROWS, scalar(a), scalar(b)], {}) for a, b in ENDS}
    found["Where"] = "Where", [LEFT > RIGHT, LEFT, RIGHT], {}
    found["PRelu"] = "PRelu", [ROWS, np.full(16, 0.2, np.float32)], {}
    for op in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            found[f"{op} {last}"] = op, [ROWS], {"axis": 1, "select_last_index": last, "keepdims": 0}
    for op in ("ReduceMax", "ReduceMin"):
        found |= {f"{op} {n}": (op, [ROWS, np.array([n])], {"constants": {1: np.array([n])}}) for n in (0, 1)}
    return found


def given(op: str, inputs: Sequence[Array], opset: int = 21, **settings: Any) -> tuple[Any, dict[str, Array]]:
    made = model(op, inputs, opset, **settings)
    made.ir_version = 10
    feeds = {f"in{n}": a for n, a in enumerate(inputs)}
    return made, {i.name: feeds[i.name] for i in made.graph.input}


def results(made: Any, feeds: dict[str, Array]) -> list[Array]:
    return [*jangin.compile(made, cache=False, isolated=False, threads=1).run(feeds).values()]


CASES = cases()
TYPED = [(n, t) for n in CASES for t in (np.float32, np.float16) if (n, t) != ("Celu", np.float16)]
"""Cases and types. The standard has Celu for float32 alone."""


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_as_the_reference(name: str, dtype: Any) -> None:
    op, inputs, settings = CASES[name]
    inputs = [a.astype(dtype) if a.dtype == np.float32 else a for a in inputs]
    made, feeds = given(op, inputs, **settings)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(made).run(None, feeds)
    close = 1e-5 if dtype is np.float32 else 2e-3  # float16 has eleven bits
    for a, b in zip(results(made, feeds), want, strict=True):
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(a.astype(np.float64), np.asarray(b, np.float64), close, close)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [1, 3, 15, 16])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_top_k(dtype: Any, k: int, largest: int) -> None:
    """The first of equals comes first. Long rows take a way that looks only at elements that may be among the
    best."""
    for x in (ROWS.astype(dtype), long_rows(dtype)):
        made, feeds = given(
            "TopK", [x, np.array([k])], outputs=2, constants={1: np.array([k])}, axis=1, largest=largest
        )
        want = ReferenceEvaluator(made).run(None, feeds)
        for a, b in zip(results(made, feeds), want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("ascending", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unique(dtype: Any, axis: int | None, ascending: int) -> None:
    x = LINE.astype(dtype) if axis is None else np.concatenate([ROWS, ROWS[:4]]).astype(dtype)
    settings = {} if axis is None else {"axis": axis}
    made, feeds = given("Unique", [x], outputs=4, sorted=ascending, **settings)
    values, heads, inverse, counts = results(made, feeds)
    order, first, whose, many = np.unique(x, True, True, True, axis=axis)
    if not ascending:
        turn = np.argsort(first)
        order, first, many = np.take(x, first[turn], axis or 0), first[turn], many[turn]
        whose = np.argsort(turn)[whose]
    np.testing.assert_array_equal(values, order)
    for a, b in ((heads, first), (inverse, whose.reshape(-1)), (counts, many)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("pads", [0, 1])
def test_max_pool(pads: int) -> None:
    """NaN is the maximum of each window that has one. The index is that of the first NaN."""
    made, feeds = given("MaxPool", [IMAGE], outputs=2, kernel_shape=[3, 3], pads=[pads] * 4)
    values, indices = results(made, feeds)
    padded = np.pad(IMAGE, ((0, 0), (0, 0), (pads, pads), (pads, pads)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_array_equal(values, windows.max((-1, -2)))
    np.testing.assert_array_equal(IMAGE.reshape(-1)[indices], values)


@pytest.mark.parametrize("how", ["max", "min"])
def test_scattered_extremes(how: str) -> None:
    place = np.zeros((8, 4), np.int64)
    made, feeds = given("ScatterElements", [ROWS, place, ROWS[:, 3:7]], axis=1, reduction=how)
    want, pick = ROWS.copy(), np.maximum if how == "max" else np.minimum
    want[:, 0] = reduce(pick, [ROWS[:, 0], *ROWS[:, 3:7].T])
    np.testing.assert_array_equal(results(made, feeds)[0], want)


@pytest.mark.parametrize("floor", [None, -np.inf, 0.6])
def test_boxes_without_a_score(floor: float | None) -> None:
    """NaN is no score: its box is never chosen and hides no other. A box with a NaN corner overlaps none."""
    corners = np.array([[n, n, n + 1, n + 1] for n in (0, 2, 4, 4, 6, 8, 8)], np.float32)
    corners[5, 0] = np.nan
    scores = np.array([0.5, np.nan, 0.9, np.nan, 0.7, 0.8, 0.65], np.float32)
    inputs = [corners[None], scores[None, None], np.array([9]), scalar(0.5)]
    inputs += [] if floor is None else [scalar(floor)]
    made, feeds = given("NonMaxSuppression", inputs)
    exe = jangin.compile(made, cache=False, isolated=False, threads=1)
    best = [2, 5, 4, 6, *([] if floor == 0.6 else [0])]
    for shift in range(len(scores)):
        turn = np.roll(np.arange(len(scores)), shift)
        (got,) = exe.run({**feeds, "in0": corners[turn][None], "in1": scores[turn][None, None]}).values()
        assert turn[got[:, 2]].tolist() == best
    (none,) = exe.run({**feeds, "in1": np.full((1, 1, len(scores)), np.nan, np.float32)}).values()
    assert none.shape == (0, 3)
