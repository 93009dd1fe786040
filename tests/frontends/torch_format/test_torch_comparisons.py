"""PyTorch's operators that compare, with NaN, infinities, both zeros and ties, against eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
sys.path.insert(0, str(Path(__file__).parents[2] / "ops"))

from numbers_in_order import LEFT, LINE, RIGHT, ROWS, long_rows  # noqa: E402

F = torch.nn.functional
LEVELS = torch.tensor([0.2])
PLACES = torch.zeros(8, 16, dtype=torch.int64)
Given = Callable[[Any], Any]

OF_ROWS: dict[str, Given] = {
    "sort": lambda x: torch.sort(x, dim=1, stable=True),
    "sort down": lambda x: torch.sort(x, dim=1, descending=True, stable=True),
    "argsort": lambda x: torch.argsort(x, dim=1, stable=True), "msort": torch.msort,
    "topk": lambda x: torch.topk(x, 3, 1)[0], "lowest": lambda x: torch.topk(x, 3, 1, largest=False)[0],
    "kthvalue": lambda x: torch.kthvalue(x, 4, 1)[0], "median": lambda x: torch.median(x, 1)[0],
    "cummax": lambda x: torch.cummax(x, 1), "cummin": lambda x: torch.cummin(x, 1),
    "max": lambda x: torch.max(x, 1), "min": lambda x: torch.min(x, 1), "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0), "argmax": lambda x: x.argmax(1), "argmin": lambda x: x.argmin(1),
    "clamp": lambda x: x.clamp(-1, 2), "clamp_min": lambda x: x.clamp_min(0.5),
    "clamp_max": lambda x: x.clamp_max(0.5), "relu": F.relu, "relu6": F.relu6, "hardtanh": F.hardtanh,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "leaky_relu": F.leaky_relu, "elu": F.elu,
    "celu": F.celu, "selu": F.selu, "threshold": lambda x: F.threshold(x, 0.5, 9.0),
    "prelu": lambda x: F.prelu(x, LEVELS), "softshrink": F.softshrink, "hardshrink": F.hardshrink,
    "sign": torch.sign, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "isposinf": torch.isposinf, "isneginf": torch.isneginf, "nan_to_num": torch.nan_to_num,
    "softmax": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "max_pool2d": lambda x: F.max_pool2d(x.reshape(1, 2, 8, 8), 2),
    "max_pool1d": lambda x: F.max_pool1d(x, 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x.reshape(1, 2, 8, 8), 3),
    "scatter_reduce": lambda x: torch.zeros(8, 16).scatter_reduce(1, PLACES, x, "amax"),
    "any": lambda x: torch.any(x, 1), "nansum": lambda x: torch.nansum(x, 1),
}  # fmt: skip
OF_PAIRS = (
    "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "heaviside", "fmod",
    "remainder",
)  # fmt: skip


def alike(run: Callable[..., Any], *given: Any) -> None:
    """Check that a compiled function gives eager PyTorch's results."""
    torch._dynamo.reset()
    with torch.no_grad():
        found = (run(*given), torch.compile(run, backend="jangin")(*given))
    want, got = (list(f) if isinstance(f, (tuple, list)) else [f] for f in found)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", OF_ROWS)
def test_of_rows(name: str) -> None:
    alike(OF_ROWS[name], torch.from_numpy(ROWS.copy()))


@pytest.mark.parametrize("name", OF_PAIRS)
def test_of_pairs(name: str) -> None:
    alike(getattr(torch, name), *(torch.from_numpy(a.copy()) for a in (LEFT, RIGHT)))


@pytest.mark.parametrize("largest", [False, True])
def test_few_of_long_rows(largest: bool) -> None:
    x = torch.from_numpy(long_rows(type(LINE[0])))
    alike(lambda v: torch.topk(v, 5, 1, largest=largest)[0], x)


def test_where_the_maximum_stands() -> None:
    """The index of a maximum is at a NaN if the window has one. PyTorch names the last NaN, and Jangin the
    first."""
    x = torch.from_numpy(ROWS.reshape(1, 2, 8, 8).copy())
    torch._dynamo.reset()
    with torch.no_grad():
        pool = torch.compile(lambda v: F.max_pool2d(v, 2, return_indices=True), backend="jangin")
        values, indices = pool(x)
    torch.testing.assert_close(values, F.max_pool2d(x, 2), equal_nan=True)
    torch.testing.assert_close(x.flatten(2).gather(2, indices.flatten(2)), values.flatten(2), equal_nan=True)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_powers_of_integers(dtype: str) -> None:
    """1 and -1 have powers with negative exponents. They were 0, as those of other numbers are."""
    bases = torch.tensor([-3, -2, -1, 0, 1, 2, 5] if dtype != "uint8" else [0, 1, 2, 3, 200]).to(
        getattr(torch, dtype)
    )
    exponents = torch.tensor([-128, -3, -2, -1, 0, 1, 2, 7] if dtype != "uint8" else [0, 1, 2, 7]).to(
        bases.dtype
    )
    alike(torch.pow, bases[:, None], exponents)
