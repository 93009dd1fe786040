"""The common parts of all builtin operators' cases: types, and tensors of these types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from files import Operator, Tensor

Case = tuple[list[Tensor], Operator]
TYPES = ("float32", "int8", "uint8", "int16", "int32", "int64", "bool", "uint32", "float16")
QUANTIZED = {"int8": (0.1, 3), "uint8": (0.05, 120), "int16": (0.001, 0), "int32": (0.01, 0)}
ACTIVATIONS = range(6)
RANDOM = np.random.default_rng(40)


def tensor(
    shape: Sequence[int], dtype: str, quantized: bool = True, factor: float = 1, **given: Any
) -> Tensor:
    """Make a tensor. If `quantized`, an integer tensor has `factor` times the usual scale of its type."""
    if not quantized or dtype not in QUANTIZED:
        return Tensor(shape, dtype, **given)
    scale, zero = QUANTIZED[dtype]
    return Tensor(shape, dtype, [scale * factor], [zero], **given)


def numbers(*values: int, shape: Sequence[int] | None = None, dtype: str = "int32") -> Tensor:
    """Make a constant."""
    return Tensor([len(values)] if shape is None else shape, dtype, data=list(values))


def kinds(types: Sequence[str] = TYPES) -> Iterator[tuple[str, bool]]:
    """Yield each type, and whether it is quantized. Types that may be quantized come in both ways."""
    for dtype in types:
        yield from ((dtype, q) for q in ((True, False) if dtype in QUANTIZED else (False,)))


def called(name: str, *parts: Any) -> str:
    return " ".join([name, *map(str, parts)])


def typed(dtype: str, quantized: bool) -> str:
    return f"q{dtype}" if quantized else dtype


@dataclass(frozen=True)
class Kind:
    """A type, quantized or not, for which an operator's cases are made."""

    dtype: str
    quantized: bool

    def y(self, *sizes: int, factor: float = 1) -> Tensor:
        return tensor(sizes, self.dtype, self.quantized, factor)

    def made(
        self, name: str, tensors: list[Tensor], count: int, table: str = "", label: str = "", **options: Any
    ) -> tuple[str, Case]:
        """Make a case of an operator: its name, its tensors and the operator. The last `count` tensors are
        its results."""
        n = len(tensors)
        operator = Operator(name, [*range(n - count)], [*range(n - count, n)], table, options, 4)
        return called(name, typed(self.dtype, self.quantized), label, *options.values()), (tensors, operator)
