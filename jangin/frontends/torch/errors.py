"""Remove operators whose only task is to raise errors. A compiled model then gives infinite numbers or NaN in
cases where PyTorch raises an error.

PyTorch orders such operators by tokens: values without contents that each of them passes to the next."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

RAISING = (torch.ops.aten._linalg_check_errors.default,)


def without_errors(graph: Graph) -> None:
    """Remove these operators from a graph. Their tokens are replaced by those that they take."""
    for node in [n for n in graph.nodes if _raises(n)]:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(node.args[0])
            graph.erase_node(user)
        graph.erase_node(node)
    graph.eliminate_dead_code()


def _raises(node: Node) -> bool:
    ordered = node.target is torch.ops.higher_order.with_effects
    return (node.args[1] if ordered else node.target) in RAISING
