"""Groups that make one tile of sums together (split-K)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jangin.ir.expr import Buffer, Const, Expr, Load, Var, const, eq
from jangin.ir.loop import ITEM_KINDS, Alloc, Block, For, Func, If, Let, Stmt, Store, block, map_children
from jangin.ir.traversal import substitute
from jangin.schedule.checks import ScheduleError, serial, well_formed
from jangin.schedule.primitives import find, rename_loops


def share(func: Func, tasks: str, loop: str, acc: str) -> Func:
    """Let a group of its own do each iteration of `loop`, the outer loop of a tile's sums. `tasks` is the
    block loop over tiles.

    Each group stores its sums `acc` to the launch buffer `acc`.part. The last one adds all of them up in the
    order of `loop`, so the result doesn't depend on which group is the last. It then finishes the tile. The
    order of additions changes: each share's sum is made by itself.

    A sum of n terms in s shares is rounded at most n/s + s times in a row, and not n times.
    """
    tiles = find(func, tasks)
    if tiles.kind != "block" or not isinstance(tiles.extent, Const):
        raise ScheduleError(f"{func.name}: {tasks} is no block loop of a constant number of tiles")
    split = find(func, loop)
    serial(func, split)
    if not isinstance(split.extent, Const) or int(split.extent.value) < 2:
        raise ScheduleError(f"{func.name}: {loop} isn't a constant number of shares")
    count, shares = int(tiles.extent.value), int(split.extent.value)
    group, found = Var(f"{tasks}g"), list[Buffer]()

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Alloc) and s.buffer.name == acc:
            part, body = _parted(func, s, split, tiles.var, count)
            found.append(part)
            return replace(s, body=body)
        return map_children(s, go)

    body = Let(tiles.var, group // shares, Let(split.var, group % shares, go(tiles.body)))
    if len(found) != 1:
        raise ScheduleError(f"{func.name}: {tasks} doesn't hold the sums {acc}")
    groups = For(group, const(count * shares), body, "block")

    def put(s: Stmt) -> Stmt:
        return Alloc(found[0], groups) if s is tiles else map_children(s, put)

    return well_formed(func.with_body(put(func.body)))


def _parted(func: Func, alloc: Alloc, split: For, tile: Var, count: int) -> tuple[Buffer, Stmt]:
    """Return the launch buffer and a group's work on its share of sums."""
    acc, shares, sums = alloc.buffer, split.extent, alloc.body
    if not isinstance(sums, Block) or len(sums.body) != 3 or sums.body[1] is not split:
        raise ScheduleError(f"{func.name}: {split.var} isn't the outer loop of sums {acc.name} alone")
    init, _, final = sums.body
    loops, store = list[For](), init
    while isinstance(store, For):
        loops.append(store)
        store = store.body
    if not isinstance(store, Store) or store.buffer.name != acc.name:
        raise ScheduleError(f"{func.name}: {acc.name} isn't begun by itself")
    if not loops or loops[0].kind not in ITEM_KINDS:
        raise ScheduleError(f"{func.name}: the sums {acc.name} aren't made by threads or warps")
    # a work-item's last elements stay together, and its others lie behind those of all work-items
    order = (*range(len(acc.shape)),)
    if loops[0].kind == "thread" and len(order) > 2:
        order = (*order[1:-1], 0, order[-1])
    part = replace(
        acc, name=f"{acc.name}.part", memory="launch",
        shape=(const(count), shares, *(acc.shape[n] for n in order)),
    )  # fmt: skip

    def places(of: Expr, at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (tile, of, *(at[n] for n in order))

    number = Var(f"{split.var.name}_q")
    kept = _each(loops, store.index, "_p", lambda at: Store(part, places(split.var, at), Load(acc, at)))
    added = _each(
        loops, store.index, "_q",
        lambda at: Store(acc, at, Load(acc, at) + Load(part, places(number, at))),
        inside=(number, shares),
    )  # fmt: skip
    last = If(eq(split.var, shares - 1), block(rename_loops(init, "_y"), added, final))
    return part, block(init, split.body, kept, last)


def _each(
    loops: Sequence[For],
    index: tuple[Expr, ...],
    suffix: str,
    store: Callable[[tuple[Expr, ...]], Stmt],
    inside: tuple[Var, Expr] | None = None,
) -> Stmt:
    """Return `store` for all elements, in loops like `loops`. A serial loop `inside` the outermost one
    repeats all others."""
    fresh = {p.var: Var(p.var.name.removesuffix("_z") + suffix) for p in loops}
    body = store(tuple(substitute(i, dict(fresh)) for i in index))
    for p in reversed(loops[1:]):
        body = replace(p, var=fresh[p.var], body=body)
    if inside is not None:
        body = For(*inside, body)
    return replace(loops[0], var=fresh[loops[0].var], body=body)
