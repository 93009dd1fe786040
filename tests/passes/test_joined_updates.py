"""One kernel updates a parameter and the optimizer's state that it is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guarded import GUARD, UNTOUCHED

from jangin import optim
from jangin.backends.llvm.backend import LLVM
from jangin.compiler.pipeline import build_plan, lowered_plan
from jangin.ir.dtype import F32, F64, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.passes.table import GRAPH_PASSES
from jangin.runtime.arrays import address
from jangin.runtime.load import executable

OPTIMIZERS = {
    "adam": (optim.Adam(), 1),
    "adamw": (optim.AdamW(), 1),
    "adagrad": (optim.Adagrad(), 1),
    "rmsprop": (optim.RMSprop(momentum=0.9, centered=True), 1),
    "momentum": (optim.SGD(momentum=0.9), 1),
    "lion": (optim.Lion(), 2),
}
"""Optimizers, and the kernels of their update. Lion's step reads the mean before it changes."""


def update(optimizer: optim.Optimizer, shape: tuple[int, ...], dtype: DType = F32) -> Graph:
    """Return the update of one parameter."""
    b, sizes = Builder("update", {}), tuple(map(const, shape))
    w, g = (b.input(n, dtype, sizes) for n in "wg")
    state = {slot: b.input(slot, dtype, sizes) for slot in optimizer.slots}
    numbers = {n: b.input(n, F64, ()) for n in optimizer.numbers(1, 0.1)}
    new, after = optimizer.update(b, w, g, state, numbers)
    names = {"new.w": "w", **{f"new.{slot}": slot for slot in after}}
    return replace(b.graph([new, *after.values()], [*names]), updates=names)


def feeds(graph: Graph, optimizer: optim.Optimizer) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    numbers: dict[str, Any] = optimizer.numbers(3, 0.1)
    given = {n: np.asarray(v) for n, v in numbers.items()}
    for name in graph.inputs:
        if name not in given:
            shape = [int(str(d)) for d in graph.shape(name)]
            given[name] = rng.random(shape).astype(graph.dtype(name).numpy)
    if "grad_avg" in given:
        given["grad_avg"] *= 0.1
        given["square_avg"] += 0.5  # much is left when the square of the mean is subtracted
    return given


def between_guards(array: Array) -> tuple[Array, Array]:
    """Return a copy of an array at an aligned address within more memory of known bytes, and this memory."""
    before = GUARD + -address(memory := np.full(array.nbytes + 3 * GUARD, UNTOUCHED, np.uint8)) % GUARD
    copy = memory[before : before + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, memory


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1,), (5,), (7, 53), (3, 67, 101)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits_as_apart(
    name: str, shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, _ = OPTIMIZERS[name]
    graph = update(optimizer, shape)
    joined = build_plan(graph, Options())
    passes = [p for p in GRAPH_PASSES if p.name != "updates"]
    monkeypatch.setattr(LLVM, "passes", lambda *_: passes)
    apart = build_plan(graph, Options())
    given = feeds(graph, optimizer)
    want = executable(apart, threads).run({n: a.copy() for n, a in given.items()})
    placed = {n: between_guards(a) for n, a in given.items()}
    own = {n: copy for n, (copy, _) in placed.items()}
    found = executable(joined, threads).run(own)
    for name, (copy, memory) in placed.items():
        begin = address(copy) - address(memory)
        around = np.concatenate([memory[:begin], memory[begin + copy.nbytes :]])
        assert (around == UNTOUCHED).all(), f"{name}: bytes around it were written"
    for out, state in graph.updates.items():
        assert found[out] is own[state] or shape == (1,), "in place"  # `scalars` joins single elements
        np.testing.assert_array_equal(found[out], want[out], out)
    precise = run_graph(update(optimizer, shape, F64), {n: a.astype(np.float64) for n, a in given.items()})
    for out in graph.updates:
        # a few operations on numbers up to 2, each rounded to float32
        np.testing.assert_allclose(found[out], precise[out], 3e-6, 3e-6, err_msg=out)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_kernel_updates_all(name: str) -> None:
    optimizer, kernels = OPTIMIZERS[name]
    plan = lowered_plan(update(optimizer, (7, 53)), Options("x86-64-v3"))
    assert len(plan.launches) == kernels
    assert len(plan.updates) == 1 + len(optimizer.slots)
    assert ("joint" in plan.launches[0].template) == (kernels == 1)


def test_others_that_read_the_state_keep_it_apart() -> None:
    """A result that another kernel reads is made by a kernel of its own."""
    optimizer = optim.AdamW()
    b = Builder("update", {})
    w, g, m, s, x = (b.input(n, F32, (const(40),)) for n in ("w", "g", "exp_avg", "exp_avg_sq", "x"))
    numbers = {n: b.input(n, F64, ()) for n in optimizer.numbers(1, 0.1)}
    new, after = optimizer.update(b, w, g, {"exp_avg": m, "exp_avg_sq": s}, numbers)
    total = b.reduce("sum", b.map(lambda v, u: v * u, after["exp_avg"], x), (0,))
    names = {"new.w": "w", "new.m": "exp_avg", "new.s": "exp_avg_sq"}
    graph = replace(b.graph([new, *after.values(), total], [*names, "total"]), updates=names)
    plan = lowered_plan(graph, Options("x86-64-v3"))
    assert sorted(len(n.args) - len(set(n.args) & {*graph.inputs}) for n in plan.launches)[-1] >= 2
    given = feeds(graph, optimizer)
    found = executable(build_plan(graph, Options()), 1).run({n: a.copy() for n, a in given.items()})
    for name, wanted in run_graph(graph, given).items():
        np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5, err_msg=name)
