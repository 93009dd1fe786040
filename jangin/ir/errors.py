"""What a model's author reads where a model can't be compiled."""

from __future__ import annotations

from jangin.visible import visible


class CompileError(Exception):
    """The node, operator, shapes, reason and remedy, in one message."""

    def __str__(self) -> str:
        return visible(super().__str__())
