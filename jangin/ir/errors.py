"""The errors that a model's author reads if a model can't be compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jangin.visible import visible

if TYPE_CHECKING:
    from jangin.ir.expr import Expr, Var


class CompileError(Exception):
    """A model can't be compiled. The message has the node, operator, shapes, reason and remedy. `symbols` are
    the symbols in `sizes`, which would have to be known to compile it."""

    def __init__(self, text: str = "", sizes: Iterable[Expr] = ()) -> None:
        super().__init__(text)
        self.symbols: frozenset[Var] = frozenset().union(*(size._free for size in sizes))

    def __str__(self) -> str:
        return visible(super().__str__())


class UnreadError(CompileError, OSError):
    """The system can't open a model's file. The message has the system's error number, its meaning, and the
    path."""

    def __init__(self, *said: object) -> None:
        OSError.__init__(self, *said)
        self.symbols = frozenset()


class MissingError(UnreadError, FileNotFoundError):
    """There is no file at the given path of a model or of its weights."""


class FormatError(CompileError):
    """The given data isn't a model in any supported format."""
