"""Values that live in a part of another's memory, so that joining and cutting tensors moves no bytes.

A concatenation's parts are written where they belong in the result: `fuse` leaves such a
concatenation alone (`standing`), and the pass `place` takes the copying kernel away. A slice that
kernels read needs no memory of its own either. Both stay in the graph as the core operators they
are; `views` says where their values lie, and kernels are made for that (`placed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from jangin.ir.core import Concat, Kernel, Map, Slice
from jangin.ir.expr import Buffer, Expr, Load, Var, const, is_const, rewrite
from jangin.ir.graph import Graph, Node, Value, static_shape
from jangin.ir.loop import Func, replace_buffer
from jangin.ir.simplify import Range, simplify
from jangin.ir.te import Stage
from jangin.ops.core import CORE

HALF = 0.5
"""The share of a result's elements that must need no copy."""

# -- which ----------------------------------------------------------------------------------------


def standing(graph: Graph) -> frozenset[str]:
    """The concatenations of a graph of core operators, by result, half of whose bytes or more can be
    written in place by kernels that write them anyway."""
    found: set[str] = set()
    made: set[str] = set()
    parts = _Parts(graph)
    for node in graph.nodes:
        name = node.outputs[0]
        if node.op == "concat" and parts.gain(node, made) >= HALF:
            parts.take(node, made)
            found.add(name)
            made.add(name)
        elif _is_written(graph, node, made):
            made.add(name)
    return frozenset(found)


def _is_written(graph: Graph, node: Node, made: Set[str]) -> bool:
    """Whether a kernel stores the node's result: an anchor's, and of maps that one may end with."""
    if node.op == "map":
        shape = graph.shape(node.outputs[0])
        return any(n in made and graph.shape(n) == shape for n in node.inputs)
    return node.op not in CORE or CORE[node.op].kind not in ("injective", "alias")


class _Parts:
    """Which operands of concatenations may lie in the result: those that no other concatenation has
    taken, and that aren't read as another shape, or by the caller."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.taken: set[str] = set()
        users = graph.consumers()
        self.kept = {n for n, nodes in users.items() if any(u.op == "reshape" for u in nodes)}
        self.kept.update(graph.outputs)

    def fits(self, node: Node, name: str, made: Set[str]) -> bool:
        free = name in made and name not in self.taken and name not in self.kept
        return free and node.inputs.count(name) == 1

    def gain(self, node: Node, made: Set[str]) -> float:
        """The share of a concatenation's elements that needs no copy; 0 where that isn't known."""
        sizes = static_shape(tuple(self.graph.shape(n)[node.of(Concat).axis] for n in node.inputs))
        if not sizes or not sum(sizes):
            return 0.0
        return sum(k for n, k in zip(node.inputs, sizes, strict=True) if self.fits(node, n, made)) / sum(
            sizes
        )

    def take(self, node: Node, made: Set[str]) -> None:
        self.taken.update(n for n in node.inputs if self.fits(node, n, made))


def place(graph: Graph) -> Graph:
    """A fused graph whose copying kernels, those that only join kernels' results or cut what kernels
    read, are concatenations and slices between kernels. A part that can't be written in place is copied."""
    return _slices(_joins(graph))


def _joins(graph: Graph) -> Graph:
    parts = _Parts(graph)
    made: set[str] = set()
    nodes: list[Node] = []
    values = dict(graph.values)
    for kernel in graph.nodes:
        node = _alone(kernel, "concat")
        if node is None or parts.gain(node, made) < HALF:
            nodes.append(kernel)
            made.update(kernel.outputs if kernel.op == "kernel" else ())
            continue
        inputs = []
        for n, name in enumerate(node.inputs):
            if not parts.fits(node, name, made):
                copied = f"{node.outputs[0]}.part{n}"
                values[copied] = replace(values[name], name=copied)
                nodes.append(_copy(name, copied, values, kernel))
                made.add(copied)
                name = copied
            inputs.append(name)
        node = replace(node, inputs=tuple(inputs), source=kernel.source)
        parts.take(node, made)
        made.update(node.outputs)
        nodes.append(node)
    return graph.with_nodes(nodes, values=values)


def _slices(graph: Graph) -> Graph:
    users = graph.consumers()
    nodes = []
    for kernel in graph.nodes:
        node = _alone(kernel, "slice")
        if node is not None and node.inputs[0] not in graph.constants:
            (out,) = node.outputs
            read = all(u.op == "kernel" for u in users.get(out, ())) and out not in graph.outputs
            if read and _is_plain(node):
                kernel = replace(node, source=kernel.source)
        nodes.append(kernel)
    return graph.with_nodes(nodes)


def _is_plain(node: Node) -> bool:
    """Whether a slice takes neighbours, from a constant place on."""
    cut = node.of(Slice)
    return static_shape(cut.starts) is not None and all(t == 1 for t in cut.steps)


def _alone(kernel: Node, op: str) -> Node | None:
    """The kernel's node, where it has one only, of that operator, over the kernel's own operands."""
    body = kernel.attrs.body if isinstance(kernel.attrs, Kernel) else None
    if body is None or body.constants or len(body.nodes) != 1:
        return None
    (node,) = body.nodes
    return node if node.op == op else None


def _copy(name: str, out: str, values: Mapping[str, Value], like: Node) -> Node:
    dtype = values[name].dtype
    assert dtype is not None
    node = Node(out, (name,), (out,), Map(Var("x0", dtype)), like.source)
    body = Graph(out, (name,), (out,), (node,), {}, {n: values[n] for n in (name, out)})
    return Node(out, (name,), (out,), Kernel(body), like.source)


# -- where ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A value's place: in the memory of the value `base`, from the element `at` on in every axis."""

    base: str
    at: tuple[int, ...]


def views(graph: Graph) -> dict[str, View]:
    """The values of a placed graph that have no memory of their own."""
    direct: dict[str, View] = {}
    for node in graph.nodes:
        (out, *_) = node.outputs
        if isinstance(node.attrs, Slice):
            direct[out] = View(node.inputs[0], _numbers(node.attrs.starts))
        elif isinstance(node.attrs, Concat):
            start, axis = 0, node.attrs.axis
            for name in node.inputs:
                shape = graph.shape(name)
                direct[name] = View(out, tuple(start if d == axis else 0 for d in range(len(shape))))
                start += _numbers(shape[axis : axis + 1])[0]
    return {name: _resolved(name, direct) for name in direct}


def _numbers(sizes: Sequence[Expr]) -> tuple[int, ...]:
    numbers = static_shape(tuple(sizes))
    assert numbers is not None
    return numbers


def _resolved(name: str, direct: Mapping[str, View]) -> View:
    view = direct[name]
    while view.base in direct:
        outer = direct[view.base]
        view = View(outer.base, tuple(a + b for a, b in zip(view.at, outer.at, strict=True)))
    return view


@dataclass(frozen=True)
class Shift:
    """The buffer `whole` that a kernel has for a parameter which is a part of it, and where that starts.
    Where in a buffer the result goes is a symbol of the kernel (`symbols`), so that equal kernels that
    write different parts of one tensor are one."""

    whole: Buffer
    at: tuple[Expr, ...]
    symbols: Mapping[Var, Range]

    def index(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(simplify(i + a) for i, a in zip(index, self.at, strict=True))


def shifts(
    inputs: Sequence[Buffer], out: Buffer, args: Sequence[str], found: Mapping[str, View], graph: Graph
) -> dict[str, Shift]:
    """What a kernel's parameters are whose arguments are views, by the parameter's name."""
    moved: dict[str, Shift] = {}
    for p, arg in zip((*inputs, out), args, strict=True):
        if arg in found:
            whole = replace(p, shape=graph.shape(found[arg].base))
            at: list[Expr] = [const(n) for n in found[arg].at]
            ranges: dict[Var, Range] = {}
            if p.name == out.name:
                names = places(p)
                for d, (start, n) in enumerate(zip(at, names, strict=True)):
                    if not is_const(start, 0):
                        at[d], ranges[n] = n, (const(0), simplify(whole.shape[d] - p.shape[d]))
            moved[p.name] = Shift(whole, tuple(at), ranges)
    return moved


def places(out: Buffer) -> tuple[Var, ...]:
    """The symbols, for every axis, for where a kernel's result starts."""
    return tuple(Var(f"{out.name}.at{d}") for d in range(len(out.shape)))


def placed(stages: Sequence[Stage], moved: Mapping[str, Shift]) -> tuple[Stage, ...]:
    """A kernel's stages over whole buffers in place of parts of them."""
    *local, last = (_loading(s, moved) for s in stages)
    if last.out.name in moved:
        last = replace(last, out=moved[last.out.name].whole, at=moved[last.out.name].at)
    return (*local, last)


def placed_func(func: Func, moved: Mapping[str, Shift]) -> Func:
    """The same of a loop nest."""
    body = func.body
    for name, shift in moved.items():
        body = replace_buffer(body, name, shift.whole, shift.index)
    params = tuple(moved[p.name].whole if p.name in moved else p for p in func.params)
    symbols = (*func.symbols, *(s for m in moved.values() for s in m.symbols.items()))
    return replace(func, params=params, symbols=symbols, body=body)


def _loading(stage: Stage, moved: Mapping[str, Shift]) -> Stage:
    def load(e: Expr) -> Expr | None:
        shift = moved.get(e.buffer.name) if isinstance(e, Load) else None
        return Load(shift.whole, shift.index(e.index)) if shift and isinstance(e, Load) else None

    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, load)
    return replace(stage, body=rewrite(stage.body, load), epilogue=epilogue)
