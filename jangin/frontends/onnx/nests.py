"""Recognize loop nests that are the lowerings of the standard's operators. The writer lowers each possible
operator and compares the result with the nest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jangin.frontends.writer import Offer
from jangin.ir.core import LoopNest
from jangin.ir.expr import Expr
from jangin.ops.scan import cumulate, det
from jangin.ops.scatter import scatter_elements, scatter_nd
from jangin.ops.select import positions, top_indices

REDUCTIONS = ("none", "add", "mul", "max", "min")


@dataclass(frozen=True)
class Said:
    """An operator that may have been lowered to a nest.

    `more` are its operands after the nest's inputs, each an axis or a size. The nest's result is the
    operator's output number `place`. `flat` tells if that output has another shape than the nest's result."""

    operation: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[Expr | int, ...] = ()
    place: int = 0
    flat: bool = False


def nests(attrs: LoopNest, inputs: int, rank: int) -> Iterator[Offer]:
    """Yield the operators that may have been lowered to a nest of `inputs` inputs. `rank` is the first
    input's number of axes."""
    if inputs == 1:
        yield Said("NonZero", flat=True), lambda b, x: positions(b, x, attrs.shape[0])
        yield Said("Det"), det
        yield from _along_an_axis(attrs, rank)
    if inputs == 3:
        for reduction in REDUCTIONS:
            yield Said("ScatterND", {"reduction": reduction}), partial(scatter_nd, reduction=reduction)
        for axis, reduction in itertools.product(range(rank), REDUCTIONS):
            kwargs = {"axis": axis, "reduction": reduction}
            yield Said("ScatterElements", kwargs), partial(scatter_elements, **kwargs)  # type: ignore[arg-type]


def _along_an_axis(attrs: LoopNest, rank: int) -> Iterator[Offer]:
    for axis, turned, alone in itertools.product(range(rank), (False, True), (False, True)):
        flags = {"reverse": int(turned), "exclusive": int(alone)}
        for operation, combiner in (("CumSum", "sum"), ("CumProd", "prod")):
            lower = partial(cumulate, combiner=combiner, axis=axis, reverse=turned, exclusive=alone)
            yield Said(operation, flags, (axis,)), lower
    if len(attrs.shape) == rank:
        for axis, largest in itertools.product(range(rank), (True, False)):
            k = attrs.shape[axis]
            lower = partial(top_indices, k=k, axis=axis, largest=largest)
            yield Said("TopK", {"axis": axis, "largest": int(largest)}, (k,), place=1), lower
