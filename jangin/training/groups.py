"""Parameter groups: parameters by their optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from jangin.ir.graph import CompileError
from jangin.optim import Optimizer

Kept = Mapping[str, Mapping[str, Any]]
"""An optimizer's state: arrays by the parameter's name and the array's own name."""
Names = Mapping[str, Sequence[str]]
"""The model's own names of each parameter, by its input. Layers that share a parameter give it several."""


class Groups:
    """The optimizers of a model's parameters. `rates` has a function for each optimizer, which returns the
    learning rate of the next step."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers
        self.rates: list[Callable[[], float]] = [_constant(o.lr) for o in optimizers]

    def numbers(self, names: Names, parameters: Sequence[str]) -> dict[str, int]:
        """Return the number of each parameter's optimizer. `parameters` are inputs of the graph."""
        return dict.fromkeys(parameters, 0)

    def kept(self) -> tuple[Kept, int] | None:
        """Return the optimizers' state after earlier steps and the number of these steps. Return None if
        there is no such state."""
        return None


class NamedGroups(Groups):
    """Optimizers by patterns of parameters' names, as for file names. A parameter has the first that fits."""

    def __init__(self, given: Mapping[str, Optimizer]) -> None:
        super().__init__([*given.values()])
        self.patterns = [*given]

    def numbers(self, names: Names, parameters: Sequence[str]) -> dict[str, int]:
        chosen: dict[str, int] = {}
        for own in parameters:
            fitting = (n for n, p in enumerate(self.patterns) for name in names[own] if fnmatchcase(name, p))
            if (number := next(fitting, None)) is None:
                raise CompileError(
                    f"no optimizer for {names[own][0]}: {', '.join(self.patterns)} don't fit it. End with '*'"
                )
            chosen[own] = number
        return chosen


def _constant(rate: float) -> Callable[[], float]:
    return lambda: rate
