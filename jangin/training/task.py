"""The task of training, and `jangin.value_and_grad`, which computes gradients alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from jangin.compiler.cases import imported
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.options import Common, Options
from jangin.runtime.collecting import uncollected
from jangin.training import losses
from jangin.training.files import of_file
from jangin.training.interrupts import uninterrupted
from jangin.training.parameters import Chosen, Trainable
from jangin.training.reduced import shares
from jangin.training.runner import Runner, as_array
from jangin.training.step import StepBuilder

LossGiven = str | Callable[..., Any] | None
"""A loss, as a name or a function. For a PyTorch module, the function takes PyTorch's tensors. For a model of
another format, it takes a `Builder`, the output and the target. With None, the model's output is the loss."""


@dataclass(frozen=True)
class Task:
    """The arguments of `train` or `value_and_grad`, without the optimizer."""

    model: Any
    loss: LossGiven
    example: tuple[Any, ...]
    chosen: Chosen
    options: Options
    seed: int = 0

    @property
    def is_module(self) -> bool:
        kinds = type(self.model).__mro__
        return any(c.__module__.startswith("torch.nn") and c.__name__ == "Module" for c in kinds)

    def trainable(self, held: Sequence[str] = ()) -> Trainable:
        """Return the model as a trainable graph, with the loss if this is a function for a PyTorch module.
        For `held` see `modules.of_module`."""
        if not self.is_module:
            return of_file(self.model, self.chosen, self.options)
        from jangin.training.modules import WithLoss, of_module

        if callable(self.loss):
            whole = WithLoss(self.model, self.loss)
            return of_module(whole, self.example, self.chosen, self.options, held)
        inputs = self.example if self.loss is None else self.example[:-1]
        return of_module(self.model, inputs, self.chosen, self.options, held)

    def part(self, count: int) -> Task:
        """Return the task for one of `count` equal parts of each batch."""
        example = shares(self.example, count)[0]
        if self.is_module:
            return replace(self, example=example)
        graph = imported(self.model, self.options).graph
        names = (n for n in graph.inputs if n not in graph.constants)
        shapes = {n: a.shape for n, a in zip(names, example, strict=False)}
        return replace(self, example=example, options=self.options.but(shapes=shapes))

    @property
    def added(self) -> tuple[losses.Loss | None, Array | None]:
        """The loss to add to the model's graph, and the example's target. Both are None if the model's graph
        computes the loss."""
        if self.loss is None or (callable(self.loss) and self.is_module):
            return None, None
        target = as_array(self.example[-1])
        if callable(self.loss):
            return self.loss, target
        if self.loss not in losses.BY_NAME:
            raise CompileError(f"loss={self.loss!r} is none of {', '.join(losses.BY_NAME)}, and no function")
        return losses.BY_NAME[self.loss], target


class ValueAndGrad:
    """A compiled loss with its gradients: `loss, gradients = f(parameters, batch)`.

    The parameters and gradients are dicts by the parameters' names. The attribute `parameters` has the
    model's own parameters. Buffers that the model changes are kept from call to call."""

    def __init__(self, task: Task) -> None:
        model = task.trainable()
        self._names = {n: i for n, i in model.names.items() if i in model.parameters}
        step = StepBuilder(model, *task.added).with_gradients()
        self._runner = Runner.of(step, task.options, task.seed)
        self._calls = 0
        self._buffers = {n: np.array(a) for n, a in model.buffers.items()}
        self.parameters = {n: model.parameters[i] for n, i in self._names.items()}

    def __call__(self, parameters: Mapping[str, Any], batch: Any) -> tuple[float, dict[str, Array]]:
        missing = self._names.keys() - parameters.keys()
        if missing:
            raise ValueError(f"the parameters lack {', '.join(sorted(missing))}: give an array for each")
        weights = {i: as_array(parameters[n]) for n, i in self._names.items()}
        step = self._runner.step
        self._calls += 1
        with uninterrupted():
            outputs = self._runner.run(batch, {**weights, **self._buffers}, {}, self._calls)
            self._buffers = {n: outputs[step.after[n]] for n in self._buffers}
        by_name = {n: outputs[step.gradients[i]] for n, i in self._names.items()}
        return float(outputs[step.loss]), by_name


def value_and_grad(
    model: Any, loss: LossGiven, wrt: Chosen = None, *, example: Sequence[Any], seed: int = 0,
    target: Any = None,
    shapes: Mapping[str, Any] | None = None, threads: int | None = None, **given: Unpack[Common],
) -> ValueAndGrad:  # fmt: skip
    """Compile a loss and its gradients for a training loop of your own. `wrt` names the parameters. The other
    arguments are those of `jangin.train`."""
    task = Task(model, loss, tuple(example), wrt, Options(target, shapes, threads, **given), seed)
    with uncollected():
        return ValueAndGrad(task)
