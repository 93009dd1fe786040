"""Nodes for branches and loops that contain their bodies. They are lowered to the general forms of
`frontends.control`.

The importers of PyTorch and Core ML make these nodes. Bodies read outer values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.frontends import control
from jangin.frontends.dialect import Bodies, Inputs, Lowering
from jangin.ir.graph import Graph, ImportedAttributes, Node
from jangin.ir.sources import Sources
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor

BRANCH, LOOP = "control.branch", "control.loop"


def branching(
    name: str, condition: str, then: Graph, orelse: Graph, outputs: Sequence[str], source: Sources
) -> Node:
    """Return a node that computes `then` if the condition is true, else `orelse`. The condition has one
    element, and the graphs have no inputs."""
    attrs = ImportedAttributes(BRANCH, {"then": then, "orelse": orelse})
    return Node(name, (condition,), tuple(outputs), attrs, source)


def looping(
    name: str, start: Graph, body: Graph, carried: Sequence[str], outputs: Sequence[str], source: Sources,
    trips: str = "",
) -> Node:  # fmt: skip
    """Return a node that repeats `body`. It stops when the condition is false, or after `trips` iterations if
    that value is given.

    `start` computes the first condition. The body's inputs are the iteration's number, the last condition,
    and the carried values. Its results are the next condition and the next carried values."""
    attrs = ImportedAttributes(LOOP, {"start": start, "body": body, "limited": bool(trips)})
    inputs = (trips, *carried) if trips else tuple(carried)
    return Node(name, inputs, tuple(outputs), attrs, source)


def _branch(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    condition = control.scalar(b, inputs[0])
    assert isinstance(condition, Tensor)
    attrs = node.of(ImportedAttributes)
    return control.branch(b, bodies.run, condition, (attrs["then"], attrs["orelse"]), b.scope)


def _loop(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    attrs = node.of(ImportedAttributes)
    (first,) = bodies.run(b, attrs["start"], b.scope)
    values = [v for v in inputs if v is not None]
    trips, carried = (values[0], values[1:]) if attrs.get("limited") else (None, values)
    trips, going = control.scalar(b, trips), control.scalar(b, first)
    iteration = control.Iteration(attrs["body"], trips, going, carried, [], (), (), True)
    return control.iterate(b, bodies.run, iteration, b.scope)


CONTROL: Mapping[str, Lowering] = {BRANCH: _branch, LOOP: _loop}
"""The lowerings of branches and loops. A dialect with these nodes includes them."""
