"""Parameter groups: parameters by their optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jangin.optim import Optimizer

Kept = Mapping[str, Mapping[str, Any]]
"""An optimizer's state: arrays by the parameter's name and the array's own name."""


class Groups:
    """The optimizers of a model's parameters. `rates` has a function for each optimizer, which returns the
    learning rate of the next step."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers
        self.rates: list[Callable[[], float]] = [_constant(o.lr) for o in optimizers]

    def numbers(self, names: Mapping[str, str], parameters: Sequence[str]) -> dict[str, int]:
        """Return the number of each parameter's optimizer. `parameters` are inputs of the graph, and `names`
        has the model's own names by input."""
        return dict.fromkeys(parameters, 0)

    def kept(self) -> tuple[Kept, int] | None:
        """Return the optimizers' state after earlier steps and the number of these steps. Return None if
        there is no such state."""
        return None


def _constant(rate: float) -> Callable[[], float]:
    return lambda: rate
