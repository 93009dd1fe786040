"""Place a plan's buffers when sizes are known only at run time: offsets are expressions of the sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jangin.ir.expr import Const, Expr, Var, const, is_const, maximum
from jangin.ir.plan import ALIGN, Plan, PlanBuffer
from jangin.ir.plan import aligned as whole
from jangin.ir.records import dataclass
from jangin.runtime.arena import layout
from jangin.runtime.sizes import Evaluator

TYPICAL = 128
"""The assumed size of a symbol without a limit, or with a limit above MOST. It is of the order of a short
text in tokens. It decides which buffers are placed above which, and never whether they fit."""
MOST = 1 << 14
"""The largest limit of a symbol that counts as its typical size. A larger one is most often a limit of the
format, and not a size that occurs."""


@dataclass(frozen=True)
class Memory:
    """The memory of a plan, as expressions.

    `steps` name intermediate results, each in terms of the plan's symbols and of earlier names. `offsets` are
    by buffer. `arena` is the bytes of all buffers. `stride` is the bytes of scratch memory for each
    worker."""

    steps: tuple[tuple[Var, Expr], ...]
    offsets: Mapping[str, Expr]
    arena: Expr
    stride: Expr

    def bytes(self, sizes: Mapping[Var, int], threads: int = 1) -> int:
        """Return the bytes of arena and scratch memory that a run needs, given sizes and threads."""
        values = dict(sizes)
        for var, e in self.steps:
            values[var] = Evaluator(values)(e)
        value = Evaluator(values)
        return value(self.arena) + threads * value(self.stride)


def memory_of(plan: Plan) -> Memory:
    """Return the memory of a plan.

    Buffers whose sizes depend on symbols are placed for typical sizes. Two buffers that are needed at the
    same time never overlap, for any sizes. The upper one begins at the lower one's end or above."""
    buffers = [b for b in plan.buffers if b.kind == "arena"]
    stride: Expr = const(0)
    for scratch in dict.fromkeys(launch.scratch for launch in plan.launches):
        stride = maximum(stride, scratch)
    stride = aligned(stride)
    if all(b.offset is not None for b in buffers):
        known = {b.name: const(b.offset or 0) for b in buffers}
        top = max((int(known[b.name].value) + _known(buffer_bytes(b)) for b in buffers), default=0)
        # The scratch memory follows, and begins at a whole alignment.
        return Memory((), known, const(top if is_const(stride, 0) else whole(top)), stride)
    steps: list[tuple[Var, Expr]] = []

    def named(name: str, e: Expr) -> Expr:
        if isinstance(e, (Const, Var)):
            return e
        steps.append((Var(name), e))
        return steps[-1][0]

    offsets: dict[str, Expr] = {}
    ends_at: dict[str, Expr] = {}
    under: dict[str, set[str]] = {}
    placed: list[PlanBuffer] = []
    for n, b in enumerate(_upwards(plan, buffers)):
        below = {a.name for a in placed if a.live[0] <= b.live[1] and b.live[0] <= a.live[1]}
        under[b.name] = below.union(*(under[a] for a in below))
        start: Expr = const(0)
        for a in [a.name for a in placed if a.name in below]:
            if not any(a in under[c] for c in below):
                start = maximum(start, ends_at[a])
        offsets[b.name] = named(f"buffer.{n}.start", start)
        ends_at[b.name] = named(f"buffer.{n}.end", offsets[b.name] + aligned(buffer_bytes(b)))
        placed.append(b)
    arena: Expr = const(0)
    covered = set[str]().union(*under.values())
    for name, end in ends_at.items():
        arena = arena if name in covered else maximum(arena, end)
    return Memory(tuple(steps), offsets, arena, stride)


def _upwards(plan: Plan, buffers: list[PlanBuffer]) -> list[PlanBuffer]:
    """Return the arena's buffers in their order in memory for typical sizes."""
    sizes = typical_sizes(plan)
    value = Evaluator(sizes)
    items = [(b.name, max(0, value(buffer_bytes(b))), *b.live) for b in buffers]
    offsets, _ = layout(items)
    return sorted(buffers, key=lambda b: (offsets[b.name], value(buffer_bytes(b)) > 0))


def typical_sizes(plan: Plan) -> dict[Var, int]:
    """Return a typical size for each of a plan's symbols. It is the symbol's largest size if that is at most
    MOST. Otherwise it is TYPICAL, or the symbol's least size if that is larger."""
    sizes: dict[Var, int] = {}
    for var, (low, high) in plan.symbols:
        value = Evaluator(sizes)
        least = 1 if low is None else value(low)
        most = None if high is None else value(high)
        sizes[var] = max(least, TYPICAL) if most is None or most > MOST else most
    return sizes


def buffer_bytes(b: PlanBuffer) -> Expr:
    return math.prod(b.shape, start=const(b.dtype.bytes))


def aligned(e: Expr) -> Expr:
    return (e + (ALIGN - 1)) // ALIGN * ALIGN


def _known(e: Expr) -> int:
    assert isinstance(e, Const)
    return int(e.value)
