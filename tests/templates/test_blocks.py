"""Blocks of tiles in the template `winograd`: they fit the cache, and keep what the nests compute."""

from __future__ import annotations

import pytest

from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, const
from jangin.targets import resolve
from jangin.templates.template import Workload
from jangin.templates.winograd import FEWEST, MOST, block_tiles


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "cpu"])
@pytest.mark.parametrize(
    ("tiles", "channels", "outputs"), [(3136, 64, 64), (784, 64, 128), (2704, 16, 32), (4, 8, 8)]
)
def test_a_block_fits(tiles: int, channels: int, outputs: int, target: str) -> None:
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
    assert held <= workload.target.l2 or found == FEWEST
