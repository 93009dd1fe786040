"""`simplify` keeps every value, `interval` contains it, `prove` is never wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jangin.ir.dtype import I64
from jangin.ir.expr import Expr, Var, binary, call, const, eq, minimum, select
from jangin.ir.expr import maximum as largest
from jangin.ir.interpret import size
from jangin.ir.simplify import Range, interval, linear, prove, simplify

N, M, I0, J = (Var(v) for v in "NMij")
RANGES: dict[Var, Range] = {
    N: (const(1), const(5)),
    M: (const(2), None),
    I0: (const(0), N - 1),
    J: (const(0), const(7)),
}
COMPARISONS = ("lt", "le", "eq", "ne", "ge", "gt")
DIVISORS = (1, 2, 3, 4, 6, 8, 16, -2, -3)


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Draw random i64 arithmetic of N, M, i, j. Every divisor is non-zero."""

    def sub() -> Expr:
        return draw(indices(depth - 1))

    op = draw(
        st.sampled_from(("add", "sub", "mul", "floordiv", "mod", "min", "max", "select", "neg", "leaf"))
    )
    if depth == 0 or op == "leaf":
        return draw(st.one_of(st.sampled_from((N, M, I0, J)), st.integers(-9, 9).map(const)))
    if op in ("floordiv", "mod"):
        divisor = st.one_of(st.sampled_from(DIVISORS).map(const), st.sampled_from((N, M, N * M, N + 1)))
        return binary(op, sub(), draw(divisor))
    if op == "select":
        return select(draw(conditions(depth - 1)), sub(), sub())
    return call("neg", sub()) if op == "neg" else binary(op, sub(), sub())


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Expr:
    return binary(draw(st.sampled_from(COMPARISONS)), draw(indices(depth)), draw(indices(depth)))


def points(count: int = 12) -> list[dict[str, int]]:
    r = random.Random(0)
    found = []
    for _ in range(count):
        n = r.randint(1, 5)
        found.append({"N": n, "M": r.randint(2, 9), "i": r.randint(0, n - 1), "j": r.randint(0, 7)})
    return found


@pytest.mark.sampled(3)
@given(st.one_of(indices(), conditions()))
@settings(max_examples=200)
def test_simplify_keeps_every_value(e: Expr) -> None:
    simple = simplify(e, RANGES)
    low, high = interval(e, RANGES) if e.dtype == I64 else (None, None)
    for point in points():
        value = size(e, point)
        assert value == size(simple, point), f"{e} became {simple} at {point}"
        assert low is None or low <= value
        assert high is None or value <= high


@given(indices(), st.sampled_from((I0, M)))
@settings(max_examples=100)
def test_linear_recomposes(e: Expr, var: Var) -> None:
    parts = linear(e, var)
    if parts is not None:
        for point in points(4):
            assert size(parts[0] * var + parts[1], point) == size(e, point)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((I0 * 4 + J % 4) // 4, I0),
        ((I0 * 8 + J) % 8, J),
        ((I0 * 8 + J) // 8, I0),
        ((I0 * N * 8 + J * N) // N, I0 * 8 + J),
        (J // 3 * 3 + J % 3, J),
        (M // 2 // 3, M // 6),
        ((M * 16 + J) // 32, M // 2),
        ((M * 16 + J) % 32, M % 2 * 16 + J),
        (minimum(I0, N), I0),
        (largest(J, 8), const(8)),
        (I0 - I0, const(0)),
        (select(I0 < N, J, M), J),
        (J // 8, const(0)),
        ((N + M) - (M + N), const(0)),
    ],
)
def test_normal_forms(before: Expr, after: Expr) -> None:
    assert simplify(before, RANGES) == simplify(after, RANGES)


def test_prove() -> None:
    assert prove(I0 < N, RANGES)
    assert prove(I0 * 8 + J < N * 8, RANGES)
    assert prove(eq((M * 4) % 4, 0), RANGES)
    assert not prove(I0 < N - 1, RANGES)
    assert not prove(J < M, RANGES)
