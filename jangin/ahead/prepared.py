"""Finds launches that read constants alone, such as transforms of weights. They run once, when the program
gets the weights, and their results lie behind the weights in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import replace
from itertools import chain

from jangin.ir.expr import Const
from jangin.ir.loop import expressions, statements
from jangin.ir.plan import ONE, ZERO, Launch, Plan, PlanBuffer
from jangin.ir.records import dataclass
from jangin.ir.traversal import free_vars
from jangin.passes.memory.buffers import with_offsets


@dataclass(frozen=True)
class Prepared:
    """A plan without the launches that run once. `sizes` has the bytes of each of their results."""

    plan: Plan
    launches: tuple[Launch, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()


def prepared(plan: Plan) -> Prepared:
    """Return a plan without the launches that can run once, and these. Their results become constants."""
    buffers = {b.name: b for b in plan.buffers}
    writers = Counter(_base(buffers, a) for x in plan.launches for a in _results(plan, x))
    results: dict[str, int] = {}
    first: list[int] = []
    for n, launch in enumerate(plan.launches):
        made = _results(plan, launch)
        bases = {_base(buffers, a) for a in launch.args[: -len(made)]}
        steady = all(b in plan.constants or b in results for b in bases)
        own = [buffers[a] for a in made]
        alone = all(b.kind == "arena" and writers[b.name] == 1 for b in own)
        if steady and alone and _is_fixed(plan, launch):
            first.append(n)
            results |= {b.name: b.bytes or 0 for b in own}
    if not first:
        return Prepared(plan)
    kept = [n for n in range(len(plan.launches)) if n not in first]
    moved = tuple(_moved(b, kept, b.name in results) for b in plan.buffers)
    rest = tuple(plan.launches[n] for n in kept)
    once = tuple(replace(x, symbols=(ONE,) * len(x.symbols)) for x in (plan.launches[n] for n in first))
    return Prepared(replace(plan, launches=rest, buffers=with_offsets(moved)), once, tuple(results.items()))


def _base(buffers: dict[str, PlanBuffer], name: str) -> str:
    return buffers[name].base or name


def _results(plan: Plan, launch: Launch) -> tuple[str, ...]:
    return launch.args[-len(plan.kernels[launch.kernel].results) :]


def _is_fixed(plan: Plan, launch: Launch) -> bool:
    """Return whether a launch does the same in each run, reads no size of a run, and needs no memory beside
    its operands."""
    func = plan.kernels[launch.kernel]
    shapes = (e for b in func.params for e in b.shape)
    read = (e for s in statements(func.body) for e in expressions(s))
    sizes = {v for v, _ in func.symbols}
    fixed = isinstance(launch.tasks, Const) and not any(sizes & free_vars(e) for e in chain(shapes, read))
    return fixed and launch.rounds == ONE and launch.scratch == ZERO and not launch.library


def _moved(b: PlanBuffer, kept: list[int], made: bool) -> PlanBuffer:
    """Return a buffer with its life in numbers of the launches that are kept."""
    first, last = b.live
    live = bisect_left(kept, first), max(0, bisect_right(kept, last) - 1)
    return replace(b, live=live, kind="constant" if made else b.kind, offset=None if made else b.offset)
