"""Convolution by Winograd's method, for a block of tiles at a time.

A block's transforms and products stay in the L2 cache, and the weights are read once for each block.

    parallel block of tiles { transform inputs; each point's product, as in `contraction`; restore outputs }
"""

from __future__ import annotations

import math
from dataclasses import replace

from jangin.ir.expr import const
from jangin.ir.loop import Func
from jangin.templates import cost
from jangin.templates.contraction import Contraction
from jangin.templates.micro import UNROLL
from jangin.templates.roles import roles
from jangin.templates.scheduled import Recorder, Scheduled
from jangin.templates.template import Workload

FEWEST, MOST = 6, 48
"""Fewest and most tiles of a block. Fewer tiles leave register tiles idle. With more tiles, the weights'
traffic is hidden already."""
SHARE = 0.75
"""Share of the L2 cache that a block may fill. The rest is left to weights and to the output."""
BLOCKS = "b"


def schedule(func: Func, workload: Workload) -> Scheduled:
    """Schedule the kernel of three nests over tiles. The one in the middle is the workload's stage.

    The stage is `out[tile, point, column]`, the sum over k of `left[tile, point, k] * right[point, k,
    column]`.
    """
    tiles = block_tiles(workload)
    product = _product(workload, tiles)
    mr, nv = product.tiles()[0]
    panels = math.ceil(product.columns / (nv * product.lanes))
    params = {
        "tiles": tiles, "mr": mr, "nv": nv, "row_tiles": math.ceil(tiles / mr), "panels": panels,
        "unroll": UNROLL, "panels_inside": 0,
    }  # fmt: skip
    rec = Recorder(func)
    rec.do("distinct")
    rec.do("merge", 1, (BLOCKS,), tiles)
    product.arrange(rec, params)
    rec.do("parallelize", BLOCKS)
    work = float(tiles * product.batches * product.depth * product.columns) / product.lanes
    return rec.finish("winograd", params, work)


def block_tiles(workload: Workload) -> int:
    """Return the number of tiles in a block with the least time a tile.

    A tile takes its share of the products, overlapped with the weights' traffic. Its own data come from the
    nearest cache that holds the block's data.
    """
    processor, (stage,) = workload.processor, workload.stages
    count, points, columns = (workload.size(a.extent) for a in stage.axes)
    depth, element = workload.size(stage.reduce_axes[0].extent), stage.out.dtype.bytes
    held, weights = (points * n * element for n in (depth + columns, depth * columns))
    fit = min(count, MOST, max(FEWEST, int(SHARE * processor.l2) // held))

    def cycles(tiles: int) -> float:
        product = _product(workload, tiles)
        mr, nv = product.tiles()[0]
        panels = math.ceil(columns / (nv * product.lanes))
        sums = points * product.tile_cycles(mr, nv) * math.ceil(tiles / mr) * panels
        moved = held / processor.rate(tiles * held)
        return cost.overlapped(sums, weights / processor.rate(weights)) / tiles + moved

    return min(range(fit, min(fit, FEWEST) - 1, -1), key=cycles)


def _product(workload: Workload, tiles: int) -> Contraction:
    """Return the product of each point for a block of `tiles` tiles."""
    (stage,) = workload.stages
    tile, point, column = stage.axes
    stage = replace(stage, axes=(point, replace(tile, extent=const(tiles)), column))
    role = roles(stage)
    assert role is not None
    lanes = workload.processor.lanes(stage.out.dtype.bytes)
    return Contraction(replace(workload, stages=(stage,)), role, lanes)
