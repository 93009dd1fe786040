"""Access to the arguments of a MIL operation in its lowering, by MIL's names.

`frontends.registry.lowers` declares a lowering. A lowering takes a `Call`. It returns a Tensor, or a tuple or
list of them with one for each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from jangin.ir.dtype import BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, DType
from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

_PADS = frozenset({"pad"})
_CHECKED = frozenset({"validate_indices"})
DTYPES: Mapping[str, DType] = {
    "bool": BOOL, "fp16": F16, "fp32": F32, "fp64": F64, "int8": I8, "int16": I16, "int32": I32, "int64": I64,
    "uint8": U8, "uint16": U16, "uint32": U32, "float16": F16, "float32": F32,
}  # fmt: skip
IDLE: Mapping[str, frozenset[str]] = {
    "gather": _CHECKED,
    "gather_along_axis": _CHECKED,
    "gather_nd": _CHECKED,
    "scatter_along_axis": _CHECKED,
    "scatter_nd": _CHECKED,
    "topk": frozenset({"sort", "return_indices"}),
    "avg_pool": _PADS,
    "conv": _PADS,
    "conv_transpose": _PADS,
    "l2_pool": _PADS,
    "max_pool": _PADS,
}
"""Arguments that a lowering needn't read, by operation, because they change no result.

Some are pads that the type of padding already determines. Others are flags that request a check of indices or
sorted results."""


@dataclass(frozen=True)
class Call:
    """An operation that is being lowered.

    `given` has its tensors and `texts` its strings, by argument. `outputs` is the number of its outputs. An
    argument that the lowering doesn't read is an error (see `unread`)."""

    b: Builder
    given: Mapping[str, Sequence[Tensor]]
    texts: Mapping[str, Any]
    outputs: int
    asked: set[str] = field(default_factory=set)

    def x(self, name: str = "x") -> Tensor:
        """Return the tensor of an argument. Raises CompileError if it is missing."""
        self.asked.add(name)
        if not self.given.get(name):
            raise CompileError(f"its argument {name} is missing")
        return self.given[name][0]

    def optional(self, name: str) -> Tensor | None:
        self.asked.add(name)
        tensors = self.given.get(name)
        return tensors[0] if tensors else None

    def several(self, name: str) -> list[Tensor]:
        self.asked.add(name)
        return list(self.given.get(name, ()))

    def text(self, name: str, default: str) -> str:
        self.asked.add(name)
        return str(self.texts.get(name, default))

    def dtype(self, name: str, default: str) -> DType:
        """Return the element type that a text argument names. Raises CompileError if the type is unknown."""
        word = self.text(name, default)
        if word not in DTYPES:
            raise CompileError(f"the type {word} is none of {', '.join(DTYPES)}")
        return DTYPES[word]

    # -- arguments that must be known -----------------------------------------------------------

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[Any]:
        """Return the elements of a constant argument as Python numbers, or `default` if it is missing. Raises
        CompileError if it isn't constant."""
        argument = self.optional(name)
        if argument is None and default is not None:
            return list(default)
        value = self.b.require_constant(argument, f"the argument {name}")
        return [v.item() for v in value.reshape(-1)]

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        return [int(v) for v in self.numbers(name, default)]

    def integer(self, name: str, default: int | None = None) -> int:
        return self.integers(name, None if default is None else [default])[0]

    def number(self, name: str, default: float | None = None) -> float:
        return float(self.numbers(name, None if default is None else [default])[0])

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.numbers(name, [default])[0])

    def axis(self, name: str = "axis", default: int | None = None, rank: int | None = None) -> int:
        return axis_of(self.integer(name, default), self.x().rank if rank is None else rank)

    def sizes(self, name: str) -> list[Expr]:
        """Return an argument's sizes, which are constant or computed from the inputs' sizes. Raises
        CompileError for other values."""
        argument = self.x(name)
        value = self.b.constant_value(argument)
        if value is not None:
            return [const(int(v)) for v in value.reshape(-1)]
        return self.b.require_sizes(argument, f"the argument {name}", low=-1)

    def unread(self, kind: str) -> list[str]:
        """Return the names of the arguments that the lowering of `kind` didn't read and that may change its
        result."""
        names = [*(name for name, values in self.given.items() if values), *self.texts]
        return [name for name in names if name not in self.asked and name not in IDLE.get(kind, ())]
