"""Targets whose devices run work-groups: what estimates and templates need to know of them."""

from __future__ import annotations

from dataclasses import fields

from jangin.ir.records import dataclass
from jangin.targets.figures import FusionFigures, RecurrenceFigures, WinogradFigures
from jangin.targets.target import Target

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
class GpuTarget(Target):
    """A target whose kernels are for work-groups. Its figures are for the estimates of `templates.gpu`; a
    wrong one costs speed, never correctness, but `group` and `shared`, which are limits."""

    units: int = 16
    """Compute units, each of which runs a few groups at one time."""
    width: int = 32
    """Work-items of a unit that run side by side, as one instruction does."""
    group: int = 256
    """Work-items of a group at most."""
    shared: int = 32 << 10
    """Bytes of memory that the work-items of a group share at most."""
    bandwidth: float = 100e9
    """Bytes a second from memory."""
    startup: float = 5e-6
    """Seconds that a launch takes beside its work."""

    @property
    def groups(self) -> bool:
        return True

    @property
    def side_by_side(self) -> int:
        """Work-items that compute at one time."""
        return self.units * self.width


def gpu_target(base: Target, **figures: float) -> GpuTarget:
    """A target with a base's language and features whose kernels are for work-groups. Separable convolutions
    in one kernel, which are for a processor's cache, aren't made for it."""
    same = {f.name: getattr(base, f.name) for f in fields(Target)}
    same |= {
        "vector_bytes": VECTOR, "registers": REGISTERS, "hints": False,
        "winograd": WinogradFigures(near=0, far=1 << 40, lanes=NEVER),
        "recurrence": RecurrenceFigures(accumulators=ACCUMULATORS, rows=ROWS),
        "fusion": FusionFigures(heads=1, head=HEAD, image_rows=NEVER),
    }  # fmt: skip
    return GpuTarget(**{**same, **figures})
