"""Sums whose terms are in few rows, such as an embedding's gradient. Rows are tested before the columns."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.ir import te
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Expr, const, eq, maximum, minimum, select
from jangin.ir.graph import Array
from jangin.ir.interpret import evaluate_stage, run_func
from jangin.ir.loop import For, If, Stmt, statements, sub_statements
from jangin.schedule.checks import ScheduleError
from jangin.schedule.primitives import set_kind
from jangin.schedule.seldom import find_first, is_seldom

from .kernels import SYMBOL, SYMBOLS, Built, Size, assert_replayed, buffer, dims, scheduled, workload


def gradient(rows: Size, columns: int, terms: Size, *, by_column: bool = False) -> Built:
    """Return the gradient of rows by those that indices chose, added to the rows times 0.5. Negative indices
    count from the end."""
    g, index, old = (
        buffer("g", terms, columns),
        Buffer("index", I64, dims(terms)),
        buffer("old", rows, columns),
    )
    (count,) = dims(rows)

    def term(i: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
        n = index[k[0]]
        place = minimum(maximum(select(n < 0, n + count, n), 0), count - 1)
        return select(eq(place + i[1] if by_column else place, i[0]), g[k[0], i[1]], const(0.0, F32))

    out = buffer("out", rows, columns)
    stage = te.reduction(out, dims(terms), "sum", term, lambda acc, i: acc + old[i[0], i[1]] * 0.5)
    return (stage,), [g, index, old]


def numbers(rows: int, columns: int, terms: int) -> dict[str, Array]:
    """Return terms for few of the rows, most of which get several. Some indices are negative."""
    rng = np.random.default_rng(0)
    index = rng.integers(-rows, rows, terms)
    index[1::3] = index[0]
    return {
        "g": rng.standard_normal((terms, columns), np.float32), "index": index,
        "old": rng.standard_normal((rows, columns), np.float32),
    }  # fmt: skip


def conditions(s: Stmt, around: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the loops around each branch."""
    inner = (*around, s.var.name) if isinstance(s, For) else around
    mine = [around] if isinstance(s, If) else []
    return mine + [c for k in sub_statements(s) for c in conditions(k, inner)]


SIZES = [
    pytest.param(61, 37, 13, {}, id="odd"),
    pytest.param(9, 2, 70, {}, id="narrow"),
    pytest.param(17, 129, 1, {}, id="one-term"),
    pytest.param(SYMBOL, 40, 5, {"n": 23}, id="unknown-rows"),
    pytest.param(23, 40, SYMBOL, {"n": 11}, id="unknown-terms"),
]


@pytest.mark.parametrize(("rows", "columns", "terms", "sizes"), SIZES)
def test_rows_are_found_first(rows: Size, columns: int, terms: Size, sizes: dict[str, int]) -> None:
    built = gradient(rows, columns, terms)
    found = scheduled("rows", workload(built, SYMBOLS if sizes else {}))
    assert [s.name for s in found.steps].count("find_first") == 1
    assert_replayed(found, te.lower("k", *built, dict(found.func.symbols)))
    own = [n if isinstance(n, int) else sizes["n"] for n in (rows, columns, terms)]
    given = numbers(*own)
    want = evaluate_stage(built[0][0], given, sizes)
    given["out"] = np.full_like(want, np.nan)
    run_func(found.func, given, sizes)
    np.testing.assert_allclose(given["out"], want, rtol=1e-5, atol=1e-5)  # up to 70 terms of size 1


def test_a_row_without_terms_makes_one_test() -> None:
    """The test of a whole row stands outside of the loop over its terms, and a term's test outside of the
    loops over columns."""
    func = scheduled("rows", workload(gradient(61, 256, 40))).func
    row, term = sorted(conditions(func.body), key=len)
    assert len(row) + 1 == len(term) and term[:-1] == row
    kinds = {s.var.name: s.kind for s in statements(func.body) if isinstance(s, For)}
    assert "vector" not in [kinds[name] for name in term]


def test_few_rows_and_conditions_by_column_stay_sums() -> None:
    assert is_seldom(gradient(8, 16, 40)[0][0])
    assert not is_seldom(gradient(7, 16, 40)[0][0]), "a branch in few rows can't be foreseen"
    built = gradient(61, 16, 40, by_column=True)
    assert not is_seldom(built[0][0])
    assert "find_first" not in [s.name for s in scheduled("rows", workload(built)).steps]


def test_rows_are_found_in_serial_loops() -> None:
    func = te.lower("k", *gradient(61, 16, 40), {})
    with pytest.raises(ScheduleError, match="loop i0 is parallel already"):
        find_first(set_kind(func, "i0", "parallel"), "out.acc")
