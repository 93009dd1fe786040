"""The core operators' own gradient rules. They use existing core operators, where these make a better kernel
than the general rule.

A rule asks `Step.wants` before it makes nodes for the gradient of a single input."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import mul
from typing import Any

from jangin.gradients.general import by_stages
from jangin.gradients.nests import of_nest
from jangin.gradients.scalars import adjoints
from jangin.gradients.step import Rule, Step
from jangin.gradients.windows import of_conv, of_pool
from jangin.ir.core import (
    Compute,
    Concat,
    Conv,
    Expand,
    Gather,
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
from jangin.ir.expr import Const, Expr, Var, call, cast, const, is_const
from jangin.ir.graph import CompileError
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars, rewrite, substitute
from jangin.ops.values import Tensor


def _of_map(step: Step, attrs: Map) -> None:
    """Add each operand's gradient, which is one more map. The map reads the result instead of an operand if
    the result suffices (tanh, exp, relu). The operand then needn't be kept."""
    if attrs.corner == "constant":
        return
    body, operands = attrs.body, [Var(f"x{i}", t.dtype) for i, t in enumerate(step.ins)]
    wanted = [v for i, v in enumerate(operands) if v.dtype.is_float and step.wants(i)]
    g, y = Var("g", step.g.dtype), Var("y", step.out.dtype)
    tensors = {**dict(zip(operands, step.ins, strict=True)), g: step.g, y: step.out}
    for v, part in adjoints(body, cast(body.dtype, g), wanted, attrs.corner).items():
        if is_const(part, 0):
            continue
        by_result = rewrite(part, lambda n: y if n == body else None)
        if len(free_vars(by_result)) <= len(free_vars(part)):
            part = by_result
        used = [t for t in tensors if t in free_vars(part)] or [g]
        gradient = step.b.map(
            lambda *xs, used=used, part=part: substitute(part, dict(zip(used, xs, strict=True))),
            *(tensors[t] for t in used),
        )
        whole = step.b.expand(gradient, step.out.shape) if gradient.shape != step.out.shape else gradient
        step.give(whole, [*map(str, operands)].index(str(v)))


def _of_matmul(step: Step, attrs: MatMul) -> None:
    (x, y), g, b = step.ins, step.g, step.b
    ta, tb = attrs.transpose_a, attrs.transpose_b
    if step.wants(0):
        turned = b.matmul(y, g, transpose_a=tb, transpose_b=True) if ta else None
        step.give(turned or b.matmul(g, y, transpose_b=not tb), 0)
    if not step.wants(1):
        return
    if y.rank == 2 and x.rank > 2 and not ta:  # one product over all rows of all batches
        rows = simplify(reduce(mul, x.shape[:-1], const(1)))
        x, g = (b.reshape(t, [rows, t.shape[-1]]) for t in (x, g))
    left, right = (g, x) if tb else (x, g)
    flip = (True, ta) if tb else (not ta, False)
    step.give(b.matmul(left, right, transpose_a=flip[0], transpose_b=flip[1]), 1)


def _of_reduce(step: Step, attrs: Reduce) -> None:
    if attrs.combiner != "sum":
        by_stages(step, first=attrs.ties == "first")
        return
    kept = [const(1) if i in attrs.axes else d for i, d in enumerate(step.x.shape)]
    step.give(step.b.expand(step.b.reshape(step.g, kept), step.x.shape))


def _of_transpose(step: Step, attrs: Transpose) -> None:
    step.give(step.b.transpose(step.g, [attrs.perm.index(i) for i in range(len(attrs.perm))]))


def _of_reshape(step: Step, attrs: Reshape) -> None:
    if attrs.dtype not in (None, step.x.dtype):
        raise CompileError(f"bits of {step.x.dtype} read as {attrs.dtype} have no slope")
    step.give(step.b.reshape(step.g, step.x.shape))


def _of_expand(step: Step, attrs: Expand) -> None:
    step.give(step.g)


def _of_softmax(step: Step, attrs: Softmax) -> None:
    b, y, g, axes = step.b, step.out, step.g, [attrs.axis]
    if attrs.log:
        total = b.reduce("sum", g, axes, keepdims=True)
        step.give(b.map(lambda v, o, t: v - call("exp", o) * t, g, y, total))
    else:
        total = b.reduce("sum", b.map(lambda v, o: v * o, g, y), axes, keepdims=True)
        step.give(b.map(lambda v, o, t: o * (v - t), g, y, total))


def _of_normalize(step: Step, attrs: Normalize) -> None:
    """Add the gradient (g - mean(g) - x̂ mean(g x̂)) / deviation, in which x̂ is the result. With `rms`,
    mean(g) is left out."""
    b, axes, dtype = step.b, attrs.axes, step.x.dtype.wide
    x, y, g = (b.cast(t, dtype) for t in (step.x, step.out, step.g))
    count = cast(dtype, simplify(reduce(mul, (x.shape[i] for i in axes), const(1))))

    def mean(t: Tensor) -> Tensor:
        return b.map(lambda v: v / count, b.reduce("sum", t, axes, True))

    centred = x if attrs.rms else b.map(lambda v, m: v - m, x, mean(x))
    spread = mean(b.map(lambda v: v * v, centred))
    inverse = b.map(lambda v: 1.0 / call("sqrt", v + const(attrs.epsilon, dtype)), spread)
    along = mean(b.map(lambda v, o: v * o, g, y))
    if attrs.rms:
        gradient = b.map(lambda v, o, i, a: i * (v - o * a), g, y, inverse, along)
    else:
        gradient = b.map(lambda v, o, i, a, m: i * (v - m - o * a), g, y, inverse, along, mean(g))
    step.give(b.cast(gradient, step.x.dtype))


def _of_concat(step: Step, attrs: Concat) -> None:
    start: Expr = const(0)
    for n, x in enumerate(step.ins):
        if step.wants(n):
            starts = [start if i == attrs.axis else const(0) for i in range(x.rank)]
            step.give(step.b.slice(step.g, starts, x.shape, [1] * x.rank), n)
        start = simplify(start + x.shape[attrs.axis])


def _of_slice(step: Step, attrs: Slice) -> None:
    if any(s != 1 for s in attrs.steps):
        by_stages(step)
        return
    sizes = zip(step.x.shape, attrs.starts, step.g.shape, strict=True)
    step.give(step.b.pad(step.g, [*attrs.starts, *(simplify(d - s - n) for d, s, n in sizes)]))


def _of_pad(step: Step, attrs: Pad) -> None:
    if attrs.mode != "constant" or not all(isinstance(p, Const) and p.value >= 0 for p in attrs.pads):
        by_stages(step)
        return
    rank = step.x.rank
    step.give(step.b.slice(step.g, attrs.pads[:rank], step.x.shape, [1] * rank))


def _general(step: Step, attrs: Compute | Gather) -> None:
    by_stages(step)


RULES: Mapping[type[Any], Rule] = {
    Compute: _general,
    Concat: _of_concat,
    Conv: of_conv,
    Expand: _of_expand,
    Gather: _general,
    LoopNest: of_nest,
    Map: _of_map,
    MatMul: _of_matmul,
    Normalize: _of_normalize,
    Pad: _of_pad,
    Pool: of_pool,
    Reduce: _of_reduce,
    Reshape: _of_reshape,
    Slice: _of_slice,
    Softmax: _of_softmax,
    Transpose: _of_transpose,
}
"""The gradient rules of core operators, by the types of their attributes."""
