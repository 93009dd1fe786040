"""Parts of an exported program through which no gradient passes: regions of `torch.no_grad()`, and detached
tensors. PyTorch's decompositions take both away."""

from __future__ import annotations

from collections.abc import Container, Iterator
from operator import getitem
from typing import Any

import torch

from jangin.ir.graph import CompileError

REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
DETACH = torch.ops.aten.detach.default
COPY = torch.ops.aten.detach_copy.default


def detached_regions(graph: Any, buffers: Container[str]) -> None:
    """Let regions without gradients read detached tensors. `buffers` has the names of inputs that never have
    gradients. Raises CompileError if a region writes to anything else, because it would write to a copy."""
    for region in [n for n in graph.nodes if n.target is REGION and not n.args[0]]:
        _, function, *operands = region.args
        body = getattr(graph.owning_module, function.target).graph
        bindings = zip((n for n in body.nodes if n.op == "placeholder"), operands, strict=True)
        free = {inner.name for inner, x in bindings if _name(x) in buffers}
        for node, root, _ in _writes(body):
            if root.op == "placeholder" and root.name not in free:
                raise _refused(node, root)
        with graph.inserting_before(region):
            fixed = (x if _name(x) in buffers else _detached(graph, x) for x in operands)
            region.args = (False, function, *fixed)


def _name(operand: Any) -> str:
    return operand.name if isinstance(operand, torch.fx.Node) else ""


def _detached(graph: Any, operand: Any) -> Any:
    """Return an operand of a region as a detached copy, if it is a tensor."""
    if not isinstance(operand, torch.fx.Node) or not isinstance(operand.meta.get("val"), torch.Tensor):
        return operand
    node = graph.call_function(COPY, (operand,))
    node.meta = dict(operand.meta)
    return node


def detached_by_copies(graph: Any) -> None:
    """Replace each `detach` in the program by a copy. PyTorch's decompositions would remove a `detach`, and
    gradients would then pass. Raises CompileError if the program writes to a detached tensor, because it
    would write to the copy."""
    for node, root, detached in _writes(graph):
        if detached:
            raise _refused(node, root)
    for node in graph.nodes:
        if node.target is DETACH:
            node.target = COPY


def _refused(node: Any, root: Any) -> CompileError:
    return CompileError(
        f"{node.target} '{node.name}' writes to '{root.name}' without gradients: in training, "
        "only a buffer itself can be written so"
    )


def _writes(graph: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each node that writes to an operand, the node or input that made the operand's memory, and
    whether the operand is detached from it."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        named = {a.name: x for a, x in zip(schema.arguments, node.args, strict=False)} | dict(node.kwargs)
        for argument in schema.arguments:
            root = named.get(argument.name)
            if argument.alias_info is None or not argument.alias_info.is_write or root is None:
                continue
            for one in root if isinstance(root, (list, tuple)) else (root,):
                yield node, *_root(one)


def _root(node: Any) -> tuple[Any, bool]:
    detached = False
    while node.op == "call_function" and _is_view(node.target):
        detached |= node.target is DETACH
        node = node.args[0]
    return node, detached


def _is_view(operator: Any) -> bool:
    """Return whether an operator's result lies in the memory of its first operand."""
    schema = getattr(operator, "_schema", None)
    return operator is getitem or (schema is not None and any(r.alias_info for r in schema.returns))
