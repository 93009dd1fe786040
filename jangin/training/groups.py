"""Parameters by the optimizer that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jangin.optim import Optimizer

Kept = Mapping[str, Mapping[str, Any]]
"""An optimizer's state, by the parameter's name and its own."""


class Groups:
    """Each parameter's optimizer. `rates` give the optimizers' learning rates at a step."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers
        self.rates: list[Callable[[], float]] = [_constant(o.lr) for o in optimizers]

    def numbers(self, names: Mapping[str, str], parameters: Sequence[str]) -> dict[str, int]:
        """Each parameter's optimizer, by its number. `names`: the model's own, by input."""
        return dict.fromkeys(parameters, 0)

    def kept(self) -> tuple[Kept, int] | None:
        """The state of steps that were made already, and their number."""
        return None


def _constant(rate: float) -> Callable[[], float]:
    return lambda: rate
