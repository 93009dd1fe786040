"""The result of a template: a scheduled kernel and the packing of its constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from jangin.ir.arithmetic import ROUNDINGS
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
    """A constant's packed layout: [..., N, ...] -> [..., groups, panels, ..., width].

    The axes are permuted by `perm`. Then axis `axis` (in that order) is split into `groups`. Each group is
    padded with zeros to whole panels of `width`, which become the last axis. `rounded`: the function of
    `ROUNDINGS` that rounds each number, or "". `terms`: so many neighbours along the last axis of that order
    stay neighbours, behind the width.

        [..., groups, panels, ..., K, width] -> [..., groups, panels, ..., K / terms, width, terms]
    """

    perm: tuple[int, ...]
    axis: int
    groups: int
    width: int
    rounded: str = ""
    terms: int = 1

    @property
    def layout(self) -> tuple[tuple[int, ...] | int, ...]:
        """The fields that say where each number lies. `rounded` isn't among them, because it changes the
        number."""
        layout = self.perm, self.axis, self.groups, self.width
        return (*layout, self.terms) if self.terms > 1 else layout

    def apply(self, array: Array, empty: Callable[..., Array] = np.empty) -> Array:
        """Return the packed copy of a constant, contiguous, in memory that `empty` allocates."""
        a = np.transpose(ROUNDINGS[self.rounded](array) if self.rounded else array, self.perm)
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
        if self.terms > 1:
            packed = packed.reshape(*packed.shape[:-2], -1, self.terms, self.width)
            packed = np.ascontiguousarray(np.swapaxes(packed, -1, -2))
        return packed


@dataclass(frozen=True)
class Scheduled:
    """A kernel that is ready for code generation.

    - `func`: the loop nest.
    - `steps`: the whole schedule that made `func` from the naive nest.
    - `packings`: the parameters that are read in another layout.
    - `cost`: estimated vector operations of one task. The number of tasks that a thread takes at once depends
      on it.
    - `work`: these operations for the sizes of a run, if they depend on sizes and are known.
    - `flops`, `bytes`: the work and data of the whole kernel (see `Launch`).
    - `call`: a library call that replaces `func`.
    - `function`: the exported name of its code, if it isn't the name of `func`.
    - `sizes`: the kernel's symbols as expressions of the model's, if these differ.
    - `updated`: the results that were operands too before (see `passes.memory.updates`).
    """

    template: str
    func: Func
    steps: tuple[Step, ...]
    packings: Mapping[str, Packing] = field(default_factory=dict)
    params: Params = field(default_factory=dict)
    cost: float = 0.0
    work: Expr | None = None
    flops: Expr = ZERO
    bytes: Expr = ZERO
    call: LibraryCall | None = None
    function: str = ""
    sizes: Mapping[Var, Expr] = field(default_factory=dict)
    updated: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The template and its parameters, for reports."""
        return " ".join([self.template, *(f"{k}={v}" for k, v in self.params.items())])

    @property
    def tasks(self) -> Expr:
        """The iterations of the parallel loop; 1 if there is none."""
        if self.call is not None and self.call.rows:
            return self.call.tasks
        ours = self.func if self.call is None else self.call.rest
        return const(1) if ours is None else tasks(ours)

    @property
    def rounds(self) -> Expr:
        """The iterations of the loop around the parallel one; 1 if there is none."""
        return rounds(self.func)


class Recorder:
    """Applies steps to a kernel, and remembers them and the packings of its constants."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.steps: list[Step] = []
        self.packings: dict[str, Packing] = {}

    def copy(self) -> Recorder:
        """Return a copy of the kernel and its steps so far, to try further steps."""
        other = Recorder(self.func)
        other.steps, other.packings = list(self.steps), dict(self.packings)
        return other

    def adopt(self, other: Recorder) -> None:
        """Continue with the state of a copy."""
        self.func, self.steps, self.packings = other.func, other.steps, other.packings

    def do(self, name: str, *args: Argument | list[str]) -> None:
        """Apply one step of the schedule to the kernel, and remember it. A list of loops is one argument."""
        step = Step(name, tuple([tuple(a) if isinstance(a, list) else a for a in args]))
        self.func = apply(self.func, [step])
        self.steps.append(step)

    def pack(self, buffer: str, packing: Packing) -> None:
        """Let the kernel read a constant in another layout, and remember the packing."""
        self.do("relayout", buffer, *packing.layout)
        if packing.rounded:
            self.do("round_copies", buffer, packing.rounded)
        self.packings[buffer] = packing

    def finish(self, template: str, params: Params, cost: float) -> Scheduled:
        """Simplify the kernel, and return it with its schedule. `cost`: see `Scheduled`."""
        self.do("simplify")
        return Scheduled(template, self.func, tuple(self.steps), self.packings, params, cost)
