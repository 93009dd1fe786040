"""A schedule is data: steps that name primitives, which can be printed, stored and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jangin.ir.loop import Func
from jangin.schedule import guards, prefetch, primitives, stages


@dataclass(frozen=True)
class Step:
    """One primitive by name, with its arguments."""

    name: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


def apply(func: Func, steps: Sequence[Step]) -> Func:
    """Run a schedule."""
    for step in steps:
        func = PRIMITIVES[step.name](func, *step.args)
    return func


def _kind(kind: str) -> Callable[..., Func]:
    return lambda func, loop: primitives.set_kind(func, loop, kind)


PRIMITIVES: Mapping[str, Callable[..., Func]] = {
    "rename": primitives.rename,
    "split": primitives.split,
    "fuse": primitives.fuse,
    "reorder": primitives.reorder,
    "privatize": primitives.privatize,
    "pack": primitives.pack,
    "peel": primitives.peel,
    "relayout": primitives.relayout,
    "merge": stages.merge,
    "reuse": stages.reuse,
    "block_sum": stages.block_sum,
    "partial_sums": stages.partial_sums,
    "rfactor": stages.rfactor,
    "predicate": guards.predicate,
    "prefetch_panels": prefetch.prefetch_panels,
    "prefetch_tile": prefetch.prefetch_tile,
    "hoist_guards": guards.hoist_guards,
    "vectorize": _kind("vector"),
    "unroll": _kind("unroll"),
    "parallelize": _kind("parallel"),
}
