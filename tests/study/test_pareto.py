"""The Pareto frontier."""

from __future__ import annotations

import random

from jangin.study.pareto import frontier


def test_choices_that_are_beaten_are_not_on_the_frontier() -> None:
    assert frontier([(1.0, 3.0), (3.0, 1.0), (2.0, 2.0), (3.0, 3.0), (1.0, 3.0)]) == [True] * 3 + [
        False,
        True,
    ]
    assert frontier([(1.0, None), (2.0, 5.0), (0.5, 9.0)]) == [False, False, True]
    assert frontier([]) == []


def test_each_choice_off_the_frontier_is_beaten_by_one_on_it() -> None:
    drawn = random.Random(0)
    choices = [tuple(drawn.random() for _ in range(3)) for _ in range(200)]
    marks = frontier(choices)
    best = [c for c, mark in zip(choices, marks, strict=True) if mark]
    for choice, mark in zip(choices, marks, strict=True):
        beaten = any(all(x <= y for x, y in zip(b, choice, strict=True)) and b != choice for b in best)
        assert mark != beaten
