"""Templates: each schedules one kind of kernel. It offers a few sets of parameters, estimates the time of
each, and schedules the kernel with the chosen one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from jangin.ir import te
from jangin.ir.expr import Buffer, Const, Expr, Var
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, filled, interval
from jangin.targets.gpu import Gpu
from jangin.targets.processor import Processor
from jangin.targets.target import Target
from jangin.templates.scheduled import Params, Scheduled

EXPECTED = 256
"""Expected value of a size that is known only at run time, clamped to the size's range. Estimates of the time
of templates are made with it."""


def expected(size: Expr, symbols: Mapping[Var, Range]) -> int:
    """Return a constant size, or the expected value of a symbolic one. See `EXPECTED`."""
    if isinstance(size, Const):
        return int(size.value)
    high = interval(size, symbols)[1]
    return max(least(size, symbols), min(high or EXPECTED, EXPECTED))


def least(size: Expr, symbols: Mapping[Var, Range]) -> int:
    """Return the least value of a size if no symbol is 0. Return 1 if it isn't known.

    Symbols of 0 don't count, because a tensor without elements needs no speed.
    """
    return interval(size, filled(symbols))[0] or 1


@dataclass(frozen=True)
class Workload:
    """A kernel to schedule: its tensor expressions over `inputs`.

    `constants` names the inputs that may be packed at compile time. The last `outputs` stages are the
    results.
    """

    name: str
    stages: tuple[te.Stage, ...]
    inputs: tuple[Buffer, ...]
    symbols: Mapping[Var, Range]
    constants: Collection[str]
    target: Target
    outputs: int = 1

    @property
    def machine(self) -> Processor | Gpu:
        """The figures of the machine that the kernel is for."""
        return self.target.machine

    @property
    def processor(self) -> Processor:
        """The machine, for templates of processors. See `Target.processor`."""
        return self.target.processor

    @property
    def gpu(self) -> Gpu:
        """The machine, for templates of work-groups. See `Target.gpu`."""
        return self.target.gpu

    @property
    def results(self) -> tuple[Buffer, ...]:
        return tuple(s.out for s in self.stages[-self.outputs :])

    def size(self, e: Expr) -> int:
        """Return a dimension's size, or the expected value of a symbolic one."""
        return expected(e, self.symbols)


@dataclass(frozen=True)
class Candidate:
    """One way to make a kernel: a template and its parameters."""

    template: str
    params: Params = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join((self.template, *(f"{k}={v}" for k, v in self.params.items())))


class Template(ABC):
    """A kernel with the template that can schedule it. The function `match` of the template's module makes
    it."""

    name: ClassVar[str]
    several: ClassVar[bool] = False
    """Whether the template makes kernels of several results."""

    @abstractmethod
    def space(self) -> Sequence[Params]:
        """Return the sets of parameters to try, at most about 40."""

    @abstractmethod
    def estimate(self, params: Params) -> float:
        """Return the estimated seconds of a launch on one thread, from the target's figures."""

    @abstractmethod
    def schedule(self, params: Params) -> Scheduled:
        """Return the kernel scheduled with these parameters."""
