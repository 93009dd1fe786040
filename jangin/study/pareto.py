"""Choices that no other choice beats in everything."""

from __future__ import annotations

from collections.abc import Sequence

Figures = tuple[float | None, ...]
"""The figures of a choice, of which less is better. None stands for one that isn't known."""


def frontier(choices: Sequence[Figures]) -> list[bool]:
    """Tell of each choice if it is on the Pareto frontier. No other choice is then as good in all figures and
    better in one. A figure that one of two choices lacks isn't compared."""
    return [not any(_beats(other, own) for other in choices) for own in choices]


def _beats(a: Figures, b: Figures) -> bool:
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return all(x <= y for x, y in both) and any(x < y for x, y in both)
