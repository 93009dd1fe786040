"""A rule's arguments: one node of the forward graph, and where its inputs' gradients go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jangin.ir.graph import Node
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


class Gradients(Protocol):
    """The gradients so far."""

    b: Builder

    def wants(self, t: Tensor) -> bool:
        """Whether a tensor's gradient is asked for."""

    def add(self, to: Tensor, part: Tensor) -> None:
        """One more part of a tensor's gradient, summed over axes that were broadcast."""


@dataclass(frozen=True)
class Step:
    """A node with its inputs, its result `out` and the result's gradient `g`."""

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
        """Add to the gradient of input `n`."""
        self.to.add(self.ins[n], part)


Rule = Callable[[Step, Any], None]
"""Gives the gradients of a node's inputs, whose attributes are its operator's."""
