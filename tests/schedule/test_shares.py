"""Groups that make one tile together: the step keeps results, and the verifier refuses other uses of launch
memory."""

from __future__ import annotations

import pytest
from templates.kernels import matmul

from jangin.ir import te
from jangin.ir.groups import ARRIVALS, barriers, is_meeting, thread_loops
from jangin.ir.kernel import launch_bytes, scratch_bytes, tasks
from jangin.ir.loop import Func, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.verify import VerifyError, verify_func
from jangin.schedule.checks import ScheduleError
from jangin.schedule.steps import apply, parse_steps

from .nests import assert_same

TILES = """split(k0, 16) split(i0, 16) split(i1, 8) reorder((i0o, i1o, i0i, i1i))
    privatize(out.acc, (i0i, i1i)) reorder((k0o, k0i, i0i, i1i))
    bind_thread(i0i) bind_thread(i0i_z) bind_thread(i0i_w) fuse(i0o, i1o, t)
    bind_block(t) simplify() divide_once(t)"""


def tiled() -> Func:
    return te.lower("k", *matmul((32, 64), (64, 16)), {})


def shared() -> Func:
    return apply(tiled(), parse_steps(f"{TILES} share(t, k0o, out.acc)"))


def test_shares_keep_the_sums() -> None:
    func = shared()
    verify_func(func)
    verify_func(parse_func(print_func(func)))
    assert_same(tiled(), func)
    assert str(tasks(func)) == "16", "four tiles, each in four shares"
    assert str(launch_bytes(func)) == str(ARRIVALS + 4 * 4 * 16 * 8 * 4)
    assert str(scratch_bytes(func, groups=True)) == "0"
    meeting = next(s for s in statements(func.body) if is_meeting(s))
    crossed = barriers(func) & {id(s) for s in thread_loops(meeting)}
    assert not crossed, "the meeting itself waits for all work-items"


@pytest.mark.parametrize(
    "steps, error",
    [
        ("share(t, i0i, out.acc)", "is thread already"),
        ("share(t, k0i, out.acc)", "isn't the outer loop"),
        ("share(t, k0o, x)", "doesn't hold the sums"),
        ("share(k0o, k0i, out.acc)", "no block loop"),
    ],
)
def test_shares_that_are_refused(steps: str, error: str) -> None:
    with pytest.raises(ScheduleError, match=error):
        apply(tiled(), parse_steps(f"{TILES} {steps}"))


WRONG = {
    "another condition": ("if k0o == 3", "if k0o == 2", "its condition is"),
    "another group's part": (
        "out.acc.part[t, k0o, i0i_p", "out.acc.part[t, (k0o + 1) % 4, i0i_p", "isn't its own",
    ),
    "the share": ("out.acc.part[t, k0o_q, i0i_q", "out.acc.part[t, k0o, i0i_q", "not on the tile alone"),
    "registers": ("out.acc[i0i_z_y, i1i_z_y] = f32(0", "out[i0i_z_y, i1i_z_y] = f32(0", "has its own of"),
    "too many tiles": ("out.acc.part: f32[4, 4,", "out.acc.part: f32[5, 4,", "can't be 4 shares of 5 tiles"),
    "a store": ("out.acc[i0i_w, i1i_w]", "out.acc[i0i_w, i1i_w] out.acc.part[t, 0, i0i_w, i1i_w] = f32(0.0)",
                "a meeting stores"),
    "an early read": ("serial k0i in 16 {", "serial k0i in 16 { if out.acc.part[t, 0, 0, 0] < f32(0.0) { } ",
                      "in a block outside its thread loops|outside of a meeting|one meeting"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_launch_memory_that_is_refused(case: str) -> None:
    old, new, error = WRONG[case]
    text = print_func(shared())
    assert text.count(old) == 1
    with pytest.raises(VerifyError, match=error):
        verify_func(parse_func(text.replace(old, new)))
