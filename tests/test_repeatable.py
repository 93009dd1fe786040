"""Tests can draw the same random numbers again."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from repeatable import RNG, Numbers, repeated_by

TESTS = Path(__file__).parent
OTHERS = re.compile(r"[^_]Random\(\)|RandomState\(\)|SystemRandom|urandom|time_ns\(\)\)")
"""Generators that the tests' seed doesn't reach."""


def test_draws_are_repeated() -> None:
    numbers, found = Numbers(), []
    for seed, test in ((1, "a"), (1, "a"), (2, "a"), (1, "b")):
        numbers.seed = seed
        numbers.begin(test)
        drawn = numbers.default_rng().integers(1 << 30), numbers.default_rng().integers(1 << 30)
        found.append((*drawn, random.random(), np.random.rand()))
    assert found[0] == found[1] and len(set(found)) == 3
    assert all(one[0] != one[1] for one in found)


def test_an_error_says_what_makes_its_case_again() -> None:
    with pytest.raises(KeyError) as found, repeated_by("check(7)"):
        raise KeyError
    assert found.value.__notes__ == ["Again: check(7)"]


def test_tests_draw_of_it() -> None:
    assert np.random.default_rng().integers(1 << 30) != RNG.integers(1 << 30)
    assert np.random.default_rng(5).integers(1 << 30) == np.random.default_rng(5).integers(1 << 30)


def test_nothing_else_is_drawn_of() -> None:
    files = [f for f in TESTS.rglob("*.py") if f != Path(__file__)]
    found = [f"{f.name}: {line}" for f in files for line in f.read_text().splitlines() if OTHERS.search(line)]
    assert not found
