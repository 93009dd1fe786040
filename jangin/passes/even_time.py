"""Runs that take the same time for all data, as far as a model allows.

Both branches of a condition are computed, and the results are chosen element by element. Everything else in a
model whose time depends on data is named. Arithmetic isn't looked into: a processor may take longer for
subnormal numbers, and a function for large arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from jangin.ir.core import BindStep, HostStep, IfStep, LoopNest, LoopStep, Map, Reshape
from jangin.ir.dtype import BOOL
from jangin.ir.expr import Binary, Const, Expr, Var, const, select
from jangin.ir.graph import Graph, Node
from jangin.ir.loop import For, If, Let, Stmt, sub_statements
from jangin.ir.traversal import buffers_loaded, free_vars, walk
from jangin.ops.editor import Editor
from jangin.passes.partition import has_steps

DIVISIONS = frozenset({"div", "floordiv", "rem", "mod"})
"""Operators whose integers fail for a divisor of 0."""


def both_branches(graph: Graph) -> Graph:
    """Return a lowered graph that computes both branches of each condition, where this is possible (see
    `why_apart`)."""
    nodes = [_inside(n) for n in graph.nodes]
    if all(why_apart(n) for n in nodes if isinstance(n.attrs, IfStep)):
        return replace(graph, nodes=tuple(nodes))
    run = Editor(graph.symbols, graph.values, graph.constants)
    for node in nodes:
        if isinstance(node.attrs, IfStep) and not why_apart(node):
            _chosen(run, node)
        else:
            run.emit(node)
    return run.rewritten(graph)


def _inside(node: Node) -> Node:
    """Return a step with both branches computed inside of it."""
    attrs = node.attrs
    if isinstance(attrs, IfStep):
        attrs = replace(attrs, then=both_branches(attrs.then), orelse=both_branches(attrs.orelse))
    elif isinstance(attrs, LoopStep):
        attrs = replace(attrs, body=both_branches(attrs.body))
    return replace(node, attrs=attrs)


def why_apart(node: Node) -> str:
    """Return why only one branch of a condition may run, or "" if both may."""
    attrs = node.of(IfStep)
    if attrs.symbols:
        return "its branches' results differ in size"
    for graph in (attrs.then, attrs.orelse):
        if has_steps(graph) or not {*graph.symbols} <= {*attrs.then.symbols} & {*attrs.orelse.symbols}:
            return "a branch has steps of its own"
        if any(n.attrs.lasting for n in graph.nodes):
            return "a branch checks indices, which may be wrong in the other case"
        if any(isinstance(n.attrs, LoopNest) for n in graph.nodes):
            return "a branch sorts, scans or scatters, which may fail in the other case"
        if any(_may_divide_by_zero(n) for n in graph.nodes):
            return "a branch divides integers, perhaps by 0"
    for a, b in zip(attrs.then.outputs, attrs.orelse.outputs, strict=True):
        x, y = attrs.then.value(a), attrs.orelse.value(b)
        if x.type is not None or y.type is not None or (x.dtype, x.shape) != (y.dtype, y.shape):
            return "its branches' results differ in type or size"
    return ""


def _may_divide_by_zero(node: Node) -> bool:
    body = node.attrs.body if isinstance(node.attrs, Map) else const(0)
    divisors = (e.b for e in walk(body) if isinstance(e, Binary) and e.op in DIVISIONS and e.dtype.is_int)
    return any(not isinstance(b, Const) or b.value == 0 for b in divisors)


def _chosen(run: Editor, node: Node) -> None:
    """Emit both branches of a condition, and the choice of each result."""
    attrs, (condition, *captures) = node.of(IfStep), node.inputs
    count = len(attrs.then.inputs)
    then = _inlined(run, attrs.then, captures[:count])
    orelse = _inlined(run, attrs.orelse, captures[count:])
    one = run.add(Reshape(()), (condition,), f"{condition}.one", node.source)
    for a, b, out in zip(then, orelse, node.outputs, strict=True):
        dtype = run.dtype(a)
        body = select(Var("x0", BOOL), Var("x1", dtype), Var("x2", dtype))
        run.emit(Node(out, (one, a, b), (out,), Map(body), node.source))


def _inlined(run: Editor, body: Graph, given: list[str]) -> list[str]:
    """Emit a branch's nodes, and return the names of its results."""
    names = dict(zip(body.inputs, given, strict=True))
    names |= {name: run.constant(array, name) for name, array in body.constants.items()}
    for node in body.nodes:
        for out in node.outputs:
            names[out] = run.declare(out, body.dtype(out), body.shape(out))
        run.emit(
            replace(
                node,
                name=names[node.outputs[0]],
                inputs=tuple(names.get(n, n) for n in node.inputs),
                outputs=tuple(names[n] for n in node.outputs),
            )
        )
    return [names[n] for n in body.outputs]


def uneven(graph: Graph) -> Iterator[str]:
    """Yield a text for each node of a lowered graph whose time depends on data: the node, and the reason."""
    told = set[str]()
    for node in graph.nodes:
        for text in (f"{node.source or node.name}: {reason}" for reason in _reasons(node, graph)):
            if text not in told:
                told.add(text)
                yield text
        for inner in node.attrs.named().values():
            if isinstance(inner, Graph):
                yield from uneven(inner)


def _reasons(node: Node, graph: Graph) -> Iterator[str]:
    attrs = node.attrs
    if isinstance(attrs, IfStep):
        yield f"only one branch runs, because {why_apart(node)}"
    elif isinstance(attrs, LoopStep):
        if attrs.conditional:
            yield "the loop ends when its condition fails"
        elif node.inputs[0] and node.inputs[0] not in graph.constants:
            yield "the loop's number of iterations is computed"
    elif isinstance(attrs, HostStep):
        yield f"the function {attrs.function} runs outside of the compiled code"
    elif isinstance(attrs, BindStep):
        yield "a size is computed from data"
    elif isinstance(attrs, LoopNest):
        fixed = frozenset(f"x{n}" for n, name in enumerate(node.inputs) if name in graph.constants)
        yield from _of_nest(attrs.body, fixed, {})


def _of_nest(s: Stmt, fixed: Set[str], known: Mapping[Var, bool]) -> Iterator[str]:
    """Yield why the time of a loop nest depends on data. `fixed` are the buffers of constants. `known` tells
    which variables depend on data."""

    def depends(e: Expr) -> bool:
        return not buffers_loaded(e) <= fixed or any(known.get(v, False) for v in free_vars(e))

    if isinstance(s, For) and depends(s.extent):
        yield "the length of an inner loop depends on data"
    if isinstance(s, If) and depends(s.cond):
        yield "a branch in its loops depends on data"
    if isinstance(s, Let):
        known = {**known, s.var: depends(s.value)}
    for inner in sub_statements(s):
        yield from _of_nest(inner, fixed, known)


__all__ = ["both_branches", "uneven", "why_apart"]
