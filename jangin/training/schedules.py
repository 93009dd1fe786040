"""Schedules of learning rates. Each gives the factor on all rates from the number of the step, so a run that
goes on needs nothing but this number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Full rates. The factor rises from nearly 0 to 1 over the first `warmup` epochs.

    Raises ValueError for negative settings."""

    warmup: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"a schedule's {name}={value} is negative: give 0 or more")

    def factor(self, step: int, steps: int, epoch: int) -> float:
        """Return the factor of step `step`, the first of which is 0, of `steps`. An epoch has `epoch`
        steps."""
        warm = min(round(self.warmup * epoch), steps)
        if step < warm:
            return (step + 1) / warm
        return self.after((step - warm) / max(steps - warm, 1), (step - warm) / epoch)

    def after(self, share: float, epochs: float) -> float:
        """Return the factor after the warm-up, from its share of the steps and its epochs that are over."""
        return 1.0


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line to `end`."""

    end: float = 0.0

    def after(self, share: float, epochs: float) -> float:
        return 1.0 + (self.end - 1.0) * min(share, 1.0)


@dataclass(frozen=True)
class Cosine(Linear):
    """Half a cosine wave to `end` (Loshchilov & Hutter 2017)."""

    def after(self, share: float, epochs: float) -> float:
        return super().after((1.0 - math.cos(math.pi * min(share, 1.0))) / 2, epochs)


@dataclass(frozen=True)
class Steps(Schedule):
    """Another `factor` after each `every` epochs."""

    every: float = 30.0
    by: float = 0.1

    def after(self, share: float, epochs: float) -> float:
        return float(self.by ** math.floor(epochs / self.every + EXACT)) if self.every else 1.0


EXACT = 1e-9
"""The share of a period that rounding may take from a quotient. A step is a larger share of any period."""
CONSTANT = Schedule()
BY_NAME: Mapping[str, type[Schedule]] = {
    "constant": Schedule, "linear": Linear, "cosine": Cosine, "steps": Steps,
}  # fmt: skip
"""The schedules by their names on the command line, with their default settings."""
