"""A plan's sizes: its signature, and the symbols bound by the shapes of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.expr import Binary, Const, Expr, Select, Var, const
from jangin.ir.graph import Value
from jangin.ir.integers import INTEGER_OPS
from jangin.ir.plan import Plan, PlanBuffer
from jangin.ir.records import dataclass
from jangin.ir.simplify import linear
from jangin.ir.sources import Sources
from jangin.ir.traversal import children, free_vars, rebuild, substitute
from jangin.visible import visible

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output. `shape` has an integer for each known size, and the text of the symbol or
    expression for each other. `type` is set only for a value of a program that isn't a numeric tensor, for
    example "seq(f32[?])"."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    type: str = ""

    def __str__(self) -> str:
        kind = self.type or f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return visible(f"{self.name} {kind}")


def told(inputs: Sequence[TensorSpec]) -> str:
    """Return a description of a model's inputs, for a message."""
    return "the inputs are: " + "; ".join(map(str, inputs)) if inputs else "there are no inputs"


def converting(spec: TensorSpec) -> str:
    """Return the remedy for an array of another element type than an input's, for a message."""
    return f"convert the array by .astype({str(spec.dtype)!r})"


def spec(buffer: PlanBuffer) -> TensorSpec:
    return TensorSpec(buffer.name, buffer.dtype.numpy, _sizes(buffer.shape))


def spec_of(value: Value) -> TensorSpec:
    """Return the TensorSpec of an input or output of a program."""
    if value.type is not None:
        return TensorSpec(value.name, np.dtype(object), _sizes(value.type.shape or ()), str(value.type))
    assert value.dtype is not None and value.shape is not None
    return TensorSpec(value.name, value.dtype.numpy, _sizes(value.shape))


def _sizes(shape: Sequence[Expr]) -> tuple[int | str, ...]:
    return tuple(int(d.value) if isinstance(d, Const) else getattr(d, "name", "") or str(d) for d in shape)


class Evaluator:
    """Computes the integer values of size expressions, given the values of symbols."""

    def __init__(self, values: Mapping[Var, int]) -> None:
        self._values = values
        self._memo: dict[Expr, Any] = {}
        self._shapes: dict[tuple[Expr, ...], Sizes] = {}

    def __call__(self, e: Expr) -> int:
        """Return the value of an expression. Raises ValueError if a symbol in it has no value."""
        try:
            return int(self._value(e))
        except (KeyError, ZeroDivisionError):
            raise ValueError(f"the size {e} has no value for {self._values}") from None

    def holds(self, condition: Expr) -> bool:
        """Return whether a condition is met. A condition that divides by 0 isn't met."""
        try:
            return bool(self._value(condition))
        except ZeroDivisionError:
            return False

    def shape(self, dims: tuple[Expr, ...]) -> Sizes:
        sizes = self._shapes.get(dims)
        if sizes is None:
            sizes = self._shapes[dims] = tuple([self(d) for d in dims])
        return sizes

    def _value(self, e: Expr) -> Any:
        if isinstance(e, Const):
            return e.value
        if isinstance(e, Var):
            return self._values[e]
        done = self._memo.get(e)
        if done is None:
            done = self._memo[e] = self._computed(e)
        return done

    def _computed(self, e: Expr) -> Any:
        """Return the value that the folding constructors would give, without building expressions."""
        if isinstance(e, Binary):
            return INTEGER_OPS[e.op](self._value(e.a), self._value(e.b))
        if isinstance(e, Select):
            return self._value(e.a if self._value(e.cond) else e.b)
        folded = rebuild(e, tuple(const(self._value(k), k.dtype) for k in children(e)))
        if not isinstance(folded, Const):
            raise KeyError(e)
        return folded.value


class Shapes:
    """The shapes of buffers by name. Each is computed at its first use."""

    def __init__(self, dims: Mapping[str, tuple[Expr, ...]], value: Evaluator) -> None:
        self._dims, self._value = dims, value

    def __getitem__(self, name: str) -> Sizes:
        return self._value.shape(self._dims[name])


def solved(wanted: Sequence[Sequence[Expr]], shapes: Sequence[Sizes]) -> dict[Var, int]:
    """Return the symbols' values for which tensors with `wanted` dimensions have these shapes. Ranks must be
    equal.

    Symbols that appear only in linear dimensions, such as 2*n + 1, are solved for too. Nothing is checked: a
    symbol may be missing, and a size may not fit."""
    pairs = [p for dims, shape in zip(wanted, shapes, strict=True) for p in zip(dims, shape, strict=True)]
    bound: dict[Var, int] = {}
    for dim, size in pairs:
        if isinstance(dim, Var):
            bound.setdefault(dim, size)
    for dim, size in pairs:
        if isinstance(dim, (Const, Var)):
            continue
        unbound = free_vars(dim) - bound.keys()
        if len(unbound) != 1:
            continue
        (var,) = unbound
        match linear(substitute(dim, {v: const(n) for v, n in bound.items()}), var):
            case Const(value=slope), Const(value=rest) if slope:
                bound[var] = (size - int(rest)) // int(slope)
    return bound


def needed(condition: Expr, source: Sources) -> str:
    """Return the text of a condition that sizes don't meet, with the model's node that needs it, if it is
    known."""
    return f"{condition}, which {source} needs" if source else str(condition)


def same_as(
    joined: Mapping[str, Sources], inputs: Mapping[str, Sequence[Expr] | None], name: str, axis: int
) -> str:
    """Return the end of a message that an input's axis has a wrong size. It names the node that needs the
    axis to be as long as another input's, or is "" without such a node (see `Graph.joined`)."""
    source, shape = joined.get(f"{name}[{axis}]"), inputs[name]
    if source is None or shape is None:
        return ""
    other = next(n for n, dims in inputs.items() if dims is not None and shape[axis] in dims)
    return f", as {source} needs it to be as long as in input {other}"


class Signature:
    """A plan's inputs and outputs, and how input shapes bind its symbols."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        buffers = {b.name: b for b in plan.buffers}
        self.inputs = tuple(spec(buffers[n]) for n in plan.inputs)
        self.outputs = tuple(spec(buffers[n]) for n in plan.outputs)
        self._dims = [buffers[n].shape for n in plan.inputs]
        self._named = dict(zip(plan.inputs, self._dims, strict=True))
        self._distinct = list(dict.fromkeys(self._dims))
        self._first = [self._dims.index(d) for d in self._distinct]
        """The first input with each of the distinct shapes."""
        self._kinds = [self._distinct.index(d) for d in self._dims]
        self.symbols = tuple(v for v, _ in plan.symbols)

    def __str__(self) -> str:
        return told(self.inputs)

    def bind(self, shapes: Sequence[Sizes]) -> Sizes:
        """Return the symbols' values for these input shapes, in the plan's order. Raises ValueError if a
        rank, a size, a symbol's range or a constraint is wrong."""
        for want, dims, shape in zip(self.inputs, self._dims, shapes, strict=True):
            if len(dims) != len(shape):
                raise ValueError(f"input {want} has rank {len(dims)}, got shape {shape}; {self}")
        bound_sizes = solved(self._distinct, [shapes[i] for i in self._first])
        value = self.check(bound_sizes)
        wanted = [value.shape(dims) for dims in self._distinct]
        for want, kind, shape in zip(self.inputs, self._kinds, shapes, strict=True):
            expected = wanted[kind]
            if expected != shape:
                bound = ", ".join(f"{v} = {n}" for v, n in bound_sizes.items())
                axis = next(i for i, (a, b) in enumerate(zip(expected, shape, strict=True)) if a != b)
                raise ValueError(
                    f"input {want}: dimension {axis} must be {expected[axis]}, got shape {shape}"
                    + (f" (with {bound})" if bound else "")
                    + f"{same_as(self._plan.joined, self._named, want.name, axis)}; {self}"
                )
        return tuple(bound_sizes[v] for v in self.symbols)

    def check(self, found: Mapping[Var, int]) -> Evaluator:
        """Check the symbols' values, and return their evaluator. Raises ValueError if one is missing or out
        of range, or a constraint fails."""
        value = Evaluator(found)
        for var, (low, high) in self._plan.symbols:
            if var not in found:
                raise ValueError(
                    f"the size {var} follows from no input's shape: compile the model with shapes=; {self}"
                )
            least = None if low is None else value(low)
            most = None if high is None else value(high)
            size = found[var]
            if (least is not None and size < least) or (most is not None and size > most):
                limits = f"{'any' if least is None else least} to {'any' if most is None else most}"
                raise ValueError(
                    f"the size {var} is {size}, but may be {limits}: compile the model again with another "
                    f"range for it in shapes=; {self}"
                )
        for constraint, source in self._plan.constraints.items():
            if not value.holds(constraint):
                bound = ", ".join(f"{v} = {n}" for v, n in found.items())
                raise ValueError(
                    f"the sizes {bound} do not meet {needed(constraint, source)}: for other sizes of the "
                    f"model's inputs, compile it again with shapes=; {self}"
                )
        return value
