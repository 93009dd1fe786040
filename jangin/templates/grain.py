"""The fewest tasks of a kernel that are worth handing to another thread."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.ir.dtype import F32
from jangin.ir.expr import Const, Expr, Var, const, maximum, minimum, select
from jangin.ir.plan import ZERO
from jangin.ir.simplify import simplify
from jangin.ir.traversal import substitute
from jangin.targets.target import Target
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import expected

GRAIN_OPS = 20_000.0
"""Vector operations that a task must contain at least to be worth another thread, about 5 us. Waking a thread
that sleeps takes several microseconds."""
SMALL_BATCH = 0.5
"""A launch whose tasks aren't full is shared from this part of `GRAIN_OPS` on. Layers of 128, 256 and 256
take 12.3 us at batch 1 with one thread of Zen 4, and 7.8 us with two."""


def grain_of(kernel: Scheduled, held: int, target: Target) -> Expr:
    """Return the fewest tasks of a kernel that are worth another thread, or 0 if the whole kernel isn't.

    The cost of a task is that of a full one, but few rows of a symbolic batch don't fill a task. Such a
    kernel is not worth another thread if its operations and its bytes are few for the sizes of a run. A tile
    computes all of its rows (`mr`), however few there are. The `held` bytes of the model's constants decide
    from which cache the bytes come."""
    grain = max(1, round(GRAIN_OPS / max(kernel.cost, 1.0)))
    if kernel.work is not None:
        return simplify(
            minimum(const(int(GRAIN_OPS)) // maximum(kernel.work, 1) + 1, grain), dict(kernel.func.symbols)
        )
    if isinstance(tasks := kernel.tasks, Const):
        alone = int(tasks.value) <= grain or _small(kernel, held, target)
        return ZERO if alone else const(grain)
    symbols = dict(kernel.func.symbols)
    usual, usual_tasks = (_at(e, {v: expected(v, symbols) for v in symbols}) for e in (kernel.flops, tasks))
    least, least_tasks = (_at(e, dict.fromkeys(symbols, 1)) for e in (kernel.flops, tasks))
    if target.groups or usual * least_tasks <= least * usual_tasks:
        return const(grain)  # work-items share nothing, or a task is always full
    worth = GRAIN_OPS * SMALL_BATCH
    operations = int(worth * usual / (kernel.cost * usual_tasks * kernel.params.get("mr", 1)))
    moved = int(worth * target.processor.rate(held))
    few = select(kernel.flops < operations, select(kernel.bytes < moved, ZERO, const(grain)), const(grain))
    return simplify(few, symbols)


def _small(kernel: Scheduled, held: int, target: Target) -> bool:
    """Return whether a product of known sizes takes too little time for another thread. Its tasks cost as if
    its weights came from memory, but those of a small model stay in a cache."""
    if target.groups or "mr" not in kernel.params:
        return False
    flops, moved = _at(kernel.flops, {}), _at(kernel.bytes, {})
    cycles = max(flops / (2 * target.processor.lanes(F32.bytes)), moved / target.processor.rate(held))
    return 0 < cycles < GRAIN_OPS * SMALL_BATCH


def _at(e: Expr, sizes: Mapping[Var, int]) -> int:
    """Return the value of a size, or 0 if it depends on more than these symbols."""
    value = simplify(substitute(e, {v: const(size) for v, size in sizes.items()}))
    return int(value.value) if isinstance(value, Const) else 0
