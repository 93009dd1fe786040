"""Tiles transposed in registers against their stages, at odd sizes (native code: backends/test_kernels)."""

from __future__ import annotations

import pytest

from jangin.ir import te
from jangin.ir.core import Map, Transpose
from jangin.ir.expr import Const, Var, const, select
from jangin.targets import NAMED, Target
from jangin.templates import transpose
from jangin.templates.choose import TEMPLATES, choose
from jangin.templates.grain import GRAIN_OPS

from .kernels import SYMBOL, SYMBOLS, Built, assert_equal_to_stages, buffer, node, scheduled, workload

TARGETS = [NAMED[n] for n in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")]
TRANSPOSES: dict[str, Built] = {
    "plane": node(Transpose((1, 0)), [buffer("x", 37, 51)]),
    "whole lines": node(Transpose((1, 0)), [buffer("x", 48, 70)]),
    "to channels last": node(Transpose((0, 2, 3, 1)), [buffer("x", 2, 19, 7, 5)]),
    "from channels last": node(Transpose((0, 3, 1, 2)), [buffer("x", 1, 6, 7, 35)]),
    "reversed": node(Transpose((3, 2, 1, 0)), [buffer("x", 17, 3, 2, 21)]),
    "short rows": node(Transpose((3, 2, 0, 1)), [buffer("x", 3, 3, 5, 139)]),
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", TRANSPOSES)
def test_equal_to_its_stages(name: str, target: Target) -> None:
    built = TRANSPOSES[name]
    for params in TEMPLATES["transpose"](workload(built, target=target)).space():
        found = TEMPLATES["transpose"](workload(built, target=target)).schedule(params)
        assert_equal_to_stages(found, built)


@pytest.mark.parametrize("shape", [(37, 51), (96, 83), (130, 19), (40, 131), (512, 41)])
def test_strips(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips are taken if the result's rows are long for a task (other element types: test_types)."""
    monkeypatch.setattr(transpose, "TASK_ELEMENTS", 512)
    monkeypatch.setattr(transpose, "MOST_ELEMENTS", 128)
    monkeypatch.setattr(transpose, "MOST_ROWS", 40)
    built = node(Transpose((1, 0)), [buffer("x", *shape)])
    template = TEMPLATES["transpose"](workload(built))
    assert template is not None
    for params in template.space():
        found = template.schedule(params)
        assert any(str(step).startswith("split(co, ") for step in found.steps)
        assert_equal_to_stages(found, built)


def test_a_task_fills_the_lines_that_it_begins() -> None:
    """Rows of 3 x 3 weights are shorter than a line. A task of one channel wrote a part of a line for each
    filter, and took 3.5 times as long."""
    built = node(Transpose((3, 2, 0, 1)), [buffer("x", 3, 3, 64, 512)])
    tasks = scheduled("transpose", workload(built)).tasks
    assert isinstance(tasks, Const) and int(tasks.value) == 512 // 16


def test_few_long_rows_are_tasks_enough() -> None:
    """27 channels of 57 x 61 pixels are transposed to planes. They make at least 8 tasks. Once they were two
    tasks of whole rows."""
    built = node(Transpose((1, 0)), [buffer("x", 3477, 27)])
    tasks = scheduled("transpose", workload(built)).tasks
    assert isinstance(tasks, Const) and int(tasks.value) >= 8


@pytest.mark.parametrize("size", [8, 19, 43])
def test_symbolic_sizes(size: int) -> None:
    built = node(Transpose((1, 0)), [buffer("x", SYMBOL, 21)])
    assert_equal_to_stages(scheduled("transpose", workload(built, SYMBOLS)), built, {"n": size})


def test_it_is_what_is_chosen() -> None:
    for built in TRANSPOSES.values():
        assert choose(workload(built)).template == "transpose"


def test_copies_in_order_are_none() -> None:
    assert TEMPLATES["transpose"](workload(node(Transpose((1, 0, 2)), [buffer("x", 9, 20, 40)]))) is None
    x, y = Var("x0"), Var("x1")
    assert TEMPLATES["transpose"](workload(node(Map(x + y), [buffer("x", 9, 40), buffer("y", 40)]))) is None


@pytest.mark.parametrize(("rows", "safe"), [(21, True), (11, False)])
def test_an_operand_that_is_chosen_among_others(rows: int, safe: bool) -> None:
    """A tile reads all of an operand that is selected only in part. So all of it must exist, and in a
    concatenation it doesn't."""
    x, y, out = buffer("x", rows, 24), buffer("y", 24, 21), buffer("out", 24, 21)
    i, j = Var("i0"), Var("i1")
    axes = te.Axis(i, const(24)), te.Axis(j, const(21))
    built: Built = (te.Stage(out, axes, select(j < 11, x[j, i], y[i, j])),), [x, y]
    template = TEMPLATES["transpose"](workload(built))
    assert (template is not None) == safe
    assert_equal_to_stages(choose(workload(built)), built)


@pytest.mark.parametrize(("rows", "columns", "shared"), [(784, 384, True), (784, 128, True), (64, 96, False)])
def test_threads_share_what_takes_long(rows: int, columns: int, shared: bool) -> None:
    """A task's cost counts all that moves a vector: its load, its share of the transposition, its store. A
    layer's values take two threads, and small matrices don't."""
    built = node(Transpose((1, 0)), [buffer("x", rows, columns)])
    found = scheduled("transpose", workload(built, target=NAMED["x86-64-v4"]))
    assert isinstance(found.tasks, Const)
    assert (int(found.tasks.value) * found.cost > GRAIN_OPS) == shared
