"""Targets of WebGPU: one for all adapters, as the standard promises what each has at least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jangin.runtime.devices.webgpu_adapters import ANY, PREFIX, select
from jangin.targets import small
from jangin.targets.figures import WinogradFigures
from jangin.targets.gpu import Gpu
from jangin.targets.rows import PORTABLE
from jangin.targets.target import Target

GROUP, SHARED = 256, 16 << 10
"""Work-items of a group, and bytes that they share, on every device, by WebGPU's standard (default
limits)."""
COMPILING = 50e-6
"""Seconds of a run that a shader of its own must save: 50 ms of compiling, spread over 1,000 runs."""
TILE = (8, 8)
"""Rows and columns of a work-item's part of a product. On lavapipe, networks take 0.83 to 0.91 of the
processor time of a tile of 4 x 8, and load 0.3 to 0.8 s longer. The small tile (`Gpu.emitted`) is slower."""
OTHERS: tuple[Mapping[str, Any], ...] = ({"tile": TILE}, {"compiling": 0.0})
"""Other figures, by which the candidates of a package are scheduled. They have larger tiles, or panels in
shared memory, however long their shaders take to compile."""
NO_WINOGRAD = WinogradFigures(gain=0.0)
"""Winograd's method is never estimated to pay. Without it networks run as quickly on lavapipe. They have
fewer shaders to compile, and weights that are up to 4 times smaller."""
ROWS = tuple(
    replace(r, expansion=small.widen(r.dtypes[0], subnormals=False)) if r.name == "widen" else r
    for r in PORTABLE
    if r.product is None
)
"""Instruction rows. WGSL has no products of words of small numbers, and devices may take subnormal numbers
for 0."""
WEBGPU = Target(
    PREFIX, PREFIX, ANY, "", ROWS,
    Gpu(group=GROUP, shared=SHARED, compiling=COMPILING, tile=TILE, winograd=NO_WINOGRAD), backend="wgsl",
    device=PREFIX, outputs=("jgn", "web"),
)  # fmt: skip
"""Code for it runs on any adapter. The first of a machine is taken, or the one that a browser gives."""


def named(name: str) -> Target:
    """Return the target of an adapter by its name: "webgpu" for any, "webgpu:1", "webgpu:llvmpipe". Raises
    LoadError if there is no adapter of this number or name."""
    which = name.removeprefix(PREFIX).removeprefix(":")
    if not which:
        return WEBGPU
    adapter = select(which)
    return replace(WEBGPU, name=f"{PREFIX}:{adapter.number}", cpu=adapter.identity)
