"""The graph of one training step: loss, gradients and the optimizer's update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from jangin.gradients.reverse import builder_of, gradients
from jangin.ir.dtype import F32, F64, DType, from_numpy
from jangin.ir.expr import Expr, call, cast, const, is_const, maximum, minimum, select
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widen
from jangin.ops.operands import typed
from jangin.ops.values import Tensor
from jangin.optim import Optimizer
from jangin.passes.partition import prune
from jangin.training.losses import Loss
from jangin.training.parameters import Trainable

LOSS = "loss"
SCALE, GOOD, SKIPPED = "loss_scale", "finite_steps", "skipped_steps"
"""The state of a loss scale that is found while training: the scale, the steps since it last changed, and the
steps that were skipped."""
SCALING = (SCALE, GOOD, SKIPPED)
DYNAMIC = "dynamic"
FIRST_SCALE, LONGEST = 2.0**15, 2000
"""The first scale, and the steps after which it is doubled, as in PyTorch's `GradScaler`. The first is half
of PyTorch's: a gradient of float16 begins with the scale, and 2^16 isn't finite there."""
FINITE = 3.0e38
"""Larger squares of gradients count as not finite. It is nearly the largest number of float32."""


@dataclass(frozen=True)
class Clip:
    """The limits of gradients. `value` limits each number, and `norm` the norm of all gradients together.
    None is no limit."""

    value: float | None = None
    norm: float | None = None

    def __post_init__(self) -> None:
        for most in (self.value, self.norm):
            if most is not None and not most > 0:
                raise ValueError(f"the limit {most} for gradients must be positive")


@dataclass(frozen=True)
class Extras:
    """State of a step beside the optimizer's.

    - `average` is the share that a running mean of each parameter keeps in a step, or None.
    - `master` says whether parameters of 16 bits have copies in float32, which are updated.
    - `scale` multiplies gradients while they go backwards. With "dynamic" the steps find it."""

    average: float | None = None
    master: bool = False
    scale: float | str | None = None

    def __post_init__(self) -> None:
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"average={self.average}: give the share that is kept, between 0 and 1")
        scale = self.scale
        if scale is not None and scale != DYNAMIC and not (isinstance(scale, (int, float)) and scale > 0):
            raise ValueError(f"loss_scale={scale!r}: give a positive number, or 'dynamic'")


NO_EXTRAS = Extras()
AVERAGE, MASTER = "average", "master"
"""The names of the extras among a parameter's state."""


@dataclass(frozen=True)
class StepGraph:
    """The graph of a step, with the meaning of its inputs and outputs.

    - `inputs` are the inputs that a batch gives.
    - `loss` is the output with the loss.
    - `kept` has the inputs that pass from step to step (parameters, buffers, optimizer's state), with the
      arrays that they begin with. Nothing else holds these arrays.
    - `after` has the output with the next value of each of these inputs.
    - `slots` has the inputs of the optimizer's state and of extras, with the parameter and the name of the
      state.
    - `numbers` has the inputs that take an optimizer's numbers, with the optimizer's index and the number's
      name.
    - `gradients` has the output with the gradient of each parameter, by the parameter's input.
    - `random` is the input that decides all random numbers, or "" if there are none.
    - `output` is the output with the model's first output, or "" if the graph has none.
    - `scaling` has the inputs of a loss scale's state, by the names in `SCALING`."""

    graph: Graph
    inputs: tuple[str, ...]
    loss: str
    kept: Mapping[str, Array]
    after: Mapping[str, str]
    slots: Mapping[str, tuple[str, str]]
    numbers: Mapping[str, tuple[int, str]]
    gradients: Mapping[str, str]
    random: str = ""
    output: str = ""
    scaling: Mapping[str, str] = field(default_factory=dict)


class StepBuilder:
    """Adds a loss, gradients and an update to a model's lowered graph."""

    def __init__(
        self, model: Trainable, loss: Loss | None, target: Array | None, differentiated: bool = True,
        extras: Extras = NO_EXTRAS,
    ) -> None:  # fmt: skip
        self.model, self.b, self.extras, self.zeros = model, builder_of(model.graph), extras, list[Array]()
        self.b.own_gradients, self.b.tile = list(model.own_gradients), model.tile
        self.inputs = list(model.inputs)
        self.loss = self._loss(loss, target)
        self.b.prefix, self.b.source = "gradient", Sources.of("gradient")
        parameters = {n: self._tensor(n) for n in model.parameters} if differentiated else {}
        self.scaling = {n: self.b.fresh(n) for n in SCALING} if extras.scale == DYNAMIC else {}
        made = gradients(self.b, self.loss, [*parameters.values()], self._first_gradient())
        self.gradients = dict(zip(parameters, made, strict=True))
        self._unscale()
        self.finite = self._are_finite()

    def _tensor(self, name: str) -> Tensor:
        return Tensor(name, *typed(self.b.values[name]))

    def _loss(self, loss: Loss | None, target: Array | None) -> Tensor:
        """Return the loss. It is computed from the model's first output and the target. Without `loss` or
        `target`, the first output itself is the loss."""
        self.b.prefix, self.b.source = LOSS, Sources.of(LOSS)
        value = self._tensor(self.model.outputs[0])
        if loss is not None and target is not None:
            name = self.b.fresh("target")
            shape = tuple(const(d) for d in target.shape)
            value = loss(self.b, value, self.b.input(name, from_numpy(target.dtype), shape))
            self.inputs.append(name)
        if not value.dtype.is_float or not all(is_const(d, 1) for d in value.shape):
            raise CompileError(f"the loss is {value}; it must be a single float: give its mean")
        return self.b.reshape(value, ())

    def _first_gradient(self) -> Tensor | None:
        """Return the gradient of the loss by itself, which is the scale of all gradients. None stands for
        1."""
        scale = self._scale_now()
        return None if scale is None else self.b.cast(scale, self.loss.dtype)

    def _scale_now(self) -> Tensor | None:
        """Return the scale of gradients, or None if they have none."""
        scale = self.extras.scale
        if isinstance(scale, str):
            return self._state(SCALE)
        return None if scale is None else self.b.scalar(scale, F32)

    def _state(self, name: str) -> Tensor:
        """Return the input with a part of the loss scale's state."""
        own = self.scaling[name]
        return self._tensor(own) if own in self.b.values else self.b.input(own, F32, ())

    def _unscale(self) -> None:
        """Divide the gradients by their scale, as float32 if they are smaller floats."""
        b, scale = self.b, self._scale_now()
        if scale is not None:
            by = b.map(lambda s: 1.0 / s, scale)
            self.gradients = {
                n: b.map(lambda v, s: v * cast(v.dtype, s), widen(b, g), by)
                for n, g in self.gradients.items()
            }

    def _are_finite(self) -> Tensor | None:
        """Return whether all gradients are finite, before they are limited. Return None if no step asks."""
        if not self.scaling or not self.gradients:
            return None
        return self.b.map(lambda v: v <= FINITE, self._square())

    def _square(self) -> Tensor:
        """Return the sum of the squares of all gradients."""
        b = self.b
        squares = [
            b.reduce("sum", b.map(lambda v: v * v, b.cast(g, g.dtype.wide)), range(g.rank))
            for g in self.gradients.values()
        ]
        total = squares[0]
        for square in squares[1:]:
            total = b.map(lambda v, w: v + cast(v.dtype, w), total, square)
        return total

    def clip(self, how: Clip) -> None:
        """Limit the norm of the gradients, then their values, as PyTorch's `clip_grad_norm_` and
        `clip_grad_value_` do."""
        b = self.b
        if how.norm is not None and self.gradients:
            most = how.norm
            share = b.map(lambda v: minimum(most / (call("sqrt", v) + 1e-6), 1.0), self._square())
            self.gradients = {
                n: b.map(lambda v, s: v * cast(v.dtype, s), g, share) for n, g in self.gradients.items()
            }
        if how.value is not None:
            end = how.value
            self.gradients = {
                n: b.map(lambda v: minimum(maximum(v, -end), end), g) for n, g in self.gradients.items()
            }

    def with_gradients(self) -> StepGraph:
        """Return the graph with the loss and the gradients as outputs."""
        names = {n: self.b.fresh(f"d{n}") for n in self.gradients}
        return self._finished(self.gradients, names, {}, {}, {}, names)

    def with_output(self) -> StepGraph:
        """Return the graph with the loss and the model's first output as outputs."""
        name = self.b.fresh("output")
        names = {name: name}
        step = self._finished({name: self._tensor(self.model.outputs[0])}, names, {}, {}, {}, names)
        return replace(step, gradients={}, output=name)

    def updated(self, optimizers: Sequence[Optimizer], chosen: Mapping[str, int]) -> StepGraph:
        """Return the graph with the loss and the new parameters as outputs. `chosen` has the number of each
        parameter's optimizer. Updates of 16-bit floats are computed in f32, and rounded once."""
        b = self.b
        b.prefix, b.source = "update", Sources.of("update")
        numbers: dict[str, tuple[int, str]] = {}
        scalars: list[dict[str, Tensor]] = []
        for n, optimizer in enumerate(optimizers):
            scalars.append({})
            for key in optimizer.numbers(1, optimizer.lr):
                name = b.fresh(f"optimizer{n}.{key}")
                numbers[name] = n, key
                scalars[-1][key] = b.input(name, F64, ())
        results: dict[str, Tensor] = {}
        kept: dict[str, Array] = {}
        slots: dict[str, tuple[str, str]] = {}
        for name, g in self.gradients.items():
            optimizer, array, own = optimizers[chosen[name]], self.model.parameters[name], self._tensor(name)
            state = {}
            for slot, (start, dtype) in self._slots(optimizer, array, own.dtype).items():
                kept[key := b.fresh(f"{name}.{slot}")] = start
                slots[key] = name, slot
                state[slot] = b.input(key, dtype, own.shape)
            wide = {slot: widen(b, of) for slot, of in state.items()}
            w = wide.pop(MASTER, widen(b, own))
            mean = wide.pop(AVERAGE, None)
            new, after = optimizer.update(b, w, widen(b, g), wide, scalars[chosen[name]])
            if MASTER in state:
                after[MASTER] = new
            if mean is not None:
                share = self.extras.average or 0.0
                after[AVERAGE] = b.map(lambda m, v, k=share: m * k + v * (1 - k), mean, new)
            results[name] = b.cast(new, own.dtype)
            keys = {slot: key for key, (of, slot) in slots.items() if of == name}
            results |= {key: b.cast(after[slot], state[slot].dtype) for slot, key in keys.items()}
        if self.finite is not None:
            self._scale(self.finite, results, kept)
        names = {n: b.fresh(f"new.{n}") for n in results}
        return self._finished(results, names, kept, slots, numbers, {})

    def _slots(self, optimizer: Optimizer, array: Array, dtype: DType) -> dict[str, tuple[Array, DType]]:
        """Return what a step keeps of a parameter beside itself: the first arrays, and their types."""
        master = self.extras.master and dtype.wide is not dtype
        of = dtype.wide if master else dtype
        state: dict[str, tuple[Array, DType]] = {
            slot: (self._filled(array.shape, optimizer.start, of), of) for slot in optimizer.slots
        }
        more = [MASTER] * master + [AVERAGE] * (self.extras.average is not None)
        return state | {slot: (np.array(array, dtype.wide.numpy), dtype.wide) for slot in more}

    def _filled(self, shape: Sequence[int], number: float, dtype: DType) -> Array:
        """Return an array of one number. Memory of zeros is slow at its first use, so `zeros` has it."""
        if number:
            return np.full(shape, number, dtype.numpy)
        self.zeros.append(np.zeros(shape, dtype.numpy))
        return self.zeros[-1]

    def _scale(self, finite: Tensor, results: dict[str, Tensor], kept: dict[str, Array]) -> None:
        """Leave all state as it is if a gradient isn't finite, and halve the scale. Add the scale to the
        state."""
        b, first = self.b, {SCALE: FIRST_SCALE, GOOD: 0.0, SKIPPED: 0.0}
        scale, good, skipped = (self._state(n) for n in SCALING)
        for name, new in results.items():
            results[name] = b.map(lambda f, v, w: select(f, v, w), finite, new, self._tensor(name))

        def next_scale(f: Expr, s: Expr, n: Expr) -> Expr:
            return select(f, select(n + 1.0 >= float(LONGEST), s * 2.0, s), s * 0.5)

        def next_good(f: Expr, n: Expr) -> Expr:
            return select(f, select(n + 1.0 >= float(LONGEST), n * 0.0, n + 1.0), n * 0.0)

        results[scale.name] = b.map(next_scale, finite, scale, good)
        results[good.name] = b.map(next_good, finite, good)
        results[skipped.name] = b.map(lambda f, n: select(f, n, n + 1.0), finite, skipped)
        kept |= {own: np.array(first[n], np.float32) for n, own in self.scaling.items()}

    def _finished(
        self, results: Mapping[str, Tensor], made: Mapping[str, str], kept: Mapping[str, Array],
        slots: Mapping[str, tuple[str, str]], numbers: Mapping[str, tuple[int, str]],
        found: Mapping[str, str],
    ) -> StepGraph:  # fmt: skip
        model, b = self.model, self.b
        loss = b.fresh(LOSS)
        changed = {n: b.fresh(f"new.{n}") for n in model.changed}
        buffers = [self._tensor(out) for out in model.changed.values()]
        graph = b.graph([self.loss, *results.values(), *buffers], [loss, *made.values(), *changed.values()])
        graph = prune(replace(graph, constraints=model.graph.constraints, bound=model.graph.bound))
        after = changed if found else {**made, **changed}
        graph = replace(graph, updates={out: state for state, out in after.items()})
        whole = {**model.parameters, **model.buffers, **kept}
        return StepGraph(
            graph, tuple(self.inputs), loss, whole, after, slots, numbers, found, model.random,
            scaling=self.scaling,
        )  # fmt: skip


class UpdateBuilder(StepBuilder):
    """Adds an update alone. The loss and the gradients that another builder made are inputs, in this
    order."""

    def __init__(self, model: Trainable, first: StepBuilder) -> None:
        self.scaling, self.extras, self.zeros = first.scaling, first.extras, []
        self.model, self.b = replace(model, changed={}, buffers={}, random=""), Builder("update", {})
        types = {n: typed(model.graph.value(n)) for n in model.parameters}
        for n, of in types.items():
            self.b.input(n, *of)
        self.loss = self.b.input(self.b.fresh("given.loss"), first.loss.dtype, ())
        self.gradients = {
            n: self.b.input(self.b.fresh(f"d{n}"), g.dtype, types[n][1]) for n, g in first.gradients.items()
        }
        self.finite = self._are_finite()
        self.inputs = [self.loss.name, *(g.name for g in self.gradients.values())]


def forward_only(model: Trainable, loss: Loss | None, target: Array | None) -> StepGraph:
    """Return the graph of the loss alone, without gradients."""
    return StepBuilder(model, loss, target, differentiated=False).with_gradients()


def outputs_only(model: Trainable) -> StepGraph:
    """Return the graph of the model's outputs alone."""
    graph = prune(replace(model.graph, outputs=tuple(model.outputs)))
    return StepGraph(graph, model.inputs, "", {}, {}, {}, {}, {}, model.random)
