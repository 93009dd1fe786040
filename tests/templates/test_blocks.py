"""Blocks of tiles in the template `winograd`: they fit the cache, and keep the nests' results."""

from __future__ import annotations

import pytest

from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, const
from jangin.ir.loop import Alloc, Func, block
from jangin.targets import resolve
from jangin.templates.template import Workload
from jangin.templates.winograd import FEWEST, MOST, block_tiles, schedule

from .kernels import assert_replayed


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", None])
@pytest.mark.parametrize(
    ("tiles", "channels", "outputs"), [(3136, 64, 64), (784, 64, 128), (2704, 16, 32), (4, 8, 8)]
)
def test_a_block_fits(tiles: int, channels: int, outputs: int, target: str | None) -> None:
    left = Buffer("t0", F32, (const(tiles), const(36), const(channels)), "scratch")
    right = Buffer("b1", F32, (const(36), const(channels), const(outputs)))
    out = Buffer("t1", F32, (const(tiles), const(36), const(outputs)), "scratch")
    stage = te.reduction(
        out, [channels], "sum", lambda i, k: left[i[0], i[1], k[0]] * right[i[1], k[0], i[2]]
    )
    workload = Workload("k", (stage,), (right,), {}, ("b1",), resolve(target))
    found = block_tiles(workload)
    assert min(FEWEST, tiles) <= found <= min(MOST, tiles)
    held = 36 * (channels + outputs) * F32.bytes * found
    assert held <= workload.processor.l2 or found == FEWEST


def test_its_schedule_replays() -> None:
    """A schedule of a nest that makes the tiles, their product, and a nest that reads it, is replayed."""
    tiles, channels, outputs = (const(n) for n in (40, 8, 16))
    x, w = Buffer("b0", F32, (tiles, const(4), channels)), Buffer("b1", F32, (const(4), channels, outputs))
    out = Buffer("out", F32, (tiles, const(4), outputs))
    left = Buffer("t0", F32, x.shape, "scratch")
    middle = Buffer("t1", F32, out.shape, "scratch")
    first = te.compute(left, lambda *i: x[i] * 2.0)
    product = te.reduction(
        middle, [channels], "sum", lambda i, k: left[i[0], i[1], k[0]] * w[i[1], k[0], i[2]]
    )
    last = te.compute(out, lambda *i: middle[i] + 1.0)
    first, last = te.rename_axes(first, "a"), te.rename_axes(last, "c")
    nests = block(*(te.nest(s) for s in (first, product, last)))
    func = Func("k", (x, w, out), 1, (), Alloc(left, Alloc(middle, nests)))
    made = schedule(func, Workload("k", (product,), (x, w), {}, ("b1",), resolve("x86-64-v3")))
    assert made.packings
    assert_replayed(made, func)
