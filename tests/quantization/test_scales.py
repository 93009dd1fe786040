"""Scales and zero points: rounding, the choice of ranges, and an error for each wrong input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jangin.ir.dtype import I4, I8, U8
from jangin.ir.graph import CompileError
from jangin.quantization.observers import METHODS, Observer
from jangin.quantization.scales import Scheme, of_pairs, of_range, of_weights

GOOD = Scheme(U8, np.float32(0.5), np.uint8(3))
EACH = Scheme(I8, np.ones(4, np.float32), np.zeros(4, np.int8), 1)
BLOCKS = Scheme(I4, np.ones((2, 4), np.float32), np.zeros((2, 4), np.int8), 0, 8)


@pytest.mark.parametrize(
    ("scheme", "given", "message"),
    [
        (GOOD, {"scale": np.float32(0)}, "a scale of 0.0: scales are finite and above 0"),
        (GOOD, {"scale": np.float32(np.nan)}, "a scale of nan"),
        (GOOD, {"scale": np.float32(-1)}, "a scale of -1.0"),
        (EACH, {"scale": np.array([1, 1, np.inf, 1], np.float32)}, r"a scale of inf at \[2\]"),
        (GOOD, {"zero": np.int32(256)}, "a zero point out of u8's range, which is 0 to 255"),
        (EACH, {"zero": np.full(4, -129)}, "a zero point out of i8's range"),
        (EACH, {"zero": np.zeros(3, np.int8)}, r"\(3,\) zero points for \(4,\) scales"),
        (EACH, {"axis": 2}, "axis 2 doesn't exist: there are 2"),
        (EACH, {"axis": 0}, "4 scales for the 16 entries of axis 0"),
        (EACH, {"axis": None}, "4 scales without an axis"),
        (BLOCKS, {"block": 5}, "blocks of 5 don't divide axis 0 of 16"),
        (BLOCKS, {"block": 4}, r"scales of shape \(2, 4\); blocks of 4 need \(4, 4\)"),
    ],
)
def test_refused(scheme: Scheme, given: dict[str, Any], message: str) -> None:
    scheme.checked((16, 4), "w")
    with pytest.raises(CompileError, match=f"^w: .*{message}"):
        replace(scheme, **given).checked((16, 4), "w")


def test_rounding() -> None:
    """Rounding is within half a step, and zero is exact, by channel and by block."""
    rng = np.random.default_rng()
    x = rng.standard_normal((16, 4)).astype(np.float32)
    for scheme in (
        of_range(x.min(), x.max()),
        of_weights(x),
        of_weights(x, axis=1),
        of_weights(x, I4, 0, 8),
    ):
        scheme.checked(x.shape, "x")
        step = scheme.spread(scheme.scale, 2)
        assert (np.abs(scheme.rounded(x) - x) <= step * 0.5001).all()
        assert not scheme.rounded(np.zeros_like(x)).any()
    dead = of_weights(np.zeros((4, 3), np.float32), axis=0)
    assert dead.checked((4, 3), "w").rounded(np.zeros((4, 3), np.float32)).max() == 0


@pytest.mark.parametrize("shape", [(5, 7), (4, 8, 3, 1), (3, 1)])
def test_pairs(shape: tuple[int, ...]) -> None:
    """Two neighbouring rounded weights of one sign add up to at most 128, and come close to it in each
    channel."""
    rng = np.random.default_rng()
    w = (rng.standard_normal(shape) ** 3).astype(np.float32)
    for axis, terms in ((0, 1), (1, 0)):
        q = of_weights(w, I8, axis, least=of_pairs(w, axis, terms)).quantized(w).astype(int)
        rows = np.moveaxis(q, (axis, terms), (0, -1))
        firsts, seconds = rows[..., ::2], np.zeros_like(rows[..., ::2])
        seconds[..., : rows.shape[-1] // 2] = rows[..., 1::2]
        sums = [np.maximum(s * firsts, 0) + np.maximum(s * seconds, 0) for s in (1, -1)]
        largest = np.max(sums, axis=0).reshape(len(rows), -1).max(-1)
        assert (largest <= 128).all() and (largest >= 126).all()


@pytest.mark.parametrize("method", METHODS)
def test_ranges(method: str) -> None:
    """About the whole range is kept if there are no outliers. All methods except minmax cut off a single
    outlier. Data comes in parts."""
    rng = np.random.default_rng(7)
    even = Observer()
    for n in range(8):
        even.see(rng.uniform(0, n + 1, 4000).astype(np.float32))
    low, high = even.range(method)
    assert low == pytest.approx(0, abs=0.01)
    assert high == pytest.approx(8, rel=0.3)
    odd = Observer()
    odd.see(rng.standard_normal(200_000).astype(np.float32))
    odd.see(np.float32([60.0]))
    _, high = odd.range(method)
    assert (high == 60) if method == "minmax" else (3 < high < 60)


def test_ranges_of_nothing() -> None:
    seen = Observer()
    seen.see(np.zeros(5, np.float32))
    assert all(seen.range(m) == (0, 0) for m in METHODS)
    with pytest.raises(ValueError, match="infinities or NaN"):
        seen.see(np.float32([np.nan]))
