"""Algebraic simplification of core graphs: nodes that cancel, merge, or have a simpler form.

A rule looks at one node, whose inputs are simplified already. It gives the nodes that replace it, an existing
value that replaces it, or None. Rules are tried until none applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jangin.ir.checks import IN_RANGE
from jangin.ir.core import (
    Compute,
    Concat,
    Conv,
    Expand,
    Gather,
    IndexCheck,
    Map,
    MatMul,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Const, Expr, cast, const, is_const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.simplify import prove
from jangin.ir.simplify import simplify as simplify_expr
from jangin.ir.te import reduction
from jangin.passes.algebra.dce import dce
from jangin.passes.algebra.rules import State
from jangin.passes.algebra.simplify_map import MAP_RULES

Result = Node | str | None
"""A rule's result: another node that makes the same output, the name of an existing value that is equal, or
None for no change."""
Rule = Callable[[State, Node], Result]
MANY = 1 << 16
"""An index check of at least so many indices is split into parts. One thread checks fewer in the time that
waking others takes."""
MOST_PARTS = 64
"""Most parts of such a check: several for each thread of a large processor, while the final check of all
parts stays short."""
ROUNDS = 10
"""Most sweeps over a graph. Nearly all graphs need two or three."""


def simplify(graph: Graph) -> Graph:
    """Return the graph with every rule applied until nothing changes, in at most `ROUNDS` sweeps."""
    for _ in range(ROUNDS):
        graph = _name_results(graph)
        state = State(graph)
        for node in graph.nodes:
            _visit(state, node)
        graph = dce(state.rewritten(graph))
        if not state.changed:
            break
    return graph


def _visit(state: State, node: Node) -> None:
    node = replace(node, inputs=tuple(state.renamed.get(n, n) for n in node.inputs))
    out = node.outputs[0]
    tried = True
    while tried:
        tried = False
        for rule in RULES.get(node.op, ()):
            result = rule(state, node)
            if isinstance(result, str):
                if out in state.graph.outputs:
                    if node.op == "reshape" and node.inputs[0] == result:
                        continue
                    result = Node(node.name, (result,), (out,), Reshape(state.shape(out)), node.source)
                else:
                    state.renamed[out] = result
                    state.changed = True
                    return
            if result is not None:
                node, tried, state.changed = result, True, True
                break
    state.emit(node)


def _name_results(graph: Graph) -> Graph:
    """Give a value that is only copied to become a result of the model the result's name. The copy is
    dropped."""
    produced = graph.producers()
    names: dict[str, str] = {}
    for out in graph.outputs:
        node = produced.get(out)
        if node is None or node.op != "reshape" or graph.shape(node.inputs[0]) != graph.shape(out):
            continue
        if node.of(Reshape).dtype is not None:
            continue
        inner = node.inputs[0]
        if inner in produced and inner not in names and inner not in graph.outputs:
            names[inner] = out
    nodes = []
    for node in graph.nodes:
        if node.op == "reshape" and names.get(node.inputs[0]) == node.outputs[0]:
            continue
        inputs = tuple(names.get(n, n) for n in node.inputs)
        nodes.append(replace(node, inputs=inputs, outputs=tuple(names.get(n, n) for n in node.outputs)))
    return graph.with_nodes(nodes) if names else graph


# --- moving data -----------------------------------------------------------------------------


def _reshape(s: State, node: Node) -> Result:
    """Remove reshapes that change nothing, merge consecutive ones, and drop axes that a reduction kept.
    Reshapes that reinterpret bytes as another type stay."""
    (x,) = node.inputs
    if node.of(Reshape).dtype is not None:
        return None
    if s.shape(x) == s.shape(node.outputs[0]):
        return x
    inner = s.producer(x, Reshape)
    if inner is not None and inner.of(Reshape).dtype is not None:
        return None
    return _reduced(s, node) if inner is None else replace(node, inputs=inner.inputs)


def _reduced(s: State, node: Node) -> Result:
    """Return a reduction without the axes that a reshape behind it, or behind a map of it, drops. Return None
    for other reshapes."""
    (x,) = node.inputs
    scaled = s.producer(x, Map)
    if scaled is not None and len(scaled.inputs) != 1:
        return None
    y = x if scaled is None else scaled.inputs[0]
    sums = s.producer(y, Reduce)
    if sums is None or not sums.of(Reduce).keepdims or not all(map(s.single_use, {x, y})):
        return None
    own = replace(sums.of(Reduce), keepdims=False)
    if s.shape(node.outputs[0]) != tuple(d for i, d in enumerate(s.shape(y)) if i not in own.axes):
        return None
    if scaled is None:
        return replace(node, inputs=sums.inputs, attrs=own)
    return replace(node, inputs=(s.add(own, sums.inputs, y, sums.source),), attrs=scaled.attrs)


def _reshape_of_part(s: State, node: Node) -> Result:
    """Turn a reshape of a slice into a slice of a reshape, if one axis can express the slice. A reshape moves
    nothing, and readers evaluate slices."""
    (part,), shape = node.inputs, s.shape(node.outputs[0])
    inner = s.producer(part, Slice)
    if inner is None or any(t != 1 for t in inner.of(Slice).steps) or node.of(Reshape).dtype is not None:
        return None
    (x,), starts, whole = inner.inputs, inner.of(Slice).starts, s.shape(inner.inputs[0])
    cut = [d for d, n in enumerate(s.shape(part)) if n != whole[d]]
    sizes = static_shape((*whole[cut[0] :], starts[cut[0]])) if len(cut) == 1 else None
    if sizes is None:
        return None
    *behind, start = sizes
    unit, before = math.prod(behind[1:]), simplify_expr(math.prod(whole[: cut[0]], start=const(1)))
    for axis, count in enumerate(shape):
        rest = static_shape(shape[axis + 1 :])
        step = 0 if rest is None else math.prod(rest)
        same = simplify_expr(math.prod(shape[:axis], start=const(1))) == before
        if not same or not step or (start * unit) % step or math.prod(behind) % step:
            continue
        around, more = shape[:axis], shape[axis + 1 :]
        y = s.reshaped(x, (*around, const(math.prod(behind) // step), *more), node)
        at = tuple(const(start * unit // step if d == axis else 0) for d in range(len(shape)))
        return replace(node, inputs=(y,), attrs=Slice(at, (1,) * len(shape), (*around, count, *more)))
    return None


def _transpose(s: State, node: Node) -> Result:
    """Turn transposes that only move axes of size 1 into reshapes, and merge consecutive ones."""
    (x,), perm = node.inputs, node.of(Transpose).perm
    shape = s.shape(x)
    real = [p for p in perm if not is_const(shape[p], 1)]
    if real == sorted(real):
        return _as_reshape(s, node, x)
    inner = s.producer(x, Transpose)
    if inner is None:
        return None
    composed = tuple(inner.of(Transpose).perm[p] for p in perm)
    return replace(node, inputs=inner.inputs, attrs=Transpose(composed))


def _as_reshape(s: State, node: Node, x: str) -> Result:
    shape = s.shape(node.outputs[0])
    if s.shape(x) == shape:
        return x
    return replace(node, inputs=(x,), attrs=Reshape(shape))


def _expand(s: State, node: Node) -> Result:
    """Remove expansions to the same elements, and merge consecutive ones."""
    (x,), shape = node.inputs, s.shape(node.outputs[0])
    own = s.shape(x)
    if shape[len(shape) - len(own) :] == own and all(is_const(d, 1) for d in shape[: len(shape) - len(own)]):
        return _as_reshape(s, node, x)
    inner = s.producer(x, Expand)
    return None if inner is None else replace(node, inputs=inner.inputs)


def _slice(s: State, node: Node) -> Result:
    """Remove slices of everything, and merge consecutive ones."""
    (x,), cut = node.inputs, node.of(Slice)
    if cut.shape == s.shape(x) and all(is_const(b, 0) for b in cut.starts) and all(t == 1 for t in cut.steps):
        return x
    inner = s.producer(x, Slice)
    if inner is None:
        return None
    first = inner.of(Slice)
    pairs = zip(first.starts, cut.starts, first.steps, strict=True)
    begin = tuple(simplify_expr(f + b * t) for f, b, t in pairs)
    steps = tuple(a * b for a, b in zip(first.steps, cut.steps, strict=True))
    return replace(node, inputs=inner.inputs, attrs=Slice(begin, steps, cut.shape))


def _concat(s: State, node: Node) -> Result:
    """Remove a concatenation of one operand, and merge concatenations along the same axis."""
    if len(node.inputs) == 1:
        return node.inputs[0]
    parts: list[str] = []
    for name in node.inputs:
        inner = s.producer(name, Concat)
        same = inner is not None and inner.attrs == node.attrs and s.single_use(name)
        parts.extend(inner.inputs if inner is not None and same else (name,))
    return None if len(parts) == len(node.inputs) else replace(node, inputs=tuple(parts))


def _pad(s: State, node: Node) -> Result:
    return node.inputs[0] if all(is_const(p, 0) for p in node.of(Pad).pads) else None


def _gather(s: State, node: Node) -> Result:
    """Turn a gather of evenly spaced constant positions into a slice (and a reshape, for a scalar)."""
    x, index = node.inputs
    at, axis, shape = s.constants.get(index), node.of(Gather).axis, s.shape(x)
    if at is None or at.ndim > 1 or at.size == 0:
        return None
    where = [int(i) for i in at.reshape(-1)]
    step = where[1] - where[0] if len(where) > 1 else 1
    even = step != 0 and where == list(range(where[0], where[0] + step * len(where), step))
    size = shape[axis]
    inside = all(prove(_in_range(i, size), s.graph.symbols) for i in (where[0], where[-1]))
    if not even or not inside or (min(where) < 0 <= max(where)):
        return None
    start = const(where[0]) if where[0] >= 0 else simplify_expr(size + where[0])
    starts = tuple(start if d == axis else const(0) for d in range(len(shape)))
    steps = tuple(step if d == axis else 1 for d in range(len(shape)))
    taken = (*shape[:axis], const(len(where)), *shape[axis + 1 :])
    attrs = Slice(starts, steps, taken)
    if at.ndim == 1:
        return replace(node, inputs=(x,), attrs=attrs)
    part = s.add(attrs, [x], f"{node.name}.slice", node.source)
    return _as_reshape(s, node, part)


def _in_range(i: int, size: Expr) -> Expr:
    return size > i if i >= 0 else size >= -i


def _index_check(s: State, node: Node) -> Result:
    """Check many indices in parts, by several threads. The final check sees each part's smallest wrong
    index."""
    (x,), check = node.inputs, node.of(IndexCheck)
    count = math.prod(static_shape(s.shape(x)) or ())
    parts = next((n for n in range(MOST_PARTS, 1, -1) if count % n == 0), 1)
    if count < MANY or parts == 1 or len(check.sizes) > 1:
        return None
    flat = Buffer("x0", s.dtype(x), (const(parts), const(count // parts)))
    out = Buffer("out", I64, flat.shape[:1])
    body = reduction(
        out, flat.shape[1:], "min", lambda i, k: check.wrong(cast(I64, flat[(*i, *k)]), check.sizes[0])
    )
    wrong = s.add(Compute((body,)), [s.reshaped(x, flat.shape, node)], f"{node.name}.parts", node.source)
    return replace(node, inputs=(wrong,), attrs=replace(check, ignored=IN_RANGE))


def _reduce(s: State, node: Node) -> Result:
    """Drop reductions over axes of size 1."""
    (x,), own = node.inputs, node.of(Reduce)
    axes = own.axes
    shape = s.shape(x)
    real = tuple(a for a in axes if not is_const(shape[a], 1))
    if len(real) == len(axes):
        return None
    if not real:
        return _as_reshape(s, node, x)
    if own.keepdims:
        return replace(node, attrs=replace(own, axes=real))
    dropped = [a for a in axes if a not in real]
    kept = [i for i in range(len(shape)) if i not in dropped]
    inner = s.reshaped(x, tuple(shape[i] for i in kept), node)
    return replace(node, inputs=(inner,), attrs=replace(own, axes=tuple(kept.index(a) for a in real)))


# --- contractions ----------------------------------------------------------------------------


def _conv_pad(s: State, node: Node) -> Result:
    """Move zero padding of a convolution's spatial axes into the convolution. The layout pass decides later
    where padding happens."""
    conv = node.of(Conv)
    pad = s.producer(node.inputs[0], Pad) if conv.layout == "first" else None
    if pad is None or pad.of(Pad).mode != "constant" or pad.of(Pad).value != 0:
        return None
    amounts = [int(p.value) if isinstance(p, Const) else -1 for p in pad.of(Pad).pads]
    rank = len(amounts) // 2
    spatial = [i + end for end in (0, rank) for i in range(2, rank)]
    if min(amounts) < 0 or any(a for i, a in enumerate(amounts) if i not in spatial):
        return None
    pads = tuple(p + amounts[i] for p, i in zip(conv.pads, spatial, strict=True))
    return replace(node, inputs=(pad.inputs[0], node.inputs[1]), attrs=replace(conv, pads=pads))


def _matmul_transpose(s: State, node: Node) -> Result:
    """Let a product read a transposed operand directly. If more axes are transposed, a transpose before the
    product keeps the others."""
    own = node.of(MatMul)
    for i in range(2):
        inner = s.producer(node.inputs[i], Transpose)
        if inner is None:
            continue
        perm = inner.of(Transpose).perm
        rank = len(perm)
        swapped = (*perm[:-2], perm[-1], perm[-2])
        plain = swapped == tuple(range(rank))
        contiguous = perm[-1] != rank - 1 and swapped[-1] == rank - 1 and s.single_use(node.inputs[i])
        if not plain and not contiguous:
            continue
        x = inner.inputs[0]
        if not plain:
            x = s.add(Transpose(swapped), [x], f"{inner.name}.swapped", inner.source)
        inputs = (x, node.inputs[1]) if i == 0 else (node.inputs[0], x)
        a, b = own.transpose_a != (i == 0), own.transpose_b != (i == 1)
        return replace(node, inputs=inputs, attrs=replace(own, transpose_a=a, transpose_b=b))
    return None


RULES: Mapping[str, Sequence[Rule]] = {
    "reshape": (_reshape, _reshape_of_part),
    "transpose": (_transpose,),
    "expand": (_expand,),
    "slice": (_slice,),
    "concat": (_concat,),
    "pad": (_pad,),
    "index_check": (_index_check,),
    "gather": (_gather,),
    "reduce": (_reduce,),
    "conv": (_conv_pad,),
    "matmul": (_matmul_transpose,),
    "map": MAP_RULES,
}
