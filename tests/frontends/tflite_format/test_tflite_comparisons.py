"""TFLite's operators that compare, with infinities, both zeros, ties and NaN.

Without NaN the results are LiteRT's. With NaN, LiteRT's maxima depend on the order of the operands, or leave
NaN out. Jangin treats NaN as NumPy does, in all formats.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
sys.path.insert(0, str(Path(__file__).parents[2] / "ops"))

from files import Operator, Tensor, written
from numbers_in_order import LEFT, RIGHT, ROWS

Case = tuple[Sequence[Tensor], Operator]
X, PAIR = Tensor([8, 16]), [Tensor([16, 16]), Tensor([16, 16])]
AXIS, LAST, FEW = (Tensor(s, "int32", data=d) for s, d in (([1], [1]), ([], 1), ([], 3)))
POOL = {"Padding": 1, "StrideH": 2, "StrideW": 2, "FilterHeight": 2, "FilterWidth": 2}
COMPARED = {
    "EQUAL": "EqualOptions", "NOT_EQUAL": "NotEqualOptions", "LESS": "LessOptions",
    "LESS_EQUAL": "LessEqualOptions", "GREATER": "GreaterOptions", "GREATER_EQUAL": "GreaterEqualOptions",
}  # fmt: skip
ALIKE: dict[str, Case] = {
    **{
        n: ([X, X], Operator(n, [0], [1], version=1))
        for n in ("RELU", "RELU6", "RELU_N1_TO_1", "ABS", "HARD_SWISH", "SIGN", "LOG_SOFTMAX")
    },
    **{n: ([*PAIR, Tensor([16, 16], "bool")], Operator(n, [0, 1], [2], t)) for n, t in COMPARED.items()},
    "LEAKY_RELU": ([X, X], Operator("LEAKY_RELU", [0], [1], "LeakyReluOptions", {"Alpha": 0.2})),
    "SOFTMAX": ([X, X], Operator("SOFTMAX", [0], [1], "SoftmaxOptions", {"Beta": 1.0})),
    "PRELU": ([X, Tensor([16], data=np.full(16, 0.2)), X], Operator("PRELU", [0, 1], [2], version=1)),
}
"""Operators with which LiteRT treats NaN as NumPy does."""


def reduced(name: str) -> Case:
    return [X, AXIS, Tensor([8, 1])], Operator(name, [0, 1], [2], "ReducerOptions", {"KeepDims": True})


def placed(name: str, table: str) -> Case:
    return [X, LAST, Tensor([8], "int32")], Operator(name, [0, 1], [2], table, {"OutputType": 2})


ORDERED: dict[str, tuple[Case, Any]] = {
    "MAXIMUM": (([*PAIR, PAIR[0]], Operator("MAXIMUM", [0, 1], [2], "MaximumMinimumOptions")), np.maximum),
    "MINIMUM": (([*PAIR, PAIR[0]], Operator("MINIMUM", [0, 1], [2], "MaximumMinimumOptions")), np.minimum),
    "REDUCE_MAX": (reduced("REDUCE_MAX"), lambda x: x.max(1, keepdims=True)),
    "REDUCE_MIN": (reduced("REDUCE_MIN"), lambda x: x.min(1, keepdims=True)),
    "ARG_MAX": (placed("ARG_MAX", "ArgMaxOptions"), lambda x: x.argmax(1)),
    "ARG_MIN": (placed("ARG_MIN", "ArgMinOptions"), lambda x: x.argmin(1)),
    "TOPK_V2": (
        ([X, FEW, Tensor([8, 3]), Tensor([8, 3], "int32")], Operator("TOPK_V2", [0, 1], [2, 3])),
        lambda x: np.sort(x, 1)[:, :-4:-1],
    ),
    "MAX_POOL_2D": (
        (
            [Tensor([1, 8, 8, 2]), Tensor([1, 4, 4, 2])],
            Operator("MAX_POOL_2D", [0], [1], "Pool2DOptions", POOL),
        ),
        lambda x: x.reshape(1, 4, 2, 4, 2, 2).max((2, 4)),
    ),
}


def made(case: Case) -> tuple[bytes, list[Any]]:
    """Return the file of a case, and its inputs."""
    tensors, operator = case
    given = [i for i in operator.inputs if tensors[i].data is None]
    first = tensors[given[0]].shape
    feeds = [LEFT, RIGHT] if len(given) == 2 else [ROWS.reshape(first)]
    return written(tensors, [operator], given, list(operator.outputs)), feeds


def results(model: bytes, feeds: Sequence[Any]) -> list[Any]:
    exe = jangin.compile(model, threads=1, cache=False, isolated=False)
    return [*exe.run({s.name: v for s, v in zip(exe.inputs, feeds, strict=True)}).values()]


def same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), 1e-5, 1e-6)


@pytest.mark.parametrize("name", ALIKE)
def test_as_litert(name: str) -> None:
    reason = "ai-edge-litert, the reference, isn't installed"
    pytest.importorskip("ai_edge_litert.interpreter", reason=reason)
    from test_tflite import reference

    model, feeds = made(ALIKE[name])
    same(results(model, feeds), reference(model, feeds))


@pytest.mark.parametrize("name", ORDERED)
def test_as_litert_where_there_is_no_nan(name: str) -> None:
    """Infinite inputs are left out for pools and reductions, because LiteRT's begin or end at finite
    numbers."""
    reason = "ai-edge-litert, the reference, isn't installed"
    pytest.importorskip("ai_edge_litert.interpreter", reason=reason)
    from test_tflite import reference

    model, feeds = made(ORDERED[name][0])
    most = 1e30 if name.startswith(("MAX_POOL", "REDUCE")) else np.inf
    feeds = [np.nan_to_num(x, nan=2.0, posinf=most, neginf=-most) for x in feeds]
    same(results(model, feeds), reference(model, feeds))


@pytest.mark.parametrize("name", ORDERED)
def test_nan_as_in_numpy(name: str) -> None:
    case, numpy = ORDERED[name]
    model, feeds = made(case)
    same(results(model, feeds)[:1], [numpy(*feeds)])
