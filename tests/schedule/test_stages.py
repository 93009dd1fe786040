"""Primitives that put stages of a kernel together, against the interpreter."""

from __future__ import annotations

import pytest
from templates.kernels import buffer

from jangin.ir import te
from jangin.ir.expr import const
from jangin.ir.loop import Alloc, Func, statements
from jangin.schedule.checks import ScheduleError
from jangin.schedule.primitives import loop_names
from jangin.schedule.steps import PRIMITIVES

from .nests import do, naive


@pytest.mark.parametrize(("name", "depth"), [("softmax", 1), ("softmax", 2), ("normalize", 1)])
def test_merge(name: str, depth: int) -> None:
    rows = [f"r{d}" for d in range(depth)]
    func = do(naive(name), ("merge", depth, rows))
    assert loop_names(func)[:depth] == rows
    locals_ = [
        s.buffer for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.memory == "scratch"
    ]
    assert max(len(b.shape) for b in locals_) == (3 - depth if name == "softmax" else 1)
    do(func, ("parallelize", "r0"))


@pytest.mark.parametrize("rows", [2, 3, 4, 7])
@pytest.mark.parametrize("name", ["softmax", "normalize"])
def test_merge_by_blocks_of_rows(name: str, rows: int) -> None:
    depth = 2 if name == "softmax" else 1
    func = do(naive(name), ("merge", depth, ["r0", "r1"][:depth], rows))
    locals_ = [
        s.buffer for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.memory == "scratch"
    ]
    assert {b.shape[0] for b in locals_} == {const(rows)}
    do(func, ("parallelize", "r0"))


def chain(late: bool) -> Func:
    """Return a kernel of a = 2x; b = a + 1. The result is the sum of b along the rows, and of a, too, if
    `late`."""
    x, out = buffer("x", 3, 5), buffer("out", 3)
    a, b = buffer("a", 3, 5), buffer("b", 3, 5)
    stages = (
        te.compute(a, lambda i, j: x[i, j] * 2.0),
        te.compute(b, lambda i, j: a[i, j] + 1.0),
        te.reduction(out, [5], "sum", lambda i, k: b[i[0], k[0]] + (a[i[0], k[0]] if late else 0.0)),
    )
    return te.lower("chain", stages, [x], {})


def test_a_local_in_the_place_of_another() -> None:
    func = do(chain(late=False), ("merge", 1, ["r0"]), ("reuse", "a", "b"))
    locals_ = {s.buffer.name for s in statements(func.body) if isinstance(s, Alloc)}
    assert "a" in locals_ and "b" not in locals_
    with pytest.raises(ScheduleError, match="a is still used after b is written"):
        do(chain(late=True), ("merge", 1, ["r0"]), ("reuse", "a", "b"))


def twofold(at: int = 0, outputs: int = 1) -> Func:
    """Return a kernel of a = x + 1 and the sums of its rows. The result is a, shifted by `at` columns,
    divided by its row's sum. With two outputs, the second is each row's largest element."""
    x, out = buffer("x", 3, 5), buffer("out", 3, 5)
    a, total = buffer("a", 3, 5), buffer("total", 3)
    stages = (
        te.compute(a, lambda i, j: x[i, j] + 1.0),
        te.reduction(total, [5], "sum", lambda i, k: a[i[0], k[0]]),
        te.compute(out, lambda i, j: a[i, (j + at) % 5 if at else j] / total[i]),
        te.reduction(buffer("top", 3), [5], "max", lambda i, k: out[i[0], k[0]]),
    )
    return te.lower("twofold", stages[: 2 + outputs], [x], {}, outputs)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_local_in_a_result(outputs: int) -> None:
    func = do(twofold(0, outputs), ("merge", 1, ["r0"]), ("parallelize", "r0"), ("in_result", "a"))
    local = {s.buffer.name for s in statements(func.body) if isinstance(s, Alloc)}
    assert local == {"total", "total.acc", *["top.acc"][: outputs - 1]}


def test_a_local_that_can_not_be_in_the_result() -> None:
    for local, why in (("total", "no result has the dtype and shape of total"), ("x", "x is no local")):
        with pytest.raises(ScheduleError, match=why):
            do(twofold(), ("merge", 1, ["r0"]), ("in_result", local))
    with pytest.raises(ScheduleError, match="the result is computed from elements of a at other indices"):
        do(twofold(at=1), ("merge", 1, ["r0"]), ("in_result", "a"))
    x, b, out = buffer("x", 3, 5), buffer("b", 5), buffer("out", 3, 5)
    each = te.compute(b, lambda j: x[0, j] + 1.0), te.compute(out, lambda i, j: b[j] * x[i, j])
    with pytest.raises(ScheduleError, match="b would lie in several parts of the result"):
        do(te.lower("each", each, [x], {}), ("in_result", "b"))
    a = buffer("a", 3, 5)
    product = (
        te.compute(a, lambda i, j: x[i, j] + 1.0),
        te.reduction(out, [5], "sum", lambda i, k: a[i[0], k[0]] * x[(i[0] + i[1]) % 3, k[0]]),
    )
    with pytest.raises(ScheduleError, match="a is still used after the result is written"):
        do(te.lower("product", product, [x], {}), ("merge", 1, ["r0"]), ("in_result", "a"))


def ends(columns: int, over: int) -> Func:
    """Return a kernel of the least and the largest of each row, over `columns` columns and over some of
    them."""
    x = buffer("x", 3, columns)
    stages = [
        te.reduction(buffer(name, 3), [terms], name, lambda i, k: x[i[0], k[0]])
        for name, terms in (("min", columns), ("max", over))
    ]
    return te.lower("ends", stages, [x], {}, 2)


@pytest.mark.parametrize("columns", [3, 8, 21])
def test_loops_side_by_side(columns: int) -> None:
    func = do(ends(columns, columns), ("merge", 1, ["r0"]), ("side_by_side", "ak0", "bk0"))
    assert loop_names(func) == ["r0", "ak0"]
    steps = [("merge", 1, ["r0"]), ("rfactor", "ak0", 2, 2), ("rfactor", "bk0", 2, 2)]
    do(ends(columns, columns), *steps, ("side_by_side", "ak0o", "bk0o"), ("parallelize", "r0"))


def test_loops_that_can_not_be_side_by_side() -> None:
    merged = PRIMITIVES["merge"]
    with pytest.raises(ScheduleError, match="aren't loops of one extent side by side"):
        PRIMITIVES["side_by_side"](merged(ends(8, 7), 1, ["r0"]), "ak0", "bk0")
    with pytest.raises(ScheduleError, match="aren't in neighbouring nests"):
        PRIMITIVES["side_by_side"](merged(ends(8, 8), 1, ["r0"]), "bk0", "ak0")
    with pytest.raises(ScheduleError, match="touches what the other stores"):
        PRIMITIVES["side_by_side"](merged(naive("normalize"), 1, ["r0"]), "ak0", "bk0")


def test_a_sum_where_it_is_read() -> None:
    func = do(naive("summed twice"), ("inline_sum", "dots"))
    assert loop_names(func) == ["bi0", "bi1", "bk0", "ak0"]
    assert not [s for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == "dots"]
