"""Graph IR: a whole model as nodes over named values, for whole-model passes.

Graphs are immutable: a pass takes a graph and gives a new one. A dimension is always an i64 `Expr`: a
`Const`, a symbol (`Var`), or arithmetic of symbols. A node's attributes determine its operator. Core
operators have the attributes of `ir.core`. Before the pass `lower`, nodes have attributes of their format
(`ImportedAttributes`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from jangin.ir.dtype import DType
from jangin.ir.errors import CompileError as CompileError
from jangin.ir.expr import Const, Expr, Var
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.ir.types import Type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = np.ndarray  # numpy.typing is imported by type checkers alone

Shape = tuple[Expr, ...]
MAX_SIZE = (1 << 31) - 1
"""The largest size of a dimension. A larger one is refused, whether given or computed at run time."""
MAX_RANK = 64
"""Axes of a tensor at most. NumPy 2 has the same limit, and constants are NumPy's arrays."""
FUNCTION = "function"
"""The `op` of an imported node that stands for a whole graph. Its attribute `body` is this graph, which has
its own names."""


@dataclass(frozen=True)
class Value:
    """A tensor. `shape` is None only before shape inference (the imported graph). For a value that isn't a
    numeric tensor, `type` is set instead (see `ir.types`); only programs have such values."""

    name: str
    dtype: DType | None
    shape: Shape | None
    type: Type | None = None

    def __str__(self) -> str:
        if self.type is not None:
            return str(self.type)
        if self.shape is None:
            return f"{self.dtype or '?'}[?]"
        return f"{self.dtype or '?'}[{', '.join(map(str, self.shape))}]"


class Attributes:
    """The operator of a node and its settings. `operator` is the operator's name in text and messages."""

    operator: ClassVar[str]

    def __init_subclass__(cls, operator: str = "") -> None:
        cls.operator = operator

    @property
    def op(self) -> str:
        return self.operator

    def named(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return dict(vars(self))

    @property
    def lasting(self) -> bool:
        """Whether a node of this operator stays even if nothing reads its result."""
        return False


A = TypeVar("A", bound=Attributes)


@dataclass(frozen=True)
class ImportedAttributes(Attributes, Mapping[str, Any]):
    """An imported node's attributes, by its format's names. `key` is its operator ("onnx.Conv")."""

    key: str
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> str:
        return self.key

    def named(self) -> dict[str, Any]:
        return dict(self.given)

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


@dataclass(frozen=True)
class Node:
    """An operator, given by its attributes, that is applied to values. An absent optional input is "".
    `source` has the model's nodes that the node comes from."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attributes
    source: Sources = NO_SOURCE

    def __post_init__(self) -> None:
        if isinstance(self.source, str):  # formats of other packages gave texts in earlier versions
            warnings.warn(
                "a node's source is Sources.of(operator, name) now", DeprecationWarning, stacklevel=3
            )
            object.__setattr__(self, "source", Sources.of(self.source) if self.source else NO_SOURCE)

    def __hash__(self) -> int:
        return hash((self.op, self.name, self.outputs))

    @property
    def op(self) -> str:
        """The operator's name; before the pass `lower`, an imported one ("onnx.Conv")."""
        return self.attrs.op

    def of(self, operator: type[A]) -> A:
        """Return the node's attributes, which must be of the class `operator`."""
        assert isinstance(self.attrs, operator), f"{self.source or self.name} is of operator {self.op}"
        return self.attrs


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order, with their values and the conditions on sizes.

    `values` has an entry for every input, constant and result. `symbols` gives each free size symbol's
    inclusive range. `constraints` are conditions on the symbols that every run must meet, each with the
    model's node that needs the condition. A condition stays even if passes have removed the code that needed
    it.

    `bound` has the model's symbols that were given one size. `joined` maps an input's axis ("x[0]") to the
    node that needs it to be as long as another axis. The model calls both axes by the same name.

    `updates` gives outputs the inputs that they are the next state of. An output may then take the memory of
    its input, whose array a run changes (see `passes.memory.updates`)."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    values: Mapping[str, Value]
    symbols: Mapping[Var, Range] = field(default_factory=dict)
    constraints: Mapping[Expr, Sources] = field(default_factory=dict)
    bound: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, Sources] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    def value(self, name: str) -> Value:
        return self.values[name]

    def shape(self, name: str) -> Shape:
        shape = self.values[name].shape
        assert shape is not None, f"{name} has no shape yet"
        return shape

    def dtype(self, name: str) -> DType:
        dtype = self.values[name].dtype
        assert dtype is not None, f"{name} has no dtype yet"
        return dtype

    def producers(self) -> dict[str, Node]:
        return {out: node for node in self.nodes for out in node.outputs if out}

    def consumers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each value, by the value's name. A node is listed once, however often it
        reads the value."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    users.setdefault(name, []).append(node)
        return users

    def with_nodes(
        self,
        nodes: Sequence[Node],
        *,
        values: Mapping[str, Value] | None = None,
        constants: Mapping[str, Array] | None = None,
        outputs: tuple[str, ...] | None = None,
    ) -> Graph:
        """Return a copy with other nodes. Values and constants that no node, input or output mentions are
        dropped."""
        merged = {**self.values, **(values or {})}
        consts = dict(self.constants if constants is None else constants)
        outs = self.outputs if outputs is None else outputs
        used = {*self.inputs, *outs}
        for node in nodes:
            used.update(node.inputs)
            used.update(node.outputs)
        return replace(
            self,
            nodes=tuple(nodes),
            outputs=outs,
            constants={k: v for k, v in consts.items() if k in used},
            values={k: v for k, v in merged.items() if k in used},
        )


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """Return the shape as integers, or None if a dimension is symbolic."""
    if all(isinstance(d, Const) for d in shape):
        return tuple(int(d.value) for d in shape if isinstance(d, Const))
    return None
