"""The common part of all sections of a cfg. Layers become nodes, and weights become constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jangin.frontends.darknet.idle import ANYWHERE, IDLE
from jangin.frontends.darknet.sections import Section, Weights, sections
from jangin.frontends.darknet.shortcuts import Size
from jangin.ir.graph import Array, CompileError, ImportedAttributes, Node
from jangin.ir.sources import Sources


@dataclass
class Layer:
    """A layer's result: the value called `name`, with the sizes `size`."""

    name: str
    size: Size


class Layers:
    """The nodes and constants of the sections that were read, and the section that is being read."""

    section: Section
    place: int

    def __init__(self, text: str, weights: Weights) -> None:
        self.net, *self.sections = sections(text)
        self.weights = weights
        self.layers: list[Layer] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.outputs: list[str] = []
        self.given: dict[str, list[int | str]] = {}
        self.states: dict[str, str] = {}
        self.size: Size = self.net.whole("inputs", 1, 1), 1, 1
        if "inputs" not in self.net.options:
            height, width = (self.net.whole(name, None, 1) for name in ("height", "width"))
            self.size = self.net.whole("channels", 3, 1), height, width
        self.net.asked.update(("inputs", "height", "width", "channels", "time_steps"))
        self._all_read(self.net, "[net]")

    @property
    def last(self) -> Layer:
        return self.layers[-1] if self.layers else Layer("data", self.size)

    def _all_read(self, section: Section, what: str) -> None:
        unread = section.unread(IDLE.get(section.kind, frozenset()) | ANYWHERE)
        if unread:
            raise CompileError(f"{what} (line {section.line}): {', '.join(unread)} is not supported")

    def _add(self, size: Size, inputs: Sequence[str], attrs: Mapping[str, Any]) -> None:
        """Add a node for the current section. Its name has Darknet's number of the layer."""
        name = f"{self.section.kind}_{self.place}"
        if min(size) < 1:
            raise CompileError(
                f"[{self.section.kind}] layer {self.place} would have the size {size}, which is impossible"
            )
        attributes = ImportedAttributes(f"darknet.{self.section.kind}", {"size_out": size, **attrs})
        source = Sources.of(f"[{self.section.kind}] layer {self.place}", place=f"line {self.section.line}")
        self.nodes.append(Node(name, tuple(inputs), (name,), attributes, source))
        self.layers.append(Layer(name, size))

    def _take(self, shape: Sequence[int], what: str) -> str:
        name = f"{self.section.kind}_{self.place}.{what}"
        self.constants[name] = self.weights.take(shape, f"the {what} of layer {self.place}")
        return name

    def _other(self, index: float) -> Layer:
        """Return a layer by its number. A negative number counts back from the current layer. Raises
        CompileError if it isn't before the current layer."""
        at = int(index) + self.place if index < 0 else int(index)
        if not 0 <= at < self.place:
            raise CompileError(
                f"[{self.section.kind}] layer {self.place} reads layer {at}, which isn't before it"
            )
        return self.layers[at]

    def _activated(self) -> dict[str, Any]:
        return {"activation": self.section.text("activation", "logistic")}

    def _linear(self) -> dict[str, Any]:
        return {"activation": self.section.text("activation", "linear")}
