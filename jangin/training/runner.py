"""Compiled steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from jangin.compiler.pipeline import build_plan, kept_kernels
from jangin.ir import limits
from jangin.ir.graph import Array
from jangin.options import Options
from jangin.runtime.load import executable
from jangin.runtime.sizes import TensorSpec, converting
from jangin.training.step import StepGraph

MASK = 0xFFFFFFFF
"""The 32 bits of a word of the random numbers' seed."""


class Runner:
    """A compiled step. It doesn't hold the arrays that the first step begins with."""

    is_stale = False
    """Whether arrays that pass from step to step were replaced since the last step."""

    parts = 1
    """The equal parts of a batch, if a run takes one of several."""

    def __init__(self, step: StepGraph, compiled: Any, seed: int) -> None:
        self.step, self.executable, self.seed = replace(step, kept={}), compiled, seed
        self.names = [spec.name for spec in compiled.inputs]
        self._given = [(n, s) for n, i in enumerate(step.inputs) for s in compiled.inputs if s.name == i]

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
        feeds = self.batch(batch) | {**kept, **numbers}
        if self.step.random:
            words = (self.seed & MASK, self.seed >> 32 & MASK, draw & MASK)
            feeds[self.step.random] = np.array(words, np.uint32)
        return {n: feeds[n] for n in self.names}

    def batch(self, batch: Any) -> dict[str, Array]:
        """Return the arrays of a batch by the inputs' names. Raises ValueError or TypeError for arrays that
        aren't like the example's."""
        arrays = batch if isinstance(batch, (tuple, list)) else (batch,)
        if len(arrays) != len(self.step.inputs):
            raise ValueError(
                f"a batch must have {len(self.step.inputs)} arrays, as the example had, not {len(arrays)}"
            )
        given = [*map(as_array, arrays)]
        for n, spec in self._given:
            self._check(n, given[n], spec)
        return dict(zip(self.step.inputs, given, strict=True))

    def _check(self, number: int, array: Array, spec: TensorSpec) -> None:
        """Raise TypeError or ValueError if an array of a batch isn't like the example's."""
        if array.dtype != spec.dtype:
            raise TypeError(
                f"array {number + 1} of the batch is {array.dtype}, and the example's is {spec.dtype}: "
                f"{converting(spec)}"
            )
        if array.ndim != len(spec.shape) or any(
            isinstance(d, int) and d != n for n, d in zip(array.shape, spec.shape, strict=True)
        ):
            raise ValueError(
                f"array {number + 1} of the batch has the shape {self._whole(array.shape)}, and the "
                f"example's has {self._whole(spec.shape)}: leave a batch that isn't full out, or train with "
                "another example"
            )

    def _whole(self, shape: Sequence[int | str]) -> str:
        """Return the shape of a whole batch's array, from that of a part's."""
        first, *rest = shape or ("",)
        first = first * self.parts if isinstance(first, int) else first
        return f"[{', '.join(map(str, (first, *rest)))}]"


def as_array(value: Any) -> Array:
    """Return an array or a PyTorch tensor as an array."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    from jangin.frontends.torch.element_types import array_of

    return array_of(value)
