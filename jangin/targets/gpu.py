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
    """`units`: compute units, each with work-items in rows of `width` that run side by side; `group`: the
    most work-items of a group; `shared`: bytes that a group may share; `bandwidth`: bytes a second from
    memory; `startup`: seconds that a launch takes beside its work. A wrong figure costs speed, never
    correctness."""

    units: int = 16
    width: int = 32
    group: int = 256
    shared: int = 32 << 10
    bandwidth: float = 100e9
    startup: float = 5e-6

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
