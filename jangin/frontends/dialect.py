"""What a model format says of itself to be compiled: the protocol `Dialect`.

A dialect turns a model into an imported graph, whose nodes are the format's own, and lowers each of them
to core operators. `frontends.table` lists those that Jangin has; `jangin.compile(model, dialects=[...])`
takes others, which are asked first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol

from jangin.frontends.assemble import ShapeBindings
from jangin.ir.graph import CompileError, Graph, Node
from jangin.mapped import map_file
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item


class Message(Protocol):
    """A model that a library holds as an object, such as a protobuf message."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:
        """Its bytes, as the format's files have them."""


ModelSource = str | os.PathLike[str] | bytes | Message
"""A model as a caller gives it: a path, its bytes or a message."""


@dataclass(frozen=True)
class Contents:
    """A model that was opened: `message` alone, or its bytes (mapped where they are a file's; none for a
    folder), and its path where it has one. A file must stay as it is while arrays that lie in it are used."""

    data: mmap | bytes = b""
    path: Path | None = None
    message: Message | None = None

    def __str__(self) -> str:
        return "the model" if self.path is None else str(self.path)


def opened(model: ModelSource) -> Contents:
    """The model, read by no format yet. CompileError where there is nothing to read."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        contents = Contents(bytes(model))
    elif not isinstance(model, (str, os.PathLike)):
        return Contents(message=model)
    else:
        path = Path(model)
        if path.is_dir():
            return Contents(path=path)
        if path.exists() and not path.is_file():  # a pipe can't be read twice
            raise CompileError(f"{path} is no file: read it, and give the bytes")
        try:
            contents = Contents(map_file(path), path)
        except OSError as error:
            raise CompileError(f"{path}: {error.strerror or error}") from None
    if not contents.data:
        raise CompileError(f"{contents} is empty")
    return contents


@dataclass(frozen=True)
class Imported:
    """A model as its format has it, nothing interpreted yet.

    `graph`: its nodes' `op` is "domain.Name", and their `source` what the model's author calls them; a node
    "function" stands for the graph in its attribute `body`, on names of its own. Constants may lie in the
    model's file or bytes. `metadata`: what the model says of itself, under names of
    `jangin.session.ModelMetadata`.
    """

    graph: Graph
    dialect: Dialect
    metadata: Mapping[str, Any] = field(default_factory=dict)


Scope = Mapping[str, Item | None]
"""Values by the names that they have in an imported graph; None for those that aren't computed."""
Inputs = Sequence[Item | None]
"""A node's inputs, None for an absent one."""
Outputs = Item | Sequence[Item | None]
"""A node's outputs, or its only one; None for one that can't be given."""
Run = Callable[[Builder, Graph, Scope], list[Item]]
"""Lowers a sub-graph into a builder, given the values that it sees by name, and gives its results."""


class Bodies(Protocol):
    """How the lowering of a node has graphs lowered."""

    def run(self, b: Builder, graph: Graph, scope: Scope) -> list[Item]:
        """The results of a sub-graph (see `Run`). What is around the node in hand is `b.scope`."""

    def expand(self, b: Builder, graph: Graph, inputs: Inputs) -> Sequence[Item | None]:
        """The results of a graph on names of its own that stands for the node in hand."""


Lowering = Callable[[Builder, Node, Inputs, Bodies], Outputs]
"""Lowers one node to core operators. Raises CompileError with the reason where that can't be done; the node,
its inputs and their types are put before it."""


class Dialect(Protocol):
    """A model format. A class of its own derives from this one, for what most formats have in common."""

    name: str
    """The format, as messages call it: "ONNX"."""
    domain: str
    """Domain of the format's own operators: their nodes' `op` is "domain.Name"."""

    def reads(self, contents: Contents) -> bool:
        """Whether the model is of this format, by its content: names of files say nothing."""

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        """The model, read once. `shapes` binds sizes: {"batch": 1} a symbol, {"seq": (1, 512)} a symbol's
        inclusive range, {"image": (1, 3, 224, 224)} a whole input (None keeps a dimension); see
        `frontends.assemble`. CompileError for anything malformed."""

    def lowering(self, node: Node) -> Lowering | None:
        """How a node is lowered, by whatever is its key in the format; None where it isn't supported."""

    def remedy(self, node: Node) -> str:
        """Why a node is not supported, and the nearest way round."""
        return "there is no such operator: give your own with operators=[...] (see jangin.custom)"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        """A node's attributes as a caller's own operator takes them: without the format's own remarks."""
        return node.attrs

    def rewrite(self, graph: Graph) -> Graph:
        """The imported graph with patterns of several nodes that mean one operator replaced by it."""
        return graph
