"""Computes values a second time before their later readers, so that the arena is smaller (rematerialization).

A value may live at the peak of memory without being used there. It needn't live there if its kernel runs
again before the later readers. The same kernel gives the same bits. XLA repeats kernels one by one in this
way. The idea is Chen et al.'s (2016, "Training Deep Nets with Sublinear Memory Cost").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from jangin.ir.core import Concat, Kernel, Pad, Slice
from jangin.ir.expr import Const
from jangin.ir.graph import CompileError, Graph, Node, Value, static_shape
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.ir.sources import Source, Sources
from jangin.passes.partition import renamed
from jangin.passes.work import kernel_flops
from jangin.runtime.arena import layout
from jangin.runtime.sizes import Evaluator

AGAIN = "again"
"""The operator of the source that names a kernel's second run."""
FAR = 30
"""Launches between two readers of a padded copy from which on it is made again. Fewer launches are those of a
layer and its update, whose values take about as much memory as the copy."""
ATTEMPTS = 6
"""How often the budget is lowered by what the arena's gaps take. Each attempt plans the whole graph again,
and gaps change little after the first ones."""


def within(graph: Graph, budget: int, order: Callable[[Graph], Graph]) -> Graph:
    """Return the fused graph with kernels repeated until the arena takes at most `budget` bytes. `order` puts
    the nodes of a graph in order. It is applied to the graph and to the result. Raises CompileError if the
    arena stays larger, or if a size isn't known."""
    if any(static_shape(v.shape) is None for v in graph.values.values() if v.shape is not None):
        raise CompileError("a memory budget needs known sizes: fix them with shapes=")
    graph = least = order(graph)
    aim = budget
    for _ in range(ATTEMPTS):
        attempt = order(_lowered(graph, aim))
        if _arena(attempt) < _arena(least):
            least = attempt
        over = _arena(attempt) - budget
        if over <= 0:
            return attempt
        aim -= over
    raise CompileError(
        f"the arena takes {_arena(least)} bytes even if values are computed again, and checkpoint={budget}: "
        "give more, or a smaller batch"
    )


def with_copies_again(graph: Graph, order: Callable[[Graph], Graph]) -> Graph:
    """Return the ordered graph of a step with padded copies made again for readers much later, such as a
    weights' gradient. The copy's operand must be held until then. `order` puts a graph's nodes in order."""
    better, at = graph, 0
    while graph.updates and at < len(better.nodes):
        first = _late_reader(better, at)
        if first is not None:
            better, _ = repeated(better, at, first)
        at += 1
    return graph if better is graph else order(better)


def _late_reader(graph: Graph, at: int) -> int | None:
    """Return the number of the first reader of a padded copy that comes much later than the one before it.
    Return None if there is none, or if the operand isn't held until then."""
    node = graph.nodes[at]
    if not isinstance(node.attrs, Kernel) or is_again(node) or len(node.inputs) != 1:
        return None
    if not all(isinstance(n.attrs, Pad) for n in node.attrs.body.nodes):
        return None
    base = bases(graph)
    (source,) = (base.get(n, n) for n in node.inputs)
    uses = {source: [at], node.outputs[0]: [at]}
    for n, other in enumerate(graph.nodes[at + 1 :], at + 1):
        if isinstance(other.attrs, Kernel):
            for name in {base.get(x, x) for x in other.inputs} & uses.keys():
                uses[name].append(n)
    first = next((b for a, b in pairwise(uses[node.outputs[0]]) if b - a > FAR), None)
    held = source in graph.inputs or (first is not None and uses[source][-1] >= first)
    return first if held else None


def repeated_share(plan: Plan) -> float:
    """Return the work of kernels that run again, as a share of that of all others. Work is operations of
    products, and bytes moved."""
    again = [x for x in plan.launches if _names_again(x.sources)]
    value = Evaluator({})
    more, whole = (sum(value(x.flops) + value(x.bytes) for x in some) for some in (again, plan.launches))
    return more / max(1, whole - more)


def is_again(node: Node) -> bool:
    """Return whether a node is the second run of another node's kernel."""
    return _names_again(node.source or ())


def _names_again(sources: Iterable[Source]) -> bool:
    return any(s.operator == AGAIN for s in sources)


@dataclass(frozen=True)
class _Lives:
    """The lives of values in memory.

    - `base` maps a value to the value whose memory it lies in.
    - `bytes` has the size of each value in the arena.
    - `lives` has the numbers of the first and the last node that touch it. Values that tell of wrong indices
      live to the end, because they are read after all kernels.
    """

    base: Mapping[str, str]
    bytes: Mapping[str, int]
    lives: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, graph: Graph) -> _Lives:
        base = bases(graph)
        outside = {*graph.inputs, *graph.constants, *(base.get(n, n) for n in graph.outputs)}
        lives: dict[str, tuple[int, int]] = {}
        for at, node in enumerate(graph.nodes):
            if isinstance(node.attrs, Kernel):
                for name in (*node.inputs, *node.outputs):
                    own = base.get(name, name)
                    if own not in outside:
                        lives[own] = lives.get(own, (at, at))[0], at
        last = max((at for _, at in lives.values()), default=0)
        checks = (base.get(n.outputs[0], n.outputs[0]) for n in graph.nodes if n.attrs.lasting)
        lives |= {own: (lives[own][0], last) for own in checks if own in lives}
        return cls(base, {n: _size(graph, n) for n in lives}, lives)

    def held(self, count: int) -> list[int]:
        """Return the bytes of all values that live at each of the graph's `count` nodes."""
        change = [0] * (count + 1)
        for name, (first, last) in self.lives.items():
            change[first] += self.bytes[name]
            change[last + 1] -= self.bytes[name]
        total, sums = 0, []
        for more in change[:-1]:
            total += more
            sums.append(total)
        return sums


def _size(graph: Graph, name: str) -> int:
    sizes = [int(d.value) for d in graph.shape(name) if isinstance(d, Const)]
    return math.prod(sizes) * graph.dtype(name).bytes


def bases(graph: Graph) -> dict[str, str]:
    """Return the value in whose memory another value lies, for each value that is a view or a part."""
    direct: dict[str, str] = {}
    for node in graph.nodes:
        if isinstance(node.attrs, Concat):
            direct |= dict.fromkeys(node.inputs, node.outputs[0])
        elif not isinstance(node.attrs, Kernel):
            direct[node.outputs[0]] = node.inputs[0]
    roots = {}
    for name in direct:
        at = name
        while at in direct:
            at = direct[at]
        roots[name] = at
    return roots


def _arena(graph: Graph) -> int:
    lives = _Lives.of(graph)
    return layout([(n, lives.bytes[n], *live) for n, live in lives.lives.items()])[1]


def _lowered(graph: Graph, aim: int) -> Graph:
    """Return the graph with kernels repeated until at most `aim` bytes live at a time, or until no repetition
    helps."""
    for _ in range(4 * len(graph.nodes)):
        lives = _Lives.of(graph)
        held = lives.held(len(graph.nodes))
        most = max(held, default=0)
        if most <= aim:
            break
        better = _improved(graph, lives, held.index(most), most)
        if better is None:
            break
        graph = better
    return graph


def _improved(graph: Graph, found: _Lives, peak: int, most: int) -> Graph | None:
    """Return the graph with one kernel repeated behind the node number `peak`. The kernel costs the least
    time for each byte that it frees. Fewer bytes live at the peak then, and nowhere more than `most`. Return
    None if there is no kernel of this kind."""
    choices = sorted(_candidates(graph, found, peak), key=lambda c: c[0])
    for _, maker, first in choices:
        better, moved = repeated(graph, maker, first)
        held = _Lives.of(better).held(len(better.nodes))
        if held[peak] < most and max(held) <= most and moved:
            return better
    return None


def _candidates(graph: Graph, found: _Lives, peak: int) -> Iterator[tuple[float, int, int]]:
    """Yield each value that lives at the peak but isn't used there. A value is given as the cost for each of
    its bytes, the number of its node, and the number of its first later reader."""
    viewed = {
        name for n in graph.nodes if isinstance(n.attrs, (Concat, Slice)) for name in (*n.inputs, *n.outputs)
    }
    shared = {found.base.get(n, n) for n in viewed}
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(graph.nodes):
        if isinstance(node.attrs, Kernel):
            for name in node.inputs:
                readers.setdefault(found.base.get(name, name), []).append(at)
    for at, node in enumerate(graph.nodes[:peak]):
        (out, *others) = node.outputs
        if others or out not in found.lives or out in shared or not _repeats(node):
            continue
        later = [r for r in readers.get(out, ()) if r >= peak]
        if later and later[0] > peak:
            cost = kernel_flops(node, graph.symbols) + sum(_size(graph, n) for n in node.inputs)
            yield cost / max(1, found.bytes[out]), at, later[0]


def _repeats(node: Node) -> bool:
    return isinstance(node.attrs, Kernel) and not node.attrs.lasting


def repeated(graph: Graph, maker: int, first: int) -> tuple[Graph, bool]:
    """Return the graph in which the kernel number `maker` runs again before the node number `first`. This
    node and all later ones read the second result. Return also whether any of them does."""
    node, values = graph.nodes[maker], dict(graph.values)
    names: dict[str, str] = {}
    again = [_copy(node, names, values, node.outputs)]
    for other in graph.nodes[maker + 1 : first]:
        if not isinstance(other.attrs, Kernel) and other.inputs[0] in names:
            again.append(_copy(other, names, values, other.outputs))
    later = [_renamed(n, names) for n in graph.nodes[first:]]
    moved = any(a.inputs != b.inputs for a, b in zip(later, graph.nodes[first:], strict=True))
    return replace(graph, nodes=(*graph.nodes[:first], *again, *later), values=values), moved


def _copy(node: Node, names: dict[str, str], values: dict[str, Value], outputs: Sequence[str]) -> Node:
    """Return a node again, with new names for its outputs, which are added to `names` and `values`."""
    for name in outputs:
        new = _fresh(f"{name}.again", values)
        values[new] = replace(values[name], name=new)
        names[name] = new
    source = node.source or Sources.of(node.name)
    if not is_again(node):
        source = Sources((*Sources.of(AGAIN), *source))
    return replace(_renamed(node, names), name=_fresh(f"{node.name}.again", values), source=source)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return a node with other names for what it reads and makes, inside of a kernel too."""
    if names.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(n, n) for n in group) for group in (node.inputs, node.outputs))
    attrs = node.attrs
    if isinstance(attrs, Kernel):
        own = tuple(names.get(n, n) for n in attrs.body.inputs)
        attrs = replace(attrs, body=replace(renamed(attrs.body, names), inputs=own))
    return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)


def _fresh(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "+"
    return name
