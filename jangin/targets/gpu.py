"""GPUs, and other devices that run work-groups: what estimates and templates need to know of them."""

from __future__ import annotations

from dataclasses import field

from jangin.ir.records import dataclass
from jangin.targets.figures import FusionFigures, RecurrenceFigures, WinogradFigures
from jangin.targets.machine import Machine

VECTOR = 16
"""Bytes of the widest load of one work-item."""
REGISTERS = 64
"""Vectors of 4 bytes that a work-item may keep in registers without taking others' room."""
ACCUMULATORS, ROWS = 32, 2
"""Vectors of a recurrence's block, each lane of which is a work-item's, and rows of the batch in it."""
HEAD = 128
"""Elements of an attention head of whose tiles several groups have room on a unit."""
NEVER = 1 << 30


@dataclass(frozen=True)
class Gpu(Machine):
    """A machine whose tasks are work-groups. Separable convolutions in one kernel, which are for a
    processor's cache, aren't made for it."""

    groups = True
    vector_bytes: int = VECTOR
    """Bytes of the widest load of one work-item."""
    registers: int = REGISTERS
    """Vectors of 4 bytes that a work-item may keep in registers without taking others' room."""
    winograd: WinogradFigures = field(
        default_factory=lambda: WinogradFigures(near=0, far=1 << 40, lanes=NEVER)
    )
    """The figures that `passes.winograd` decides by: transforms of no blocks and of scalars."""
    fusion: FusionFigures = field(default_factory=lambda: FusionFigures(heads=1, head=HEAD, image_rows=NEVER))
    """The figures that the passes `layout`, `fuse` and `attention` decide by."""
    recurrence: RecurrenceFigures = field(
        default_factory=lambda: RecurrenceFigures(accumulators=ACCUMULATORS, rows=ROWS)
    )
    """The figures that lowering of recurrent layers decides by."""
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
    bandwidth: float = 100e9
    """Bytes a second from memory. Estimates read it."""
    startup: float = 5e-6
    """Seconds that a launch takes beside its work. Estimates read it."""

    @property
    def peak(self) -> int:
        """Work-items that compute at one time, each a multiply-add of float32 in a cycle at most."""
        return self.units * self.width

    def least_seconds(self, operations: float, moved: float, threads: int) -> float:
        """Seconds that so many float32 operations take at least without a pause, or so many bytes from
        memory, whatever the caller's threads. The tuner compares kernels' times to it."""
        return max(operations / (2 * self.peak * self.clock), moved / self.bandwidth)

    def between_runs(self, own: int) -> int:
        """Bytes of other data that pass through the cache between two runs of a kernel at most, whatever the
        bytes `own` of its weights."""
        return 4 * self.l2

    @property
    def memories(self) -> str:
        """The sizes of the memories that candidates depend on. Tuned kernels are kept by it."""
        return f"{self.group}/{self.shared}"
