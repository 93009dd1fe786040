"""Give the results of a graph of `torch.compile` the same memory layout as PyTorch gives them.

After a graph break, a program may read the layout (`as_strided`, `view`), or write to one of two tensors that
share memory. Therefore only the parts that make new memory are compiled, with axes in PyTorch's order.
PyTorch itself makes views of that memory and of inputs, by a second graph."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true as known
from torch.utils import _pytree as pytree

from jangin.frontends.torch.errors import without_errors
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass

permute = torch.ops.aten.permute.default


@dataclass(frozen=True)
class Views:
    """A function that makes a graph's results, `make`. Its first arguments are the graph's inputs at the
    positions `inputs`. The computed tensors follow."""

    inputs: tuple[int, ...]
    make: Callable[..., list[Any]]


def part_views(module: GraphModule, last: Container[Node] = ()) -> Views | None:
    """Change a module's graph so that it returns only tensors in new memory, in row-major order. The results
    `last`, which nobody looks at, lie channels-last if no other result is a view of them.

    Return the function that makes the original results from them, or None if the results are the same. Raises
    CompileError that names a result with gaps in its memory."""
    graph = module.graph
    without_errors(graph)
    end = next(iter(reversed(graph.nodes)))
    results = end.args[0]
    leaves, inner = _sources(graph, [n for n in results if isinstance(n, Node)])
    bases = [n for n in leaves if n.op == "call_function"]
    orders = {n: order_of(n.meta["val"]) for n in bases}
    read = {n for node in inner for n in node.all_input_nodes}
    for node in bases:
        if node in last and node not in read:
            orders[node] = [0, *range(2, node.meta["val"].dim()), 1]
    for node, order in orders.items():
        if order is None:
            raise CompileError(f"'{node.name}' gives a tensor with gaps in memory, which can't be compiled")
    plain = all(order == sorted(order) for order in orders.values() if order)
    views = None if plain and [*results] == bases else _views(module, results, leaves, inner, orders)
    with graph.inserting_before(end):
        end.args = ([_turned(graph, n, orders[n]) for n in bases],)
    graph.eliminate_dead_code()
    return views


def _sources(graph: Graph, results: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return the inputs and the new tensors that the results are, or are views of. The second result has the
    nodes between them and the results, in order."""
    shared = Counter(s for n in dict.fromkeys(results) for s in _storages(n))
    shared.update(s for n in graph.nodes if n.op != "call_function" for s in _storages(n))
    wanted, leaves, inner = set(results), [], []
    for node in reversed(graph.nodes):
        if node not in wanted:
            continue
        whole = node.op == "call_function" and _is_whole(node) and shared[_storages(node).pop()] < 2
        if node.op == "placeholder" or whole or _is_new(node):
            leaves.append(node)
        else:
            inner.append(node)
            wanted.update(node.all_input_nodes)
    return leaves[::-1], inner[::-1]


def _views(
    module: GraphModule, given: Any, leaves: list[Node], inner: list[Node], orders: dict[Node, Any]
) -> Views:
    """Return the views that make the results `given` from `leaves` by the nodes `inner`. `orders` has the
    order of each new tensor's axes in memory."""
    graph, places = Graph(), [n for n in module.graph.nodes if n.op == "placeholder"]
    leaves = sorted(leaves, key=lambda n: n.op == "call_function")
    copies = {n: graph.placeholder(n.name) for n in leaves}
    for node, order in orders.items():
        if order != sorted(order):
            back = [order.index(i) for i in range(len(order))]
            copies[node] = graph.call_function(permute, (copies[node], back))
    for node in inner:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[n] if isinstance(n, Node) else n for n in given])
    inputs = tuple(places.index(n) for n in leaves if n.op == "placeholder")
    return Views(inputs, GraphModule(module, graph).forward)


def _turned(graph: Graph, node: Node, order: Any) -> Node:
    """Return a node for a tensor with its axes in the order in which they are in memory."""
    if order == sorted(order):
        return node
    turned = graph.call_function(permute, (node, order))
    turned.meta["val"] = node.meta["val"].permute(order)
    return turned


def _tensors(node: Node) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, Tensor)]


def _storages(node: Node) -> set[int]:
    return {t.untyped_storage()._cdata for t in _tensors(node)}


def _is_new(node: Node) -> bool:
    """Tell if a node's tensors are in memory that none of its inputs share."""
    if node.target is operator.getitem:
        node = node.args[0]
    own = _storages(node)
    read: set[int] = set().union(*map(_storages, node.all_input_nodes))
    return node.op == "call_function" and bool(own) and not own & read


def _is_whole(node: Node) -> bool:
    """Tell if a node gives one tensor that fills its memory completely. Its axes may be in any order in
    memory."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return False
    filled = known(value.untyped_storage().nbytes() == value.numel() * value.element_size())
    return filled and known(value.storage_offset() == 0) and order_of(value) is not None


def order_of(tensor: Tensor) -> list[int] | None:
    """Return the order of a tensor's axes in memory, from the outermost to the innermost, or None if there
    are gaps between its elements."""
    axes = list(range(tensor.dim()))
    left = [i for i in axes if not known(tensor.shape[i] == 1)]
    order: list[int] = []
    count: Any = 1
    empty = any(known(size == 0) for size in tensor.shape)
    while left and not empty:
        last = next((i for i in reversed(left) if known(tensor.stride(i) == count)), None)
        if last is None:
            return None
        left.remove(last)
        order.insert(0, last)
        count = count * tensor.shape[last]
    return axes if order == sorted(order) else [*(i for i in axes if i not in order), *order]
