"""Order an imported graph's nodes so that they can run, and leave out those that no output needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jangin.ir.graph import FUNCTION, CompileError, Graph, Node


def captured(graph: Graph) -> set[str]:
    """Return the names of the outer values that a sub-graph reads."""
    own = {*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs)}
    used = {name for node in graph.nodes for name in reads(node)} | set(graph.outputs)
    return used - own


def reads(node: Node) -> list[str]:
    """Return the names of the values that a node reads, including those that its sub-graphs read."""
    names = [n for n in node.inputs if n]
    for value in node.attrs.named().values():
        if isinstance(value, Graph) and node.op != FUNCTION:
            names.extend(sorted(captured(value)))
    return names


def topological(
    nodes: Sequence[Node], known: set[str], outputs: Iterable[str], where: str | None
) -> list[Node]:
    """Return the nodes that `outputs` need, and those without outputs. Each node follows the nodes that it
    reads; otherwise the order is kept.

    Raises CompileError for a name defined twice, a cycle, or a missing value, even if no output needs the
    node. A sub-graph (`where` is None) may have missing values."""
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for out in node.outputs:
            if out and (out in producer or out in known):
                raise CompileError(f"{node.source}: value '{out}' is defined twice")
            if out:
                producer[out] = i
    needs: list[list[int]] = []
    for node in nodes:
        names = reads(node)
        for name in names:
            if where is not None and name not in producer and name not in known:
                raise CompileError(f"{node.source}: its input '{name}' is defined nowhere in {where}")
        needs.append([producer[n] for n in names if n in producer])
    last = [producer[o] for o in outputs if o in producer]
    needed = _needed(needs, [*last, *(i for i, n in enumerate(nodes) if not n.outputs)])
    return [nodes[i] for i in _order(nodes, needs) if i in needed]


def _needed(needs: Sequence[Sequence[int]], last: Sequence[int]) -> set[int]:
    """Return the numbers of the nodes `last` and of all nodes that they need."""
    numbers, waiting = {*last}, [*last]
    while waiting:
        more = set(needs[waiting.pop()]) - numbers
        numbers |= more
        waiting += more
    return numbers


def _order(nodes: Sequence[Node], needs: Sequence[Sequence[int]]) -> list[int]:
    """Return the nodes' numbers in depth-first post-order, found without recursion."""
    order: list[int] = []
    state = [0] * len(nodes)  # 0 new, 1 open, 2 done
    for root in range(len(nodes)):
        stack = [root] if state[root] == 0 else []
        while stack:
            i = stack[-1]
            if state[i] == 2:
                stack.pop()
                continue
            waiting = [k for k in needs[i] if state[k] != 2]
            if state[i] == 0:
                state[i] = 1
            if not waiting:
                state[i] = 2
                order.append(i)
                stack.pop()
                continue
            if any(state[k] == 1 for k in waiting):
                cycle = ", ".join(str(nodes[k].source) for k in stack if state[k] == 1)
                raise CompileError(f"the graph has a cycle through {cycle}")
            stack.extend(waiting)
    return order
