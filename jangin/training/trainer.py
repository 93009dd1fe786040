"""`jangin.train`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from jangin.files import write_whole
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.optim import BY_NAME as OPTIMIZERS
from jangin.optim import Optimizer
from jangin.options import Common, Options
from jangin.passes.memory.recompute import repeated_share
from jangin.runtime.collecting import uncollected
from jangin.training.data import read_arrays
from jangin.training.finite import first_fault, is_finite
from jangin.training.groups import Groups, NamedGroups
from jangin.training.interrupts import uninterrupted
from jangin.training.parameters import Chosen, Lora, Trainable
from jangin.training.processes import Processes
from jangin.training.reduced import Reduce, Reduced
from jangin.training.runner import Runner, as_array
from jangin.training.step import (
    AVERAGE,
    MASTER,
    NO_EXTRAS,
    SCALE,
    SKIPPED,
    Clip,
    Extras,
    StepBuilder,
    UpdateBuilder,
    forward_only,
    outputs_only,
)
from jangin.training.task import LossGiven, Task
from jangin.training.written import write_trained

if TYPE_CHECKING:
    from jangin.ahead.emit import Emitted


class Trainer:
    """A model in training. `loss = trainer.step(batch)` changes the parameters. A batch is a tuple of arrays
    or tensors like the example. If `lr` is set, it replaces the optimizer's learning rate in all later
    steps. `lr_factor` multiplies the rates of all optimizers. `train` describes `check="nan"`."""

    def __init__(
        self, task: Task, optimizers: Sequence[Optimizer], groups: Groups, clip: Clip, check: str = "",
        checkpoint: int | None = None, reduce: Reduce | None = None, processes: int = 1, parts: int = 1,
        extras: Extras = NO_EXTRAS,
    ) -> None:  # fmt: skip
        if check not in ("", "nan"):
            raise ValueError(f"check={check!r} is unknown; there is 'nan'")
        apart = reduce is not None or processes > 1 or parts > 1
        if apart and check:
            raise ValueError(
                "check='nan' follows one plan to the first fault, and a step of parts has two: train without "
                "`processes`, `reduce` and `accumulate`"
            )
        self._check = check
        count = processes * parts
        part = task if count == 1 else task.part(count)
        model = part.trainable()
        self._output = model.graph.shape(model.outputs[0])
        self._task, self._optimizers = task, optimizers
        self._names, self._order = dict(model.names), list(model.parameters)
        self._adapters = model.adapters
        builder = StepBuilder(model, *part.added, extras=extras)
        whole = UpdateBuilder(model, builder) if apart else builder
        whole.clip(clip)
        named = {i: [n for n, of in self._names.items() if of == i] for i in self._order}
        chosen = groups.numbers(named, self._order)
        step = whole.updated(optimizers, chosen)
        self._kept = dict(step.kept)
        self._checkpoint = checkpoint
        # a thread writes the state's new memory while the step is compiled
        with ThreadPoolExecutor(1) as thread:
            for array in whole.zeros:
                thread.submit(array.fill, 0)
            last = Runner.of(step, task.options, task.seed, checkpoint)
        self._runner: Runner | Reduced = last
        if apart:
            step = builder.with_gradients()
            self._kept |= step.kept
            first = Runner.of(step, task.options, task.seed, checkpoint)
            self._runner = (
                Processes(first, last, processes, task.options.threads, parts)
                if processes > 1
                else Reduced(first, last, reduce, parts)
            )
        self._rates, self._scaling = groups.rates, builder.scaling
        self._evaluation: Runner | None = None
        self.count = 0
        self.lr: float | None = None
        self.lr_factor = 1.0
        if (before := groups.kept()) is not None:
            self.load_optimizer_state(*before)

    def step(self, batch: Any) -> float:
        """Run one step, and return the loss before it. A step that raises an exception changes nothing.
        Ctrl-C waits for the end of the step. Raises FloatingPointError if numbers that aren't finite are
        looked for and found."""
        count, step = self.count + 1, self._runner.step
        update, rates = self.updates + 1, self._now()
        figures = [o.numbers(update, lr) for o, lr in zip(self._optimizers, rates, strict=True)]
        numbers = {name: np.asarray(figures[n][key]) for name, (n, key) in step.numbers.items()}
        before = {n: a.copy() for n, a in self._kept.items()} if self._check else {}
        with uninterrupted():
            outputs = self._runner.run(batch, self._kept, numbers, count)
            after = {n: outputs[out] for n, out in step.after.items()}
            if self._check and not all(map(is_finite, (outputs[step.loss], *after.values()))):
                self._kept = before
                fault = first_fault(step.graph, self._runner.feeds(batch, before, numbers, count))
                raise FloatingPointError(f"step {count}: {fault}; the step changed nothing")
            self._kept = after
            self.count = count
        return float(outputs[step.loss])

    def _now(self) -> list[float]:
        """Return the learning rates of the next step."""
        return [(self.lr if self.lr is not None else rate()) * self.lr_factor for rate in self._rates]

    def evaluate(self, batch: Any, averaged: bool = False) -> float:
        """Return the loss in evaluation mode, of the parameters or of their running means. This changes
        nothing."""
        return self.measure(batch, averaged)[0]

    def measure(self, batch: Any, averaged: bool = False) -> tuple[float, Array]:
        """Return the loss and the model's first output in evaluation mode. This changes nothing. If the
        model's output is the loss, both are the loss."""
        means = self._means() if averaged else {}
        if self._evaluation is None:
            model = self._in_evaluation(self._task)
            self._evaluated_names = self._own_names(model)
            step = StepBuilder(model, *self._task.added, differentiated=False).with_output()
            self._evaluation = Runner.of(step, self._task.options, self._task.seed)
        kept = {i: means.get(n, self._kept[n]) for i, n in self._evaluated_names.items()}
        outputs = self._evaluation.run(batch, kept, {})
        step = self._evaluation.step
        return float(outputs[step.loss]), outputs[step.output]

    def _own_names(self, model: Trainable) -> dict[str, str]:
        """Return the step's input for each input of another graph of the model that has weights."""
        return {i: self._names[n] for n, i in model.names.items()}

    def _in_evaluation(self, task: Task) -> Trainable:
        changed = [n for n, i in self._names.items() if i not in self._order]
        training = bool(getattr(task.model, "training", False))
        try:
            if training:
                task.model.eval()
            return task.trainable(changed)
        finally:
            if training:
                task.model.train()

    def emit(
        self, kind: str, path: Any, target: Any = None, *, name: str = "model", constants: str = "inside",
        force: bool = False,
    ) -> Emitted:  # fmt: skip
        """Write the step, `evaluate` and inference to the folder `path`, as code that runs without Jangin.

        The code begins with the trainer's present state. Its functions allocate nothing. The other arguments
        mean the same as for `jangin.emit`, and the target is the trainer's by default. Raises ValueError if
        the target or kind is unknown, and FileExistsError for existing files, unless `force`."""
        from jangin.training.emitted import Whole, emit_step

        if isinstance(self._runner, Reduced):
            raise ValueError("a step of two plans can't be emitted: leave out `processes` and `accumulate`")
        task = self._task
        model, inference = self._in_evaluation(task), None
        evaluation, names = forward_only(model, *task.added), self._own_names(model)
        if task.loss is not None:
            model = self._in_evaluation(replace(task, loss=None, example=task.example[:-1]))
            inference, names = outputs_only(model), {**names, **self._own_names(model)}
        whole = Whole(
            self._runner.step, self._kept, self._optimizers, self._now(), self.count, task.seed, evaluation,
            inference, names, self._checkpoint,
        )  # fmt: skip
        options = task.options.but(threads=1, **({} if target is None else {"target": target}))
        step = emit_step(whole, options, kind, name, constants)
        step.save(path, force=force)
        return step

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the trained parameters and the changing buffers, by the model's names."""
        return {name: self._kept[i].copy() for name, i in self._names.items()}

    def averaged(self) -> dict[str, Array]:
        """Return what `state_dict` returns, with the running means of parameters. Raises ValueError if the
        trainer was made without `average=`."""
        means = self._means()
        return {name: means.get(i, self._kept[i]).copy() for name, i in self._names.items()}

    def _means(self) -> dict[str, Array]:
        """Return the running means of parameters, by the step's inputs and of their types."""
        slots = self._runner.step.slots.items()
        means = {of: self._kept[own].astype(self._kept[of].dtype) for own, (of, s) in slots if s == AVERAGE}
        if not means:
            raise ValueError("this trainer has no running means: make it with average=0.999")
        return means

    @property
    def loss_scale(self) -> float | None:
        """The factor on gradients while they go backwards, if steps find it (`loss_scale="dynamic"`)."""
        return float(self._kept[self._scaling[SCALE]]) if self._scaling else None

    @property
    def updates(self) -> int:
        """The steps that changed parameters: all steps, but for those whose gradients weren't finite."""
        return self.count - (int(self._kept[self._scaling[SKIPPED]]) if self._scaling else 0)

    def merged(self, averaged: bool = False) -> dict[str, Array]:
        """Return the trained parameters, or their running means, and changing buffers by the model's own
        names. Adapters are added to the weights that they belong to."""
        kept = self._kept | (self._means() if averaged else {})
        inner = {i for a in self._adapters.values() for i in (a.first, a.second)}
        weights = {n: kept[i].copy() for n, i in self._names.items() if i not in inner}
        return {**weights, **{n: a.merged(kept) for n, a in self._adapters.items()}}

    @property
    def arena_bytes(self) -> int:
        """The bytes of working memory of a step, beside the state and the scratch memory of threads."""
        count: int = self._runner.executable.arena_bytes()
        return count

    @property
    def repeated_share(self) -> float:
        """The work of kernels that a step runs again to save memory, as a share of all other work. Work is
        operations of products, and bytes moved."""
        return repeated_share(self._runner.executable.plan)

    @property
    def state_bytes(self) -> int:
        """The bytes of parameters, buffers and the optimizer's state, each held once."""
        return sum(a.nbytes for a in self._kept.values())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set parameters and buffers from `state`, which needs all entries that `state_dict` returns. Other
        entries are ignored. Running means and float32 copies begin anew with the parameters. Raises
        ValueError for an array that is missing or has another shape."""
        self._take({i: (name, state.get(name)) for name, i in self._names.items()})
        for own, (of, slot) in self._runner.step.slots.items():
            if slot in (AVERAGE, MASTER):
                self._kept[own] = self._kept[of].astype(self._kept[own].dtype)

    def optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Return copies of the optimizer's state, by the parameter's name and the array's own name."""
        state_of: dict[str, dict[str, Array]] = {}
        for name, slot, array in self._slots():
            state_of.setdefault(name, {})[slot] = array.copy()
        return state_of

    def _slots(self) -> Iterator[tuple[str, str, Array]]:
        """Yield the arrays that the optimizer keeps, each with the parameter's name and its own."""
        for name, i in self._names.items():
            for own, (of, slot) in self._runner.step.slots.items():
                if of == i:
                    yield name, slot, self._kept[own]

    def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]], count: int) -> None:
        """Continue after `count` steps with an optimizer's state. Each of them has changed parameters."""
        owners = {i: name for name, i in self._names.items()}
        arrays = {}
        for own, (of, slot) in self._runner.step.slots.items():
            name = next((n for n, i in self._names.items() if i == of and n in state), owners[of])
            array = state.get(name, {}).get(slot)
            if array is not None or slot not in (AVERAGE, MASTER):
                arrays[own] = f"{name}.{slot}", array
        self._take(arrays)
        self.count = count
        if self._scaling:
            self._kept[self._scaling[SKIPPED]] = np.zeros((), np.float32)

    def _take(self, given: Mapping[str, tuple[str, Any]]) -> None:
        taken = {}
        for own, (name, value) in given.items():
            want = self._kept[own]
            if value is None:
                raise ValueError(
                    f"the state lacks the array {name}: give a state that this model's trainer saved"
                )
            array = as_array(value)
            if array.dtype.kind == "V" and array.itemsize == want.itemsize:
                array = array.view(want.dtype)  # NumPy's files don't name types that aren't NumPy's
            if not np.can_cast(array.dtype, want.dtype, "same_kind"):
                raise ValueError(
                    f"{name} is of {array.dtype}, which can't become {want.dtype}: convert it first"
                )
            array = np.array(array, want.dtype)
            if array.shape != want.shape:
                raise ValueError(f"{name} has shape {array.shape}, not {want.shape}")
            taken[own] = array
        self._kept |= taken
        self._runner.is_stale = True

    @property
    def classes(self) -> int | None:
        """The size of the output's second axis, which is of classes for losses of labels. None if the output
        has none, or the size isn't known."""
        sizes = static_shape(self._output)
        return sizes[1] if sizes is not None and len(sizes) > 1 else None

    def export(self, path: Any, averaged: bool = False) -> None:
        """Write the model with the trained weights, or their running means, as .onnx or .jgn by the path's
        ending. Raises ValueError for a PyTorch module, whose own `load_state_dict` takes the weights."""
        if self._task.is_module:
            raise ValueError("a PyTorch module takes its weights back: module.load_state_dict(merged())")
        write_trained(self._task.model, self.merged(averaged), Path(path), self._task.options)

    def save(self, path: Any, more: Mapping[str, Array] | None = None) -> None:
        """Write parameters, buffers, the optimizer's state and the number of steps to a NumPy .npz file. If
        this fails, an old file stays as it was. `more` has further arrays for the file."""
        arrays = {f"model/{n}": self._kept[i] for n, i in self._names.items()}
        arrays |= {f"optimizer/{slot}/{name}": array for name, slot, array in self._slots()}
        arrays |= {f"step/{n}": self._kept[own] for n, own in self._scaling.items()}
        arrays |= {**(more or {}), "steps": np.asarray(self.count)}
        write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]

    def load(self, path: Any) -> None:
        """Continue from a file that `save` wrote. Raises ValueError for a file of another model or
        optimizer."""
        arrays = read_arrays(path)
        if "steps" not in arrays:
            raise ValueError(f"{path} isn't a file that a trainer's save wrote: give one")
        before, count = dict(self._kept), self.count
        try:
            self.load_state_dict({n.removeprefix("model/"): a for n, a in arrays.items()})
            kept: dict[str, dict[str, Array]] = {}
            for key, array in arrays.items():
                kind, *rest = key.split("/", 2)
                if kind == "optimizer":
                    kept.setdefault(rest[1], {})[rest[0]] = array
            own = {slot for _, slot, _ in self._slots()}
            if other := {slot for slots in kept.values() for slot in slots} - own:
                raise ValueError(_other(path, other))
            self.load_optimizer_state(kept, int(arrays["steps"]))
            scaling = {own: (n, arrays.get(f"step/{n}")) for n, own in self._scaling.items()}
            self._take({own: array for own, array in scaling.items() if array[1] is not None})
        except ValueError:
            self._kept, self.count = before, count
            raise


def train(
    model: Any, loss: LossGiven, optimizer: Any, example: Sequence[Any], *, trainable: Chosen = None,
    clip_norm: float | None = None, clip_value: float | None = None, seed: int = 0, target: Any = None,
    shapes: Mapping[str, Any] | None = None, threads: int | None = None, check: str = "",
    checkpoint: int | None = None, processes: int = 1, reduce: Reduce | None = None, accumulate: int = 1,
    average: float | None = None, master_weights: bool = False, loss_scale: float | str | None = None,
    **given: Unpack[Common],
) -> Trainer:  # fmt: skip
    """Compile a training step: forward pass, gradients and update as one plan.

    - `model` is a PyTorch module in its present mode, or a model of any format.
    - `loss` is the name of one of `jangin.training.losses`, a function, or None if the model's output is the
      loss.
    - `optimizer` is a name, one of `jangin.optim`, or one of `torch.optim` over the module's parameters. A
      dict has optimizers by patterns of parameters' names, the first that fits.
    - `example` is a batch: the inputs, then the target.
    - `trainable` has names of parameters, or patterns. By default all parameters that need gradients are
      trained. A model of another format must have its constants named. `jangin.lora()` trains adapters.
    - `clip_norm` limits the norm of all gradients together, and `clip_value` limits each number.
    - `seed` is for random operators (dropout). A step's random numbers follow from the seed and the step's
      number.
    - `check="nan"` looks for NaN and infinity. A step that makes one raises FloatingPointError, which names
      the node that made it first. The step then changes nothing. Parameters are held twice for this.
    - `checkpoint` is the most bytes of a step's working memory (`Trainer.arena_bytes`). Values that would
      wait for the backward pass are then computed again. `Trainer.repeated_share` says what this costs. The
      numbers are the same to the bit.
    - `processes` of this machine take equal parts of each batch, and average their gradients. `threads` are
      of each. The loss is the mean of the parts' losses. Batch normalization sees its own part.
    - `reduce` is called between the gradients and the update (see `jangin.training.reduced`). The batch is
      then this process's part. `over_processes()` there averages over `torch.distributed`, on any machines.
    - `accumulate` cuts each batch in so many equal parts, one after the other, and averages their gradients
      before the update. A step then takes a part's working memory. Batch normalization sees parts.
    - `average` is the share that a running mean of each parameter keeps in a step (`Trainer.averaged`).
    - `master_weights` updates float32 copies of parameters of 16 bits, and rounds them for the model.
    - `loss_scale` multiplies the loss for the backward pass, so that gradients of float16 don't vanish. With
      "dynamic", a step whose gradients aren't finite changes only the scale, which it halves. 2,000 finite
      steps double it.

    The other options are those of `jangin.compile`. Steps aren't kept in the cache, but
    their kernels are.

    Raises CompileError, which tells what can't be trained, and where."""
    if processes < 1 or (processes > 1 and reduce is not None):
        raise ValueError(f"processes={processes}: give at least 1, and `reduce` only with 1")
    if accumulate < 1:
        raise ValueError(f"accumulate={accumulate}: give at least 1")
    extras = Extras(average, master_weights, loss_scale)
    if processes > 1:
        threads = threads or max(1, (os.cpu_count() or 1) // processes)
    task = Task(model, loss, tuple(example), trainable, Options(target, shapes, threads, **given), seed)
    groups = _groups(optimizer, model)
    if isinstance(trainable, Lora) and type(groups) is not Groups:
        raise CompileError("optimizer= has the model's parameters by name, and lora trains others")
    clip = Clip(clip_value, clip_norm)
    with uncollected():
        return Trainer(
            task, groups.optimizers, groups, clip, check, checkpoint, reduce, processes, accumulate, extras
        )


def _other(path: Any, slots: set[str]) -> str:
    """Return an error's words about a file whose trainer kept more."""
    extras = {AVERAGE: "running means (average=)", MASTER: "float32 copies (master_weights=)"}
    if own := slots - extras.keys():
        return f"{path} is of another optimizer, which keeps {', '.join(sorted(own))}"
    kept = " and ".join(extras[s] for s in sorted(slots))
    return f"{path} is of a trainer with {kept}: give the same setting"


def _groups(optimizer: Any, model: Any) -> Groups:
    if isinstance(optimizer, Optimizer):
        return Groups([optimizer])
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise CompileError(f"optimizer={optimizer!r} is none of {', '.join(OPTIMIZERS)}")
        return Groups([OPTIMIZERS[optimizer]()])  # type: ignore[call-arg]
    if isinstance(optimizer, Mapping):
        return NamedGroups({pattern: _groups(o, model).optimizers[0] for pattern, o in optimizer.items()})
    if type(optimizer).__module__.startswith("torch.optim"):
        from jangin.training.torch_optim import TorchGroups

        return TorchGroups(optimizer, model)
    raise CompileError(f"{type(optimizer).__name__} is no optimizer: give a name or one of jangin.optim")
