"""The arena: live buffers never overlap, and little memory is wasted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jangin.ir.plan import ALIGN
from jangin.runtime import arena
from jangin.runtime.arena import Item, layout, peak

lives = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)
items = st.lists(st.tuples(st.integers(0, 5000), lives), max_size=40).map(
    lambda drawn: [(f"b{i}", size, first, last) for i, (size, (first, last)) in enumerate(drawn)]
)


def check(buffers: list[Item]) -> int:
    offsets, total = layout(buffers)
    assert offsets.keys() == {b[0] for b in buffers}
    for i, (name, size, first, last) in enumerate(buffers):
        assert offsets[name] % ALIGN == 0 and offsets[name] + size <= total
        for other, other_size, other_first, other_last in buffers[:i]:
            if first <= other_last and other_first <= last and size and other_size:
                a, b = offsets[name], offsets[other]
                assert a + size <= b or b + other_size <= a, (name, other)
    assert total >= peak(buffers)
    return total


@settings(max_examples=200)
@given(items)
def test_never_overlap(buffers: list[Item]) -> None:
    total = check(buffers)
    assert layout(buffers) == layout(list(buffers))
    assert total <= sum(-(-b[1] // ALIGN) * ALIGN for b in buffers)


def test_a_chain_needs_two_buffers() -> None:
    sizes = [100, 700, 300, 900, 200, 800, 64]
    chain = [(f"b{i}", s, i, i + 1) for i, s in enumerate(sizes)]
    assert check(chain) == peak(chain)


def test_close_to_the_lower_bound() -> None:
    ratios = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        buffers = []
        for i in range(120):  # most buffers live shortly, and some are residuals
            length = 1 if rng.random() < 0.8 else int(rng.integers(2, 12))
            buffers.append((f"b{i}", int(2 ** rng.uniform(8, 22)), i, i + length))
        ratios.append(check(buffers) / peak(buffers))
    assert np.mean(ratios) < 1.01 and max(ratios) < 1.1


def test_empty() -> None:
    assert layout([]) == ({}, 0) and peak([]) == 0
    assert layout([("a", 0, 0, 1)]) == ({"a": 0}, 0)


@given(items)
@settings(max_examples=50)
def test_long_lives_are_laid_out_as_short_ones(buffers: list[Item]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "LONG", 0)
        long = layout(buffers)
        patch.setattr(arena, "LONG", 1 << 60)
        assert layout(buffers) == long
