"""A schedule is data: steps that name primitives, which can be printed, read back, sent and replayed.

steps = {step}    step = PRIMITIVE "(" [arg {"," arg}] ")"    arg = name | INTEGER | "(" {arg ","} ")"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import getdoc, signature

from jangin.ir.loop import Func
from jangin.ir.reader import Reader
from jangin.ir.records import dataclass
from jangin.ir.words import quote
from jangin.schedule import (
    factors,
    guards,
    halves,
    normalize,
    online,
    prefetch,
    primitives,
    relayouts,
    seldom,
    shares,
    stages,
    sums,
    threads,
)

Argument = str | int | tuple["Argument", ...]


@dataclass(frozen=True)
class Step:
    """One primitive by name, with its arguments."""

    name: str
    args: tuple[Argument, ...]

    def __str__(self) -> str:
        return f"{self.name}{_show(self.args)}"


def _show(arg: Argument) -> str:
    if isinstance(arg, tuple):
        return f"({', '.join(map(_show, arg))})"
    return quote(arg) if isinstance(arg, str) else str(arg)


def parse_steps(text: str) -> tuple[Step, ...]:
    """Return the schedule of a text, in which each step is printed by `str`. Raises ParseError if it is
    invalid."""
    reader = Reader(text)

    def argument() -> Argument:
        if reader.tokens[reader.at] == "(":
            return tuple(reader.items(argument))
        number = reader.number()
        return reader.name() if number is None else int(number)

    steps: list[Step] = []
    while reader.tokens[reader.at]:
        name = reader.choice(PRIMITIVES, "a primitive")
        steps.append(Step(name, tuple(reader.items(argument))))
    return tuple(steps)


def apply(func: Func, steps: Sequence[Step]) -> Func:
    """Apply the steps of a schedule to a kernel, and return the result."""
    for step in steps:
        func = PRIMITIVES[step.name](func, *step.args)
    return func


def _kind(kind: str) -> Callable[..., Func]:
    def mark(func: Func, loop: str) -> Func:
        return primitives.set_kind(func, loop, kind)

    mark.__doc__ = primitives.set_kind.__doc__
    return mark


def usage(name: str) -> str:
    """Return how a primitive is written, and its work: "split:loop,factor,tail does this: ..."."""
    primitive = PRIMITIVES[name]
    _, *arguments = signature(primitive).parameters
    (work, *_) = (getdoc(primitive) or "").split("\n\n")
    return f"{':'.join(filter(None, (name, ','.join(arguments))))} does this: {' '.join(work.split())}"


PRIMITIVES: Mapping[str, Callable[..., Func]] = {
    "simplify": normalize.simplify_func,
    "distinct": primitives.distinct,
    "rename": primitives.rename,
    "split": primitives.split,
    "fuse": primitives.fuse,
    "reorder": primitives.reorder,
    "privatize": primitives.privatize,
    "pack": primitives.pack,
    "in_halves": halves.in_halves,
    "peel": primitives.peel,
    "relayout": relayouts.relayout,
    "round_copies": relayouts.round_copies,
    "merge": stages.merge,
    "side_by_side": stages.side_by_side,
    "reuse": stages.reuse,
    "in_result": stages.in_result,
    "inline_sum": stages.inline_sum,
    "block_sum": sums.block_sum,
    "copy_as_read": stages.copy_as_read,
    "partial_sums": sums.partial_sums,
    "across_lanes": sums.across_lanes,
    "pairwise": sums.pairwise,
    "factor_out": factors.factor_out,
    "mask_in_place": factors.mask_in_place,
    "rfactor": sums.rfactor,
    "online": online.online,
    "predicate": guards.predicate,
    "only_where": guards.only_where,
    "find_first": seldom.find_first,
    "begin_with": guards.begin_with,
    "guard_loads": guards.guard_loads,
    "place": threads.place,
    "stretch": threads.stretch,
    "fetch_ahead": threads.fetch_ahead,
    "stage": threads.stage,
    "share": shares.share,
    "join_axes": threads.join_axes,
    "enclose": threads.enclose,
    "divide_once": threads.divide_once,
    "alone": threads.alone,
    "lanes_to_tasks": threads.lanes_to_tasks,
    "group_tasks": threads.group_tasks,
    "tree": threads.tree,
    "pad_terms": threads.pad_terms,
    "prefetch_ahead": prefetch.prefetch_ahead,
    "prefetch_panels": prefetch.prefetch_panels,
    "prefetch_tile": prefetch.prefetch_tile,
    "hoist_guards": guards.hoist_guards,
    "hoist_indices": guards.hoist_indices,
    "vectorize": _kind("vector"),
    "unroll": _kind("unroll"),
    "parallelize": _kind("parallel"),
    "bind_block": _kind("block"),
    "bind_thread": _kind("thread"),
    "bind_warp": _kind("warp"),
}
