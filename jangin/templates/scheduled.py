"""What a template gives: a scheduled kernel and how its constants are to be packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, field

import numpy as np

from jangin.ir.expr import Expr, Var, const
from jangin.ir.graph import Array
from jangin.ir.kernel import rounds, tasks
from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.plan import ZERO
from jangin.ir.records import dataclass
from jangin.mapped import fill
from jangin.schedule.steps import Argument, Step, apply

Params = Mapping[str, int]
"""A template's parameters by name."""


@dataclass(frozen=True)
class Packing:
    """A constant's other layout: axes permuted by `perm`, then axis `axis` (of that order) split
    into `groups`, each padded with zeros to whole panels of `width`, which become the last axis:
    [..., N, ...] -> [..., groups, panels, ..., width]."""

    perm: tuple[int, ...]
    axis: int
    groups: int
    width: int

    def apply(self, array: Array, empty: Callable[..., Array] = np.empty) -> Array:
        """The packed copy, contiguous, in memory that `empty` gives."""
        a = np.transpose(array, self.perm)
        lead, size, rest = a.shape[: self.axis], a.shape[self.axis] // self.groups, a.shape[self.axis + 1 :]
        a = np.moveaxis(a.reshape(*lead, self.groups, size, *rest), self.axis + 1, -1)
        whole, left = divmod(size, self.width)
        panels = whole + (left > 0)
        packed = empty((*lead, self.groups, panels, *rest, self.width), array.dtype)
        by_panel = np.moveaxis(packed, self.axis + 1, -2)  # [..., groups, ..., panels, width]
        full = a[..., : whole * self.width].reshape(*a.shape[:-1], whole, self.width)
        fill(by_panel[..., :whole, :], full)
        if left:
            by_panel[..., whole, :left] = a[..., whole * self.width :]
            by_panel[..., whole, left:] = 0
        return packed


@dataclass(frozen=True)
class Scheduled:
    """`func` is ready for code generation; `steps` is the whole schedule that made it from the naive nest;
    `packings` says which parameters it reads in another layout; `cost` is the estimate in
    operations of one task, from which the hand-out's grain follows; `flops` and `bytes` are what the
    whole kernel has to do (see `Launch`). With a `call`, a library does what `func` only says.
    `function`: what its code exports it as, where that isn't the name of `func`. `sizes`: what the kernel's
    symbols are in the model that it is used in, where they are called otherwise there."""

    template: str
    func: Func
    steps: tuple[Step, ...]
    packings: Mapping[str, Packing] = field(default_factory=dict)
    params: Params = field(default_factory=dict)
    cost: float = 0.0
    flops: Expr = ZERO
    bytes: Expr = ZERO
    call: LibraryCall | None = None
    function: str = ""
    sizes: Mapping[Var, Expr] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The template and its parameters, for reports."""
        return " ".join([self.template, *(f"{k}={v}" for k, v in self.params.items())])

    @property
    def tasks(self) -> Expr:
        """Iterations of the parallel loop (1 where there is none)."""
        if self.call is not None and self.call.rows:
            return self.call.tasks
        ours = self.func if self.call is None else self.call.rest
        return const(1) if ours is None else tasks(ours)

    @property
    def rounds(self) -> Expr:
        """Iterations of the loop around the parallel one (1 where there is none)."""
        return rounds(self.func)


class Recorder:
    """Applies steps to a kernel and remembers them, and how its constants are to be packed."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.steps: list[Step] = []
        self.packings: dict[str, Packing] = {}

    def copy(self) -> Recorder:
        """What was done so far, to go on from."""
        other = Recorder(self.func)
        other.steps, other.packings = list(self.steps), dict(self.packings)
        return other

    def adopt(self, other: Recorder) -> None:
        """Go on from where a copy has come to."""
        self.func, self.steps, self.packings = other.func, other.steps, other.packings

    def do(self, name: str, *args: Argument | list[str]) -> None:
        """One step; a list of loops is an argument too."""
        step = Step(name, tuple([tuple(a) if isinstance(a, list) else a for a in args]))
        self.func = apply(self.func, [step])
        self.steps.append(step)

    def pack(self, buffer: str, packing: Packing) -> None:
        """Read a constant in another layout."""
        self.do("relayout", buffer, *astuple(packing))
        self.packings[buffer] = packing

    def finish(self, template: str, params: Params, cost: float) -> Scheduled:
        """The kernel, simplified."""
        self.do("simplify")
        return Scheduled(template, self.func, tuple(self.steps), self.packings, params, cost)
