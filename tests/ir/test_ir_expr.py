"""The constructors of expressions fold exactly, and equal expressions compare equal."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from threading import Thread

import pytest
from hypothesis import given, settings
from ir_strategies import exprs

from jangin.ir.arithmetic import BINARY_OPS, CALLS
from jangin.ir.dtype import BOOL, DTYPES, F32, I8, I16, I32, U8, from_numpy
from jangin.ir.expr import (
    Binary,
    Buffer,
    Cast,
    Expr,
    Var,
    binary,
    call,
    cast,
    const,
    maximum,
    minimum,
    select,
)
from jangin.ir.flat import postorder
from jangin.ir.interpret import size
from jangin.ir.parse import parse_expr
from jangin.ir.simplify import simplify
from jangin.ir.traversal import children, free_vars, loads, rebuild, rewrite, substitute, walk
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
@settings(max_examples=60)
def test_rebuilding_and_substituting(e: Expr) -> None:
    kids = children(e)
    if kids:
        assert rebuild(e, kids).dtype == e.dtype
    there = substitute(e, {X: Var("z")})
    assert substitute(there, {Var("z"): X}) == e
    assert hash(substitute(there, {Var("z"): X})) == hash(e)


@given(exprs(F32, (X, Y)))
@settings(max_examples=60)
def test_equal_expressions_are_one_object(e: Expr) -> None:
    assert parse_expr(str(e), (X, Y)) is e
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.deepcopy(e) is e
    assert substitute(substitute(e, {X: Var("z")}), {Var("z"): X}) is e


def test_expressions_are_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Y.name = "z"


def test_nothing_is_kept_of_what_is_over() -> None:
    part = Var("only here", F32) + 1.0
    gone = weakref.ref(part), weakref.ref(Buffer("only here", F32, (part,)))
    del part
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_threads_make_one_object() -> None:
    found: list[list[Expr]] = []

    def make() -> None:
        found.append([Var(f"v{n}") * 3 + n for n in range(3000)])

    threads = [Thread(target=make) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(e is other for group in zip(*found, strict=True) for e in group for other in group)


@pytest.mark.sampled(3)
def test_long_chains_are_no_deep_calls() -> None:
    """A chain of 10,000 nodes, of floats and of integers, passes through all functions on expressions."""
    n = 10_000
    chain: Expr = Y
    for _ in range(n):
        chain = call("sin", chain) + 1.0
    assert chain.size == 3 * n + 1
    assert free_vars(chain) == {Y}
    assert sum(1 for _ in walk(chain)) == chain.size
    assert len(str(chain)) == len("y") + n * len("(sin() + f32(1.0))")
    assert pickle.loads(pickle.dumps(chain)) is chain
    assert rewrite(chain, lambda e: Var("z", F32) if e is Y else None) is substitute(
        chain, {Y: Var("z", F32)}
    )
    assert simplify(chain) is chain
    index: Expr = X
    for i in range(n):
        index = Binary("add", Binary("mul", index, const(1 + i % 2)), const(-i))
        index = Binary("floordiv", index, const(1 + i % 2))
    assert simplify(index).size <= index.size
    assert not loads(index)


def test_shared_nodes_are_done_once() -> None:
    """Squaring x sixty times makes 61 nodes. They are visited once each, not 2^60 times."""
    e: Expr = Y
    for _ in range(60):
        e = e * e
    assert e.size == 2**61 - 1
    assert len(postorder(e)) == 61
    assert simplify(e) is e
    assert pickle.loads(pickle.dumps(e)) is e
    assert substitute(substitute(e, {Y: Var("z", F32)}), {Var("z", F32): Y}) is e


def test_a_whole_float_becomes_no_integer_on_its_way() -> None:
    x = Var("x", F32)
    held = minimum(maximum(call("round", x) + 114.0, 0.0), 255.0)
    assert cast(F32, cast(U8, held)) == held
    around = minimum(maximum(call("round", x), -128.0), 127.0)
    assert cast(F32, cast(I8, around)) == around + 0.0, "no integer is -0"
    assert cast(I16, cast(U8, held)) == cast(I16, held)
    assert cast(I8, cast(U8, held)) != cast(I8, held), "which hasn't all of them"
    assert cast(F32, cast(I8, held)) != held
    part = minimum(maximum(x, 0.0), 255.0)
    assert cast(F32, cast(U8, part)) != part, "no whole number"
