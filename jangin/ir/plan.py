"""Plan IR: what runs. It is the saved artefact and loads without the compiler.

Buffers with arena offsets, packed constants, and launches of kernels in order. Every size is an
`Expr` of the symbols; a static plan has constant ones. The runtime imports only this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from jangin.ir.checks import Check
from jangin.ir.dtype import DType
from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import Array
from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Sources

ZERO: Expr = const(0)
ONE: Expr = const(1)

ALIGN = 64
"""Bytes that every arena offset and packed constant is a multiple of."""


def aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN


@dataclass(frozen=True)
class PlanBuffer:
    """`kind`: input, output (both the caller's), constant, arena, or alias (same memory as
    `base`, which is never an alias itself). For arena buffers of a static plan `offset` is set;
    otherwise the runtime lays the arena out for the sizes it is given, by `live` ranges:
    inclusive indices of the first and last launch that touch the buffer or its aliases."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    kind: str
    live: tuple[int, int] = (0, 0)
    offset: int | None = None
    base: str = ""


@dataclass(frozen=True)
class Launch:
    """One kernel over `args` (buffer names, outputs last). `symbols`: the values for the
    kernel's symbol parameters, in its order. `tasks`: how many independent iterations there are
    to share among threads; `grain`: the fewest worth a hand-out; 0 runs it on the caller alone.
    `local`: on devices whose work-items share memory by groups, a group's extents, so that a task is a
    group; empty where a task is one work-item's, or one thread's.
    `rounds`: how often it is run with all its tasks, each time with the round's number as one symbol
    more.
    `function`: what its code exports it as, which says nothing of the model: as `kernel` where it isn't
    given.
    `scratch`: bytes each worker needs. `sources`: the model's nodes this computes. For reports:
    `template`, what made the kernel and its parameters; `flops` and `bytes`, the operations and the
    traffic that it can't do without. `library`: another maker's that it calls, "" for none."""

    kernel: str
    args: tuple[str, ...]
    symbols: tuple[Expr, ...]
    tasks: Expr
    grain: int
    scratch: Expr
    sources: Sources = NO_SOURCE
    template: str = ""
    flops: Expr = ZERO
    bytes: Expr = ZERO
    library: str = ""
    rounds: Expr = ONE
    function: str = ""
    local: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", self.function or self.kernel)

    @property
    def is_idle(self) -> bool:
        """Whether it has no task for any sizes."""
        return isinstance(self.tasks, Const) and int(self.tasks.value) < 1


@dataclass(frozen=True)
class Plan:
    """`inputs` and `outputs` are buffer names; an output may be an alias of an input or a constant
    (the runtime copies it). `symbols` are bound by matching the input shapes; each range is
    checked. `constraints` must hold (they are non-zero) for the sizes of a run, as the model's node that
    stands with each needs it. `target` is the
    LLVM triple/cpu/features the objects were made for. `kernels` (name to Func) is kept only in
    the compiling process, for the interpreter and `inspect`; it isn't saved. Nor are `calls`: the code of
    those kernels whose Func only says what a library computes for them. `bound` and `joined`: as of `Graph`.
    A run whose `checks` don't all hold fails with the first that doesn't."""

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

    def __hash__(self) -> int:
        return id(self)

    def buffer(self, name: str) -> PlanBuffer:
        return next(b for b in self.buffers if b.name == name)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Those that its kernels call."""
        return tuple(sorted({x.library for x in self.launches} - {""}))

    @property
    def is_static(self) -> bool:
        return not self.symbols
