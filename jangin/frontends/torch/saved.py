"""Keep tensors between a forward and a backward graph in the order that kernels write and read.

Convolutions and pools compute channels-last (`passes/layouts`). A result of the forward graph that only the
backward graph reads lies so in memory, and the backward graph reads it as it lies. Nothing is turned."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true as known

from jangin.frontends.torch.views import order_of, permute

WINDOWS = frozenset({
    "convolution", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d",
})  # fmt: skip
"""Operators whose operand and result are channels-last."""
FOLLOWERS = frozenset({
    "cat", "constant_pad_nd", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
})  # fmt: skip
"""Operators besides the elementwise ones that keep the order of their operands."""


def channels_last(graph: Graph, hidden: Collection[int]) -> set[Node]:
    """Return the results that kernels write channels-last. Only results that appear at the places `hidden`
    alone are considered. The returned results are images of several pixels that convolutions
    and pools give or read, or that elementwise operators make of these."""
    marked: set[Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if _name(node) in WINDOWS:
            marked |= {node, *(n for n in node.all_input_nodes[:1] if n.op == "call_function")}
        elif _follows(node) and any(n in marked and _rank(n) == _rank(node) for n in node.all_input_nodes):
            marked.add(node)
    results = next(iter(reversed(graph.nodes))).args[0]
    shown = {n for i, n in enumerate(results) if i not in hidden}
    return {n for n in results if n in marked - shown and _is_image(n.meta.get("val"))}


def _name(node: Node) -> str:
    target = node.target
    return str(target.overloadpacket.__name__) if isinstance(target, torch._ops.OpOverload) else ""


def _follows(node: Node) -> bool:
    target = node.target
    if target is operator.getitem or _name(node) in FOLLOWERS:
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _rank(node: Node) -> int:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return first.dim() if isinstance(first, Tensor) else 0


def _is_image(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dim() < 4 or any(not isinstance(n, int) for n in value.shape):
        return False
    pixels: int = value.shape[2:].numel()
    return value.shape[1] > 1 and pixels > 1


def read_as_they_lie(graph: Graph, inputs: Sequence[Node], args: Sequence[Any]) -> dict[int, list[int]]:
    """Let a graph read its inputs with their axes in the order in which `args` lie in memory. Return this
    order of each input that isn't row-major, by its position."""
    orders: dict[int, list[int]] = {}
    for place, (node, tensor) in enumerate(zip(inputs, args, strict=True)):
        if not isinstance(tensor, Tensor) or tensor.is_contiguous() or not node.users:
            continue
        order = order_of(tensor)
        if order is None or order == sorted(order):
            continue
        value = node.meta["val"]
        with graph.inserting_after(node):
            back = graph.call_function(permute, (node, [order.index(i) for i in range(len(order))]))
        back.meta["val"] = value
        node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
        node.meta = {**node.meta, "val": value.permute(order)}
        orders[place] = order
    return orders


def as_traced(node: Node, value: Any) -> Any:
    """Return the value of an input, row-major if PyTorch traced the graph with a row-major tensor."""
    traced = node.meta.get("val")
    if not isinstance(value, Tensor) or not isinstance(traced, Tensor) or value.is_contiguous():
        return value
    return value.contiguous() if known(traced.is_contiguous()) else value
