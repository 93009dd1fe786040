"""The attributes of the core operators, and of the other nodes of a lowered graph: kernels and steps.

A node's attributes determine its operator (`Attributes.operator`), so the two can't disagree. They are
checked when they are built: a `CompileError` names the operator, the attribute and its required form.
`ops.core` has the operators' meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from jangin.ir.checks import IN_RANGE
from jangin.ir.dtype import DType
from jangin.ir.expr import Expr, Var, eq, land, lor, minimum, select
from jangin.ir.graph import Attributes, CompileError, Graph, Shape
from jangin.ir.loop import Stmt
from jangin.ir.products import Product
from jangin.ir.program import Slicing
from jangin.ir.records import dataclass
from jangin.ir.te import COMBINERS, Stage


def _is_int(v: Any) -> bool:
    return isinstance(v, (int, np.integer))


def _all_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, tuple) and all(map(check, v))


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, types)


CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "int | None": lambda v: v is None or _is_int(v),
    "float": _is_a(int, float, np.number),
    "bool": _is_a(bool, np.bool_),
    "str": _is_a(str),
    "str | None": _is_a(str, type(None)),
    "Expr": _is_a(Expr),
    "Stmt": _is_a(Stmt),
    "Graph": _is_a(Graph),
    "DType": _is_a(DType),
    "DType | None": _is_a(DType, type(None)),
    "Product | None": _is_a(Product, type(None)),
    "Shape": _all_of(_is_a(Expr)),
    "tuple[int, ...]": _all_of(_is_int),
    "tuple[Expr, ...]": _all_of(_is_a(Expr)),
    "tuple[Var, ...]": _all_of(_is_a(Var)),
    "tuple[Stage, ...]": _all_of(_is_a(Stage)),
    "tuple[Slicing, ...]": _all_of(_is_a(Slicing)),
    "tuple[tuple[str, Any], ...]": _all_of(_is_a(tuple)),
}
"""Whether a value is of an attribute's type, by the text of the type."""


@dataclass(frozen=True)
class CoreAttributes(Attributes):
    """The attributes of a node in a lowered graph. Each operator is one class."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not CHECKS[str(field.type)](value):
                raise CompileError(f"{self.op}: {field.name} should be {field.type}, not {value!r}")
        self.check()

    def check(self) -> None:
        """Raise CompileError if the attributes don't fit each other."""

    def need(self, holds: bool, message: str) -> None:
        if not holds:
            raise CompileError(f"{self.op}: {message}")


# --- moving data -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reshape(CoreAttributes, operator="reshape"):
    """The same elements in the same order, in another shape. With a `dtype`, the same bytes as elements of
    this type."""

    shape: Shape
    dtype: DType | None = None


@dataclass(frozen=True)
class Expand(CoreAttributes, operator="expand"):
    """Broadcast to `shape`."""

    shape: Shape


@dataclass(frozen=True)
class Transpose(CoreAttributes, operator="transpose"):
    """Axis i of the result is axis `perm[i]` of the operand."""

    perm: tuple[int, ...]

    def check(self) -> None:
        self.need(sorted(self.perm) == list(range(len(self.perm))), f"{self.perm} is no permutation")


@dataclass(frozen=True)
class Slice(CoreAttributes, operator="slice"):
    """out[i] = x[starts + i * steps] along every axis. `shape` is the result's; steps may be negative."""

    starts: tuple[Expr, ...]
    steps: tuple[int, ...]
    shape: Shape

    def check(self) -> None:
        ranks = {len(self.starts), len(self.steps), len(self.shape)}
        self.need(len(ranks) == 1, "starts, steps and shape must have an entry for each axis")
        self.need(0 not in self.steps, "a step of 0")


@dataclass(frozen=True)
class Concat(CoreAttributes, operator="concat"):
    """The operands one after another along `axis`."""

    axis: int

    def check(self) -> None:
        self.need(self.axis >= 0, f"axis {self.axis} is negative")


@dataclass(frozen=True)
class Pad(CoreAttributes, operator="pad"):
    """The operand with elements added around it.

    `pads` are the begins of all axes, then the ends (negative ones crop). `mode` is constant (of `value`),
    edge, reflect or wrap.
    """

    pads: tuple[Expr, ...]
    mode: str = "constant"
    value: float = 0

    def check(self) -> None:
        self.need(self.mode in ("constant", "edge", "reflect", "wrap"), f"unknown mode {self.mode}")
        self.need(len(self.pads) % 2 == 0, "pads must be begins, then ends")


@dataclass(frozen=True)
class Gather(CoreAttributes, operator="gather"):
    """Operand 0 taken at the integer indices of operand 1 along `axis`."""

    axis: int

    def check(self) -> None:
        self.need(self.axis >= 0, f"axis {self.axis} is negative")


@dataclass(frozen=True)
class IndexCheck(CoreAttributes, operator="index_check"):
    """The smallest of the operand's indices that is out of range, or `ir.checks.IN_RANGE`: i64 []. A run
    fails if an index is out of range.

    `sizes`: the size of the axis of all indices, or, along the operand's last axis, of one axis each.
    `from_end`: negative indices count from the end. The index `ignored` is always in range.
    """

    sizes: tuple[Expr, ...]
    from_end: bool = True
    ignored: int | None = None

    def check(self) -> None:
        self.need(bool(self.sizes), "no sizes")

    def wrong(self, index: Expr, size: Expr) -> Expr:
        """Return the index (i64) if it is out of range, else IN_RANGE. The largest integer, which is out of
        range, gives IN_RANGE - 1."""
        fine = land(index >= (0 - size if self.from_end else 0), index < size)
        if self.ignored is not None:
            fine = lor(fine, eq(index, self.ignored))
        return select(fine, IN_RANGE, minimum(index, IN_RANGE - 1))

    @property
    def lasting(self) -> bool:
        return True


# --- computing -------------------------------------------------------------------------------


CORNERS = ("inside", "shared", "flat", "constant")
"""The conventions that a map may have for its slope."""


@dataclass(frozen=True)
class Map(CoreAttributes, operator="map"):
    """`body`, a scalar expression of x0, x1, ... (the operands' elements), under broadcasting. `corner` is
    for gradients alone: which slope the operator has where its pieces meet. If it isn't given, a max or min
    with a constant is flat where both are equal (relu). One of two tensors has half of each then. "inside":
    the first operand's slope there (a clamp). "shared": half of each in any case. "flat": a root's slope at 0
    is 0 (a norm). "constant": the slope is 0 everywhere."""

    body: Expr
    corner: str | None = None

    def check(self) -> None:
        self.need(self.corner in (None, *CORNERS), f"unknown corner {self.corner}")


@dataclass(frozen=True)
class Reduce(CoreAttributes, operator="reduce"):
    """`combiner` over ascending `axes`, which remain with size 1 if `keepdims`. `ties` is for gradients of
    extremes alone: with "first", the first of equal extremes has the gradient; else they share it."""

    combiner: str
    axes: tuple[int, ...]
    keepdims: bool = False
    ties: str | None = None

    def check(self) -> None:
        self.need(self.ties in (None, "first"), f"unknown ties {self.ties}")
        self.need(self.combiner in COMBINERS, f"unknown combiner {self.combiner}")
        _check_axes(self, self.axes)


@dataclass(frozen=True)
class Softmax(CoreAttributes, operator="softmax"):
    """Softmax along `axis`, or its logarithm. `blind`: a row whose elements are all -inf gives 0, not NaN."""

    axis: int
    log: bool = False
    blind: bool = False

    def check(self) -> None:
        self.need(self.axis >= 0, f"axis {self.axis} is negative")
        self.need(not (self.log and self.blind), "the logarithm of a row of -inf isn't 0")


@dataclass(frozen=True)
class Normalize(CoreAttributes, operator="normalize"):
    """(x - mean) / sqrt(variance + epsilon) over ascending `axes`; `rms` omits the mean."""

    axes: tuple[int, ...]
    epsilon: float
    rms: bool = False

    def check(self) -> None:
        _check_axes(self, self.axes)


@dataclass(frozen=True)
class MatMul(CoreAttributes, operator="matmul"):
    """Matrix products of the last two axes, which `transpose_a` and `transpose_b` swap; batch axes broadcast.

    `dtype`: of the result and the accumulator, by default the operands'. `dot`: the Product of elements that
    are words of several numbers; for float operands, the Product to use once they are words.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    dtype: DType | None = None
    dot: Product | None = None


@dataclass(frozen=True)
class Conv(CoreAttributes, operator="conv"):
    """Convolution of operand 0 with weights [O, C/groups, *kernel].

    - `pads`: begins of the spatial axes, then ends.
    - `layout`: channels "first" (N, C, ...) or "last" (N, ..., C).
    - `dtype`: as in `MatMul`.
    - `dot`: as in `MatMul`; words pack channels. The magnitude of operand 0's int16 is at most 256. For
      depthwise convolutions of bytes with a `dot` of four terms, words pack window rows: [C, 1, words,
      width].
    - `halves`: the model's weights have 16 bits, so values derived from them may be rounded to 16 bits.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int = 1
    layout: str = "first"
    dtype: DType | None = None
    dot: Product | None = None
    halves: bool = False

    def check(self) -> None:
        _check_window(self, self)
        self.need(self.groups >= 1, f"{self.groups} groups")


@dataclass(frozen=True)
class Pool(CoreAttributes, operator="pool"):
    """`combiner` "max" or "sum" over sliding windows.

    `extents`: the number of windows along each spatial axis, with ceil mode already applied. `average`: ""
    (no division), "valid" (divide by the taps inside the operand), or "all" (by the taps inside the padded
    operand).
    """

    combiner: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    extents: Shape
    average: str = ""
    layout: str = "first"

    def check(self) -> None:
        _check_window(self, self)
        self.need(len(self.extents) == len(self.kernel), "extents must have an entry for each spatial axis")
        self.need(self.combiner in ("max", "sum"), f"unknown combiner {self.combiner}")
        self.need(self.average in ("", "valid", "all"), f"unknown average {self.average}")


@dataclass(frozen=True)
class Compute(CoreAttributes, operator="compute"):
    """Any tensor expressions: `stages` over buffers x0, x1, ... (the operands). The last stage gives the
    result; the others are local. The sizes must meet the conditions `requires`."""

    stages: tuple[Stage, ...]
    requires: tuple[Expr, ...] = ()

    def check(self) -> None:
        self.need(bool(self.stages), "no stages")


@dataclass(frozen=True)
class LoopNest(CoreAttributes, operator="loop_nest"):
    """An imperative nest, for operators that no tensor expression expresses (scatters, scans, sorts).

    `body` is a Loop statement over buffers x0, x1, ... and `out`, of `dtype` and `shape`. The sizes must meet
    the conditions `requires`.
    """

    body: Stmt
    dtype: DType
    shape: Shape
    requires: tuple[Expr, ...] = ()


def _check_axes(attrs: CoreAttributes, axes: Sequence[int]) -> None:
    ascending = list(axes) == sorted(set(axes)) and all(a >= 0 for a in axes)
    attrs.need(ascending, f"axes {tuple(axes)} must ascend, from 0 on")


def _check_window(attrs: CoreAttributes, window: Conv | Pool) -> None:
    rank = len(window.kernel)
    fits = len(window.strides) == len(window.dilations) == rank and len(window.pads) == 2 * rank
    attrs.need(fits, "strides and dilations must have an entry for each axis of the kernel, pads two")
    attrs.need(window.layout in ("first", "last"), f"unknown layout {window.layout}")


# --- kernels and steps -----------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel(CoreAttributes, operator="kernel"):
    """A kernel, made by `fuse`: the graph of core operators that it computes."""

    body: Graph

    @property
    def lasting(self) -> bool:
        return any(n.attrs.lasting for n in self.body.nodes)


@dataclass(frozen=True, kw_only=True)
class GraphStep(CoreAttributes):
    """A step of a program among the nodes of a lowered graph (see `ir.program`), before the pass `partition`.
    Its `symbols` become known once it has run."""

    symbols: tuple[Var, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostStep(GraphStep, operator="host"):
    """A call of a host function on whole values. `attrs`: its settings, by name."""

    function: str
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class BindStep(GraphStep, operator="bind"):
    """The operand's elements become the values of `symbols`."""


@dataclass(frozen=True, kw_only=True)
class IfStep(GraphStep, operator="if"):
    """Runs one of two graphs, chosen by the first operand. The other operands are the inputs of `then`, then
    those of `orelse`."""

    then: Graph
    orelse: Graph


@dataclass(frozen=True, kw_only=True)
class LoopStep(GraphStep, operator="loop"):
    """A loop, like `ir.program.Loop`. The first two operands are the trips and the condition, or ""."""

    body: Graph
    carried: int
    conditional: bool
    scanned: tuple[Slicing, ...] = ()
    collected: tuple[Slicing, ...] = ()


LOWERED: Mapping[str, type[CoreAttributes]] = {
    c.operator: c
    for c in (
        Map, Transpose, Expand, Slice, Concat, Pad, Gather, IndexCheck, Compute, Reduce, Pool, Softmax,
        Normalize, MatMul, Conv, Reshape, LoopNest, Kernel, HostStep, BindStep, IfStep, LoopStep,
    )
}  # fmt: skip
"""The attributes of all nodes of lowered graphs, by operator."""
