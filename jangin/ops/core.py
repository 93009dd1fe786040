"""The core operators: every imported operator lowers to them, and later passes know no others.

Each has one output, attributes (`ir.core`), a kind (which decides fusion), shape inference, and tensor
expressions. Everything exotic is a `compute` (its tensor expressions as an attribute) or a `loop_nest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import mul
from typing import Any, Generic, TypeVar

from jangin.ir.core import (
    Compute,
    Concat,
    Conv,
    CoreAttributes,
    Expand,
    Gather,
    IndexCheck,
    LoopNest,
    Map,
    MatMul,
    Normalize,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from jangin.ir.dtype import I64, DType
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    call,
    cast,
    const,
    eq,
    is_const,
    land,
    maximum,
    minimum,
    select,
)
from jangin.ir.graph import CompileError, Node, Shape, Value
from jangin.ir.records import dataclass
from jangin.ir.simplify import prove, simplify
from jangin.ir.te import Stage, compute, redirect, reduction
from jangin.ir.traversal import substitute
from jangin.ops.core_window import conv_infer, conv_te, pool_infer, pool_te
from jangin.ops.operands import TRUE, Typed, broadcast, broadcast_index, multiplied, typed, wide

A = TypeVar("A", bound=CoreAttributes)


@dataclass(frozen=True)
class CoreOp(Generic[A]):
    """A core operator. Its `kind` is one of these.

    - injective: each output element is computed by itself.
    - reduction: a reduction.
    - contraction: a sum of products.
    - rows: several stages over shared rows.
    - alias: no code, the same bytes in another shape.
    - opaque: an imperative nest, which is never fused.
    """

    attrs: type[A]
    kind: str
    infer: Callable[[Sequence[Value], A], Typed]
    te: Callable[[Sequence[Buffer], Buffer, A], tuple[Stage, ...]]


def _map_infer(ins: Sequence[Value], attrs: Map) -> Typed:
    return attrs.body.dtype, broadcast(*(typed(v)[1] for v in ins))


def _map_te(ins: Sequence[Buffer], out: Buffer, attrs: Map) -> tuple[Stage, ...]:
    def at(*index: Expr) -> Expr:
        values = {Var(f"x{i}", b.dtype): broadcast_index(b, index) for i, b in enumerate(ins)}
        return substitute(attrs.body, values)

    return (compute(out, at),)


def _reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(const(1) if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _reduce_infer(ins: Sequence[Value], attrs: Reduce) -> Typed:
    dtype, shape = typed(ins[0])
    return dtype, _reduced(shape, attrs.axes, attrs.keepdims)


def _reduce_te(ins: Sequence[Buffer], out: Buffer, attrs: Reduce) -> tuple[Stage, ...]:
    """Return the stage of `combiner` over `axes`; 16-bit floats accumulate in f32."""
    x, axes = ins[0], attrs.axes

    def term(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        kept = iter(index)
        ks = iter(k)
        at = []
        for i in range(len(x.shape)):
            if i in axes:
                at.append(next(ks))
                if attrs.keepdims:
                    next(kept)
            else:
                at.append(next(kept))
        return Load(x, tuple(at))

    return (reduction(out, [x.shape[i] for i in axes], attrs.combiner, term),)


def _matmul_infer(ins: Sequence[Value], attrs: MatMul) -> Typed:
    (dtype, a), (_, b) = typed(ins[0]), typed(ins[1])
    m, ka = (a[-1], a[-2]) if attrs.transpose_a else (a[-2], a[-1])
    kb, n = (b[-1], b[-2]) if attrs.transpose_b else (b[-2], b[-1])
    if isinstance(ka, Const) and isinstance(kb, Const) and ka != kb:
        raise CompileError(
            f"a matrix product of {ins[0]} and {ins[1]}: inner dimensions {ka} and {kb} differ"
        )
    return attrs.dtype or dtype, (*broadcast(a[:-2], b[:-2]), m, n)


def _matmul_te(ins: Sequence[Buffer], out: Buffer, attrs: MatMul) -> tuple[Stage, ...]:
    a, b = ins
    ta, tb = attrs.transpose_a, attrs.transpose_b
    k_extent = a.shape[-2] if ta else a.shape[-1]

    def term(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        *batch, m, n = index
        left = (k[0], m) if ta else (m, k[0])
        right = (n, k[0]) if tb else (k[0], n)
        return multiplied(
            broadcast_index(a, (*batch, *left)), broadcast_index(b, (*batch, *right)), out.dtype, attrs.dot
        )

    return (reduction(out, [k_extent], "sum", term),)


def _same_infer(ins: Sequence[Value], attrs: Softmax | Normalize) -> Typed:
    return typed(ins[0])


def _without(index: Sequence[Expr], axes: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(e for i, e in enumerate(index) if i not in axes)


def _local(out: Buffer, suffix: str, dtype: DType, shape: Shape) -> Buffer:
    return Buffer(f"{out.name}.{suffix}", dtype, shape)


def _at_axes(
    index: tuple[Expr, ...], k: tuple[Expr, ...], axes: Sequence[int], rank: int
) -> tuple[Expr, ...]:
    kept, ks = iter(index), iter(k)
    return tuple(next(ks) if i in axes else next(kept) for i in range(rank))


def _softmax_te(ins: Sequence[Buffer], out: Buffer, attrs: Softmax) -> tuple[Stage, ...]:
    """Return the stages of softmax over `axis` (log-softmax with `log`), shifted by the row's maximum. If
    `blind`, a row of -inf alone is shifted by 0 and divided by 1."""
    x, axis, rank = ins[0], (attrs.axis,), len(out.shape)
    dtype = wide(const(0, x.dtype)).dtype
    rows, extent = _without(out.shape, axis), [x.shape[attrs.axis]]

    def load(index: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        return wide(Load(x, _at_axes(index, k, axis, rank)))

    top, total = _local(out, "max", dtype, rows), _local(out, "sum", dtype, rows)

    def shift(acc: Expr, _: tuple[Expr, ...]) -> Expr:
        return select(eq(acc, const(-math.inf, dtype)), const(0, dtype), acc) if attrs.blind else acc

    def inverse(acc: Expr, _: tuple[Expr, ...]) -> Expr:
        one = const(1, dtype)
        return one / (select(eq(acc, const(0, dtype)), one, acc) if attrs.blind else acc)

    peak = reduction(top, extent, "max", load, shift)
    if attrs.log:
        norm = reduction(total, extent, "sum", lambda i, k: call("exp", load(i, k) - Load(top, i)))
        final = compute(
            out,
            lambda *i: (
                wide(Load(x, i)) - Load(top, _without(i, axis)) - call("log", Load(total, _without(i, axis)))
            ),
        )
        return peak, norm, final
    powers = _local(out, "exp", dtype, out.shape)
    raised = compute(powers, lambda *i: call("exp", wide(Load(x, i)) - Load(top, _without(i, axis))))
    norm = reduction(total, extent, "sum", lambda i, k: Load(powers, _at_axes(i, k, axis, rank)), inverse)
    return peak, raised, norm, compute(out, lambda *i: Load(powers, i) * Load(total, _without(i, axis)))


FAR = 4.0
"""A row whose mean lies more than this many standard deviations from 0 gets a corrected mean. The mean's
rounding error is then large beside the deviations."""


def _normalize_te(ins: Sequence[Buffer], out: Buffer, attrs: Normalize) -> tuple[Stage, ...]:
    """Return the stages of a normalization with a corrected mean for rows whose numbers lie far from 0 and
    close together.

    The mean's last bit is large beside the deviations of these rows. `missed`, the mean of the remaining
    deviations, corrects both results (Chan, Golub and LeVeque 1983). The deviation is computed again, and the
    result is shifted by `moved`.
    """
    x, axes, rank = ins[0], tuple(attrs.axes), len(out.shape)
    dtype = wide(const(0, x.dtype)).dtype
    rows, extents = _without(out.shape, axes), [x.shape[i] for i in axes]
    one, zero = const(1, dtype), const(0, dtype)
    scale = one / cast(dtype, reduce(mul, extents, const(1)))
    parts = "mean", "inv", "missed", "exact", "moved"
    mean, inv, missed, exact, moved = (_local(out, n, dtype, rows) for n in parts)

    def value(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        v = wide(Load(x, _at_axes(i, k, axes, rank)))
        return v if attrs.rms else v - Load(mean, i)

    def inverse(acc: Expr, _: tuple[Expr, ...]) -> Expr:
        return one / call("sqrt", acc * scale + const(attrs.epsilon, dtype))

    def far(i: tuple[Expr, ...]) -> Expr:
        return call("abs", Load(mean, i) * Load(inv, i)) > const(FAR, dtype)

    def rest(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        return value(i, k) - Load(missed, i)

    def normal(*at: Expr) -> Expr:
        i = _without(at, axes)
        centred = value(i, tuple(at[axis] for axis in axes))
        return centred * Load(inv, i) if attrs.rms else call("fma", centred, Load(exact, i), Load(moved, i))

    first = reduction(inv, extents, "sum", lambda i, k: value(i, k) * value(i, k), inverse)
    last = compute(out, normal)
    if attrs.rms:
        return first, last
    return (
        reduction(
            mean, extents, "sum", lambda i, k: wide(Load(x, _at_axes(i, k, axes, rank))),
            lambda acc, _: acc * scale,
        ),
        first,
        reduction(
            missed, extents, "sum", lambda i, k: select(far(i), value(i, k), zero),
            lambda acc, i: select(far(i), acc * scale, zero),
        ),
        reduction(
            exact, extents, "sum", lambda i, k: select(far(i), rest(i, k) * rest(i, k), zero),
            lambda acc, i: select(far(i), inverse(acc, i), Load(inv, i)),
        ),
        compute(moved, lambda *i: select(far(i), -(Load(missed, i) * Load(exact, i)), zero)),
        last,
    )  # fmt: skip


def _transpose_infer(ins: Sequence[Value], attrs: Transpose) -> Typed:
    dtype, shape = typed(ins[0])
    return dtype, tuple(shape[p] for p in attrs.perm)


def _transpose_te(ins: Sequence[Buffer], out: Buffer, attrs: Transpose) -> tuple[Stage, ...]:
    perm = attrs.perm
    return (compute(out, lambda *i: Load(ins[0], tuple(i[perm.index(d)] for d in range(len(perm))))),)


def _shape_infer(ins: Sequence[Value], attrs: Expand | Slice) -> Typed:
    return typed(ins[0])[0], attrs.shape


def _reshape_infer(ins: Sequence[Value], attrs: Reshape) -> Typed:
    return attrs.dtype or typed(ins[0])[0], attrs.shape


def _no_te(ins: Sequence[Buffer], out: Buffer, attrs: Reshape | LoopNest) -> tuple[Stage, ...]:
    raise AssertionError("an alias or opaque operator has no tensor expression")


def _expand_te(ins: Sequence[Buffer], out: Buffer, attrs: Expand) -> tuple[Stage, ...]:
    return (compute(out, lambda *i: broadcast_index(ins[0], i)),)


def _slice_te(ins: Sequence[Buffer], out: Buffer, attrs: Slice) -> tuple[Stage, ...]:
    starts, steps = attrs.starts, attrs.steps
    return (
        compute(
            out,
            lambda *i: Load(
                ins[0], tuple(simplify(s + e * t) for e, s, t in zip(i, starts, steps, strict=True))
            ),
        ),
    )


def _concat_infer(ins: Sequence[Value], attrs: Concat) -> Typed:
    axis = attrs.axis
    dtype, shape = typed(ins[0])
    total: Expr = const(0)
    for v in ins:
        total = total + typed(v)[1][axis]
        fits = len(typed(v)[1]) == len(shape) and not any(
            isinstance(a, Const) and isinstance(b, Const) and a != b
            for i, (a, b) in enumerate(zip(typed(v)[1], shape, strict=True))
            if i != axis
        )
        if not fits:
            raise CompileError(
                f"a concatenation of {ins[0]} and {v} along axis {axis}: all other sizes must be equal"
            )
    return dtype, (*shape[:axis], simplify(total), *shape[axis + 1 :])


MOST_CHAINED = 64
"""Most inputs of a concatenation that are tested one after the other. More inputs are bisected first, because
the last of them would take as many tests."""


def _concat_te(ins: Sequence[Buffer], out: Buffer, attrs: Concat) -> tuple[Stage, ...]:
    axis = attrs.axis

    def at(*index: Expr) -> Expr:
        ends: list[Expr] = []
        for b in ins:
            ends.append(simplify((ends[-1] if ends else const(0)) + b.shape[axis]))

        def part(first: int, last: int) -> Expr:
            """Return the element that lies in inputs `first` to `last`. Many inputs are bisected first."""
            if first == last:
                start = ends[first - 1] if first else const(0)
                return Load(ins[first], (*index[:axis], index[axis] - start, *index[axis + 1 :]))
            middle = (first + last) // 2 if last - first >= MOST_CHAINED else first
            return select(index[axis] < ends[middle], part(first, middle), part(middle + 1, last))

        return part(0, len(ins) - 1)

    return (compute(out, at),)


def _pad_infer(ins: Sequence[Value], attrs: Pad) -> Typed:
    dtype, shape = typed(ins[0])
    rank = len(shape)
    added = (p for i, d in enumerate(shape) if is_const(d, 0) for p in attrs.pads[i::rank])
    if attrs.mode != "constant" and any(prove(p > 0) for p in added):
        raise CompileError(f"padding by mode {attrs.mode}: an axis without entries has none to repeat")
    return dtype, tuple(simplify(d + (attrs.pads[i] + attrs.pads[i + rank])) for i, d in enumerate(shape))


def _pad_te(ins: Sequence[Buffer], out: Buffer, attrs: Pad) -> tuple[Stage, ...]:
    x, rank, mode = ins[0], len(ins[0].shape), attrs.mode

    def at(*index: Expr) -> Expr:
        inside: Expr = TRUE
        pos = []
        for d, size in enumerate(x.shape):
            begin, end = attrs.pads[d], attrs.pads[d + rank]
            p = simplify(index[d] - begin)
            if is_const(begin, 0) and is_const(end, 0):
                p = index[d]
            elif mode == "constant":
                inside = land(inside, TRUE if is_const(begin, 0) else p >= 0)
                inside = land(inside, TRUE if is_const(end, 0) else p < size)
            elif mode == "edge":
                p = minimum(maximum(p, 0), size - 1)
            elif mode == "wrap":
                p = _wrapped(p, size, begin, end)
            else:
                p = _reflected(p, size, begin, end)
            pos.append(p)
        return select(inside, Load(x, tuple(pos)), const(attrs.value, x.dtype))

    return (compute(out, at),)


def _wrapped(p: Expr, size: Expr, begin: Expr, end: Expr) -> Expr:
    """Return the position modulo the size. There is no division if the padding is no longer than the axis."""
    if not (prove(begin <= size) and prove(end <= size)):
        return p % size
    return select(p < 0, p + size, select(p < size, p, p - size))


def _reflected(p: Expr, size: Expr, begin: Expr, end: Expr) -> Expr:
    """Return the position on a triangle wave of period 2 (size - 1). There is no division if the padding is
    shorter than the axis."""
    if prove(begin < size) and prove(end < size):
        q = maximum(p, -p)
        return minimum(q, size * 2 - 2 - q)
    q = p % maximum(size * 2 - 2, 1)
    return select(q < size, q, size * 2 - 2 - q)


def _gather_infer(ins: Sequence[Value], attrs: Gather) -> Typed:
    (dtype, x), (_, idx) = typed(ins[0]), typed(ins[1])
    axis = attrs.axis
    return dtype, (*x[:axis], *idx, *x[axis + 1 :])


def _gather_te(ins: Sequence[Buffer], out: Buffer, attrs: Gather) -> tuple[Stage, ...]:
    """Return the stage that takes x at integer indices along `axis`. Negative indices count from the end.
    Every index is clamped into range, so that no input can read outside the buffer."""
    x, idx = ins
    axis, rank = attrs.axis, len(idx.shape)
    size = x.shape[axis]

    def at(*index: Expr) -> Expr:
        i = cast(I64, Load(idx, tuple(index[axis : axis + rank])))
        i = select(i < 0, i + size, i)
        i = minimum(maximum(i, 0), size - 1)
        return Load(x, (*index[:axis], i, *index[axis + rank :]))

    return (compute(out, at),)


def _index_check_infer(ins: Sequence[Value], attrs: IndexCheck) -> Typed:
    _, shape = typed(ins[0])
    if len(attrs.sizes) > 1 and (not shape or shape[-1] != const(len(attrs.sizes))):
        raise CompileError(f"index tuples {ins[0]} must have {len(attrs.sizes)} entries along the last axis")
    return I64, ()


def _index_check_te(ins: Sequence[Buffer], out: Buffer, attrs: IndexCheck) -> tuple[Stage, ...]:
    x, sizes = ins[0], attrs.sizes
    extents = x.shape if len(sizes) == 1 else x.shape[:-1]

    def smallest(_: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        place = k[: len(extents)]
        if len(sizes) == 1:
            return attrs.wrong(cast(I64, Load(x, place)), sizes[0])
        entries = [cast(I64, Load(x, (*place, const(n)))) for n in range(len(sizes))]
        return reduce(minimum, map(attrs.wrong, entries, sizes))

    return (reduction(out, extents or [const(1)], "min", smallest),)


def _compute_infer(ins: Sequence[Value], attrs: Compute) -> Typed:
    out = attrs.stages[-1].out
    return out.dtype, out.shape


def _compute_te(ins: Sequence[Buffer], out: Buffer, attrs: Compute) -> tuple[Stage, ...]:
    stages = attrs.stages
    names = {f"x{i}": b for i, b in enumerate(ins)}
    for s in stages[:-1]:
        names[s.out.name] = replace(s.out, name=f"{out.name}.{s.out.name}")
    names[stages[-1].out.name] = out
    return tuple(redirect(s, names) for s in stages)


def _nest_infer(ins: Sequence[Value], attrs: LoopNest) -> Typed:
    return attrs.dtype, attrs.shape


CORE: Mapping[str, CoreOp[Any]] = {
    op.attrs.operator: op
    for op in (
        CoreOp(Map, "injective", _map_infer, _map_te),
        CoreOp(Transpose, "injective", _transpose_infer, _transpose_te),
        CoreOp(Expand, "injective", _shape_infer, _expand_te),
        CoreOp(Slice, "injective", _shape_infer, _slice_te),
        CoreOp(Concat, "injective", _concat_infer, _concat_te),
        CoreOp(Pad, "injective", _pad_infer, _pad_te),
        CoreOp(Gather, "injective", _gather_infer, _gather_te),
        CoreOp(IndexCheck, "reduction", _index_check_infer, _index_check_te),
        CoreOp(Compute, "rows", _compute_infer, _compute_te),
        CoreOp(Reduce, "reduction", _reduce_infer, _reduce_te),
        CoreOp(Pool, "reduction", pool_infer, pool_te),
        CoreOp(Softmax, "rows", _same_infer, _softmax_te),
        CoreOp(Normalize, "rows", _same_infer, _normalize_te),
        CoreOp(MatMul, "contraction", _matmul_infer, _matmul_te),
        CoreOp(Conv, "contraction", conv_infer, conv_te),
        CoreOp(Reshape, "alias", _reshape_infer, _no_te),
        CoreOp(LoopNest, "opaque", _nest_infer, _no_te),
    )
}
"""The core operators by name: those of `ir.core.LOWERED` except kernels and steps."""


def core_op(node: Node) -> CoreOp[Any]:
    """Return the node's operator. Raises CompileError if it isn't a core operator."""
    if node.op not in CORE:
        raise CompileError(f"{node.source or node.name}: {node.op} is not a core operator; lower it first")
    return CORE[node.op]
