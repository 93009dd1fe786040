"""Schedules for work-groups: steps keep a kernel's results, and random schedules pass the verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates.kernels import SYMBOLS, matmul

from jangin.ir import te
from jangin.ir.expr import Binary, Const, const
from jangin.ir.groups import barriers, lives_across, thread_loops, threads
from jangin.ir.loop import Alloc, For, Func, Let, expressions, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.traversal import walk
from jangin.ir.verify import VerifyError, verify_func
from jangin.schedule.checks import ScheduleError
from jangin.schedule.primitives import loop_names
from jangin.schedule.steps import Step, apply, parse_steps

from .nests import assert_same, naive

SIZES = st.sampled_from((1, 2, 3, 5, 8))


def test_tree() -> None:
    func = naive("sum")
    after = apply(func, parse_steps("tree(out.acc, k0, 8) bind_block(i0)"))
    assert threads(after) == 8
    assert [s.var.name for s in thread_loops(after.body)] == ["k0x", "k00", "k01", "k02"]
    assert len(barriers(after)) == 4
    assert_same(func, after)


def test_sums_of_warps() -> None:
    """A tile of sums has its warp as first axis. A warp's work is that of 32 work-items."""
    func = te.lower("k", *matmul((32, 16), (16, 16)), {})
    text = """split(i0, 16) split(i1, 8) reorder((i0o, i1o, i0i, i1i)) enclose(t)
        privatize(out.acc, (i0o, i1o, i0i, i1i)) place(out.acc, tile) join_axes(out.acc, 2)"""
    for suffix in ("", "_z", "_w"):
        loops = f"i0o{suffix}, i1o{suffix}"
        text += f" reorder(({loops}, k0, i0i, i1i))" if not suffix else ""
        text += f" fuse({loops}, x{suffix}) bind_warp(x{suffix})"
    after = apply(func, parse_steps(text + " simplify()"))
    verify_func(after)
    assert threads(after) == 4 * 32
    assert [b.shape for b in lives_across(after)] == [(const(4), const(16), const(8))]
    assert_same(func, after)


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("name", ["sum", "max", "symbolic-sum"])
def test_trees_of_all_sizes(name: str, count: int) -> None:
    func = naive(name)
    steps = [Step("fuse", ("k0", "k1", "k0f"))] if name == "max" else []
    loop = "k0f" if name == "max" else "k0"
    steps += [Step("tree", ("out.acc", loop, count))]
    outer = [s.var.name for s in statements(func.body) if isinstance(s, For) and s.var.name.startswith("i")]
    for n, inner in enumerate(outer[1:]):
        steps.append(Step("fuse", ("t" * n or outer[0], inner, "t" * (n + 1))))
    steps.append(Step("bind_block", ("t" * (len(outer) - 1) or outer[0],)))
    assert_same(func, apply(func, steps))


def test_rows_by_a_group() -> None:
    """Softmax: a group takes a row, and its exponentials lie in shared memory."""
    func = naive("softmax")
    after = apply(func, parse_steps("merge(2, (r0, r1)) fuse(r0, r1, t)"))
    for name in loop_names(after):
        if name.endswith("k0"):
            after = apply(after, [Step("tree", (_accumulator(after, name), name, 4))])
        elif name.endswith("i2"):
            steps = f"split({name}, 4) reorder(({name}i, {name}o)) bind_thread({name}i)"
            after = apply(after, parse_steps(steps))
    for local in _scratch(after):
        after = apply(after, [Step("place", (local, "shared"))])
    after = apply(after, parse_steps("bind_block(t)"))
    assert threads(after) == 4 and not _scratch(after)
    assert_same(func, after)


def _accumulator(func: Func, loop: str) -> str:
    """Return the name of the register buffer around a loop."""
    allocs = [s for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.memory == "register"]
    return next(s.buffer.name for s in allocs if loop in loop_names(func.with_body(s)))


def _scratch(func: Func) -> list[str]:
    allocs = [s for s in statements(func.body) if isinstance(s, Alloc)]
    return [s.buffer.name for s in allocs if s.buffer.memory == "scratch"]


def product_steps(ty: int, tx: int, tm: int, tn: int, depth: int, *, left: Sequence[str]) -> list[Step]:
    """Return the steps for a product in register tiles of `tm` x `tn`, with groups of `ty` x `tx` threads.
    Panels of `depth` terms of the operands lie in shared memory."""
    count = ty * tx
    steps = parse_steps(
        f"split(i0, {ty * tm}) split(i0i, {tm}) split(i1, {tx * tn}) split(i1i, {tn})"
        f"split(k0, {depth}) pad_terms(out.acc)"
        "reorder((i0o, i1o, i0io, i1io, i0ii, i1ii)) privatize(out.acc, (i0io, i1io, i0ii, i1ii))"
        "reorder((i0io, i1io, k0i, i0ii, i1ii))"
        "pack(k0o, x, (k0i, i0io, i0ii), left, shared) pack(k0o, w, (k0i, i1io, i1ii), right, shared)"
    )
    rows = [*steps]
    if len(left) == 3:
        rows.append(Step("reorder", (tuple(f"left_{n}" for n in left),)))
    for name, loops in (("left", left), ("right", ("k0i", "i1io", "i1ii"))):
        a, b, c = (f"{name}_{n}" for n in loops)
        rows += parse_steps(
            f"fuse({a}, {b}, {name}_e0) fuse({name}_e0, {c}, {name}_e) split({name}_e, {count})"
            f"reorder(({name}_ei, {name}_eo)) bind_thread({name}_ei)"
        )
    for suffix in ("", "_z", "_w"):
        rows += parse_steps(f"fuse(i0io{suffix}, i1io{suffix}, x{suffix})")
    rows += parse_steps("join_axes(out.acc, 2) bind_thread(x) bind_thread(x_z) bind_thread(x_w)")
    return [*rows, *parse_steps("fuse(i0o, i1o, t) bind_block(t) simplify()")]


def test_sums_of_two_rows_by_two_columns_are_neighbours() -> None:
    """The joined axes needn't be the first, so that the lanes of a small matrix become one axis."""
    stages, inputs = matmul([6, 7], [7, 8])
    func = te.lower("matmul", stages, inputs, {})
    steps = "split(i0, 2) split(i1, 2) reorder((i0o, i1o, i0i, i1i)) privatize(out.acc, (i0o, i1o, i0i, i1i))"
    steps += "".join(f"fuse(i0i{s}, i1i{s}, v{s})" for s in ("", "_z"))
    steps += "join_axes(out.acc, 2, 2) vectorize(v) vectorize(v_z) simplify()"
    after = apply(func, parse_steps(steps))
    (acc,) = {s.buffer for s in statements(after.body) if isinstance(s, Alloc)}
    assert [str(d) for d in acc.shape] == ["3", "4", "4"] and "out.acc[i0o, i1o, v] +" in print_func(after)
    assert_same(func, after)


@st.composite
def products(draw: st.DrawFn) -> tuple[Func, list[Step], int]:
    rows, columns, depth = (draw(SIZES) for _ in range(3))
    sizes: list[Any] = [rows, depth, columns]
    where = draw(st.integers(0, 3))
    if where < 3:
        sizes[where] = next(iter(SYMBOLS))
    built = matmul(sizes[:2], sizes[1:])
    func = te.lower("matmul", built[0], built[1], SYMBOLS if where < 3 else {})
    ty, tx, tm, tn, kd = (draw(st.integers(2, 4)) for _ in range(5))
    left = draw(st.permutations(["k0i", "i0io", "i0ii"]))
    return func, product_steps(ty, tx, tm, tn, kd, left=left), ty * tx


@pytest.mark.sampled(2)
@settings(max_examples=40, derandomize=True)
@given(products())
def test_random_products(made: tuple[Func, list[Step], int]) -> None:
    func, steps, count = made
    after = func
    for one in steps:
        try:
            after = apply(after, [one])
        except ScheduleError:
            if one.name != "pad_terms":  # an exact split leaves no condition
                raise
    assert threads(after) == count
    assert [b.name for b in lives_across(after)] == ["out.acc"]
    assert_same(func, after)


def test_threads_that_race_are_refused() -> None:
    """The verifier finds races that `bind_thread` can't see. Here, two threads share an accumulator."""
    func = naive("matmul")
    with pytest.raises(ScheduleError, match="iterations store to one element"):
        apply(func, parse_steps("split(k0, 2) bind_thread(k0i)"))
    after = apply(func, parse_steps("split(i0, 2, bound) bind_block(i0o)"))
    with pytest.raises(ScheduleError, match="can't be thread: not constant"):
        apply(after, parse_steps("bind_thread(i0i)"))
    with pytest.raises(VerifyError, match="is in no block loop"):
        verify_func(apply(func, parse_steps("bind_thread(i1)")))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("place(nothing, shared)", "no local buffer 'nothing'"),
        ("place(out.acc, global)", "can't be kept in 'global'"),
        ("join_axes(out.acc, 3)", "no 3 axes to join"),
        ("join_axes(out.acc, 1, 1)", "no 1 axes to join"),
        ("tree(out.acc, k0, 3)", "a power of two"),
        ("tree(out.acc, i0, 4)", "isn't the only loop"),
        ("pad_terms(out.acc)", "no addition to out.acc is conditional"),
        ("alone(x, y, 4)", "0 statements store to x"),
        ("stretch(out.acc, -1)", "can't be made -1 elements longer"),
        ("fetch_ahead(k0, (left))", "doesn't begin by filling left"),
        ("bind_block(i1)", "can't be block inside loop i0"),
        ("group_tasks(4)", "no parallel tasks"),
    ],
)
def test_misuse(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        apply(naive("matmul"), parse_steps(steps))


@pytest.mark.parametrize(
    ("name", "depth"), [("matmul", 1), ("matmul", 2), ("matmul", 5), ("symbolic-sum", 2), ("symbolic-sum", 5)]
)
def test_panels_fetched_ahead(name: str, depth: int) -> None:
    """The next turn's panels are loaded before this turn's products, which so don't wait for memory."""
    func = naive(name)
    *steps, fused, bound, done = product_steps(2, 2, 2, 2, depth, left=("k0i", "i0io", "i0ii"))
    if name == "matmul" and depth != 5:
        steps = [s for s in steps if s.name != "pad_terms"]
    after = apply(func, [*steps, Step("fetch_ahead", ("k0o", ("left", "right"))), fused, bound, done])
    assert {b.name for b in lives_across(after)} == {"out.acc", "left.next", "right.next"}
    waits = [s.var.name for s in thread_loops(after.body) if id(s) in barriers(after)]
    assert waits == ["right_ei_f", "x", "right_ei_s"]
    assert_same(func, after)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_panels_in_two_buffers(depth: int) -> None:
    """Panels are copied for the turn after next. A group waits once a turn, and before the first."""
    func = naive("matmul")
    *steps, fused, bound, done = product_steps(2, 2, 2, 2, depth, left=("k0i", "i0io", "i0ii"))
    if depth != 5:
        steps = [s for s in steps if s.name != "pad_terms"]
    after = apply(func, [*steps, Step("stage", ("k0o", ("left", "right"))), fused, bound, done])
    assert_same(func, after)
    loops = [s for s in statements(after.body) if isinstance(s, For) and id(s) in barriers(after)]
    first = "k0o" if depth < 3 else "x"  # two turns are no loop
    assert [s.var.name for s in loops] == ["right_ei_fo", first, "right_ei_ns", "right_ei_nos"]


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_one_panel_goes_through_registers(depth: int) -> None:
    """The left panel's next numbers are loaded before a turn's products, and stored after them."""
    func = naive("matmul")
    *steps, fused, bound, done = product_steps(2, 2, 2, 2, depth, left=("k0i", "i0io", "i0ii"))
    if depth != 5:
        steps = [s for s in steps if s.name != "pad_terms"]
    staged = Step("stage", ("k0o", ("left", "right"), ("left",)))
    after = apply(func, [*steps, staged, fused, bound, done])
    assert {b.name for b in lives_across(after)} == {"out.acc", "left.next"}
    assert_same(func, after)


def test_a_tile_is_turned() -> None:
    func = naive("transpose")
    text = """split(i1, 2) split(i2, 3) reorder((i0, i1o, i2o, i1i, i2i)) guard_loads(x)
        pack(i2o, x, (i1i, i2i), tile, shared) stretch(tile, 1) bind_thread(i1i) bind_thread(tile_i1i)
        bind_block(i0)"""
    after = apply(func, parse_steps(text))
    (tile,) = [s.buffer for s in statements(after.body) if isinstance(s, Alloc)]
    assert tile.shape == (const(2), const(4))
    assert_same(func, after)


def test_a_task_divides_its_number_once() -> None:
    func = naive("symbolic")
    outer = [s.var.name for s in statements(func.body) if isinstance(s, For)]
    steps = f"fuse({outer[0]}, {outer[1]}, t) bind_block(t)"
    after = apply(func, parse_steps(f"{steps} simplify() divide_once(t) simplify()"))
    (task,) = (s for s in statements(after.body) if isinstance(s, For) and s.kind == "block")
    inside = [s for s in statements(task.body) if not isinstance(s, Let)]
    divided = [s.value for s in statements(task.body) if isinstance(s, Let)]
    assert divided and all(isinstance(e, Binary) and e.op in ("floordiv", "mod") for e in divided)
    assert not any(n in divided for s in inside for e in expressions(s) for n in walk(e))
    assert_same(func, after)


def test_alone_and_enclose() -> None:
    func = naive("matmul")
    after = apply(func, parse_steps("enclose(t) alone(out, x, 4)"))
    loops = {s.var.name: s for s in statements(after.body) if isinstance(s, For)}
    assert loops["t"].kind == "block" and isinstance(loops["t"].extent, Const)
    assert loops["x"].kind == "thread"
    assert_same(func, after)


LANES = """func f(x: f32[6, 8], y: f32[8], out: out f32[6, 8]) {
  serial round in 2 { parallel t in 3 {
    alloc register own: f32[2, 8]
    let first = t * 2
    if first < 4 {
      unroll r in 2 { vector j in 8 { own[r, j] = x[first + r, j] } }
    } else { vector k in 8 { own[0, k] = y[k]  own[1, k] = y[7 - k] } }
    unroll r2 in 2 { vector m in 8 { out[first + r2, m] = own[r2, m] + own[0, m] } }
  } }
}"""


def test_lanes_to_tasks() -> None:
    func = parse_func(LANES)
    after = apply(func, parse_steps("lanes_to_tasks() group_tasks(8)"))
    assert not any(s.kind == "vector" for s in statements(after.body) if isinstance(s, For))
    (own,) = [s.buffer for s in statements(after.body) if isinstance(s, Alloc)]
    assert own.shape == (const(2),) and threads(after) == 8
    assert_same(func, after)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("own[0, m]", "own[0, 7 - m]", "no elements of their own in own"),
        ("else { vector", "else { own[0, 0] = y[0] vector", "once for all lanes"),
        ("vector k in 8", "vector k in 4", "no one constant extent"),
        ("parallel t", "serial t", "no parallel tasks"),
    ],
)
def test_lanes_that_are_no_tasks(old: str, new: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        apply(parse_func(LANES.replace(old, new)), parse_steps("lanes_to_tasks()"))


def test_group_tasks() -> None:
    func = naive("matmul")
    after = apply(func, parse_steps("parallelize(i0) group_tasks(4)"))
    assert [s.kind for s in statements(after.body) if isinstance(s, For)][:2] == ["block", "thread"]
    assert_same(func, after)
