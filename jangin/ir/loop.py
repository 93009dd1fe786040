"""Loop IR: one kernel as a loop nest. Immutable statements over `ir.expr` expressions.

A `Func` is scheduled, interpreted and compiled. `te.lower` builds the naive nest, which is the kernel's
reference semantics. Schedules rewrite it step by step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jangin.ir.expr import Buffer, Const, Expr, Load, Var, const
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.traversal import buffers_loaded, rewrite, substitute

FOR_KINDS = ("serial", "parallel", "vector", "unroll", "block", "thread", "warp")
TASK_KINDS = ("parallel", "block")
"""Kinds of loops whose iterations are a kernel's tasks."""
ITEM_KINDS = ("thread", "warp")
"""Kinds of loops whose iterations a group's work-items do: one each, or a warp's work-items one together."""
MEMORY = ("global", "scratch", "register", "shared", "tile", "launch")
OWN = ("register", "tile")
"""Memory kinds that need no scratch memory, because their buffers are in registers or on the stack."""


@dataclass(frozen=True)
class Stmt:
    """Base of all statements."""


@dataclass(frozen=True)
class Block(Stmt):
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class For(Stmt):
    """`for var in [0, extent)`. The `kind` is one of these.

    - serial: iterations run in order.
    - parallel: iterations are independent, and are shared by threads. The loop is outermost, or directly
      inside an outermost serial loop. The serial loop's iterations are rounds: all threads end one before the
      next begins.
    - vector: iterations are lanes; the extent is constant.
    - unroll: every iteration is copied out; the extent is constant.
    - block: like parallel; on a GPU each iteration is a work-group.
    - thread: inside a block loop. Its thread loops have the same constant extent and independent iterations.
      On a GPU, the group's work-item i runs iteration i (see `ir.groups`).
    - warp: like thread, but a warp's 32 work-items do an iteration together. Inside it, each of them does its
      own elements of nests over matrices (see `backends.walk.fragments`)."""

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"


@dataclass(frozen=True)
class Store(Stmt):
    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Prefetch(Stmt):
    """A hint that the element's cache line will soon be needed. The element may be outside the buffer. The
    hint changes no result."""

    buffer: Buffer
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class Alloc(Stmt):
    """A scratch, register, shared, tile or launch buffer that exists inside `body`. Its contents are
    undefined at first.

    A shared buffer is memory of a block that all its threads can access quickly. A tile buffer consists of
    matrices, its last two axes. Each is in a matrix register if the machine has them (see
    `backends.walk.tiles`). In a block, the lanes of a warp share each matrix (`backends.walk.fragments`).

    A launch buffer is outside of the block loop, and all tasks share it (see `ir.groups`)."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True)
class If(Stmt):
    """A condition. Under a vector loop it may differ between lanes. Stores are then masked."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True)
class Let(Stmt):
    """Binds a scalar to a name inside `body`."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True)
class Func:
    """A kernel. `params` are global buffers, outputs last, and `outputs` is the number of outputs. `symbols`
    are the size symbols in shapes and loops, with their inclusive ranges."""

    name: str
    params: tuple[Buffer, ...]
    outputs: int
    symbols: tuple[tuple[Var, Range], ...]
    body: Stmt

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.params[: len(self.params) - self.outputs]

    @property
    def results(self) -> tuple[Buffer, ...]:
        return self.params[len(self.params) - self.outputs :]

    def with_body(self, body: Stmt) -> Func:
        return Func(self.name, self.params, self.outputs, self.symbols, body)


def block(*stmts: Stmt) -> Stmt:
    """Return the statements as a Block, in which inner Blocks are flattened. A single statement is returned
    as it is."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.body if isinstance(s, Block) else (s,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def task_loops(body: Stmt) -> tuple[For | None, For | None]:
    """Return the serial loop over rounds and the parallel or block loop over tasks of a kernel. A missing
    loop is None."""
    if isinstance(body, For) and body.kind == "serial":
        tasks = body.body
        return (body, tasks) if isinstance(tasks, For) and tasks.kind in TASK_KINDS else (None, None)
    while isinstance(body, (Let, Alloc)):
        body = body.body
    return None, body if isinstance(body, For) and body.kind in TASK_KINDS else None


_FIRST = const(0)


def sub_statements(s: Stmt) -> tuple[Stmt, ...]:
    """Return the direct sub-statements of a statement."""
    return _SUB_STATEMENTS[type(s)](s)


_SUB_STATEMENTS: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    Block: lambda s: s.body,
    For: lambda s: (s.body,),
    Alloc: lambda s: (s.body,),
    Let: lambda s: (s.body,),
    If: lambda s: (s.then,) if s.orelse is None else (s.then, s.orelse),
    Store: lambda s: (),
    Prefetch: lambda s: (),
}


def map_children(s: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """Return the statement with `fn` applied to each direct sub-statement. If nothing changes, return the
    same object."""
    old = sub_statements(s)
    new = tuple([fn(k) for k in old])
    return s if all(map(operator.is_, old, new)) else with_children(s, new)


def with_children(s: Stmt, new: tuple[Stmt, ...]) -> Stmt:
    """Return the statement with the direct sub-statements `new`."""
    if isinstance(s, Block):
        return block(*new)
    if isinstance(s, For):
        return For(s.var, s.extent, new[0], s.kind)
    if isinstance(s, Alloc):
        return Alloc(s.buffer, new[0])
    if isinstance(s, If):
        return If(s.cond, *new)
    assert isinstance(s, Let)
    return Let(s.var, s.value, new[0])


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """Return the expressions of the statement itself, without those of its sub-statements."""
    if isinstance(s, For):
        return (s.extent,)
    if isinstance(s, Store):
        return (*s.index, s.value)
    if isinstance(s, Prefetch):
        return s.index
    if isinstance(s, If):
        return (s.cond,)
    return (s.value,) if isinstance(s, Let) else ()


def statements(s: Stmt) -> Iterator[Stmt]:
    """Yield `s` and all statements inside it, parents first."""
    waiting = [s]
    while waiting:
        s = waiting.pop()
        yield s
        waiting.extend(sub_statements(s)[::-1])


def map_stmt(
    s: Stmt,
    on_expr: Callable[[Expr], Expr] | None = None,
    on_buffer: Callable[[Buffer], Buffer] | None = None,
) -> Stmt:
    """Return a statement with every expression and every stored or allocated buffer mapped. If nothing
    changes, return the same object."""
    fe: Callable[[Expr], Expr] = on_expr or (lambda e: e)
    fb: Callable[[Buffer], Buffer] = on_buffer or (lambda b: b)

    def go(n: Stmt) -> Stmt:
        if isinstance(n, Store):
            index, value = tuple([fe(i) for i in n.index]), fe(n.value)
            same = index == n.index and value is n.value and on_buffer is None
            return n if same else Store(fb(n.buffer), index, value)
        if isinstance(n, Prefetch):
            return Prefetch(fb(n.buffer), tuple([fe(i) for i in n.index]))
        below = map_children(n, go)
        if isinstance(below, For):
            extent = fe(below.extent)
            return below if extent is below.extent else For(below.var, extent, below.body, below.kind)
        if isinstance(below, Alloc):
            return below if on_buffer is None else Alloc(fb(below.buffer), below.body)
        if isinstance(below, If):
            cond = fe(below.cond)
            return below if cond is below.cond else If(cond, below.then, below.orelse)
        if isinstance(below, Let):
            value = fe(below.value)
            return below if value is below.value else Let(below.var, value, below.body)
        return below

    return go(s)


def substitute_stmt(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Return the statement with free variables replaced in every expression."""
    done = dict[Expr, Expr](values.items())
    return map_stmt(s, lambda e: substitute(e, values, done))


def replace_buffer(
    s: Stmt, old: str, new: Buffer, index: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None = None
) -> Stmt:
    """Return the statement with every access of the buffer named `old` replaced by an access of `new`.
    `index` maps the index tuples."""
    f = index or (lambda i: i)

    def load(n: Expr) -> Expr | None:
        return Load(new, f(n.index)) if isinstance(n, Load) and n.buffer.name == old else None

    def redirected(e: Expr) -> Expr:
        return rewrite(e, load) if old in buffers_loaded(e) else e

    def go(n: Stmt) -> Stmt:
        if isinstance(n, Store) and n.buffer.name == old:
            return Store(new, f(tuple(redirected(i) for i in n.index)), redirected(n.value))
        if isinstance(n, Prefetch) and n.buffer.name == old:
            return Prefetch(new, f(tuple(redirected(i) for i in n.index)))
        if isinstance(n, Block):
            return block(*(go(k) for k in n.body))
        if isinstance(n, For):
            return For(n.var, n.extent, go(n.body), n.kind)
        if isinstance(n, Alloc):
            return Alloc(new if n.buffer.name == old else n.buffer, go(n.body))
        if isinstance(n, If):
            orelse = None if n.orelse is None else go(n.orelse)
            return If(redirected(n.cond), go(n.then), orelse)
        if isinstance(n, Let):
            return Let(n.var, redirected(n.value), go(n.body))
        return map_stmt(n, redirected)

    return go(s)


def buffers_written(s: Stmt) -> set[str]:
    return {st.buffer.name for st in statements(s) if isinstance(st, Store)}


def loop_range(loop: For) -> Range:
    """Return the inclusive range of a loop's variable."""
    extent = loop.extent
    return _FIRST, const(extent.value - 1) if isinstance(extent, Const) else extent - 1
