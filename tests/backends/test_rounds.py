"""Loops over rounds: in machine code, on the pool and as text. All tasks of a round end before the next round
begins. A task may therefore read what others wrote in the round before."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, Var, const, eq, select
from jangin.ir.interpret import run_plan
from jangin.ir.kernel import tasks
from jangin.ir.loop import For, Func, Store, task_loops
from jangin.ir.parse import parse_plan
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ir.text import print_plan
from jangin.ir.verify import verify_func
from jangin.ir.verify_plan import verify_plan
from jangin.runtime.executable import Executable
from jangin.targets import resolve

N, R, T = Var("N"), Var("round"), Var("task")
SYMBOLS = ((N, (const(1), const(1000))),)
X, Y = Buffer("x", F32, (N,)), Buffer("y", F32, (const(9), N))
TARGET = resolve()


def spread() -> Func:
    """y[0] = x; y[r, t] is the mean of y[r - 1] at t and at N - 1 - t."""
    before = (Y[R - 1, T] + Y[R - 1, N - 1 - T]) * 0.5
    body = Store(Y, (R, T), select(eq(R, 0), X[T], before))
    return Func("spread", (X, Y), 1, SYMBOLS, For(R, const(9), For(T, N, body, "parallel")))


def plan(grain: int) -> Plan:
    func = spread()
    buffers = (PlanBuffer("x", F32, (N,), "input"), PlanBuffer("y", F32, (const(9), N), "output"))
    launch = Launch("spread", ("x", "y"), (N,), N, const(grain), const(0), rounds=const(9))
    return Plan(
        "rounds", str(TARGET), ("x",), ("y",), SYMBOLS, {}, buffers, (launch,), {}, {"spread": func}
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("grain", [0, 1])
def test_each_round_sees_the_one_before(threads: int, grain: int) -> None:
    made = plan(grain)
    verify_func(made.kernels["spread"])
    verify_plan(made)
    exe = Executable(build(made, TARGET), threads)
    for size in (1, 7, 1000):
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        want = run_plan(made, {"x": x})["y"]
        for _ in range(20):
            np.testing.assert_allclose(exe(x), want, 1e-6, 1e-6)


def test_a_profile_runs_every_round() -> None:
    exe = Executable(build(plan(1), TARGET), 2)
    assert [t.launch.rounds for t in exe.profile({"x": np.ones(50, np.float32)}, 2)] == [const(9)]


def test_text() -> None:
    text = print_plan(plan(3))
    assert "rounds 9 tasks N" in text and print_plan(parse_plan(text)) == text
    assert parse_plan(text).launches == plan(3).launches


def test_task_loops() -> None:
    func = spread()
    rounds, inner = task_loops(func.body)
    assert rounds is func.body and inner is not None and tasks(func) == N
    assert task_loops(inner) == (None, inner)
    assert task_loops(For(R, const(9), Store(Y, (R, R), const(1.0, F32)))) == (None, None)
