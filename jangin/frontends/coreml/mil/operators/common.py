"""What a MIL operation's lowering is called with: its arguments by the names that MIL gives them.

An operation is declared by `frontends.registry.lowers`; its lowering takes a `Call` and gives a Tensor, or
one for each output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Call:
    """An operation being lowered: `given` has its tensors, `texts` its strings, `outputs` how many it
    gives."""

    b: Builder
    given: Mapping[str, Sequence[Tensor]]
    texts: Mapping[str, Any]
    outputs: int

    def x(self, name: str = "x") -> Tensor:
        """An argument. CompileError where it isn't given."""
        if not self.given.get(name):
            raise CompileError(f"it has no argument {name}")
        return self.given[name][0]

    def optional(self, name: str) -> Tensor | None:
        found = self.given.get(name)
        return found[0] if found else None

    def several(self, name: str) -> list[Tensor]:
        return list(self.given.get(name, ()))

    def text(self, name: str, default: str) -> str:
        return str(self.texts.get(name, default))

    # -- arguments that must be known -----------------------------------------------------------

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[Any]:
        """The elements of a constant, as Python has them."""
        found = self.optional(name)
        if found is None and default is not None:
            return list(default)
        value = self.b.require_constant(found, f"the argument {name}")
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
        """Sizes that are known, or that follow from those of the inputs."""
        found = self.x(name)
        value = self.b.constant_value(found)
        if value is not None:
            return [const(int(v)) for v in value.reshape(-1)]
        return self.b.require_sizes(found, f"the argument {name}", low=-1)
