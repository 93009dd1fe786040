"""The constructors of expressions fold exactly, and what they build is equal when it should be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from ir_strategies import exprs

from jangin.ir.arithmetic import BINARY_OPS, CALLS
from jangin.ir.dtype import BOOL, DTYPES, F32, I8, I32, U8, from_numpy
from jangin.ir.expr import (
    Binary,
    Cast,
    Expr,
    Var,
    binary,
    call,
    cast,
    children,
    const,
    rebuild,
    select,
    substitute,
)
from jangin.ir.interpret import size
from jangin.ir.words import BINARY, INTRINSICS, quote

X, Y = Var("x"), Var("y", F32)


def test_every_operation_has_arithmetic() -> None:
    assert set(BINARY_OPS) == BINARY
    assert CALLS == INTRINSICS


def test_numpy_dtypes_round_trip() -> None:
    for dtype in DTYPES.values():
        assert from_numpy(dtype.numpy) == dtype
        assert dtype.numpy.itemsize == dtype.bytes


def test_constants_differ_by_type_and_sign() -> None:
    assert const(1) != const(1, I32)
    assert const(0.0, F32) != const(-0.0, F32)
    assert const(math.nan, F32) == const(math.nan, F32)
    assert const(True, BOOL) != const(1)


def test_constants_wrap() -> None:
    assert const(300, U8).value == 44
    assert const(-1, U8).value == 255
    assert const(200, I8).value == -56
    assert cast(I8, const(200)) == const(-56, I8)
    assert binary("add", const((1 << 63) - 1), 1) == const(-(1 << 63))


@pytest.mark.parametrize(
    ("op", "a", "b", "value"),
    [
        ("div", -7, 2, -3), ("floordiv", -7, 2, -4), ("mod", -7, 2, 1), ("rem", -7, 2, -1),
        ("mod", 7, -2, -1), ("rem", (1 << 62) + 1, 2, 1), ("min", 3, -3, -3), ("and", 6, 3, 2),
    ],
)  # fmt: skip
def test_folding(op: str, a: int, b: int, value: int) -> None:
    assert binary(op, a, b) == const(value)
    assert size(Binary(op, const(a), const(b)), {}) == value


def test_what_is_not_folded() -> None:
    assert binary("div", 1, 0) == Binary("div", const(1), const(0))
    assert isinstance(Y + 0.0, Binary), "-0.0 + 0.0 is 0.0"
    assert isinstance(Y * 0.0, Binary), "an infinity times 0 is NaN"
    assert isinstance(cast(I32, const(1.5, F32)), Cast)


def test_neutral_elements() -> None:
    assert X + 0 == X
    assert X * 1 == X
    assert const(0) == X * 0
    assert const(0) == X - X
    assert Y * 1.0 == Y
    assert select(X < X, X, X + 1) == X + 1


def test_operands_must_agree() -> None:
    with pytest.raises(TypeError, match="add of i64 and f32"):
        binary("add", X, Y)
    with pytest.raises(TypeError, match="only at run time"):
        bool(X < 3)


def test_result_types() -> None:
    assert call("isnan", Y).dtype == BOOL
    assert call("bitcast_i32", Y).dtype == I32
    assert call("bitcast_f32", Var("n", I32)).dtype == F32
    assert (X < 3).dtype == BOOL


def test_quote() -> None:
    assert [quote(n) for n in ("a.b", "if", "a b", 'a"', "")] == ["a.b", '"if"', '"a b"', '"a\\""', '""']


@given(exprs(F32, (X, Y)))
@settings(max_examples=60, deadline=None)
def test_rebuilding_and_substituting(e: Expr) -> None:
    kids = children(e)
    if kids:
        assert rebuild(e, kids).dtype == e.dtype
    there = substitute(e, {X: Var("z")})
    assert substitute(there, {Var("z"): X}) == e
    assert hash(substitute(there, {Var("z"): X})) == hash(e)
