"""Compiled steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from jangin.compiler.pipeline import build_plan, kept_kernels
from jangin.ir import limits
from jangin.ir.graph import Array
from jangin.options import Options
from jangin.runtime.load import executable
from jangin.training.step import StepGraph

MASK = 0xFFFFFFFF
"""The 32 bits of a word of the random numbers' seed."""


class Runner:
    """A compiled step. It doesn't hold the arrays that the first step begins with."""

    is_stale = False
    """Whether arrays that pass from step to step were replaced since the last step."""

    def __init__(self, step: StepGraph, compiled: Any, seed: int) -> None:
        self.step, self.executable, self.seed = replace(step, kept={}), compiled, seed
        self.names = [spec.name for spec in compiled.inputs]

    @classmethod
    def of(cls, step: StepGraph, options: Options, seed: int, checkpoint: int | None = None) -> Self:
        """Compile a step, and load it. Its kernels are kept with those of models."""
        kernels = kept_kernels(options)
        with limits.within(options.limits):
            plan = build_plan(step.graph, options, shared=kernels, arena=checkpoint)
            compiled = executable(plan, options.threads)
        return cls(step, compiled, seed)

    def run(
        self, batch: Any, kept: Mapping[str, Array], numbers: Mapping[str, Array], draw: int = 0
    ) -> dict[str, Array]:
        """Run the step, and return all outputs by name. Arrays of `kept` whose next state is an output are
        updated in place. The random numbers follow from the seed and `draw`, the number of the run. Raises
        ValueError or TypeError for a batch that isn't like the example."""
        outputs: dict[str, Array] = self.executable.run(self.feeds(batch, kept, numbers, draw))
        return outputs

    def feeds(
        self, batch: Any, kept: Mapping[str, Array], numbers: Mapping[str, Array], draw: int
    ) -> dict[str, Array]:
        """Return all inputs of a run, by name."""
        arrays = batch if isinstance(batch, (tuple, list)) else (batch,)
        if len(arrays) != len(self.step.inputs):
            raise ValueError(
                f"a batch must have {len(self.step.inputs)} arrays, as the example had, not {len(arrays)}"
            )
        feeds = dict(zip(self.step.inputs, map(as_array, arrays), strict=True))
        feeds |= {**kept, **numbers}
        if self.step.random:
            words = (self.seed & MASK, self.seed >> 32 & MASK, draw & MASK)
            feeds[self.step.random] = np.array(words, np.uint32)
        return {n: feeds[n] for n in self.names}


def as_array(value: Any) -> Array:
    """Return an array or a PyTorch tensor as an array."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    from jangin.frontends.torch.element_types import array_of

    return array_of(value)
