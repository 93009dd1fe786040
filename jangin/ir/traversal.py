"""Traversal of expressions: their parts and names, and replacing parts of them.

No function recurses into an expression, so a long chain makes no deep calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from jangin.ir.dtype import BOOL
from jangin.ir.expr import Binary, Call, Cast, Expr, Load, Select, Var, binary, call, cast, const, select
from jangin.ir.flat import postorder


def children(e: Expr) -> tuple[Expr, ...]:
    return e._kids


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """Return `e` with other children, built by the constructors that fold constants."""
    if isinstance(e, Binary):
        return binary(e.op, *kids)
    if isinstance(e, Load):
        return Load(e.buffer, kids)
    if isinstance(e, Call):
        return call(e.fn, *kids)
    if isinstance(e, Select):
        return select(*kids)
    return cast(e.dtype, kids[0]) if isinstance(e, Cast) else e


def walk(e: Expr) -> Iterator[Expr]:
    """Yield every node of `e`, parents first. A shared node comes at each mention."""
    stack = [e]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node._kids[::-1])


def rewrite(e: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrite an expression bottom-up, and return the result. `fn(node)` returns a replacement, or None to
    keep the node. Shared parts are done once."""
    memo: dict[Expr, Expr] = {}
    for node in postorder(e):
        kids = node._kids
        new = tuple([memo[k] for k in kids])
        done = node if new == kids else rebuild(node, new)
        if done not in new:  # otherwise fn has seen it already
            replaced = fn(done)
            done = done if replaced is None else replaced
        memo[node] = done
    return memo[e]


def substitute(e: Expr, values: Mapping[Var, Expr], done: dict[Expr, Expr] | None = None) -> Expr:
    """Return `e` with variables replaced. `done` may have replacements made in other expressions, and must
    then include `values`."""
    if e._free.isdisjoint(values):
        return e
    memo = dict[Expr, Expr](values.items()) if done is None else done
    stack = [e]
    while stack:
        node = stack[-1]
        kids = node._kids
        if node in memo:
            stack.pop()
        elif new := [k for k in kids if k not in memo and not k._free.isdisjoint(values)]:
            stack.extend(new)
        else:
            memo[stack.pop()] = rebuild(node, tuple([memo.get(k, k) for k in kids]))
    return memo[e]


def free_vars(e: Expr) -> frozenset[Var]:
    """Return the variables that an expression mentions."""
    return e._free


def buffers_loaded(e: Expr) -> frozenset[str]:
    """Return the names of the buffers that an expression loads."""
    return e._loaded


def loads(e: Expr) -> list[Load]:
    """Return the loads of an expression, parents first. A shared load comes at each mention."""
    every_load: list[Load] = []
    stack = [e]
    while stack:
        node = stack.pop()
        if node._loaded:
            if isinstance(node, Load):
                every_load.append(node)
            stack.extend(node._kids[::-1])
    return every_load


def conjuncts(e: Expr) -> list[Expr]:
    """Return the conditions whose conjunction is `e`."""
    if isinstance(e, Binary) and e.op == "and" and e.dtype is BOOL:
        return conjuncts(e.a) + conjuncts(e.b)
    return [e]


def row_major(index: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """Return an element's offset, in elements, in a row-major buffer of this shape."""
    flat: Expr = const(0)
    for i, d in zip(index, shape, strict=True):
        flat = flat * d + i
    return flat
