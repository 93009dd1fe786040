"""`jangin.train` and `jangin.value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.compiler.pipeline import build_plan
from jangin.files import write_whole
from jangin.ir import limits
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.optim import BY_NAME as OPTIMIZERS
from jangin.optim import Optimizer
from jangin.options import Options
from jangin.runtime.load import executable
from jangin.training import losses
from jangin.training.groups import Groups
from jangin.training.parameters import Chosen, Trainable, of_file
from jangin.training.step import Clip, StepBuilder, StepGraph, forward_only

LossGiven = str | Callable[..., Any] | None
"""A loss by name, or a function. For a PyTorch module it takes PyTorch's tensors; for a model of another
format it takes a `Builder`, the output and the target. None: the model's output is the loss."""


@dataclass(frozen=True)
class Task:
    """Everything that is asked for but the optimizer."""

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
        """The model in the mode that it is in, with its loss if PyTorch has that."""
        if not self.is_module:
            return of_file(self.model, self.chosen, self.options)
        from jangin.training.modules import WithLoss, of_module

        if callable(self.loss):
            whole = WithLoss(self.model, self.loss)
            return of_module(whole, self.example, self.chosen, self.options, held)
        given = self.example if self.loss is None else self.example[:-1]
        return of_module(self.model, given, self.chosen, self.options, held)

    @property
    def added(self) -> tuple[losses.Loss | None, Array | None]:
        """The loss that is added to the model's graph, and a target."""
        if self.loss is None or (callable(self.loss) and self.is_module):
            return None, None
        target = as_array(self.example[-1])
        if callable(self.loss):
            return self.loss, target
        if self.loss not in losses.BY_NAME:
            raise CompileError(f"loss={self.loss!r} is none of {', '.join(losses.BY_NAME)}, and no function")
        return losses.BY_NAME[self.loss], target


MASK = 0xFFFFFFFF


class Runner:
    """A step's plan, and what it keeps from run to run."""

    def __init__(self, step: StepGraph, options: Options, seed: int) -> None:
        self.step, self.seed = step, seed
        with limits.within(options.limits):
            self.executable: Any = executable(build_plan(step.graph, options), options.threads)
        self.names = [spec.name for spec in self.executable.inputs]

    def run(
        self, batch: Any, kept: Mapping[str, Array], numbers: Mapping[str, Array], draw: int = 0
    ) -> dict[str, Array]:
        """All outputs by name. `draw`: the number of the run, which random numbers follow from. Raises
        ValueError or TypeError for a batch that isn't like the example."""
        given = batch if isinstance(batch, (tuple, list)) else (batch,)
        if len(given) != len(self.step.inputs):
            raise ValueError(f"a batch has {len(self.step.inputs)} arrays as the example, not {len(given)}")
        feeds = dict(zip(self.step.inputs, map(as_array, given), strict=True))
        feeds |= {**kept, **numbers}
        if self.step.random:
            words = (self.seed & MASK, self.seed >> 32 & MASK, draw & MASK)
            feeds[self.step.random] = np.array(words, np.uint32)
        found: dict[str, Array] = self.executable.run({n: feeds[n] for n in self.names})
        return found


def as_array(value: Any) -> Array:
    """NumPy's arrays and PyTorch's tensors alike."""
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


class ValueAndGrad:
    """A loss and its gradients: `loss, gradients = f(parameters, batch)`, both by the parameters' names.
    `parameters`: what the model has. Buffers that the model changes are kept from call to call."""

    def __init__(self, task: Task) -> None:
        model = task.trainable()
        self._names = {n: i for n, i in model.names.items() if i in model.parameters}
        self._runner = Runner(StepBuilder(model, *task.added).with_gradients(), task.options, task.seed)
        self._calls = 0
        self._buffers = dict(model.buffers)
        self.parameters = {n: model.parameters[i] for n, i in self._names.items()}

    def __call__(self, parameters: Mapping[str, Any], batch: Any) -> tuple[float, dict[str, Array]]:
        missing = self._names.keys() - parameters.keys()
        if missing:
            raise ValueError(f"no array for the parameters {', '.join(sorted(missing))}")
        given = {i: as_array(parameters[n]) for n, i in self._names.items()}
        step = self._runner.step
        self._calls += 1
        found = self._runner.run(batch, {**given, **self._buffers}, {}, self._calls)
        self._buffers = {n: found[step.after[n]] for n in self._buffers}
        made = {n: found[step.gradients[i]] for n, i in self._names.items()}
        return float(found[step.loss]), made


class Trainer:
    """A model being trained: `loss = trainer.step(batch)` changes its parameters. A batch is a tuple of
    arrays or tensors like the example. `lr`: a learning rate for all later steps, instead of the
    optimizer's."""

    def __init__(self, task: Task, optimizers: Sequence[Optimizer], groups: Groups, clip: Clip) -> None:
        model = task.trainable()
        self._task, self._optimizers = task, optimizers
        self._names, self._order = dict(model.names), list(model.parameters)
        builder = StepBuilder(model, *task.added)
        builder.clip(clip)
        chosen = groups.numbers({i: n for n, i in self._names.items()}, self._order)
        self._runner = Runner(builder.updated(optimizers, chosen), task.options, task.seed)
        self._kept = dict(self._runner.step.kept)
        self._rates = groups.rates
        self._evaluation: Runner | None = None
        self.count = 0
        self.lr: float | None = None
        if (before := groups.kept()) is not None:
            self.load_optimizer_state(*before)

    def step(self, batch: Any) -> float:
        """One step; the loss before it. A step that raises leaves everything as it was."""
        count, step = self.count + 1, self._runner.step
        rates = [self.lr if self.lr is not None else rate() for rate in self._rates]
        found = [o.numbers(count, lr) for o, lr in zip(self._optimizers, rates, strict=True)]
        numbers = {name: np.asarray(found[n][key]) for name, (n, key) in step.numbers.items()}
        made = self._runner.run(batch, self._kept, numbers, count)
        self._kept = {n: made[after] for n, after in step.after.items()}
        self.count = count
        return float(made[step.loss])

    def evaluate(self, batch: Any) -> float:
        """The loss in evaluation mode, which changes nothing."""
        if self._evaluation is None:
            self._evaluation = Runner(self._evaluated(), self._task.options, self._task.seed)
        kept = {i: self._kept[self._names[n]] for n, i in self._evaluated_names.items()}
        return float(self._evaluation.run(batch, kept, {})[self._evaluation.step.loss])

    def _evaluated(self) -> StepGraph:
        task, changed = self._task, [n for n, i in self._names.items() if i not in self._order]
        training = bool(getattr(task.model, "training", False))
        try:
            if training:
                task.model.eval()
            model = task.trainable(changed)
        finally:
            if training:
                task.model.train()
        self._evaluated_names = dict(model.names)
        return forward_only(model, *task.added)

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Copies of the parameters that are trained and of the buffers that change, by the model's names."""
        return {name: self._kept[i].copy() for name, i in self._names.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take parameters and buffers, all that `state_dict` gives. Others are left out of account. Raises
        ValueError for one that is missing or has another shape."""
        self._take({i: (name, state.get(name)) for name, i in self._names.items()})

    def optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Copies of what the optimizer keeps, by the parameter's name and its own."""
        found: dict[str, dict[str, Array]] = {}
        for name, i in self._names.items():
            for own, (of, slot) in self._runner.step.slots.items():
                if of == i:
                    found.setdefault(name, {})[slot] = self._kept[own].copy()
        return found

    def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]], count: int) -> None:
        """Go on after `count` steps with what an optimizer kept."""
        owners = {i: name for name, i in self._names.items()}
        given = {}
        for own, (of, slot) in self._runner.step.slots.items():
            name = next((n for n, i in self._names.items() if i == of and n in state), owners[of])
            given[own] = f"{name}.{slot}", state.get(name, {}).get(slot)
        self._take(given)
        self.count = count

    def _take(self, given: Mapping[str, tuple[str, Any]]) -> None:
        taken = {}
        for own, (name, value) in given.items():
            want = self._kept[own]
            if value is None:
                raise ValueError(f"there is no array {name}")
            array = np.array(as_array(value), want.dtype)
            if array.shape != want.shape:
                raise ValueError(f"{name} has shape {array.shape}, not {want.shape}")
            taken[own] = array
        self._kept |= taken

    def save(self, path: Any) -> None:
        """Write parameters, buffers, the optimizer's state and the number of steps, as NumPy's .npz: whole or
        not at all."""
        arrays = {f"model/{n}": a for n, a in self.state_dict().items()}
        for name, slots in self.optimizer_state().items():
            arrays |= {f"optimizer/{slot}/{name}": a for slot, a in slots.items()}
        arrays["steps"] = np.asarray(self.count)
        write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]

    def load(self, path: Any) -> None:
        """Go on with what `save` wrote. Raises ValueError for a file of another model or optimizer."""
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        if "steps" not in arrays:
            raise ValueError(f"{path} is no file that a trainer saved")
        before = dict(self._kept)
        try:
            self.load_state_dict({n.removeprefix("model/"): a for n, a in arrays.items()})
            kept: dict[str, dict[str, Array]] = {}
            for key, array in arrays.items():
                kind, *rest = key.split("/", 2)
                if kind == "optimizer":
                    kept.setdefault(rest[1], {})[rest[0]] = array
            self.load_optimizer_state(kept, int(arrays["steps"]))
        except ValueError:
            self._kept = before
            raise


def train(
    model: Any, loss: LossGiven, optimizer: Any, example: Sequence[Any], *, trainable: Chosen = None,
    clip_norm: float | None = None, clip_value: float | None = None, seed: int = 0, target: Any = None,
    shapes: Mapping[str, Any] | None = None, threads: int | None = None, operators: Sequence[Any] = (),
) -> Trainer:  # fmt: skip
    """Compile a training step: forward pass, gradients and update as one plan.

    `model`: a PyTorch module, in the mode it is in, or a model of any format, of which `trainable` names the
    constants. `loss`: the name of one of `jangin.training.losses`, a function, or None if the model gives it.
    `optimizer`: a name, one of `jangin.optim`, or one of `torch.optim` over the module's parameters.
    `example`: a batch, of the inputs and then the target. `trainable`: names or patterns of parameters; all
    that need gradients, unless it is given. `seed`: of random operators (dropout); a step's numbers follow
    from it and the number of the step. CompileError says what can't be trained, and where."""
    task = Task(
        model, loss, tuple(example), trainable, Options(target, shapes, threads, operators=operators), seed
    )
    groups = _groups(optimizer, model)
    return Trainer(task, groups.optimizers, groups, Clip(clip_value, clip_norm))


def _groups(optimizer: Any, model: Any) -> Groups:
    if isinstance(optimizer, Optimizer):
        return Groups([optimizer])
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise CompileError(f"optimizer={optimizer!r} is none of {', '.join(OPTIMIZERS)}")
        return Groups([OPTIMIZERS[optimizer]()])  # type: ignore[call-arg]
    if type(optimizer).__module__.startswith("torch.optim"):
        from jangin.training.torch_optim import TorchGroups

        return TorchGroups(optimizer, model)
    raise CompileError(f"{type(optimizer).__name__} is no optimizer: give a name or one of jangin.optim")


def value_and_grad(
    model: Any, loss: LossGiven, wrt: Chosen = None, *, example: Sequence[Any], seed: int = 0,
    target: Any = None,
    shapes: Mapping[str, Any] | None = None, threads: int | None = None, operators: Sequence[Any] = (),
) -> ValueAndGrad:  # fmt: skip
    """Compile a loss and its gradients for a loop of your own; the arguments are those of `jangin.train`,
    and `wrt` names the parameters."""
    return ValueAndGrad(
        Task(model, loss, tuple(example), wrt, Options(target, shapes, threads, operators=operators), seed)
    )
