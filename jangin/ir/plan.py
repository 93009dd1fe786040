"""Plan IR: a compiled model as it runs. It is what a saved artefact contains, and it loads without the
compiler.

A plan has buffers with arena offsets, packed constants, and launches of kernels in order. Every size is an
`Expr` of the symbols, constant in a static plan. The runtime imports only this package."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from jangin.ir.checks import Check
from jangin.ir.dtype import DType
from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import Array, static_shape
from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Sources

ZERO: Expr = const(0)
ONE: Expr = const(1)

ALIGN = 64
"""Alignment of every arena offset and packed constant, in bytes: a cache line, and the widest vector
register."""


def aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN


@dataclass(frozen=True)
class PlanBuffer:
    """A buffer of a plan.

    `kind` is input or output (both the caller's), constant, arena, or alias. An alias has the memory of
    `base`, which isn't an alias itself. `live` has the numbers of the first and last launch that touch the
    buffer or its aliases. `offset` is set for arena buffers of a static plan. Otherwise the runtime lays out
    the arena by `live`, for the sizes that it is given."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    kind: str
    live: tuple[int, int] = (0, 0)
    offset: int | None = None
    base: str = ""

    @property
    def bytes(self) -> int | None:
        """The buffer's bytes, or None if a size isn't known."""
        shape = static_shape(self.shape)
        return None if shape is None else math.prod(shape) * self.dtype.bytes


@dataclass(frozen=True)
class Launch:
    """One kernel that runs on `args` (buffer names, outputs last).

    - `symbols`: the values of the kernel's symbol parameters, in its order.
    - `tasks`: the number of independent iterations, which are shared by threads.
    - `grain`: the fewest tasks worth handing to another thread, which may depend on the sizes; with 0 the
      caller runs all tasks.
    - `scratch`: the bytes of scratch memory that each worker needs.
    - `common`: the bytes of memory that all groups of a launch share, instead of scratch memory.
    - `rounds`: how often all tasks run, each time with the round's number as one more symbol.
    - `local`: the extents of a group, on devices whose work-items share memory by groups. A task is then a
      group. It is empty if a task is a work-item's or a thread's.
    - `function`: the exported name of its code, which is independent of the model; by default `kernel`.
    - `library`: the library that it calls, "" for none.
    - `sources`: the model's nodes that it computes.
    - `template`: for reports, the template and its parameters.
    - `flops`, `bytes`: for reports, the least numbers of operations and of bytes moved."""

    kernel: str
    args: tuple[str, ...]
    symbols: tuple[Expr, ...]
    tasks: Expr
    grain: Expr
    scratch: Expr
    sources: Sources = NO_SOURCE
    template: str = ""
    flops: Expr = ZERO
    bytes: Expr = ZERO
    library: str = ""
    rounds: Expr = ONE
    function: str = ""
    local: tuple[int, ...] = ()
    common: Expr = ZERO

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", self.function or self.kernel)

    @property
    def is_idle(self) -> bool:
        """Whether the launch has no tasks for any sizes."""
        return isinstance(self.tasks, Const) and int(self.tasks.value) < 1


@dataclass(frozen=True)
class Plan:
    """A plan. `inputs` and `outputs` are buffer names. An output may be an alias of an input or a constant,
    which the runtime copies.

    - `target`: the LLVM triple/cpu/features that the objects were made for.
    - `symbols`: size symbols with their ranges, which are bound by the input shapes of a run and checked.
    - `constraints`: expressions that must not be 0 for the sizes of a run, each with the model's node that
      needs it.
    - `kernels`: Funcs by name. They exist only in the compiling process, for the interpreter and `inspect`,
      and aren't saved.
    - `calls`: the code of kernels that a library computes, whose Func only gives their meaning. They aren't
      saved either.
    - `bound`, `joined`: as in `Graph`.
    - `checks`: conditions on a run's indices. A run fails with the first that doesn't hold.
    - `updates`: outputs with the inputs whose memory they take. A run changes the arrays of these inputs."""

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[tuple[Var, Range], ...]
    constraints: Mapping[Expr, Sources]
    buffers: tuple[PlanBuffer, ...]
    launches: tuple[Launch, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    kernels: Mapping[str, Func] = field(default_factory=dict)
    calls: Mapping[str, LibraryCall] = field(default_factory=dict)
    bound: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, Sources] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    updates: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    def buffer(self, name: str) -> PlanBuffer:
        return next(b for b in self.buffers if b.name == name)

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries that its kernels call."""
        return tuple(sorted({x.library for x in self.launches} - {""}))

    @property
    def tested(self) -> int:
        """The number of launches that come before the checks are tested. A run that fails has then updated no
        input."""
        firsts = (n for n, x in enumerate(self.launches) if not self.updates.keys().isdisjoint(x.args))
        return next(firsts, len(self.launches)) if self.updates else len(self.launches)

    @property
    def is_static(self) -> bool:
        return not self.symbols
