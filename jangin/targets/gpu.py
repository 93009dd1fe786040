"""GPUs, and other devices that run work-groups: the figures for estimates and templates."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Self

from jangin.ir.records import dataclass
from jangin.targets.figures import FusionFigures, RecurrenceFigures, WinogradFigures
from jangin.targets.machine import Machine

VECTOR = 16
"""Bytes of the widest load of one work-item, that of four f32."""
REGISTERS = 64
"""4-byte values that a work-item may keep in registers without lowering the occupancy. NVIDIA's units have 64
Ki registers for 1,024 work-items and more."""
ACCUMULATORS, ROWS = 32, 2
"""Accumulators of a recurrence's register tile, one work-item for each lane, and most rows of the batch in
it. Half of `REGISTERS` is left for operands."""
HEAD = 128
"""Most elements of an attention head. With larger tiles, too few groups fit on a compute unit."""
NEVER = 1 << 30
"""A figure that no size reaches: what it allows never happens."""
SMALL_TILE = (4, 4)
"""Rows and columns of a work-item's part of a product, if compiling must be quick."""


@dataclass(frozen=True)
class Gpu(Machine):
    """A machine whose tasks are work-groups.

    It gets no fused separable convolutions, because they are made for a processor's cache.
    """

    groups = True
    vector_bytes: int = VECTOR
    """Bytes of the widest load of one work-item."""
    sums: int = REGISTERS
    """Sums of a product that a work-item keeps in registers at most."""
    registers: int = REGISTERS
    """4-byte values that a work-item may keep in registers without lowering the occupancy."""
    winograd: WinogradFigures = field(
        default_factory=lambda: WinogradFigures(near=0, far=1 << 40, lanes=NEVER)
    )
    """The figures for `passes.windows.winograd`: its transforms have no blocks of tiles and no vectors."""
    fusion: FusionFigures = field(default_factory=lambda: FusionFigures(heads=1, head=HEAD, image_rows=NEVER))
    """The figures for the passes `layout`, `fuse` and `attention`."""
    recurrence: RecurrenceFigures = field(
        default_factory=lambda: RecurrenceFigures(accumulators=ACCUMULATORS, rows=ROWS)
    )
    """The figures for the lowering of recurrent layers."""
    units: int = 16
    """Compute units (streaming multiprocessors), each of which runs a few groups at one time. Estimates read
    it."""
    width: int = 32
    """Work-items of a unit that run side by side, as one instruction does: a warp, or subgroup. Estimates
    read it."""
    group: int = 256
    """Work-items of a group at most: a limit. Templates choose groups by it."""
    shared: int = 32 << 10
    """Bytes of memory that the work-items of a group share at most: a limit. Templates make panels fit."""
    asked: int = 0
    """Bytes of memory that the work-items of a group share at most if their launch asks for them: a limit.
    0 if no launch can ask."""
    bandwidth: float = 100e9
    """Bytes a second from memory. Estimates read it."""
    matrix_rate: int = 0
    """Multiply-adds of 16-bit floats that a unit begins each cycle where a warp's lanes multiply matrices
    together. 0 if there is no such instruction. Estimates read it."""
    panel_wait: float = 40.0
    """Cycles that a group waits for a panel from memory or a cache. Estimates read it."""
    resident: int = 4 * 256
    """Work-items that a unit holds at one time. Estimates read it."""
    unit_shared: int = 2 * (32 << 10)
    """Bytes of shared memory of a unit, which the groups that it holds divide. Estimates read it."""
    meets: bool = False
    """Whether groups of one launch see what others have stored, and can count who arrived. Templates may then
    let several groups make one tile."""
    startup: float = 5e-6
    """Seconds that a launch takes beside its work. Estimates read it."""
    compiling: float = 0.0
    """Seconds that kernels with code of their own must save in a run. Estimates read it. It isn't 0 if users
    wait for a device's compiler before the first run: kernels of one tile share code then."""

    tile: tuple[int, int] = SMALL_TILE
    """Rows and columns of a work-item's part of a product in the code that kernels share. `contraction` reads
    it."""

    @property
    def emitted(self) -> Self:
        """Browsers compile shaders anew for each visitor, and drivers keep what they compiled. So a package
        has the small tile."""
        return replace(self, tile=SMALL_TILE)

    @property
    def peak(self) -> int:
        """Work-items that compute at one time. Each does at most one float32 multiply-add a cycle."""
        return self.units * self.width

    def least_seconds(self, operations: float, moved: float, threads: int) -> float:
        """A lower bound on the seconds for so many float32 operations or bytes from memory.

        The caller's threads don't matter. The tuner compares kernels' times to this bound.
        """
        return max(operations / (2 * self.peak * self.clock), moved / self.bandwidth)

    def between_runs(self, own: int) -> int:
        """Most bytes of other data that pass through the cache between two runs of a kernel. Its own weights
        don't matter here."""
        return 4 * self.l2

    @property
    def memories(self) -> str:
        """The memory sizes that candidates depend on, and the units, which differ between devices of one
        architecture. They are part of the key of tuned kernels."""
        return f"{self.units}/{self.group}/{max(self.shared, self.asked)}"
