"""Targets of OpenCL devices: what this machine's say of themselves, as the figures that estimates use."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from jangin.ir.dtype import F16
from jangin.runtime.device import LoadError
from jangin.runtime.devices.opencl_devices import PREFIX, Found, select
from jangin.targets.gpu import Gpu
from jangin.targets.host import host
from jangin.targets.processor import Processor
from jangin.targets.rows import FUSING, Row
from jangin.targets.target import Target

ROWS: tuple[Row, ...] = (
    *(replace(r, expansion=None, needs=("fp16",)) for r in FUSING if r.dtypes == (F16,)),
    *FUSING,
)
"""Half precision is converted by the devices that have it."""
MOST_LANES = 16
UNKNOWN = 1000
"""MHz of a device that doesn't say its own."""
WIDE, MANY = 64, 32
"""Bytes of a vector and registers of processors with AVX-512."""
FILLED = MappingProxyType({"Intel(R) OpenCL": 28})
"""Of those registers, what a driver's compiler fills before it spills: this one has loads early."""


def named(name: str) -> Target:
    """The target of a device by its name: "opencl", "opencl:1", "opencl:intel"; with "@gpu" or "@cpu" behind
    it, kernels are scheduled as for a GPU or for a processor, whatever the device is. Raises LoadError where
    there is none."""
    which, _, schedules = name.removeprefix(PREFIX).removeprefix(":").partition("@")
    if schedules not in ("", "gpu", "cpu"):
        raise LoadError(f"{name}: there are schedules for gpu and cpu, none for {schedules!r}")
    return target_of(select(which), schedules)


def target_of(device: Found, schedules: str = "") -> Target:
    """Processors have vectors and caches that are known; other devices run work-groups, and say how."""
    kind = schedules or ("cpu" if device.kind.lower() == "cpu" else "gpu")
    name, (_, identity, features) = f"{PREFIX}:{device.number}", device.target.split("/")
    return Target(
        f"{name}@gpu" if schedules == "gpu" else name, PREFIX, identity, features, ROWS,
        _processor(device) if kind == "cpu" else _gpu(device), backend=PREFIX, device=PREFIX,
    )  # fmt: skip


def _processor(device: Found) -> Processor:
    """This machine's processor as a device uses it. There are no `products`: OpenCL C has no sums of products
    of vectors, and lane by lane they take 13 times as long as products of float32."""
    width = 4 * max(4, min(device.lanes, MOST_LANES))
    registers = FILLED.get(device.platform, MANY) if width == WIDE else 16
    return replace(host().processor, vector_bytes=width, registers=registers, products=())


def _gpu(device: Found) -> Gpu:
    clock = 1e6 * (device.clock or UNKNOWN)
    return Gpu(clock=clock, units=device.units, group=device.group, shared=device.local)
