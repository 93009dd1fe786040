"""Targets of OpenCL devices. Their figures come from the devices of this machine."""

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
"""Instruction rows. f16 is converted on devices that have `cl_khr_fp16`."""
MOST_LANES = 16
"""Lanes of f32 of the widest vectors, those of AVX-512."""
UNKNOWN = 1000
"""The clock in MHz of a device that doesn't report its own. Most GPUs have 0.5 to 2 GHz, and the clock scales
all estimates alike."""
WIDE, MANY = 64, 32
"""Bytes of a vector, and vector registers, of processors with AVX-512."""
INTEL_SUMS = 32
"""Sums of a work-item on Intel's GPUs. A thread has 128 registers of 32 bytes: 64 numbers for each of 16
work-items (Intel's OpenCL developer guide). With 64 sums, the compiler spills three to five registers."""
FILLED = MappingProxyType({"Intel(R) OpenCL": 28})
"""Registers that a platform's compiler fills before it spills, if not all. Intel's moves loads up."""


def named(name: str) -> Target:
    """Return the target of a device by its name: "opencl", "opencl:1" or "opencl:intel". With "@gpu" or
    "@cpu" appended, kernels are scheduled for a GPU or a processor, whatever the device is.

    Raises LoadError if there is no such device.
    """
    which, _, schedules = name.removeprefix(PREFIX).removeprefix(":").partition("@")
    if schedules not in ("", "gpu", "cpu"):
        raise LoadError(f"{name}: there are schedules for gpu and cpu, none for {schedules!r}")
    return target_of(select(which), schedules)


def target_of(device: Found, schedules: str = "") -> Target:
    """Return the target of a device. A CPU gets this machine's processor figures, and other devices get the
    figures of a GPU. `schedules` ("cpu" or "gpu") overrides the kind."""
    kind = schedules or ("cpu" if device.kind.lower() == "cpu" else "gpu")
    name, (_, identity, features) = f"{PREFIX}:{device.number}", device.target.split("/")
    return Target(
        f"{name}@gpu" if schedules == "gpu" else name, PREFIX, identity, features, ROWS,
        _processor(device) if kind == "cpu" else _gpu(device), backend=PREFIX, device=PREFIX,
        outputs=("jgn",),
    )  # fmt: skip


def _processor(device: Found) -> Processor:
    """This machine's processor as a device uses it.

    It has no `products`. OpenCL C has no vector instruction that sums products, and lane by lane they take 13
    times as long as float32 products.
    """
    width = 4 * max(4, min(device.lanes, MOST_LANES))
    registers = FILLED.get(device.platform, MANY) if width == WIDE else 16
    return replace(host().processor, vector_bytes=width, registers=registers, products=())


def _gpu(device: Found) -> Gpu:
    clock = 1e6 * (device.clock or UNKNOWN)
    sums = INTEL_SUMS if "intel" in device.platform.lower() else Gpu.sums
    return Gpu(clock=clock, units=device.units, group=device.group, shared=device.local, sums=sums)
