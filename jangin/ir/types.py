"""Types of values that aren't numeric tensors of known rank: sequences, optionals, maps, strings."""

from __future__ import annotations

from jangin.ir.dtype import STRING, DType
from jangin.ir.expr import Expr, Var
from jangin.ir.records import dataclass

ANY = Var("any")
"""A size that may differ between the elements of a sequence."""


@dataclass(frozen=True)
class Type:
    """A value's type. `kind` is "tensor" (of `dtype`; `shape` is None if the rank is unknown), "seq" or
    "optional" (`of` elements), or "map" (keys of `dtype`, values `of`). None stands for an unknown part.

    At run time a sequence is a list, an optional its value or None, and a map a dictionary."""

    kind: str
    dtype: DType | None = None
    shape: tuple[Expr, ...] | None = None
    of: Type | None = None

    def __str__(self) -> str:
        if self.kind == "tensor":
            dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
            return f"{self.dtype or '?'}[{dims}]"
        key = f"{self.dtype}, " if self.kind == "map" else ""
        return f"{self.kind}({key}{self.of or '?'})"

    @property
    def is_numeric(self) -> bool:
        """Whether it is a tensor that compiled code can take: of numbers, and of known rank."""
        return self.kind == "tensor" and self.shape is not None and self.dtype not in (None, STRING)


def tensor_type(dtype: DType | None, shape: tuple[Expr, ...] | None) -> Type:
    return Type("tensor", dtype, shape)


def sequence_of(element: Type | None) -> Type:
    return Type("seq", of=element)


def optional_of(element: Type | None) -> Type:
    return Type("optional", of=element)
