"""The values of a graph under construction: tensors, and their contents known before a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir import core
from jangin.ir.dtype import I32, I64, DType
from jangin.ir.expr import Const, ExprLike, Var, const, wrap
from jangin.ir.graph import MAX_SIZE, Array, CompileError, Node, Shape, Value
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.ops.editor import Editor

DATA_LIMIT = 256
"""Most elements of an integer tensor whose contents are followed through the graph. Shapes and indices are
far shorter, and each element is an expression of its own."""


@dataclass(frozen=True)
class Tensor:
    """A value being built. `data` holds its contents as i64 expressions if they are known (an object array of
    the tensor's own shape). A tensor with `data` has no node until something computes with it."""

    name: str
    dtype: DType
    shape: Shape
    data: Array | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class OwnGradient:
    """A use of an operator that has a gradient of its own: its inputs (None for an absent one) and results.
    `function` makes the gradients (see `custom.operator`). It may read the values `saved` too."""

    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    function: Callable[..., Any]
    saved: tuple[Tensor, ...] = ()

    @property
    def needed(self) -> tuple[Tensor, ...]:
        """The values that `function` may read."""
        return *(x for x in self.inputs if x is not None), *self.outputs, *self.saved


class Values(Editor):
    """An editor of values without nodes: inputs, constants, sizes, symbols. `source` is the current node;
    names are made from `prefix`."""

    def __init__(self, symbols: Mapping[Var, Range]) -> None:
        super().__init__(symbols)
        self.inputs: list[str] = []
        self.source = NO_SOURCE
        self.prefix = "v"
        self.not_one: dict[Var, Sources] = {}
        """Symbols that were assumed to differ from 1, and the nodes that need this."""
        self.pending: list[Var] = []
        self.known: dict[str, Array] = {}

    def fresh(self, hint: str = "") -> str:
        """Return a name not in use, made of the hint or the current node's prefix."""
        return super().fresh(hint or self.prefix)

    def input(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        self.inputs.append(name)
        self.values[name] = Value(name, dtype, shape)
        return Tensor(name, dtype, shape)

    def const(self, array: Array, name: str = "") -> Tensor:
        """Return a constant tensor, whose name is made unique."""
        return self._constant_tensor(self.constant(np.asarray(array), name or "c"))

    def _constant_tensor(self, name: str) -> Tensor:
        array, (dtype, shape) = self.constants[name], self.typed(name)
        data = None
        if dtype in (I64, I32) and array.size <= DATA_LIMIT:
            data = np.empty(array.shape, object)
            for at, v in np.ndenumerate(array):
                data[at] = const(int(v))
        return Tensor(name, dtype, shape, data)

    def scalar(self, value: float, dtype: DType) -> Tensor:
        return self.const(np.asarray(value, dtype.numpy))

    def sizes(self, data: Iterable[ExprLike] | Array, dtype: DType = I64) -> Tensor:
        """Return an integer tensor of known (maybe symbolic) contents."""
        array = data if isinstance(data, np.ndarray) else object_array(list(data))
        return Tensor("", dtype, tuple(const(d) for d in array.shape), array)

    def constant_value(self, t: Tensor | None) -> Array | None:
        """Return the tensor's contents if they are constants, else None."""
        if t is None:
            return None
        if t.name in self.constants:
            return self.constants[t.name]
        if t.data is not None and all(isinstance(e, Const) for e in t.data.flat):
            return np.array([e.value for e in t.data.flat], t.dtype.numpy).reshape(t.data.shape)
        return None

    def require_constant(self, t: Tensor | None, what: str) -> Array:
        """Return the contents of a tensor. Raises CompileError if they aren't known at compile time; the
        message calls the tensor `what`."""
        value = self.constant_value(t)
        if value is None:
            if t is None:
                raise CompileError(f"{what} must be given")
            raise CompileError(
                f"{what} must be a constant; here it is computed at run time ({t}): make it an initializer "
                "of the model, or fix with shapes= the sizes that it follows from"
            )
        return value

    def joined(self, t: Tensor) -> list[Tensor]:
        """Return the parts of which a vector is concatenated. Some parts may be known even if the whole
        isn't. The list is empty if the vector isn't a concatenation."""
        node = next((n for n in reversed(self.nodes) if t.name in n.outputs), None)
        if node is None or t.rank > 1:
            return []
        if node.op == "concat":
            return [self.tensor(n) for n in node.inputs]
        if node.op == "reshape" and self.values[node.inputs[0]].shape in ((), (const(1),)):
            return [self.tensor(node.inputs[0])]
        return []

    def tensor(self, name: str) -> Tensor:
        """Return a value of the graph by name, with the known part of its contents."""
        value = self.values[name]
        assert value.dtype is not None and value.shape is not None
        data = self.known.get(name)
        if name in self.constants and value.dtype in (I64, I32):
            data = object_array([int(v) for v in self.constants[name].reshape(-1)]).reshape(
                self.constants[name].shape
            )
        return Tensor(name, value.dtype, value.shape, data)

    def symbol(self, low: int = 0, high: int = MAX_SIZE) -> Var:
        """Return a size that becomes known during a run, by the step that is added next."""
        base = re.sub(r"\W", "_", self.prefix, flags=re.ASCII).lstrip("_0123456789") or "n"
        taken, count = {v.name for v in self.symbols}, 0
        while f"{base}_n{count}" in taken:
            count += 1
        var = Var(f"{base}_n{count}")
        self.symbols[var] = (const(low), const(high))
        self.pending.append(var)
        return var

    def step(self, attrs: core.GraphStep, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Add a step of a program, which is no core node (see `passes.partition`). The symbols made since the
        last step become known when this one has run."""
        attrs = replace(attrs, symbols=tuple(self.pending))
        self.pending.clear()
        self.emit(Node(self.fresh(), tuple(inputs), tuple(outputs), attrs, self.source))


def object_array(items: list[ExprLike]) -> Array:
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        out[i] = wrap(item)
    return out
