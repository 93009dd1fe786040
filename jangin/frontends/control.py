"""Lower branches and loops: resolve them at compile time if possible, else make steps of a program.

A branch with a constant condition is replaced by its body. A loop of few iterations is unrolled, so that it
becomes part of a plan. Otherwise the bodies become separate graphs. The outer values that they read become
further inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.frontends.dialect import Run, Scope
from jangin.frontends.order import captured
from jangin.ir.core import IfStep, LoopStep
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Const, Expr, Var, const, eq, maximum
from jangin.ir.graph import FUNCTION, CompileError, Graph, ImportedAttributes, Node
from jangin.ir.program import Slicing
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars
from jangin.ir.types import ANY, Type, tensor_type
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item, NonTensor, common, constant, declare, host, real, type_of
from jangin.ops.values import Tensor
from jangin.passes.partition import prune

Branches = tuple[Graph, Graph]
"""The sub-graphs for a true and a false condition. They have equally many results."""
UNROLL = 64
"""A loop is unrolled if it has at most this many iterations. More would make compiling slow, and a step costs
little beside so many iterations."""
UNROLL_NODES = 1024
"""An unrolled loop may become at most this many nodes of the model, because the time to compile grows with
them."""
SPLITS = 4
"""Nodes after a branch are moved into both bodies for at most this many branches inside each other. Each
branch doubles the nodes, so four make at most 16 copies."""


class RanksDiffer(Exception):
    """The two bodies of a branch give tensors of different rank."""

    def __init__(self, condition: Tensor, branches: Branches) -> None:
        super().__init__()
        self.condition, self.branches = condition, branches


def continued(
    node: Node, branches: Branches, rest: Sequence[Node], outputs: Sequence[str]
) -> tuple[tuple[str, ...], Branches]:
    """Move the nodes after a branch into both of its bodies. Return the names of the new branch's results,
    and the bodies.

    The results are those values of the branch or of the moved nodes that `outputs` names."""
    produced = {o for n in rest for o in n.outputs} | {*node.outputs}
    wanted = tuple(o for o in outputs if o in produced)

    def after(body: Graph) -> Graph:
        same = Graph("", body.outputs, body.outputs, (), {}, {})
        named = Node(
            node.name, body.outputs, node.outputs, ImportedAttributes(FUNCTION, {"body": same}), node.source
        )
        return replace(body, nodes=(*body.nodes, named, *rest), outputs=wanted)

    return wanted, (after(branches[0]), after(branches[1]))


def branch(
    b: Builder, run: Run, condition: Tensor, branches: Branches, scope: Scope, any_rank: bool = False
) -> list[Item]:
    """Lower a branch, and return its results. A branch with a constant condition becomes its body. Raises
    RanksDiffer if the bodies' results differ in rank, unless `any_rank`."""
    known = b.constant_value(condition)
    if known is not None:
        return run(b, branches[not known.reshape(-1)[0]], scope)
    before = frozenset(b.symbols)
    tried, reason = _tried(b, run, branches, scope)
    of_sizes = b.conditions.get(condition.name)
    if None in tried and of_sizes is not None:
        fine = tried[0] is not None
        needed = of_sizes if fine else eq(of_sizes, const(False, BOOL))
        results = run(b, branches[not fine], scope)
        return [b.requiring(r, needed) if isinstance(r, Tensor) else r for r in results]
    then, orelse = _with_failing(b, tried, reason)
    pairs = [(type_of(x), type_of(y)) for x, y in zip(then.results, orelse.results, strict=True)]
    if not any_rank and any(_ranks_differ(x, y) for x, y in pairs):
        raise RanksDiffer(condition, branches)
    types = [_outer(b, _joined(b, x, y), before) for x, y in pairs]
    outputs = [declare(b, t) for t in types]
    reads = [b.materialize(condition).name, *then.captures, *orelse.captures]
    b.step(IfStep(then=then.graph, orelse=orelse.graph), reads, [v.name for v in outputs])
    return outputs


def _tried(
    b: Builder, run: Run, branches: Branches, scope: Scope
) -> tuple[list[Body | None], CompileError | None]:
    """Lower both branches, and return them. A branch that can't be lowered is None, because a model may guard
    against it. Its error is returned too.

    Raises CompileError if both branches fail."""
    bodies: list[Body | None] = []
    reason: CompileError | None = None
    for graph in branches:
        try:
            bodies.append(body_of(b, run, graph, (), scope))
        except CompileError as error:
            if reason is not None:
                raise reason from None
            bodies.append(None)
            reason = error
    return bodies, reason


def _with_failing(b: Builder, tried: Sequence[Body | None], reason: CompileError | None) -> list[Body]:
    """Return both bodies, with an error at run time in place of a body that couldn't be lowered."""
    fine = next(body for body in tried if body is not None)
    return [_failing(b, fine, str(reason)) if body is None else body for body in tried]


def _failing(b: Builder, other: Body, message: str) -> Body:
    inner = Builder(other.graph.name, {}, b.tile, b.unchecked, b.whole, layers=b.layers)
    inner.symbols, inner.source = b.symbols, b.source
    results = list(host(inner, "Raise", [], [type_of(r) for r in other.results], {"message": message}))
    names = tuple(r.name for r in results)
    graph = Graph(other.graph.name, (), names, tuple(inner.nodes), {}, inner.values, b.symbols)
    return Body(graph, results, [])


def _ranks_differ(a: Type, c: Type) -> bool:
    return a.shape is not None and c.shape is not None and len(a.shape) != len(c.shape)


@dataclass(frozen=True)
class Body:
    """A lowered sub-graph. Its last inputs are the outer values with the names `captures`."""

    graph: Graph
    results: list[Item]
    captures: list[str]


def body_of(b: Builder, run: Run, graph: Graph, given: Sequence[Type], scope: Scope) -> Body:
    """Lower a sub-graph whose own inputs have the types `given`."""
    inner = Builder(graph.name, {}, b.tile, b.unchecked, b.whole, layers=b.layers)
    inner.symbols, inner.source, inner.prefix = b.symbols, b.source, b.prefix
    local: dict[str, Item | None] = {}
    formal = [declare(inner, t, n) for t, n in zip(given, graph.inputs, strict=True)]
    outside: dict[str, str] = {}
    for name in sorted(captured(graph)):
        local[name] = _capture(b, inner, scope[name], name, outside)
    local.update(zip(graph.inputs, formal, strict=True))
    results = run(inner, graph, local)
    names = tuple(real(inner, r) for r in results)
    own = tuple(v.name for v in formal)
    lowered = prune(
        Graph(graph.name, own, names, tuple(inner.nodes), inner.constants, inner.values, b.symbols)
    )
    read = {n for node in lowered.nodes for n in node.inputs} | {*names}
    used = [n for n in outside if n in read]
    values = {**lowered.values, **{n: inner.values[n] for n in used}}
    lowered = replace(lowered, inputs=(*own, *used), values=values)
    return Body(lowered, results, [outside[n] for n in used])


def _capture(
    b: Builder, inner: Builder, value: Item | None, name: str, outside: dict[str, str]
) -> Item | None:
    """Return an outer value as an input or constant of the body. The names of inputs are entered in
    `outside`, with the outer value's name."""
    if value is None:
        return None
    if isinstance(value, NonTensor) and value.items is not None:
        items = [_capture(b, inner, v, f"{name}.{i}", outside) for i, v in enumerate(value.items)]
        return replace(value, items=tuple(items))
    if isinstance(value, Tensor) and value.data is not None:
        return replace(value, name="")
    if value.name in b.constants:
        return constant(inner, b.constants[value.name], name)
    seen = declare(inner, type_of(value), name)
    outside[seen.name] = value.name
    return seen


def _joined(b: Builder, a: Type, c: Type) -> Type:
    """Return the type of a value that comes from either branch. Sizes that differ become new symbols."""
    if a.shape is not None and c.shape is not None and len(a.shape) == len(c.shape) and a.dtype == c.dtype:
        dims = (x if x == y else b.symbol() for x, y in zip(a.shape, c.shape, strict=True))
        return tensor_type(a.dtype, tuple(dims))
    joined = common(a, c)
    assert joined is not None
    return joined


def _outer(b: Builder, type: Type, before: frozenset[Var]) -> Type:
    """Return the type of a body's result outside of the body. Sizes that only the body knows become new
    symbols."""
    if type.of is not None:
        return replace(type, of=_unsized(type.of))
    if type.shape is None:
        return type
    fresh = {*b.pending}
    known = (d if free_vars(d) <= before | fresh else b.symbol() for d in type.shape)
    return replace(type, shape=tuple(known))


def _unsized(element: Type) -> Type:
    """Return the type of a sequence's elements, whose sizes may differ. Only constant sizes are kept."""
    if element.of is not None:
        return replace(element, of=_unsized(element.of))
    if element.shape is None:
        return element
    return replace(element, shape=tuple(d if isinstance(d, Const) else ANY for d in element.shape))


@dataclass(frozen=True)
class Iteration:
    """A loop in its general form (see `ir.program.Loop`).

    The body's results are the next condition if the loop `counts`, the next carried values, and the slices to
    stack."""

    body: Graph
    trips: Tensor | None
    condition: Tensor | None
    carried: list[Item]
    scanned: list[Tensor]
    slicing: tuple[Slicing, ...]
    stacking: tuple[Slicing, ...]
    counts: bool
    """Whether the body takes the iteration's number and the condition, and returns a condition."""


def scalar(b: Builder, value: Item | None) -> Tensor | None:
    """Return a value of one element as a tensor without axes, or None for None. Raises CompileError if the
    value is no tensor."""
    if isinstance(value, NonTensor):
        raise CompileError(f"a condition or a number of iterations can't be {value}")
    return None if value is None else b.reshape(value, ())


def iterate(b: Builder, run: Run, it: Iteration, scope: Scope) -> list[Item]:
    """Lower a loop, and return its results. It is unrolled if its iterations are few and their number is
    known, else it becomes a step."""
    kept, it, scope = _invariants_captured(it, scope)
    results = _unrolled(b, run, it, scope)
    rest = iter(_as_step(b, run, it, scope) if results is None else results)
    return [*(next(rest) if v is None else v for v in kept), *rest]


def _invariants_captured(it: Iteration, scope: Scope) -> tuple[list[Item | None], Iteration, Scope]:
    """Remove the carried values that the loop's body returns unchanged. The body then reads them as outer
    values, or as constants.

    Some converters carry a model's weights in this way. The first result has each removed value at its
    position, and None for the others."""
    before, heads = 2 * it.counts, int(it.counts)
    inputs, outputs = list(it.body.inputs), list(it.body.outputs)
    kept: list[Item | None] = [
        v if inputs[before + n] == outputs[heads + n] else None for n, v in enumerate(it.carried)
    ]
    scope = {**scope, **{inputs[before + n]: v for n, v in enumerate(kept) if v is not None}}
    for n in reversed(range(len(kept))):
        if kept[n] is not None:
            del inputs[before + n], outputs[heads + n]
    body = replace(it.body, inputs=tuple(inputs), outputs=tuple(outputs))
    carried = [v for v, k in zip(it.carried, kept, strict=True) if k is None]
    return kept, replace(it, body=body, carried=carried), scope


def _unrolled(b: Builder, run: Run, it: Iteration, scope: Scope) -> list[Item] | None:
    limit = b.constant_value(it.trips)
    if it.trips is not None and limit is None:
        return None
    most = UNROLL + 1 if limit is None else max(int(limit.reshape(())), 0)
    size = max(_count(it.body), 1)
    if (limit is not None and most > UNROLL) or min(most, UNROLL) * size > UNROLL_NODES:
        return None
    saved = _mark(b)
    carried, collected = list(it.carried), [list[Tensor]() for _ in it.stacking]
    going = it.condition
    for n in range(most):
        holds = True if going is None else b.constant_value(going)
        if holds is None or n >= UNROLL:
            _back(b, saved)
            return None
        if not np.all(holds):
            break
        results = run(b, it.body, _iteration(b, it, scope, n, going, carried))
        if it.counts:
            going = scalar(b, results.pop(0))
        carried = results[: len(carried)]
        for group, value in zip(collected, results[len(carried) :], strict=True):
            assert isinstance(value, Tensor)
            group.append(value)
    if any(not group for group in collected):
        _back(b, saved)
        return None
    return [*carried, *(_stacked(b, g, s) for g, s in zip(collected, it.stacking, strict=True))]


def _mark(b: Builder) -> tuple[Any, ...]:
    return len(b.nodes), dict(b.values), dict(b.constants), list(b.pending), dict(b.bound)


def _back(b: Builder, mark: tuple[Any, ...]) -> None:
    """Remove everything that was added to the builder since `mark`."""
    del b.nodes[mark[0] :]
    b.values, b.constants, b.pending, b.bound = mark[1], mark[2], mark[3], mark[4]


def _count(graph: Graph) -> int:
    """Return the number of nodes, including those of sub-graphs."""
    inner = (v for n in graph.nodes for v in n.attrs.named().values() if isinstance(v, Graph))
    return len(graph.nodes) + sum(map(_count, inner))


def _iteration(
    b: Builder, it: Iteration, scope: Scope, n: int, going: Tensor | None, carried: Sequence[Item]
) -> Scope:
    """Return the values that the body reads in iteration `n`, by name. `going` is the condition."""
    own: list[Item] = []
    if it.counts:
        own = [b.reshape(b.sizes([n]), ()), b.const(np.array(True)) if going is None else going]
    slices = []
    for t, s in zip(it.scanned, it.slicing, strict=True):
        at = t.shape[s.axis] - 1 - n if s.reverse else const(n)
        slices.append(b.gather(t, b.reshape(b.sizes([at]), ()), s.axis))
    return {**scope, **dict(zip(it.body.inputs, (*own, *carried, *slices), strict=True))}


def _stacked(b: Builder, parts: list[Tensor], s: Slicing) -> Tensor:
    axis = axis_of(s.axis, parts[0].rank + 1)
    rows = [b.reshape(p, (*p.shape[:axis], const(1), *p.shape[axis:])) for p in parts]
    return b.concat(rows[::-1] if s.reverse else rows, axis)


def _as_step(b: Builder, run: Run, it: Iteration, scope: Scope) -> list[Item]:
    before = frozenset(b.symbols)
    carried = [_settled(b, v) for v in it.carried]
    types = [type_of(v) for v in carried]
    slices = [_slice_type(t, s) for t, s in zip(it.scanned, it.slicing, strict=True)]
    own = [tensor_type(I64, ()), tensor_type(BOOL, ())]
    graph = it.body if it.counts else replace(it.body, inputs=("", "", *it.body.inputs))
    while True:
        body = body_of(b, run, graph, (*own, *types, *slices), scope)
        if it.counts and type_of(body.results[0]).dtype is not BOOL:
            raise CompileError(f"the body's condition is {body.results[0]}, and should be a truth value")
        next_types = [type_of(r) for r in body.results[it.counts : it.counts + len(types)]]
        wider = [_widened(b, t, m) for t, m in zip(types, next_types, strict=True)]
        b.pending.clear()
        if wider == types:
            break
        types = wider
    always = not it.counts or _holds(b, it.condition, body.graph)
    graph = replace(body.graph, outputs=body.graph.outputs[it.counts and always :])
    trips = it.trips.data.item() if always and it.trips is not None and it.trips.data is not None else None
    results = [_outer(b, t, before) for t in types]
    stacked = [
        _stack_type(b, _outer(b, type_of(r), before), s, trips)
        for r, s in zip(body.results[it.counts + len(types) :], it.stacking, strict=True)
    ]
    outputs = [declare(b, t) for t in (*results, *stacked)]
    heads = ["" if t is None else b.materialize(t).name for t in (it.trips, it.condition)]
    reads = [*heads, *(real(b, v) for v in (*carried, *it.scanned)), *body.captures]
    step = LoopStep(
        body=graph, carried=len(carried), conditional=not always, scanned=it.slicing, collected=it.stacking
    )
    b.step(step, reads, [v.name for v in outputs])
    return outputs


def _settled(b: Builder, value: Item) -> Item:
    """Return a carried value before the first iteration. Its contents are treated as unknown, because
    iterations change them."""
    if isinstance(value, Tensor):
        tensor = b.materialize(value)
        return Tensor(tensor.name, tensor.dtype, tensor.shape)
    return NonTensor(real(b, value), value.type)


def _widened(b: Builder, type: Type, made: Type) -> Type:
    """Return a type that a carried value has in every iteration. It starts as `type`, and is `made` after an
    iteration. Raises CompileError if its dtype changes."""
    if type.kind != "tensor" or made.kind != "tensor":
        joined = common(type, made)
        assert joined is not None
        return joined if joined.of is None else replace(joined, of=_unsized(joined.of))
    if type.dtype != made.dtype:
        raise CompileError(f"a carried value starts as {type}, but is {made} after an iteration")
    if type.shape is None or made.shape is None or len(type.shape) != len(made.shape):
        return tensor_type(type.dtype, None)
    dims: list[Expr] = []
    for old, new in zip(type.shape, made.shape, strict=True):
        changes = isinstance(old, Var) and old.name.startswith(CHANGING)
        dims.append(old if old == new or changes else _changing(b))
    return tensor_type(type.dtype, tuple(dims))


CHANGING = "each_"
"""The prefix of the names of sizes that have another value in each iteration."""


def _changing(b: Builder) -> Var:
    prefix, b.prefix = b.prefix, CHANGING + b.prefix
    var = b.symbol()
    b.prefix = prefix
    return var


def _slice_type(t: Tensor, s: Slicing) -> Type:
    return tensor_type(t.dtype, tuple(d for i, d in enumerate(t.shape) if i != s.axis))


def _holds(b: Builder, first: Tensor | None, body: Graph) -> bool:
    """Tell if a loop's condition is known to be true at every iteration. `first` is the condition before the
    loop."""
    result = body.outputs[0]
    if first is not None:
        known = b.constant_value(first)
        if known is None or not np.all(known):
            return False
    return result == body.inputs[1] or bool(np.all(body.constants.get(result, False)))


def _stack_type(b: Builder, element: Type, s: Slicing, trips: Expr | None) -> Type:
    if element.shape is None:
        return element
    axis = axis_of(s.axis, len(element.shape) + 1)
    count = b.symbol() if trips is None else simplify(maximum(trips, 0), b.symbols)
    return tensor_type(element.dtype, (*element.shape[:axis], count, *element.shape[axis:]))
