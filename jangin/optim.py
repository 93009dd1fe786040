"""Optimizers for `jangin.train`, which update parameters by their gradients.

Formulas, defaults and names are PyTorch's. Lion is Chen et al.'s (2023). A compiled step takes the numbers
that change from step to step as inputs, so that a learning rate schedule needs no new compilation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jangin.ir.dtype import F64
from jangin.ir.expr import Expr, binary, call, cast, const, select
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

State = Mapping[str, Tensor]
Number = Any
"""A number, or an expression of 64-bit floats."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's settings and its update.

    - `lr` is the learning rate of steps that aren't given another one.
    - `kept` names the tensors of the optimizer's state. Each parameter has its own, of the parameter's
      shape."""

    lr: float
    kept: ClassVar[tuple[str, ...]] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        return self.kept

    @property
    def start(self) -> float:
        """The number that all elements of the state begin with."""
        return 0.0

    def numbers(self, count: Number, lr: Number) -> dict[str, Number]:
        """Return the numbers that step `count` is given. The first step is 1. For expressions, they are
        expressions."""
        return {"rate": lr}

    def update(
        self, b: Builder, w: Tensor, g: Tensor, state: State, numbers: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the new parameter and the new state. Each optimizer has its own update."""
        raise NotImplementedError(f"{type(self).__name__} has no update: write one, as jangin.optim.SGD does")


def _power(base: float, count: Number) -> Number:
    return binary("pow", const(base, F64), count) if isinstance(count, Expr) else base**count


def _root(x: Number) -> Number:
    return call("sqrt", x) if isinstance(x, Expr) else math.sqrt(x)


def _later(count: Number) -> Number:
    """Return 0 for the first step, and 1 for all others."""
    if isinstance(count, Expr):
        return select(count > 1.0, const(1.0, F64), const(0.0, F64))
    return float(count > 1)


def _less(w: Expr, change: Expr, rate: Expr) -> Expr:
    return w - change * cast(w.dtype, rate)


def _decayed(b: Builder, w: Tensor, g: Tensor, decay: float) -> Tensor:
    """Return the gradient of the loss with L2 regularization: the parameter times `decay` is added."""
    return b.map(lambda v, d: d + v * decay, w, g) if decay else g


def _mean(b: Builder, mean: Tensor, x: Tensor, keep: float) -> Tensor:
    """Return a running mean after one more number. `keep` is the share of the old mean."""
    return b.map(lambda m, v: m * keep + v * (1 - keep), mean, x)


def _mean_square(b: Builder, mean: Tensor, x: Tensor, keep: float) -> Tensor:
    return b.map(lambda m, v: m * keep + v * v * (1 - keep), mean, x)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, optionally with momentum. `nesterov` selects Nesterov's momentum."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def numbers(self, count: Number, lr: Number) -> dict[str, Number]:
        return {"rate": lr, "share": 1.0 - self.dampening * _later(count)}

    def update(
        self, b: Builder, w: Tensor, g: Tensor, state: State, numbers: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g, rate, kept = _decayed(b, w, g, self.weight_decay), numbers["rate"], {}
        if self.momentum:
            m = b.map(
                lambda v, d, s: v * self.momentum + d * cast(d.dtype, s),
                state["momentum_buffer"], g, numbers["share"],
            )  # fmt: skip
            kept["momentum_buffer"] = m
            g = b.map(lambda d, v: d + v * self.momentum, g, m) if self.nesterov else m
        return b.map(_less, w, g, rate), kept


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    kept: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def numbers(self, count: Number, lr: Number) -> dict[str, Number]:
        first, second = (1.0 - _power(beta, count) for beta in self.betas)
        return {"rate": lr / first, "scale": 1.0 / _root(second), "whole": lr}

    def update(
        self, b: Builder, w: Tensor, g: Tensor, state: State, numbers: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        w, g = self._before(b, w, g, numbers)
        m = _mean(b, state["exp_avg"], g, self.betas[0])
        s = _mean_square(b, state["exp_avg_sq"], g, self.betas[1])

        def new(v: Expr, mean: Expr, square: Expr, rate: Expr, scale: Expr) -> Expr:
            return _less(v, mean / (call("sqrt", square) * cast(v.dtype, scale) + self.eps), rate)

        return b.map(new, w, m, s, numbers["rate"], numbers["scale"]), {"exp_avg": m, "exp_avg_sq": s}

    def _before(self, b: Builder, w: Tensor, g: Tensor, numbers: State) -> tuple[Tensor, Tensor]:
        return w, _decayed(b, w, g, self.weight_decay)


def _shrunk(b: Builder, w: Tensor, rate: Tensor, decay: float) -> Tensor:
    """Return a parameter after decoupled weight decay, which doesn't depend on the gradient."""
    return b.map(lambda v, r: v * (1.0 - cast(v.dtype, r) * decay), w, rate) if decay else w


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    weight_decay: float = 1e-2

    def _before(self, b: Builder, w: Tensor, g: Tensor, numbers: State) -> tuple[Tensor, Tensor]:
        return _shrunk(b, w, numbers["whole"], self.weight_decay), g


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011)."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    kept: ClassVar[tuple[str, ...]] = ("sum",)

    @property
    def start(self) -> float:
        return self.initial_accumulator_value

    def numbers(self, count: Number, lr: Number) -> dict[str, Number]:
        return {"rate": lr / (1.0 + (count - 1) * self.lr_decay)}

    def update(
        self, b: Builder, w: Tensor, g: Tensor, state: State, numbers: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = _decayed(b, w, g, self.weight_decay)
        s = b.map(lambda v, d: v + d * d, state["sum"], g)
        way = b.map(lambda d, v: d / (call("sqrt", v) + self.eps), g, s)
        return b.map(_less, w, way, numbers["rate"]), {"sum": s}


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop (Hinton's lecture 6e). If `centered` is true, gradients are divided by their standard
    deviation."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        centre = ("grad_avg",) if self.centered else ()
        return ("square_avg", *centre, *(("momentum_buffer",) if self.momentum else ()))

    def update(
        self, b: Builder, w: Tensor, g: Tensor, state: State, numbers: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = _decayed(b, w, g, self.weight_decay)
        s = _mean_square(b, state["square_avg"], g, self.alpha)
        kept, spread = {"square_avg": s}, s
        if self.centered:
            centre = kept["grad_avg"] = _mean(b, state["grad_avg"], g, self.alpha)
            spread = b.map(lambda v, c: v - c * c, s, centre)
        way = b.map(lambda d, v: d / (call("sqrt", v) + self.eps), g, spread)
        if self.momentum:
            way = b.map(lambda v, d: v * self.momentum + d, state["momentum_buffer"], way)
            kept["momentum_buffer"] = way
        return b.map(_less, w, way, numbers["rate"]), kept


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al. 2023). All steps have the same size. The sign of a running mean gives their
    direction."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    kept: ClassVar[tuple[str, ...]] = ("exp_avg",)

    def update(
        self, b: Builder, w: Tensor, g: Tensor, state: State, numbers: State
    ) -> tuple[Tensor, dict[str, Tensor]]:
        m, rate = state["exp_avg"], numbers["rate"]
        way = b.map(lambda v: call("sign", v), _mean(b, m, g, self.betas[0]))
        new = b.map(_less, _shrunk(b, w, rate, self.weight_decay), way, rate)
        return new, {"exp_avg": _mean(b, m, g, self.betas[1])}


BY_NAME: Mapping[str, type[Optimizer]] = {
    "sgd": SGD, "adam": Adam, "adamw": AdamW, "adagrad": Adagrad, "rmsprop": RMSprop, "lion": Lion,
}  # fmt: skip
"""The optimizers that `jangin.train` takes by name, with their default settings."""
