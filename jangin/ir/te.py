"""Tensor expressions: the meaning of an operator.

A `Stage` gives one tensor. For each output index it evaluates the `body`, and reduces it over `reduce_axes`
by `combiner` if there are any. It then applies the `epilogue` to the reduced value `acc`.

A kernel is a list of stages. The last of them, one or several, give its results; all others are local to it.
`lower` builds the naive loop nest: the kernel's reference semantics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    ExprLike,
    Load,
    Select,
    Var,
    call,
    cast,
    const,
    land,
    lor,
    maximum,
    minimum,
    product_of,
    wrap,
)
from jangin.ir.loop import Alloc, For, Func, Stmt, Store, block, replace_buffer
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, simplify
from jangin.ir.traversal import free_vars, rewrite, substitute


@dataclass(frozen=True)
class Axis:
    var: Var
    extent: Expr


@dataclass(frozen=True)
class Stage:
    """`out[axes + at] = epilogue(combine over reduce_axes of body)`. Loads name other stages' outs or the
    kernel's inputs.

    Without reduce_axes, `epilogue` is None and `body` is the value. `at` is the index in `out` at which the
    result begins, or empty if the result is all of `out`. `rounded` tells that each term, a product, is
    rounded before it is added (see `ir.rounding`)."""

    out: Buffer
    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    combiner: str = ""
    epilogue: Expr | None = None
    at: tuple[Expr, ...] = ()
    rounded: bool = False

    @property
    def acc(self) -> Var:
        """The variable that stands for the reduced value in the epilogue."""
        return Var("acc", self.body.dtype)

    @property
    def stored_at(self) -> tuple[Expr, ...]:
        """The index in `out` at which the result is stored."""
        point = tuple(a.var for a in self.axes)
        return tuple(simplify(i + n) for i, n in zip(point, self.at, strict=True)) if self.at else point

    @property
    def sometimes(self) -> bool:
        """Whether one condition, the same for all terms, decides if there are any terms."""
        if not (self.reduce_axes and isinstance(self.body, Select)):
            return False
        nothing = self.body.b == identity(self.combiner, self.body.dtype)
        return nothing and not {a.var for a in self.reduce_axes} & free_vars(self.body.cond)

    @property
    def result(self) -> Expr:
        return self.epilogue if self.epilogue is not None else (self.acc if self.reduce_axes else self.body)


COMBINERS: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": maximum,
    "min": minimum,
    "and": land,
    "or": lor,
}


def identity(combiner: str, dtype: DType) -> Const:
    """Return the neutral element of a combiner."""
    if combiner in ("sum", "prod"):
        return const(0 if combiner == "sum" else 1, dtype)
    if combiner in ("and", "or"):
        return const(combiner == "and", BOOL)
    if dtype.is_float:
        return const(-math.inf if combiner == "max" else math.inf, dtype)
    if dtype is BOOL:
        return const(combiner == "min", BOOL)
    low, high = dtype.limits
    return const(low if combiner == "max" else high, dtype)


def accumulator(dtype: DType) -> DType:
    """Return the type in which values are summed: f32 for smaller floats, which are then rounded once, else
    the type itself."""
    return dtype.wide if dtype.is_float else dtype


def compute(
    out: Buffer,
    body: Callable[..., ExprLike],
) -> Stage:
    """Return a stage without reduction, in which `body(*index)` is the value at an index of `out`."""
    axes = tuple(Axis(Var(f"i{d}"), extent) for d, extent in enumerate(out.shape))
    return Stage(out, axes, cast_body(out.dtype, body(*(a.var for a in axes))))


def cast_body(dtype: DType, value: ExprLike) -> Expr:
    e = wrap(value, dtype)
    return e if e.dtype == dtype else cast(dtype, e)


def reduction(
    out: Buffer,
    extents: Sequence[ExprLike],
    combiner: str,
    body: Callable[..., Expr],
    epilogue: Callable[..., ExprLike] | None = None,
) -> Stage:
    """Return a stage that reduces. `body(index, k)` is the term at output index tuple `index` and reduction
    index tuple `k`. `epilogue(acc, index)` is applied to the reduced value. The result is cast to out's
    dtype."""
    axes = tuple(Axis(Var(f"i{d}"), extent) for d, extent in enumerate(out.shape))
    raxes = tuple(Axis(Var(f"k{d}"), wrap(extent)) for d, extent in enumerate(extents))
    index = tuple(a.var for a in axes)
    term = body(index, tuple(a.var for a in raxes))
    term = cast(accumulator(term.dtype), term)
    acc = Var("acc", term.dtype)
    value = cast_body(out.dtype, epilogue(acc, index) if epilogue else acc)
    return Stage(out, axes, term, raxes, combiner, None if value == acc else value)


def sums_products(stage: Stage) -> bool:
    """Return whether a stage adds up products of floats, each by a multiply-add."""
    term = stage.body
    product = term.op == "mul" if isinstance(term, Binary) else product_of(term) is not None
    return stage.combiner == "sum" and product and term.dtype.is_float and not stage.rounded


def rename_axes(stage: Stage, prefix: str) -> Stage:
    """Return the stage with `prefix` before the names of its loop variables, so that stages can share a
    nest."""
    names = {a.var: Var(prefix + a.var.name) for a in (*stage.axes, *stage.reduce_axes)}
    sub: dict[Var, Expr] = dict(names)

    def axes(group: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(names[a.var], a.extent) for a in group)

    return replace(
        stage,
        axes=axes(stage.axes),
        reduce_axes=axes(stage.reduce_axes),
        body=substitute(stage.body, sub),
        epilogue=None if stage.epilogue is None else substitute(stage.epilogue, sub),
    )


def value_at(stage: Stage, index: Sequence[Expr]) -> Expr:
    """Return the value at an index of a stage without reduction. Inlining replaces a load by this value."""
    assert not stage.reduce_axes, "only an injective stage can be inlined"
    moved = {a.var: i for a, i in zip(stage.axes, index, strict=True) if i is not a.var}
    return substitute(stage.body, dict(moved))


def inline(stage: Stage, producer: Stage) -> Stage:
    """Return `stage` with every load of `producer`'s output replaced by its value. The producer must have no
    reduction."""

    def load(n: Expr) -> Expr | None:
        return (
            value_at(producer, n.index)
            if isinstance(n, Load) and n.buffer.name == producer.out.name
            else None
        )

    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, load)
    return replace(stage, body=rewrite(stage.body, load), epilogue=epilogue)


def nest(stage: Stage) -> Stmt:
    """Return the naive loop nest of one stage."""
    if not stage.reduce_axes:
        inner: Stmt = Store(stage.out, stage.stored_at, stage.body)
    else:
        acc = Buffer(f"{stage.out.name}.acc", stage.body.dtype, (const(1),), "register")
        zero = (const(0),)
        term = call("rounded", stage.body) if stage.rounded else stage.body
        update: Stmt = Store(acc, zero, COMBINERS[stage.combiner](Load(acc, zero), term))
        for axis in reversed(stage.reduce_axes):
            update = For(axis.var, axis.extent, update)
        value = substitute(stage.result, {stage.acc: Load(acc, zero)})
        init = Store(acc, zero, identity(stage.combiner, stage.body.dtype))
        inner = Alloc(acc, block(init, update, Store(stage.out, stage.stored_at, value)))
    for axis in reversed(stage.axes):
        inner = For(axis.var, axis.extent, inner)
    return inner


def lower(
    name: str,
    stages: Sequence[Stage],
    inputs: Sequence[Buffer],
    symbols: Mapping[Var, Range],
    outputs: int = 1,
) -> Func:
    """Return the naive kernel that computes `stages` in order. The last `outputs` of them give its
    results."""
    named = [rename_axes(s, f"{chr(97 + n % 26)}" if len(stages) > 1 else "") for n, s in enumerate(stages)]
    body = block(*(nest(s) for s in named))
    for stage in reversed(named[:-outputs]):
        body = Alloc(replace(stage.out, memory="scratch"), body)
    for stage in named[:-outputs]:
        body = replace_buffer(body, stage.out.name, replace(stage.out, memory="scratch"))
    params = (*inputs, *(s.out for s in named[-outputs:]))
    return Func(name, params, outputs, tuple(symbols.items()), body)


def redirect(stage: Stage, buffers: Mapping[str, Buffer]) -> Stage:
    """Return the stage with buffers of these names replaced, in loads and as its output."""

    def load(n: Expr) -> Expr | None:
        new = buffers.get(n.buffer.name) if isinstance(n, Load) else None
        return Load(new, n.index) if new is not None and isinstance(n, Load) else None

    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, load)
    out = buffers.get(stage.out.name, stage.out)
    return replace(stage, out=out, body=rewrite(stage.body, load), epilogue=epilogue)
