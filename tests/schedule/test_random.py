"""Random schedules of small kernels. A step is refused with a ScheduleError, or changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates.kernels import Built, buffer, conv, matmul, node, pool

from jangin.ir import te
from jangin.ir.core import Map, Normalize, Reduce, Softmax, Transpose
from jangin.ir.expr import Const, call
from jangin.ir.loop import Alloc, For, Func, expressions, statements
from jangin.ir.traversal import loads
from jangin.schedule.checks import ScheduleError
from jangin.schedule.normalize import simplify_func
from jangin.schedule.primitives import loop_names
from jangin.schedule.steps import Step, apply

from .nests import ROUNDED, SYMBOLS, X, Y, assert_same

SIZES = st.sampled_from((1, 2, 3, 5, 7))


@st.composite
def kernels(draw: st.DrawFn) -> Func:
    """Draw a naive kernel with random small sizes. Some of them are symbolic."""
    kind = draw(st.sampled_from(("map", "transpose", "matmul", "conv", "pool", "reduce", *ROUNDED)))
    symbolic = draw(st.booleans()) and kind not in ("conv", "pool")
    rows: Any = next(iter(SYMBOLS)) if symbolic else draw(SIZES)
    built = _built(kind, rows, draw(SIZES), draw(SIZES), draw(st.integers(0, 2)))
    return te.lower(kind, built[0], built[1], SYMBOLS if symbolic else {})


def _built(kind: str, rows: Any, columns: int, depth: int, choice: int) -> Built:
    if kind == "map":
        other = ((rows, columns), (columns,), (1, 1))[choice]
        return node(Map(body=X * Y + call("abs", X)), [buffer("x", rows, columns), buffer("y", *other)])
    if kind == "transpose":
        return node(
            Transpose(perm=((2, 0, 1), (1, 0, 2), (2, 1, 0))[choice]), [buffer("x", rows, columns, depth)]
        )
    if kind == "matmul":
        sizes = (
            ((rows, depth), (depth, columns)),
            ((columns, rows), (rows, depth)),
            ((2, rows, 3), (2, 3, 4)),
        )
        return matmul(*sizes[choice])
    if kind == "conv":
        return conv(
            (min(rows, 3), min(columns, 3)), 2, min(depth, 3), (1, 3, 3)[choice], pad=(0, 1, 1)[choice]
        )
    if kind == "pool":
        return pool((min(rows, 5), columns), 2, 3, 1 + choice % 2, 1, ("max", "sum", "max")[choice], "")
    if kind == "reduce":
        attrs = Reduce(("sum", "max", "min")[choice], ((1,), (1, 2), (0,))[choice])
        return node(attrs, [buffer("x", rows, columns, depth)])
    if kind == "softmax":
        return node(Softmax(axis=1, log=choice == 0), [buffer("x", rows, columns)])
    return node(Normalize(axes=(1,), epsilon=1e-3, rms=choice == 0), [buffer("x", rows, columns)])


def step(draw: st.DrawFn, func: Func) -> Step:
    """Draw a step with arguments that name parts of the kernel. It may still not fit."""
    loops = loop_names(func) or ["none"]
    loop = st.sampled_from(loops)
    accs = [s.buffer.name for s in statements(func.body) if isinstance(s, Alloc)] or ["none"]
    number = st.integers(1, 5)
    chain = draw(st.sampled_from(_chains(func) or [["none"]]))
    some = st.lists(loop, min_size=1, max_size=3, unique=True)
    read = sorted({n.buffer.name for s in statements(func.body) for e in expressions(s) for n in loads(e)})
    arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
        "split": lambda: (draw(loop), draw(number), draw(st.sampled_from(("guard", "cut", "bound")))),
        "fuse": lambda: (chain[0], chain[min(1, len(chain) - 1)], f"f{len(loops)}"),
        "reorder": lambda: (draw(st.permutations(chain)),),
        "privatize": lambda: (draw(st.sampled_from(accs)), chain[-draw(st.integers(1, 2)) :]),
        "pack": lambda: (draw(loop), draw(st.sampled_from(read)), draw(some), f"p{len(loops)}"),
        "peel": lambda: (draw(loop), draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        "merge": lambda: (draw(st.integers(1, 2)), ["ra", "rb"][: draw(st.integers(1, 2))]),
        "block_sum": lambda: (draw(loop), draw(some), draw(number), f"s{len(loops)}"),
        "copy_as_read": lambda: (draw(st.sampled_from(accs)), draw(loop)),
        "partial_sums": lambda: (draw(loop),),
        "pairwise": lambda: (draw(loop),),
        "across_lanes": lambda: (draw(loop),),
        "factor_out": lambda: (draw(loop), draw(loop)),
        "mask_in_place": lambda: (draw(loop), draw(loop)),
        "rfactor": lambda: (draw(loop), draw(number), draw(number)),
        "find_first": lambda: (draw(st.sampled_from(accs)),),
        "predicate": lambda: (draw(st.sampled_from(accs)),),
        "hoist_guards": lambda: (),
        "rename": lambda: (draw(loop), draw(st.sampled_from((f"q{len(loops)}", loops[0])))),
        "vectorize": lambda: (draw(loop),),
        "unroll": lambda: (draw(loop),),
        "parallelize": lambda: (draw(loop),),
    }
    name = draw(st.sampled_from(sorted(arguments)))
    return Step(name, arguments[name]())


def _chains(func: Func) -> list[list[str]]:
    """Return the names of loops that stand directly inside each other."""
    found = []
    for s in statements(func.body):
        names = []
        body: Any = s
        while isinstance(body, For):
            names.append(body.var.name)
            body = body.body
        if names:
            found.append(names)
    return found


@pytest.mark.sampled(3)
@settings(max_examples=150, derandomize=True)
@given(st.data(), kernels())
def test_random_schedules(data: st.DataObject, func: Func) -> None:
    before, steps = func, []
    for _ in range(data.draw(st.integers(1, 10))):
        one = step(data.draw, func)
        try:
            func = apply(func, [one])
        except ScheduleError:
            continue
        steps.append(str(one))
    try:
        assert_same(before, func)
        assert_same(before, simplify_func(func))
    except Exception as error:
        error.add_note("; ".join(steps))
        raise


@st.composite
def tilings(draw: st.DrawFn) -> tuple[Func, list[Step]]:
    """Draw a product, and the schedule of a tiled one with random factors and order."""
    rows, columns, depth = (draw(SIZES) for _ in range(3))
    symbol = next(iter(SYMBOLS))
    sizes: list[Any] = [rows, depth, columns]
    where = draw(st.integers(0, 3))
    if where < 3:
        sizes[where] = symbol
    built = matmul(sizes[:2], sizes[1:])
    func = te.lower("matmul", built[0], built[1], SYMBOLS if where < 3 else {})
    mr, nr, kr, mc, nc = (draw(st.integers(1, 4)) for _ in range(5))
    tail = draw(st.sampled_from(("guard", "bound")))
    steps = [
        Step("split", ("i0", mr)), Step("split", ("i1", nr)), Step("split", ("i0o", mc, tail)),
        Step("split", ("i1o", nc, tail)), Step("reorder", (["i0oo", "i1oo", "i1oi", "i0oi", "i0i", "i1i"],)),
        Step("privatize", ("out.acc", ["i0i", "i1i"])), Step("pack", ("i1oi", "w", ["k0", "i1i"], "panel")),
        Step("split", ("k0", kr, draw(st.sampled_from(("guard", "cut"))))), Step("unroll", ("k0i",)),
        Step("vectorize", ("i1i",)), Step("vectorize", ("panel_i1i",)), Step("unroll", ("i0i",)),
        Step("fuse", ("i0oo", "i1oo", "t")), Step("parallelize", ("t",)),
    ]  # fmt: skip
    return func, steps


@pytest.mark.sampled(3)
@settings(max_examples=60, derandomize=True)
@given(tilings())
def test_tiled_products(made: tuple[Func, list[Step]]) -> None:
    func, steps = made
    after = func
    for one in steps:
        loop = [s for s in statements(after.body) if isinstance(s, For) and s.var.name == one.args[0]]
        if one.name == "vectorize" and loop and not isinstance(loop[0].extent, Const):
            continue
        after = apply(after, [one])
    assert_same(func, after)
    assert_same(func, simplify_func(after))
