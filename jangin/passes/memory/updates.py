"""State that is updated in place: an output lies in the memory of the input whose next state it is.

All other readers of the input are launched before the kernel that writes the output. If that kernel reads the
input too, its loop nest must read each element before it writes it (`ir.updates`). The input and the result
are then one parameter. An output for which this isn't possible keeps memory of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from jangin.ir.core import Concat, Kernel, Map, Normalize, Slice, Softmax
from jangin.ir.expr import Const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.loop import Func, replace_buffer
from jangin.ir.updates import clash
from jangin.passes.memory.recompute import bases, is_again
from jangin.passes.memory.views import views
from jangin.targets.target import Target
from jangin.templates.scheduled import Scheduled

Pairs = tuple[tuple[int, int], ...]
"""For each result that a kernel may write over an operand: the operand's number and the result's number among
the results."""

FEWEST_COLUMNS = 16
"""Elements of a result's shortest row that may lie over an operand: a vector of f32 with AVX-512. LLVM makes
vectors of shorter rows only if the result is known to lie apart. LeNet's step of 6 channels took 0.67 ms
instead of 0.56."""


def ordered(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with the writers of updated inputs behind all other readers, and behind the
    checks of indices. `updates` keeps only the outputs for which there is such an order. Kernels whose
    results are small run as early as they may, because their operands can then be forgotten. Kernels that
    only update inputs come before one whose result may lie over what they read.

    Queued devices test their checks after a run, and other devices have copies of the inputs. There is no
    update in place on them."""
    if not graph.updates or target.device_name != "cpu":
        return replace(graph, updates={})
    order = _Order(graph)
    checks = {n for n, node in enumerate(graph.nodes) if node.attrs.lasting}
    ends = {*graph.outputs}
    updates = {}
    for out, state in graph.updates.items():
        readers = _readers(graph, order, out, state)
        if readers is not None and order.put_behind(order.makers[out], readers | checks):
            updates[out] = state
    for n, operand, _ in _replaceable(replace(graph, updates=updates)):
        for m in order.users(operand):
            if m != n and ends.issuperset(graph.nodes[m].outputs):
                order.put_behind(n, {m})
    return replace(graph, nodes=order.nodes(), updates=updates)


def _readers(graph: Graph, order: _Order, out: str, state: str) -> set[int] | None:
    """Return the kernels that read an input's memory. Return None if the output can't lie there."""
    ends = [*graph.outputs, *graph.updates.values()]
    if graph.values[out].dtype != graph.values[state].dtype or graph.shape(out) != graph.shape(state):
        return None
    if graph.outputs.count(out) != 1 or ends.count(state) != 1:
        return None
    writer, readers, aliases = order.makers.get(out), set[int](), [state]
    if writer is None or not all(order.is_kernel(n) for n in (writer, *order.users(out))):
        return None
    for name in aliases:
        for n in order.users(name):
            node = graph.nodes[n]
            if order.is_kernel(n):
                if n == writer and (name != state or node.inputs.count(name) != 1):
                    return None
                readers.add(n)
            elif node.op == "reshape" or isinstance(node.attrs, Slice):
                aliases.extend(node.outputs)
            else:
                return None
    return None if not set(aliases).isdisjoint(graph.outputs) else readers


class _Order:
    """An order of a graph's nodes, by their numbers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.makers = {out: n for n, node in enumerate(graph.nodes) for out in node.outputs}
        self._users: dict[str, list[int]] = {}
        for n, node in enumerate(graph.nodes):
            for name in dict.fromkeys(node.inputs):
                self._users.setdefault(name, []).append(n)
        self._before = [
            {self.makers[name] for name in node.inputs if name in self.makers} for node in graph.nodes
        ]

    def is_kernel(self, node: int) -> bool:
        return isinstance(self._graph.nodes[node].attrs, Kernel)

    def users(self, name: str) -> Sequence[int]:
        return self._users.get(name, ())

    def put_behind(self, node: int, others: Set[int]) -> bool:
        """Put a node behind others. Return False, without any change, if one of them needs the node."""
        others = others - {node}
        if node in self._ancestors(others):
            return False
        self._before[node] |= others
        return True

    def _ancestors(self, of: Iterable[int]) -> set[int]:
        ancestors, waiting = set(of), list(of)
        while waiting:
            new = self._before[waiting.pop()] - ancestors
            ancestors |= new
            waiting.extend(new)
        return ancestors

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in order: as early as they may come, or late if less memory is then held."""
        after: list[list[int]] = [[] for _ in self._before]
        for n, before in enumerate(self._before):
            for m in before:
                after[m].append(n)
        return tuple(self._graph.nodes[n] for n in self._late(self._early(after), after))

    def _early(self, after: Sequence[Sequence[int]]) -> list[int]:
        """Return the nodes in order. Each comes as early as it may, by its place in the graph. Those that
        make less than they read come first. A node that waits for no other takes the place of its first
        reader, because what it reads is there all the time."""
        left = [len(before) for before in self._before]
        ready = [(self._grows(n), min(after[n], default=n), n) for n, count in enumerate(left) if not count]
        heapq.heapify(ready)
        ordered = []
        while ready:
            *_, n = heapq.heappop(ready)
            ordered.append(n)
            for m in after[n]:
                left[m] -= 1
                if not left[m]:
                    heapq.heappush(ready, (self._grows(m), m, m))
        return ordered

    def _late(self, order: Sequence[int], after: Sequence[Sequence[int]]) -> list[int]:
        """Return the order with some nodes put off until just before the first that needs them. Their results
        take more bytes than the operands that are then held longer.

        A padded copy for a weights' gradient is such a result. Its operand is often held until then."""
        place = {n: at for at, n in enumerate(order)}
        base = bases(self._graph)
        users: dict[str, set[int]] = {}
        for n, node in enumerate(self._graph.nodes):
            for name in node.inputs:
                users.setdefault(base.get(name, name), set()).add(n)
        parts = {x for n in self._graph.nodes if isinstance(n.attrs, Concat) for x in (*n.inputs, *n.outputs)}
        outside = {*self._graph.inputs, *self._graph.constants}
        ends = {base.get(n, n) for n in self._graph.outputs}
        for n in reversed(order):
            node = self._graph.nodes[n]
            first = min((place[m] for m in after[n]), default=0)
            if not first or not parts.isdisjoint(node.outputs) or node.attrs.lasting:
                continue
            longer = {
                own
                for own in {base.get(name, name) for name in node.inputs} - outside - ends
                if max((place[m] for m in users[own] if m != n), default=0) < first
            }
            saved = sum(map(self._bytes, {*node.outputs} - ends))
            is_next = first == place[n] + 1
            if is_next or saved > sum(map(self._bytes, longer)) or not self.is_kernel(n):
                place[n] = first
        early = {n: at for at, n in enumerate(order)}
        return sorted(order, key=lambda n: (place[n], early[n]))

    def _grows(self, node: int) -> bool:
        """Return whether a node may make as many bytes for others as the largest of its operands has. A node
        that runs again must not come early."""
        this = self._graph.nodes[node]
        own_bytes = sum(self._bytes(n) for n in this.outputs if n not in self._graph.outputs)
        return own_bytes >= max(map(self._bytes, this.inputs), default=0) or is_again(this)

    def _bytes(self, name: str) -> int:
        """Return the bytes of a value, as if each symbol were 1."""
        shape, dtype = self._graph.shape(name), self._graph.dtype(name)
        return math.prod(int(d.value) for d in shape if isinstance(d, Const)) * dtype.bytes


def overwritten(graph: Graph) -> dict[str, str]:
    """Return the results of a step's kernels that may lie in the memory of an operand, with the operand. The
    graph's nodes are in the order of their launches, and no later one reads the operand.

    The gradient of a rectifier's operand can lie over the rectifier's result. Outputs and parts of other
    values keep memory of their own."""
    base, last = bases(graph), dict[str, int]()
    for n, node in enumerate(graph.nodes):
        last |= dict.fromkeys((base.get(name, name) for name in (*node.inputs, *node.outputs)), n)
    over: dict[str, str] = {}
    for n, operand, out in _replaceable(graph):
        if last[base.get(operand, operand)] == n and out not in over and operand not in over.values():
            over[out] = operand
    return over


def _replaceable(graph: Graph) -> Iterator[tuple[int, str, str]]:
    """Yield the number of a step's kernel, an operand, and a result that may lie over the operand. Its loop
    nest must allow it too. The operand has the result's type, and no product or window reads it."""
    base = bases(graph)
    kept = {*graph.inputs, *graph.constants, *(base.get(name, name) for name in graph.outputs)}
    kept |= {name for node in graph.nodes if node.attrs.lasting for name in node.outputs}
    for name, view in views(graph).items():
        kept |= {name, view.base}
    for n, node in enumerate(graph.nodes if graph.updates else ()):
        if not isinstance(node.attrs, Kernel):
            continue
        roots = [base.get(name, name) for name in node.inputs]
        for name, root, own in zip(node.inputs, roots, node.attrs.body.inputs, strict=True):
            alone = root not in kept and roots.count(root) == 1
            if alone and all(_reads_rows(m) for m in node.attrs.body.nodes if own in m.inputs):
                for out in node.outputs:
                    same = graph.dtype(out) == graph.dtype(name) and graph.shape(out) == graph.shape(name)
                    if same and out not in kept and not _has_short_rows(graph, out):
                        yield n, name, out


def _has_short_rows(graph: Graph, name: str) -> bool:
    shape = static_shape(graph.shape(name)[-1:])
    return shape is not None and 1 < math.prod(shape) < FEWEST_COLUMNS


def _reads_rows(node: Node) -> bool:
    """Return whether an operator reads elements of the row that it makes, or the same elements."""
    return isinstance(node.attrs, (Map, Softmax, Normalize))


def pairs_of(node: Node, updates: Mapping[str, str]) -> Pairs:
    """Return a kernel node's results that may be written over operands."""
    pairs = ((updates.get(out), k) for k, out in enumerate(node.outputs))
    return tuple((node.inputs.index(state), k) for state, k in pairs if state in node.inputs)


def updating(kernel: Scheduled, pairs: Pairs) -> Scheduled:
    """Return the kernel with one parameter in place of an operand and a result, for each pair for which this
    is possible. A library's kernel stays as it is."""
    if kernel.call is not None:
        return kernel
    inputs, results = kernel.func.inputs, kernel.func.results
    for operand, result in pairs:
        func = _joined(kernel.func, inputs[operand].name, results[result].name)
        if clash(func, results[result].name) is None:
            kernel = replace(kernel, func=func, updated=(*kernel.updated, results[result].name))
    return kernel


def _joined(func: Func, operand: str, result: str) -> Func:
    """Return the loop nest with accesses of the parameter `operand` replaced by accesses of the parameter
    `result`, whose memory is the same. `operand` is no parameter any more."""
    buffer = next(p for p in func.results if p.name == result)
    params = tuple(p for p in func.params if p.name != operand)
    return replace(func, params=params, body=replace_buffer(func.body, operand, buffer))


def updated_arguments(
    node: Node, kernel: Scheduled, args: tuple[str, ...], updates: dict[str, str]
) -> tuple[str, ...]:
    """Return a kernel's arguments without the operands that its results are written over. Results that need
    memory of their own are removed from `updates`."""
    for operand, k in pairs_of(node, updates):
        if kernel.func.results[k].name in kernel.updated:
            args = tuple(a for a in args if a != node.inputs[operand])
        else:
            del updates[node.outputs[k]]
    return args
