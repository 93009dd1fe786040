"""Checks of indices that are known only during a run, and the error for an index out of range."""

from __future__ import annotations

from collections.abc import Callable

from jangin.ir.expr import Expr
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.visible import visible

IN_RANGE = (1 << 63) - 1
"""The result of an `ir.core.IndexCheck` if every index is in range. No index is as large, so the smallest
wrong index replaces it by a minimum."""


class IndexOutOfRange(IndexError):
    """An index that a model computed or was given is out of its axis's range. The message has the model's
    node, the index, and the range. The run gives no outputs."""

    def __str__(self) -> str:
        return visible(super().__str__())


@dataclass(frozen=True)
class Check:
    """A condition on the i64 scalar `buffer`, which a launch writes.

    The scalar is IN_RANGE at the end of a run if every index is in range. Otherwise it is the smallest of the
    indices out of range. `sizes` are the sizes of the axis, or of one axis for each entry of an index tuple.
    `from_end` says whether negative indices count from the end. `source` has the model's nodes.
    """

    buffer: str
    sizes: tuple[Expr, ...]
    from_end: bool
    source: Sources


def failure(check: Check, index: int, size: Callable[[Expr], int]) -> IndexOutOfRange:
    """Return the exception for a check that found `index` out of range. `size` returns the value of a size in
    this run."""
    sizes = [size(n) for n in check.sizes]
    ranges = [f"{-n if check.from_end else 0} to {n - 1}" if n > 0 else "empty" for n in sizes]
    by_axis = ", or ".join(dict.fromkeys(ranges)) + (", by the axis" if len({*ranges}) > 1 else "")
    return IndexOutOfRange(f"{check.source}: index {index} is out of range, which is {by_axis}")
