"""`torch.cond` and `while_loop`: in the general forms of `frontends.control`."""

from __future__ import annotations

from jangin.frontends import control
from jangin.frontends.dialect import Bodies, Inputs, Lowering
from jangin.ir.graph import ImportedAttributes, Node
from jangin.ops.builder import Builder, Tensor
from jangin.ops.nontensor import Item


def branch(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """`then` where the condition holds, else `orelse`: bodies without inputs of their own."""
    (condition,) = inputs
    assert isinstance(condition, Tensor)
    attrs = node.of(ImportedAttributes)
    return control.branch(b, bodies.run, condition, (attrs["then"], attrs["orelse"]), b.scope)


def loop(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """`body` while its first result holds, the first time that of `start`; its others are carried."""
    attrs = node.of(ImportedAttributes)
    (first,) = bodies.run(b, attrs["start"], b.scope)
    carried = [v for v in inputs if v is not None]
    iteration = control.Iteration(attrs["body"], None, control.scalar(b, first), carried, [], (), (), True)
    return control.iterate(b, bodies.run, iteration, b.scope)


CONTROL: dict[str, Lowering] = {"torch.cond": branch, "torch.while_loop": loop}
