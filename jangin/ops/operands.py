"""Helpers of the core operators: operand types, broadcasting, and the dtype of the computation."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.dtype import BOOL, I16, I32, DType
from jangin.ir.expr import Buffer, Const, Expr, Load, call, cast, const, is_const
from jangin.ir.graph import CompileError, Shape, Value
from jangin.ir.products import Product
from jangin.ir.words import PAIR_OF_BYTES

Typed = tuple[DType, Shape]
TRUE = const(True, BOOL)


def typed(v: Value) -> Typed:
    assert v.dtype is not None and v.shape is not None, f"{v.name} is not typed"
    return v.dtype, v.shape


def broadcast_dims(a: Expr, b: Expr) -> Expr:
    """Return the broadcast of two dimensions. Raises CompileError if both are known and differ. A symbol that
    meets a constant other than 1 is taken to equal it, which a run checks."""
    if is_const(a, 1) or a == b:
        return b
    if is_const(b, 1):
        return a
    if isinstance(a, Const) and isinstance(b, Const):
        raise CompileError(f"dimensions {a} and {b} can't be broadcast")
    return a if isinstance(a, Const) else b if isinstance(b, Const) else a


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape to which symbolic shapes broadcast, as in NumPy."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Expr] = [const(1)] * rank
    for shape in shapes:
        for i, d in enumerate(shape, start=rank - len(shape)):
            out[i] = broadcast_dims(out[i], d)
    return tuple(out)


def broadcast_index(buf: Buffer, index: Sequence[Expr]) -> Expr:
    """Return the load of `buf` at an output index under broadcasting: dimensions of size 1 are read at 0."""
    offset = len(index) - len(buf.shape)
    at = [const(0) if is_const(d, 1) else index[offset + i] for i, d in enumerate(buf.shape)]
    return Load(buf, tuple(at))


def wide(e: Expr) -> Expr:
    """Return the expression in f32 if it is a smaller float, because those are computed in f32."""
    return cast(e.dtype.wide, e) if e.dtype.is_float else e


def multiplied(a: Expr, b: Expr, dtype: DType, dot: Product | None = None) -> Expr:
    """Return a * b: of integers in `dtype`, and of floats in f32 or wider. Two words are multiplied by the
    Product `dot`. `b` may be stored smaller, as whole numbers or as a pair of bytes."""
    if dot is not None and a.dtype is dot.word:
        return call(dot.name, a, widened(b, dot.word))
    if dtype.is_int:
        return cast(dtype, a) * cast(dtype, b)
    return wide(a) * (wide(b) if b.dtype.is_float else widened(b, dtype.wide))


def widened(e: Expr, dtype: DType) -> Expr:
    """Return weights that may be stored as bytes: whole numbers as floats, and pairs of bytes as words of
    i32."""
    return call(PAIR_OF_BYTES, e) if (e.dtype, dtype) == (I16, I32) else cast(dtype, e)
