"""The argument of a gradient rule: one node of the forward graph, and the place for its inputs' gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jangin.ir.graph import Node
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


class Gradients(Protocol):
    """Collects the gradients of a graph's values."""

    b: Builder

    def wants(self, t: Tensor) -> bool:
        """Tell if a tensor's gradient is asked for."""

    def add(self, to: Tensor, part: Tensor) -> None:
        """Add a part to a tensor's gradient. The part is first summed over the axes along which the tensor
        was broadcast."""


@dataclass(frozen=True)
class Step:
    """A node with its inputs, its result `out` and the result's gradient `g`. `to` collects the inputs'
    gradients."""

    to: Gradients
    node: Node
    ins: Sequence[Tensor]
    out: Tensor
    g: Tensor

    @property
    def b(self) -> Builder:
        return self.to.b

    @property
    def x(self) -> Tensor:
        return self.ins[0]

    def wants(self, n: int) -> bool:
        return self.to.wants(self.ins[n])

    def give(self, part: Tensor, n: int = 0) -> None:
        """Add a part to the gradient of input `n`."""
        self.to.add(self.ins[n], part)


Rule = Callable[[Step, Any], None]
"""A function that adds the gradients of a node's inputs. Its second argument has the attributes of the node's
operator."""
