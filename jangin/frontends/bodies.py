"""Branches and loops as nodes that have their bodies: in the general forms of `frontends.control`.

What PyTorch and Core ML have is read as these: bodies see the values around them by name.
"""

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
    """The results of `then` where the condition, of one element, holds, else of `orelse`: graphs without
    inputs."""
    attrs = ImportedAttributes(BRANCH, {"then": then, "orelse": orelse})
    return Node(name, (condition,), tuple(outputs), attrs, source)


def looping(
    name: str, start: Graph, body: Graph, carried: Sequence[str], outputs: Sequence[str], source: Sources,
    trips: str = "",
) -> Node:  # fmt: skip
    """`body` while its first result holds, the first time that of `start`, and at most `trips` times where
    that value is given. Its inputs are the iteration's number, whether the last one's condition held, and
    what is carried: its other results."""
    attrs = ImportedAttributes(LOOP, {"start": start, "body": body, "limited": bool(trips)})
    given = (trips, *carried) if trips else tuple(carried)
    return Node(name, given, tuple(outputs), attrs, source)


def _branch(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    condition = control.scalar(b, inputs[0])
    assert isinstance(condition, Tensor)
    attrs = node.of(ImportedAttributes)
    return control.branch(b, bodies.run, condition, (attrs["then"], attrs["orelse"]), b.scope)


def _loop(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    attrs = node.of(ImportedAttributes)
    (first,) = bodies.run(b, attrs["start"], b.scope)
    given = [v for v in inputs if v is not None]
    trips, carried = (given[0], given[1:]) if attrs.get("limited") else (None, given)
    trips, going = control.scalar(b, trips), control.scalar(b, first)
    iteration = control.Iteration(attrs["body"], trips, going, carried, [], (), (), True)
    return control.iterate(b, bodies.run, iteration, b.scope)


CONTROL: Mapping[str, Lowering] = {BRANCH: _branch, LOOP: _loop}
"""Their lowerings, which a dialect that has such nodes takes."""
