"""Primitives for work-groups: reductions over a group's threads, local buffers in shared memory, and loops
that give a group its shape (see `ir.groups`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.ir.dtype import I64
from jangin.ir.expr import (
    Binary,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    const,
    is_const,
    minimum,
    select,
)
from jangin.ir.flat import postorder
from jangin.ir.loop import (
    MEMORY,
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Stmt,
    Store,
    block,
    expressions,
    map_children,
    map_stmt,
    replace_buffer,
    statements,
    sub_statements,
    substitute_stmt,
    task_loops,
)
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, loads, rewrite, row_major
from jangin.schedule.checks import ScheduleError, serial, touched, well_formed
from jangin.schedule.normalize import ceil_div
from jangin.schedule.primitives import at_loop, find, rename_loops


def place(func: Func, local: str, memory: str) -> Func:
    """Move a local buffer to another memory: "scratch", "register", "shared" or "tile" (matrix registers)."""
    alloc = _local(func, local)
    if memory not in MEMORY[1:]:
        raise ScheduleError(f"{func.name}: {local} can't be kept in {memory!r} memory")
    if memory != "scratch" and not all(isinstance(d, Const) for d in alloc.buffer.shape):
        raise ScheduleError(f"{func.name}: {local} of shape {list(alloc.buffer.shape)} is no {memory} buffer")
    new = replace(alloc.buffer, memory=memory)
    return func.with_body(replace_buffer(func.body, local, new))


def join_axes(func: Func, local: str, count: int, first: int = 0) -> Func:
    """Join `count` axes of a local buffer, from the `first` on, into one, in row-major order."""
    old, end = _local(func, local).buffer, first + count
    if count < 1 or not 0 <= first <= len(old.shape) - count:
        raise ScheduleError(f"{func.name}: {local} has no {count} axes to join")
    lead = old.shape[first:end]
    size: Expr = const(1)
    for d in lead:
        size = size * d
    new = replace(old, shape=(*old.shape[:first], simplify(size), *old.shape[end:]))
    ranges = {s.var: (const(0), s.extent - 1) for s in statements(func.body) if isinstance(s, For)}

    def joined(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*i[:first], simplify(row_major(i[first:end], lead), ranges), *i[end:])

    return func.with_body(replace_buffer(func.body, local, new, joined))


def stretch(func: Func, local: str, more: int) -> Func:
    """Add room for `more` elements behind each row of a local buffer, so that a column's elements lie in
    different memory banks."""
    old = _local(func, local).buffer
    if more < 0 or not isinstance(old.shape[-1], Const):
        raise ScheduleError(f"{func.name}: the rows of {local} can't be made {more} elements longer")
    new = replace(old, shape=(*old.shape[:-1], const(int(old.shape[-1].value) + more)))
    return func.with_body(replace_buffer(func.body, local, new))


def _local(func: Func, name: str) -> Alloc:
    allocations = [s for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == name]
    if len(allocations) != 1:
        raise ScheduleError(f"{func.name} has no local buffer {name!r}")
    return allocations[0]


def enclose(func: Func, name: str) -> Func:
    """Make the whole kernel one block, the only iteration of a loop."""
    return well_formed(func.with_body(For(Var(name), const(1), func.body, "block")))


def divide_once(func: Func, loop: str) -> Func:
    """Divide a task's number once, at the top of `loop`, instead of at each use of quotients and remainders.

    They are called `loop`_0, `loop`_1.... Compilers take no division out of a condition's branch. On a GPU, a
    division by a size that is known only at run time takes some hundred instructions.
    """
    at = find(func, loop)
    known = {at.var, *(v for v, _ in func.symbols)}
    quotients: dict[Expr, Var] = {}
    values: list[tuple[Var, Expr]] = []
    for e in (n for s in statements(at.body) for whole in expressions(s) for n in postorder(whole)):
        divides = isinstance(e, Binary) and e.op in ("floordiv", "mod") and e.dtype is I64
        if divides and at.var in free_vars(e) <= known and not loads(e):
            value = rewrite(e, quotients.get)
            if value not in quotients and not isinstance(value, Var):
                quotients[value] = Var(f"{loop}_{len(quotients)}")
                values.append((quotients[value], value))
    body = map_stmt(at.body, lambda e: rewrite(e, quotients.get))
    for var, value in reversed(values):
        body = Let(var, value, body)
    return at_loop(func, loop, lambda s: replace(s, body=body))


def lanes_to_tasks(func: Func) -> Func:
    """Make each lane of a task's vector loops, which all have one extent, a task of its own. Lanes become
    neighbouring tasks, which touch neighbouring memory.

    A task must store only in these loops. In local buffers that outlive a loop, each lane must have its own
    element along one axis.
    """
    _, tasks = task_loops(func.body)
    if tasks is None or tasks.kind != "parallel":
        raise ScheduleError(f"{func.name} has no parallel tasks to divide")
    loops = _vector_loops(tasks.body)
    counts = {s.extent for s in loops}
    if len(counts) != 1 or not isinstance(count := counts.pop(), Const):
        raise ScheduleError(
            f"{func.name}: a task's vector loops, {len(loops)} of them, have no one constant extent"
        )
    lane, number = Var(f"{tasks.var.name}l"), Var(f"{tasks.var.name}s")

    def go(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind == "vector":
            return substitute_stmt(s.body, {s.var: lane})
        if isinstance(s, Store):
            raise ScheduleError(f"{func.name}: a task stores to {s.buffer.name} once for all lanes")
        if isinstance(s, Alloc):
            return _of_lane(func, replace(s, body=go(s.body)), lane)
        return map_children(s, go)

    body = Let(tasks.var, number // count, Let(lane, number % count, go(tasks.body)))
    divided = For(number, simplify(tasks.extent * count, dict(func.symbols)), body, "parallel")

    def put(s: Stmt) -> Stmt:
        return divided if s is tasks else map_children(s, put)

    return func.with_body(put(func.body))


def _vector_loops(s: Stmt) -> list[For]:
    """Return the outermost vector loops."""
    if isinstance(s, For) and s.kind == "vector":
        return [s]
    return [loop for sub in sub_statements(s) for loop in _vector_loops(sub)]


def _of_lane(func: Func, s: Alloc, lane: Var) -> Alloc:
    """Return a local buffer of a single lane, without the axis that distinguishes lanes. Raises ScheduleError
    if there is no axis of this kind."""
    name, shape = s.buffer.name, s.buffer.shape
    inside = list(statements(s.body))
    indices = [n.index for k in inside for e in expressions(k) for n in loads(e) if n.buffer.name == name]
    indices += [k.index for k in inside if isinstance(k, Store) and k.buffer.name == name]
    axis = next((a for a in range(len(shape)) if all(i[a] is lane for i in indices)), None)
    if axis is None:
        raise ScheduleError(f"{func.name}: lanes have no elements of their own in {name}")

    def without(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*i[:axis], *i[axis + 1 :]) or (const(0),)

    own = replace(s.buffer, shape=(*shape[:axis], *shape[axis + 1 :]) or (const(1),))
    return Alloc(own, replace_buffer(s.body, name, own, without))


def group_tasks(func: Func, threads: int) -> Func:
    """Turn the parallel loop of a kernel's tasks, `t`, into blocks `t`o of `threads` threads `t`i, with one
    task each."""
    _, tasks = task_loops(func.body)
    if tasks is None or tasks.kind != "parallel" or threads < 1:
        raise ScheduleError(f"{func.name} has no parallel tasks to group by {threads}")
    loop, outer, inner = tasks, Var(f"{tasks.var.name}o"), Var(f"{tasks.var.name}i")
    task = outer * threads + inner
    body = If(task < loop.extent, substitute_stmt(loop.body, {loop.var: task}))
    count = simplify(ceil_div(loop.extent, threads), dict(func.symbols))
    blocks = For(outer, count, For(inner, const(threads), body, "thread"), "block")

    def go(s: Stmt) -> Stmt:
        return blocks if s is loop else map_children(s, go)

    return func.with_body(go(func.body))


def alone(func: Func, buffer: str, name: str, threads: int) -> Func:
    """Put the one statement that stores to `buffer` into a loop `name` over a group's threads, in which only
    the first thread runs it."""
    stores = [s for s in statements(func.body) if isinstance(s, Store) and s.buffer.name == buffer]
    if len(stores) != 1 or threads < 1:
        raise ScheduleError(f"{func.name}: {len(stores)} statements store to {buffer}, and one must")
    var = Var(name)

    def go(s: Stmt) -> Stmt:
        return _first(stores[0], var, threads) if s is stores[0] else map_children(s, go)

    return well_formed(func.with_body(go(func.body)))


def _first(s: Stmt, var: Var, threads: int) -> Stmt:
    return For(var, const(threads), If(var < 1, s), "thread")


def tree(func: Func, acc: str, loop: str, threads: int) -> Func:
    """Reduce `loop`, the only loop of the reduction in `acc`, by a tree over a group's threads.

    Each thread reduces every `threads`-th term. Then half of the threads add the results of the other half,
    and so on. The first thread finishes the result. The order of operations changes. The loops are called
    `loop`x (each thread's terms: `loop`o), `loop`0, `loop`1....
    """
    if threads < 1 or threads & (threads - 1):
        raise ScheduleError(f"{func.name}: a tree needs a power of two of threads, not {threads}")
    alloc = _local(func, acc)
    body = alloc.body
    if not isinstance(body, Block) or len(body.body) != 3 or alloc.buffer.shape != (const(1),):
        raise ScheduleError(f"{func.name}: {acc} doesn't hold one reduction that is begun, made and finished")
    k = body.body[1]
    if not isinstance(k, For) or k.var.name != loop or not isinstance(k.body, Store):
        raise ScheduleError(f"{func.name}: {loop} isn't the only loop of the reduction in {acc}")
    serial(func, k)
    if acc in touched(body.body[2]) and alloc.buffer.memory != "register":
        raise ScheduleError(f"{func.name}: {acc} is no register buffer")

    def go(s: Stmt) -> Stmt:
        return _tree(alloc, k, threads) if s is alloc else map_children(s, go)

    return well_formed(func.with_body(go(func.body)))


def _tree(alloc: Alloc, k: For, threads: int) -> Stmt:
    assert isinstance(alloc.body, Block) and isinstance(k.body, Store)
    init, _, final = alloc.body.body
    update, acc, name = k.body, alloc.buffer, k.var.name
    e, zero = update.value, (const(0),)
    if not isinstance(e, Binary) or e.a is not Load(acc, zero) or any(n.buffer == acc for n in loads(e.b)):
        raise ScheduleError(f"{acc.name}: {e} is no update by a binary combiner")
    partial = Buffer(f"{acc.name}.tree", acc.dtype, (const(threads),), "shared")
    x, o = Var(f"{name}x"), Var(f"{name}o")
    term = o * threads + x
    own = If(term < k.extent, substitute_stmt(update, {k.var: term}))
    terms = For(o, simplify(ceil_div(k.extent, threads)), own)
    parts: list[Stmt] = [
        For(
            x, const(threads), Alloc(acc, block(init, terms, Store(partial, (x,), Load(acc, zero)))), "thread"
        )
    ]
    done = replace_buffer(final, acc.name, partial, lambda _: zero)
    half, n = threads // 2, 0
    while half:
        v = Var(f"{name}{n}")
        joined = binary(e.op, Load(partial, (v,)), Load(partial, (v + half,)))
        step: Stmt = Store(partial, (v,), joined)
        step = block(step, done) if half == 1 else step
        parts.append(For(v, const(threads), If(v < half, step), "thread"))
        half, n = half // 2, n + 1
    if threads == 1:
        parts.append(_first(done, Var(f"{name}0"), threads))
    return Alloc(partial, block(*parts))


def pad_terms(func: Func, acc: str) -> Func:
    """Turn a guarded step of a sum into one whose factors are 0 unless the condition holds.

    `if c { acc += a * b }` becomes `acc += (c ? a : 0) * (c ? b : 0)`. The loads can then be made early (see
    `pack`).
    """

    def go(s: Stmt) -> Stmt:
        if isinstance(s, If) and s.orelse is None and isinstance(s.then, Store) and s.then.buffer.name == acc:
            update = s.then
            e = update.value
            if not (isinstance(e, Binary) and e.op == "add" and e.a is Load(update.buffer, update.index)):
                raise ScheduleError(f"{func.name}: {acc} is no sum")
            term = _padded(e.b, s.cond)
            if term is None:
                raise ScheduleError(f"{func.name}: {e.b} isn't 0 if the values that it loads are 0")
            return replace(update, value=e.a + term)
        return map_children(s, go)

    body = go(func.body)
    if body is func.body:
        raise ScheduleError(f"{func.name}: no addition to {acc} is conditional")
    return func.with_body(body)


def _padded(e: Expr, cond: Expr) -> Expr | None:
    """Return a product that is 0 unless the condition holds; None for any other expression."""

    def load(n: Expr) -> Expr | None:
        return select(cond, n, const(0, n.dtype)) if isinstance(n, Load) else None

    return rewrite(e, load) if _is_product(e) else None


def _is_product(e: Expr) -> bool:
    """Return whether an expression is a product of converted or guarded loads, which is 0 if they are."""
    if isinstance(e, Binary):
        return e.op == "mul" and (_is_product(e.a) or _is_product(e.b))
    if isinstance(e, Call):
        return (e.product is not None or e.fn == "rounded") and any(map(_is_product, e.args))
    if isinstance(e, Select):
        return is_const(e.b, 0) and _is_product(e.a)
    parts = getattr(e, "a", None)
    return isinstance(e, Load) or (isinstance(parts, Expr) and _is_product(parts))


def fetch_ahead(func: Func, loop: str, panels: Sequence[str]) -> Func:
    """Copy panels one iteration of `loop` ahead, through registers (double buffering).

    The loads of the next iteration run before this iteration's work, into registers (`panel`.next), and are
    stored after it. The work then hides the latency of memory. The last iteration loads its own panels again,
    as conditions around loads and stores would take more time. Each panel must be filled at the top of the
    loop by a thread loop that only stores to it.
    """
    at, allocs, copies, body = _filled(func, loop, panels)
    following = {at.var: minimum(at.var + 1, at.extent - 1)}
    halves = [_apart(a.buffer, substitute_stmt(c, following)) for a, c in zip(allocs, copies, strict=True)]
    first = [
        If(const(0) < at.extent, substitute_stmt(rename_loops(c, "_f"), {at.var: const(0)})) for c in copies
    ]
    turn = replace(at, body=block(*(h[1] for h in halves), body, *(h[2] for h in halves)))
    new: Stmt = block(*first, turn)
    for held in [*(h[0] for h in halves), *(a.buffer for a in allocs)]:
        new = Alloc(held, new)
    return well_formed(at_loop(func, loop, lambda _: new))


def stage(func: Func, loop: str, panels: Sequence[str], fetched: Sequence[str] = ()) -> Func:
    """Copy panels two iterations of `loop` ahead, to two buffers of shared memory in turn (staging).

    The loop then does two iterations at a time. Each is followed by the copy that fills its panels for the
    next but one. The other iteration's work hides the copy's latency, where copies go on beside work. The
    last iterations copy the last panels again. Each panel must be filled as `fetch_ahead` needs it.

    Panels in `fetched` are loaded into registers (`panel`.next) before an iteration's work, and stored after
    it, for copies that can't go on beside work.
    """
    at, allocs, copies, body = _filled(func, loop, panels)
    count, v, symbols = at.extent, at.var, dict(func.symbols)
    turns = simplify(ceil_div(count, 2), symbols)
    even = simplify(count % 2, symbols) == const(0)
    locals_ = [*(a.buffer for a in allocs), *(s.buffer for s in statements(body) if isinstance(s, Alloc))]
    odd = {b.name: replace(b, name=f"{b.name}.odd") for b in locals_}

    halves = {c.buffer.name: _apart(c.buffer, copy) for c, copy in zip(allocs, copies, strict=True)}

    def part(s: Stmt, suffix: str, number: Expr, second: bool) -> Stmt:
        s = substitute_stmt(rename_loops(s, suffix), {v: number})
        for name, buffer in odd.items() if second else ():
            s = replace_buffer(s, name, buffer)
        return s

    def fill(suffix: str, number: Expr, second: bool) -> list[Stmt]:
        return [part(c, suffix + "o" * second, number, second) for c in copies]

    def beside(work: Stmt, suffix: str, number: Expr, second: bool) -> list[Stmt]:
        """Return an iteration's work, and the copies for the next but one."""
        end, before, after = suffix + "o" * second, list[Stmt](), list[Stmt]()
        copy: Stmt
        for alloc, copy in zip(allocs, copies, strict=True):
            if alloc.buffer.name in fetched:
                _, load, store = halves[alloc.buffer.name]
                before.append(part(load, end, number, second))
                copy = store
            after.append(part(copy, f"{end}s", number, second))
        return [*before, work, *after]

    following = minimum(v + 1, turns - 1) * 2
    last = following + 1 if even else minimum(following + 1, count - 1)
    work = part(body, "_o", v * 2 + 1, True)
    turn = block(
        *beside(part(body, "", v * 2, False), "_n", following, False),
        *beside(work if even else If(v * 2 + 1 < count, work), "_n", last, True),
    )
    first = block(*fill("_f", const(0), False), *fill("_f", minimum(1, count - 1), True))
    new: Stmt = block(If(const(0) < count, first), replace(at, extent=turns, body=turn))
    for a in allocs:
        new = Alloc(a.buffer, Alloc(odd[a.buffer.name], new))
        if a.buffer.name in fetched:
            new = Alloc(halves[a.buffer.name][0], new)
    return well_formed(at_loop(func, loop, lambda _: new))


def _filled(func: Func, loop: str, panels: Sequence[str]) -> tuple[For, list[Alloc], list[For], Stmt]:
    """Return a loop, its panels, the thread loops at its top that fill them, and the rest of its body."""
    at = find(func, loop)
    serial(func, at)
    allocs: list[Alloc] = []
    copies: list[For] = []
    body = at.body
    while len(allocs) < len(panels):
        if not (isinstance(body, Alloc) and body.buffer.name in panels and isinstance(body.body, Block)):
            raise ScheduleError(f"{func.name}: {loop} doesn't begin by filling {', '.join(panels)}")
        copy, *rest = body.body.body
        if not (isinstance(copy, For) and copy.kind == "thread" and _fills(copy, body.buffer)):
            raise ScheduleError(f"{func.name}: {body.buffer.name} isn't filled by a thread loop alone")
        allocs.append(body)
        copies.append(copy)
        body = block(*rest)
    return at, allocs, copies, body


def _fills(copy: For, panel: Buffer) -> bool:
    stores = [s for s in statements(copy) if isinstance(s, (Store, Alloc))]
    return len(stores) == 1 and isinstance(stores[0], Store) and stores[0].buffer == panel


def _apart(panel: Buffer, copy: Stmt) -> tuple[Buffer, Stmt, Stmt]:
    """Return the registers between the loads and the stores of a panel's copy, the loads, and the stores."""
    loops = [s for s in statements(copy) if isinstance(s, For)]
    if not all(isinstance(s.extent, Const) for s in loops):
        raise ScheduleError(f"the copy to {panel.name} has loops of no constant extent")
    held = Buffer(f"{panel.name}.next", panel.dtype, tuple(s.extent for s in loops), "register")
    place = tuple(s.var for s in loops)

    def load(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return Store(held, place, s.value)
        return map_children(s, load)

    def store(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return replace(s, value=Load(held, place))
        return map_children(s, store)

    return held, load(copy), rename_loops(store(copy), "_s")
