"""Write expressions and tensor expressions as ONNX operators.

Each operation of an expression on elements becomes one operator. A tensor expression becomes operators on
whole tensors. These have an axis for each axis of the result and of the reduction. An index becomes a tensor
of the numbers along its axis, and a load becomes a gather."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.types import TYPES
from jangin.frontends.writer import Name, Pattern, Words, Writer
from jangin.ir import core
from jangin.ir.dtype import BOOL, F32, F64, I32, I64, U64, DType
from jangin.ir.expr import (
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    call,
    cast,
    const,
    eq,
    is_const,
    land,
    lor,
    maximum,
    minimum,
    ne,
    select,
)
from jangin.ir.graph import CompileError, Node, Shape
from jangin.ir.simplify import Range, prove, simplify
from jangin.ir.te import Stage
from jangin.ir.traversal import free_vars, rewrite, row_major
from jangin.ir.words import BITCASTS
from jangin.ops import activation
from jangin.ops.core import CORE

CODES: Mapping[DType, int] = {dtype: code for code, dtype in TYPES.items()}
X, A, B = (Var(name, F32) for name in ("x0", "alpha", "beta"))
PATTERNS: tuple[Pattern, ...] = (
    (activation.hard_swish(X), "HardSwish", ()),
    (maximum(minimum(X * A + B, 1), 0), "HardSigmoid", ("alpha", "beta")),
    (activation.softplus(X), "Softplus", ()),
    (activation.elu(X), "Elu", ()),
    (select(X > 0, X, call("expm1", X) * A), "Elu", ("alpha",)),
    (maximum(X, 0) + minimum(call("expm1", X), 0), "Celu", ()),
    (maximum(X, 0) + minimum(call("expm1", X / A) * A, 0), "Celu", ("alpha",)),
)
ARITHMETIC = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "min": "Min", "max": "Max", "pow": "Pow",
}  # fmt: skip
COMPARISONS = {"lt": "Less", "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual", "eq": "Equal"}
LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}
BITS = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
CALLS = {
    "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign", "isnan": "IsNaN", "isinf": "IsInf",
}  # fmt: skip
REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}
COMPUTED = (F64, F32, I64, I32, U64)
"""The types of numbers in which ONNX Runtime computes. Smaller types are computed in one of these."""
TOP = 1 << 63
"""The sign bit of an int64. An arithmetic shift is made of logical ones by inverting this bit before the
shift."""


def words(e: Expr) -> Words | None:
    """Return the ONNX operator for the outermost operation of an expression, or None if ONNX has none."""
    match e:
        case Cast():
            # numbers out of range of an 8-bit float may saturate
            small = e.dtype.is_float and e.dtype.bits == 8
            return Words("Cast", (e.a,), {"to": CODES[e.dtype]} | ({"saturate": 0} if small else {}))
        case Select(cond, a, b):
            if e.dtype is BOOL:
                return Words("", (lor(land(cond, a), land(call("not", cond), b)),))
            if e.dtype not in COMPUTED:
                wide = _wide(e.dtype)
                return Words("", (cast(e.dtype, select(cond, cast(wide, a), cast(wide, b))),))
            return Words("Where", (cond, a, b))
        case Binary(op, a, b):
            return _binary(op, a, b)
        case Call(fn, args):
            return _call(fn, args)
    return None


def _binary(op: str, a: Expr, b: Expr) -> Words | None:
    if op in LOGIC and a.dtype is BOOL:
        return Words(LOGIC[op], (a, b))
    if op == "ne":
        return Words("", (call("not", eq(a, b)),))
    if op == "eq" and a.dtype is BOOL:
        return Words("Equal", (a, b))
    if op in ("min", "max") and a.dtype is BOOL:
        return Words("And" if op == "min" else "Or", (a, b))
    if op in BITS:
        return Words(BITS[op], (a, b))
    if a.dtype not in COMPUTED:
        wide = _wide(a.dtype)
        value = binary(op, cast(wide, a), cast(wide, b))
        return Words("", (value if value.dtype is BOOL else cast(a.dtype, value),))
    if op in COMPARISONS:
        return Words(COMPARISONS[op], (a, b))
    if op == "rem" or (op == "mod" and a.dtype.is_int):
        return Words("Mod", (a, b), {"fmod": int(op == "rem")})
    if op == "mod":
        rest = binary("rem", a, b)
        other = land(ne(rest, 0), ne(rest < 0, b < 0))
        return Words("", (select(other, rest + b, rest),))
    if op == "floordiv" and a.dtype.is_int:
        return Words("", (binary("div", a - binary("mod", a, b), b),))
    if op in ("shl", "shr"):
        return _shifted(op, a, b)
    return Words(ARITHMETIC[op], (a, b)) if op in ARITHMETIC else None


def _wide(dtype: DType) -> DType:
    """Return the type of `COMPUTED` in which a smaller type is computed."""
    return F32 if dtype.is_float else I32 if dtype.bits < 32 else I64


def _shifted(op: str, a: Expr, b: Expr) -> Words:
    """Return a shift by the operator BitShift, which needs unsigned numbers. Signed numbers are converted
    before and back after it."""
    if a.dtype is U64:
        return Words("BitShift", (a, b), {"direction": "RIGHT" if op == "shr" else "LEFT"})
    x, count = cast(U64, cast(I64, a)), cast(U64, b)
    if op == "shl":
        return Words("", (cast(a.dtype, cast(I64, binary("shl", x, count))),))
    top = const(TOP, U64)
    moved = cast(I64, binary("shr", binary("xor", x, top), count)) - cast(I64, Binary("shr", top, count))
    return Words("", (cast(a.dtype, moved),))


def _call(fn: str, args: tuple[Expr, ...]) -> Words | None:
    (a, *rest) = args
    if fn == "not":
        return Words("Not" if a.dtype is BOOL else "BitwiseNot", args)
    if fn in BITCASTS:
        return Words("BitCast", args, {"to": CODES[BITCASTS[fn]]})
    if fn == "fma":
        return Words("", (a * rest[0] + rest[1],))
    if fn == "rsqrt":
        return Words("", (1 / call("sqrt", a),))
    if fn == "trunc":
        return Words("", (select(a < 0, call("ceil", a), call("floor", a)),))
    if fn not in CALLS:
        return None
    if a.dtype in COMPUTED:
        return Words(CALLS[fn], args)
    value = call(fn, cast(_wide(a.dtype), a))
    return Words("", (value if value.dtype is BOOL else cast(a.dtype, value),))


class Stages(Writer):
    """The part of ONNX's writer that writes tensor expressions."""

    @abstractmethod
    def array(self, values: Any, dtype: DType = I64, hint: str = "value") -> Name:
        """Return the name of a constant with these values."""

    @abstractmethod
    def dims(self, shape: Shape) -> Name:
        """Return the name of a vector of sizes."""

    @abstractmethod
    def scalar(self, e: Expr) -> Name:
        """Return the name of a tensor without axes that holds a size."""

    def staged(self, node: Node, attrs: core.CoreAttributes) -> None:
        """Write a node as the stages of its tensor expression, one after another."""
        inputs = tuple(
            Buffer(f"x{i}", self.graph.dtype(n), self.graph.shape(n)) for i, n in enumerate(node.inputs)
        )
        out = Buffer("out", self.graph.dtype(node.outputs[0]), self.graph.shape(node.outputs[0]))
        parts = CORE[node.op].te(inputs, out, attrs)
        held = {f"x{i}": self.named(n) for i, n in enumerate(node.inputs)}
        for stage in parts:
            held[stage.out.name] = self._stage(stage, held, node, stage is parts[-1])

    def _stage(self, stage: Stage, held: Mapping[str, Name], node: Node, last: bool) -> Name:
        if stage.at:
            raise CompileError("a part of a larger result can't be expressed in ONNX")
        space = _Space(self, stage, held, node.name)
        value = space.value(stage.body)
        rank = len(stage.axes)
        if stage.reduce_axes:
            whole = space.whole(value)
            over = tuple(range(rank, len(space.axes)))
            value = self.reduced(stage.combiner, whole, stage.body.dtype, over, "", False)
            if stage.epilogue is not None:
                after = _Space(self, stage, held, node.name, rank)
                after.keep(stage.acc, value, range(rank))
                value = after.whole(after.value(stage.epilogue))
        else:
            value = space.whole(value)
        return self.emit("Identity", value, result=node.outputs[0]) if last else value

    def reduced(
        self, combiner: str, x: Name, dtype: DType, axes: Sequence[int], result: str, keeps: bool
    ) -> Name:
        """Add a reduction over some axes, and return its result's name. Booleans are reduced as the numbers 0
        and 1, by the minimum or the maximum."""
        kwargs: dict[str, Any] = {"keepdims": int(keeps)}
        over = self.array(list(axes), hint="axes")
        wide = I32 if dtype is BOOL else dtype if dtype in COMPUTED else _wide(dtype)
        operation = REDUCTIONS[{"and": "min", "or": "max"}.get(combiner, combiner)]
        if wide is dtype:
            return self.emit(operation, x, over, result=result, hint=x, **kwargs)
        y = self.emit(operation, self.emit("Cast", x, hint=x, to=CODES[wide]), over, hint=x, **kwargs)
        return self.emit("Cast", y, result=result, hint=x, to=CODES[dtype])


class _Space:
    """The index space of one stage: the axes of its result and of its reduction.

    `known` has the tensors with the values of expressions. Such a tensor has an axis for each axis of the
    stage, or no axes. `along` has the axes along which a tensor with axes varies. Its other axes have size
    1."""

    def __init__(
        self, writer: Stages, stage: Stage, held: Mapping[str, Name], hint: str, rank: int | None = None
    ) -> None:
        self.writer, self.held, self.hint = writer, held, hint
        self.axes = (*stage.axes, *stage.reduce_axes)[:rank]
        self.places = {a.var: i for i, a in enumerate(self.axes)}
        self.known: dict[Expr, Name] = {}
        self.along: dict[Name, frozenset[int]] = {}
        self.ranges: dict[Var, Range] = {
            **writer.graph.symbols,
            **{a.var: (const(0), a.extent - 1) for a in self.axes},
        }

    def value(self, body: Expr) -> Name:
        """Write an expression of indices, loads and sizes. Return the name of its value."""
        loaded: dict[Expr, Name] = {}

        def held(e: Expr) -> Expr | None:
            """Return a variable that stands for the value of a load."""
            if not isinstance(e, Load):
                return None
            name = self._load(e, loaded)
            stands = Var(str(name), e.dtype)
            loaded[stands] = name
            return stands

        plain = rewrite(body, held)
        return self._said(plain, loaded)

    def _said(self, e: Expr, loaded: Mapping[Expr, Name]) -> Name:
        for v in free_vars(e):
            if v not in loaded and v not in self.known:
                self._index(v) if v in self.places else self.keep(v, self.writer.scalar(v))
        operands = {**self.known, **loaded}
        name: Name = self.writer.expression(e, operands, hint=self.hint)
        parts = [self.along[n] for v in free_vars(e) if (n := operands[v]) in self.along]
        if parts:
            self.along[name] = frozenset().union(*parts)
        return name

    def keep(self, e: Expr, value: Name, along: Iterable[int] | None = None) -> None:
        """Record the tensor that holds an expression's value. `along` has the axes along which it varies, or
        is None for a tensor without axes."""
        self.known[e] = value
        if along is not None:
            self.along[value] = frozenset(along)

    def whole(self, value: Name) -> Name:
        """Return the name of a tensor broadcast to all axes of the stage."""
        along = self.along.get(value)
        if along is not None and all(i in along or is_const(a.extent, 1) for i, a in enumerate(self.axes)):
            return value
        sizes = self.writer.dims(tuple(a.extent for a in self.axes))
        return self.writer.emit("Expand", value, sizes, hint=self.hint)

    def _index(self, v: Var) -> None:
        """Write a tensor of the numbers along the axis of an index."""
        place = self.places[v]
        extent = self.axes[place].extent
        spread = [-1 if i == place else 1 for i in range(len(self.axes))]
        write = self.writer
        if isinstance(extent, Const):
            index = write.array(np.arange(int(extent.value)).reshape(spread), hint="index")
        else:
            numbers = write.emit("Range", write.array(0), write.scalar(extent), write.array(1), hint="index")
            index = write.emit("Reshape", numbers, write.array(spread), hint="index")
        self.keep(v, index, [place])

    def _load(self, e: Load, loaded: Mapping[Expr, Name]) -> Name:
        """Write the values at an index, and return their name. The index is clamped to the valid range,
        because ONNX also computes values that a `select` then discards."""
        x, shape = self.held[e.buffer.name], e.buffer.shape
        if not shape:
            return x
        index = [self._inside(i, d) for i, d in zip(e.index, shape, strict=True)]
        straight = self._straight(index, shape)
        if straight is not None:
            return self._spread(x, straight)
        emit, array = self.writer.emit, self.writer.array
        flat = emit("Reshape", x, array([-1]), hint=self.hint)
        at = self._said(simplify(row_major(index, shape), self.ranges), loaded)
        gathered = emit("Gather", flat, at, hint=self.hint, axis=0)
        if at in self.along:
            self.along[gathered] = self.along[at]
        return gathered

    def _inside(self, i: Expr, size: Expr) -> Expr:
        i = i if prove(i >= 0, self.ranges) else maximum(i, 0)
        return i if prove(i < size, self.ranges) else minimum(i, size - 1)

    def _straight(self, index: Sequence[Expr], shape: Shape) -> list[int | None] | None:
        """Return the stage's axis for each index of a load. None stands for the only entry of an axis of size
        1. The result is None if an index is neither."""
        axes: list[int | None] = []
        for i, size in zip(index, shape, strict=True):
            place = self.places.get(i) if isinstance(i, Var) else None
            if place is not None and self.axes[place].extent == size and place not in axes:
                axes.append(place)
            elif is_const(i, 0) and is_const(size, 1):
                axes.append(None)
            else:
                return None
        return axes

    def _spread(self, x: Name, places: Sequence[int | None]) -> Name:
        """Return the name of a tensor with its axes moved to their places in the stage. All other axes of the
        stage have size 1."""
        order = sorted(range(len(places)), key=lambda i: -1 if places[i] is None else places[i])  # type: ignore[arg-type, return-value]
        if order != sorted(order):
            x = self.writer.emit("Transpose", x, hint=self.hint, perm=order)
        rank, ones = len(self.axes), sum(p is None for p in places)
        if ones:
            x = self.writer.emit("Squeeze", x, self.writer.array(list(range(ones))), hint=self.hint)
        missing = [i for i in range(rank) if i not in places]
        if missing:
            x = self.writer.emit("Unsqueeze", x, self.writer.array(missing), hint=self.hint)
        self.along[x] = frozenset(p for p in places if p is not None)
        return x
