"""Targets of NVIDIA's GPUs, by compute capability, with figures from NVIDIA's public documents.

The sources are these. *Guide*: the CUDA C++ Programming Guide, its table of technical specifications by
compute capability, and its table of the throughput of arithmetic instructions. The others are the papers and
data sheets of each architecture's devices, named beside their figures. A device that is here says its own
units, clock and bandwidth.
"""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.dtype import BF16, F16, F32, I32
from jangin.ir.fragments import WARP, Fragment
from jangin.ir.products import DOT1BF, DOT1H, DOT1T, DOT1TE, DOT4, DOT4U, READY
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.cuda_devices import PREFIX, Found, capability, select
from jangin.targets.gpu import Gpu
from jangin.targets.rows import FUSING, Row
from jangin.targets.target import Target

GROUP = 1024
"""Work-items of a group at most, on all capabilities (Guide)."""
SHARED = 48 << 10
"""Bytes that a group shares at most without asking the driver for more, on all capabilities (Guide)."""
EVEN = "tf32_even"
"""The feature, and the row, of rounding to tf32 by one instruction."""
KEPT = 1 << 10
"""Bytes of shared memory that the system keeps for each group, from capability 8.0 on (Guide)."""
STARTUP = 2.5e-6
"""Seconds of a launch beside its work. This is an estimate for launches of one graph, not a published figure,
and not measured."""


BEGUN = 1400.0
"""Cycles of a launch whose first groups begin, wait for memory, and write their last results. It is three to
four times `LATENCY`."""
LATENCY = 400.0
"""Cycles of a load that misses the level 2 cache, or waits for it behind others. Abdelkhalik et al. found 200
to 290 on an A100, and more on its successors ("Demystifying the Nvidia Ampere architecture", 2022)."""


@dataclass(frozen=True)
class Architecture:
    """One compute capability, and the figures of a device that has it. Estimates read those; a wrong one
    costs speed, never correctness."""

    name: str
    """The architecture's name in NVIDIA's compilers, such as sm_80."""
    units: int
    """Streaming multiprocessors of the device."""
    width: int
    """Multiply-adds of float32 that a unit begins each cycle (Guide, arithmetic instructions)."""
    clock: float
    """Cycles a second, at most."""
    bandwidth: float
    """Bytes a second between the device's memory and its units, at most."""
    l2: int
    """Bytes of the device's level 2 cache."""
    resident: int
    """Work-items that a unit holds at one time at most (Guide)."""
    groups: int
    """Groups that a unit holds at one time at most (Guide)."""
    unit_shared: int
    """Bytes of shared memory of a unit (Guide)."""
    matrix_rate: int = 0
    """Multiply-adds of 16-bit floats, added to float32, that a unit's tensor cores begin each cycle. It is 0
    without the instructions of `MATRICES`."""

    @property
    def asked(self) -> int:
        """The bytes of shared memory that a group may have if its launch asks for them.

        They are those of a unit, without `KEPT` from 8.0 on. Before 7.0 nothing can be asked for (Guide)."""
        newer = capability(self.name)
        return self.unit_shared - (KEPT if newer >= (8, 0) else 0) if newer >= (7, 0) else 0

    @property
    def features(self) -> tuple[str, ...]:
        """The features that rows may need. Products of four bytes are an instruction from capability 6.1 on
        (PTX ISA, `dp4a`). Conversions to bfloat16, extrema that give NaN, and products of matrices of 16-bit
        floats are instructions from 8.0 on (`cvt`, `min` and `mma`). From 9.0 on, one rounds to tf32
        (`cvt.rn.tf32`)."""
        newer, newest = capability(self.name) >= (8, 0), capability(self.name) >= (9, 0)
        added = *(("bf16", "min.nan", "mma") if newer else ()), *((EVEN,) if newest else ())
        return ("fp64", "fp16", "dp4a", *added)

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The share of a unit's work-items that groups of a kernel fill. Registers limit it, which are given
        to warps by 256. Shared memory does, of which each group takes 1 KiB more from 8.0 on. The number of
        groups does too (Guide, and the occupancy calculator of NVIDIA's Nsight Compute)."""
        warps = -(-threads // WARP)
        of_warp = -(-registers * WARP // 256) * 256
        own = shared + (KEPT if capability(self.name) >= (8, 0) else 0)
        by = (UNIT_REGISTERS // of_warp // warps, self.resident // (warps * WARP), self.groups)
        fits = min(*by, self.unit_shared // own) if own else min(by)
        return fits * warps * WARP / self.resident


UNIT_REGISTERS = 64 << 10
"""Registers of 32 bits of a unit, on all of these capabilities (Guide)."""

ARCHITECTURES = {
    a.name: a
    for a in (
        # Jetson TX2: 256 cores, 1.3 GHz, 59.7 GB/s, 512 KB L2 (Jetson TX2 series data sheet). Guide: 6.2.
        Architecture("sm_62", 2, 128, 1.30e9, 59.7e9, 512 << 10, 2048, 32, 64 << 10),
        # T4: 40 SMs, 1.59 GHz, 320 GB/s, 4 MB L2 (Turing architecture whitepaper). Guide: 7.5.
        Architecture("sm_75", 40, 64, 1.59e9, 320e9, 4 << 20, 1024, 16, 64 << 10),
        # A100 40 GB: 108 SMs, 1.41 GHz, 1,555 GB/s, 40 MB L2 (A100 architecture whitepaper). Guide: 8.0.
        # Its 312 TFLOPS of 16-bit floats are 1,024 multiply-adds of a unit each cycle.
        Architecture("sm_80", 108, 64, 1.41e9, 1555e9, 40 << 20, 2048, 32, 164 << 10, 1024),
        # GeForce RTX 3090: 82 SMs, 1.695 GHz, 936 GB/s, 6 MB L2 (Ampere GA102 whitepaper). Guide: 8.6.
        # The whitepaper's 71 TFLOPS with sums of float32 are 256.
        Architecture("sm_86", 82, 128, 1.695e9, 936e9, 6 << 20, 1536, 16, 100 << 10, 256),
        # Jetson AGX Orin 64 GB: 2,048 cores, 1.3 GHz, 204.8 GB/s, 4 MB L2 (its technical brief). Guide: 8.7.
        # The brief's 170 sparse TOPS of int8 are 1,024 dense multiply-adds of 16 bits.
        Architecture("sm_87", 16, 128, 1.30e9, 204.8e9, 4 << 20, 1536, 16, 164 << 10, 1024),
        # GeForce RTX 4090: 128 SMs, 2.52 GHz, 1,008 GB/s, 72 MB L2 (Ada architecture whitepaper). Guide: 8.9.
        # The whitepaper's 165 TFLOPS with sums of float32 are 256.
        Architecture("sm_89", 128, 128, 2.52e9, 1008e9, 72 << 20, 1536, 24, 100 << 10, 256),
        # H100 SXM5: 132 SMs, 1.98 GHz (by its 67 TFLOPS), 3.35 TB/s, 50 MB L2 (its data sheet). Guide: 9.0.
        # Its tensor cores make 2,048 (H100 architecture whitepaper); `mma` may reach fewer.
        Architecture("sm_90a", 132, 128, 1.98e9, 3350e9, 50 << 20, 2048, 32, 228 << 10, 2048),
    )
}

_LANES = (4, 0, 2), (8, 1, 0)
LEFT = Fragment(_LANES, ((2, 0, 1), (2, 8, 0), (2, 0, 8)))
RIGHT = Fragment(((4, 2, 0), (8, 0, 1)), ((2, 1, 0), (2, 8, 0)))
SUMS = Fragment(_LANES, ((2, 0, 1), (2, 8, 0)))
"""How a warp's lanes share the matrices of `mma.m16n8k16` of 16-bit floats (PTX ISA, matrix fragments)."""
_WORDS = (4, 0, 1), (8, 1, 0)
LEFT_TF32 = Fragment(_WORDS, ((2, 8, 0), (2, 0, 4)))
RIGHT_TF32 = Fragment(((4, 1, 0), (8, 0, 1)), ((2, 4, 0),))
"""How a warp's lanes share the matrices of `mma.m16n8k8` of tf32, and those of `mma.m16n8k32` of bytes as
words of four (PTX ISA, matrix fragments). The sums are shared as those of `mma.m16n8k16`."""
MATRICES: tuple[Row, ...] = tuple(
    Row(
        "mma", (t,), "x: T[R, K], y: T[K, C], r: T[R, C]".replace("T", t.name), "",
        f"serial i in R {{ serial j in C {{ serial k in K {{ r[i, j] = {added} }} }} }}",
        c=f"mma_{kind}", needs=("mma",), fragments=(left, right, SUMS),
        product=replace(by_lanes, rows=16, columns=8, terms=terms, held="fragment"),
    )
    for by_lanes, kind, terms, left, right in (
        (DOT1BF, "bf16", 16, LEFT, RIGHT),
        (DOT1H, "f16", 16, LEFT, RIGHT),
        *((by_lanes, "tf32", 8, LEFT_TF32, RIGHT_TF32) for by_lanes in (*READY, *READY.values())),
        (DOT4U, "u8", 32, LEFT_TF32, RIGHT_TF32),
        (DOT4, "s8", 32, LEFT_TF32, RIGHT_TF32),
    )
    for t, added in [
        (I32, f"r[i, j] + {by_lanes.name}(x[i, k], y[k, j])") if by_lanes.of_bytes
        else (F32, "r[i, j] + x[i, k] * y[k, j]")
    ]
)  # fmt: skip
"""Products of matrices. The order of a sum's terms, and how it is rounded between them, is the device's. Sums
of bytes are exact."""

_NEEDS = {("widen", F16): "fp16", ("narrow", F16): "fp16", ("narrow", BF16): "bf16"}
_NEEDS |= {(dot.name, I32): "dp4a" for dot in (DOT4, DOT4U)}
_NEEDS |= {(name, F32): "min.nan" for name in ("min", "min_number", "max", "max_number")}
ROWS: tuple[Row, ...] = (
    *(
        replace(row, dtypes=(dtype,), expansion=None, needs=(feature,))
        for (name, dtype), feature in _NEEDS.items()
        for row in FUSING
        if row.name == name and dtype in row.dtypes
    ),
    Row(EVEN, (F32,), "x: T[N]", "T", f"r[i] = {EVEN}(x[i])", needs=(EVEN,)),
    *MATRICES,
    *FUSING,
)
"""Operations that some architectures have an instruction for come first (`backends.cuda.dialect`)."""


def of_architecture(architecture: Architecture) -> Target:
    """The target of a capability, without any device of this machine."""
    features = ",".join(f"+{f}" for f in architecture.features)
    a = architecture
    tf32 = DOT1TE if EVEN in a.features else DOT1T
    launch = int((STARTUP + BEGUN / a.clock) * a.units * a.width * a.clock)
    machine = Gpu(
        clock=architecture.clock, l2=architecture.l2, index_bits=32, units=architecture.units,
        width=architecture.width, group=GROUP, shared=SHARED, bandwidth=architecture.bandwidth,
        startup=STARTUP, matrix_rate=architecture.matrix_rate, meets=True,
        winograd=replace(Gpu().winograd, launch=launch), panel_wait=LATENCY, asked=a.asked,
        resident=architecture.resident, unit_shared=architecture.unit_shared,
        products=(DOT4U, DOT4, *((DOT1BF, DOT1H, tf32) if architecture.matrix_rate else ())),
    )  # fmt: skip
    return Target(
        f"{PREFIX}:{architecture.name}", PREFIX, architecture.name, features, ROWS, machine, backend=PREFIX,
        device=PREFIX, outputs=("jgn",),
    )  # fmt: skip


CUDA: dict[str, Target] = {t.name: t for t in map(of_architecture, ARCHITECTURES.values())}


def named(name: str) -> Target:
    """The target of a name: "cuda:sm_80" needs no GPU; "cuda", "cuda:1" or "cuda:a100" asks the device.
    Raises LoadError if there is none, and ValueError for an architecture that isn't known."""
    which = name.removeprefix(PREFIX).removeprefix(":")
    if name in CUDA:
        return CUDA[name]
    if which.startswith("sm_"):
        raise ValueError(f"unknown target {name!r}; known: {', '.join(CUDA)}")
    target = target_of(select(which))
    return replace(target, device=f"{PREFIX}:{which}") if which else target


def target_of(device: Found) -> Target:
    """The target of a device: the newest architecture whose code runs there, with the device's own figures.
    Raises LoadError for a device that is older than all."""
    able = [a for a in ARCHITECTURES.values() if device.runs(a.name)]
    if not able:
        raise LoadError(
            f"{device} is of compute capability {device.major}.{device.minor}, older than any that Jangin "
            f"makes code for ({', '.join(ARCHITECTURES)}); compile the model for another device"
        )
    # of those, one whose machine code it takes, or else the newest's text
    taken = [a for a in able if device.takes(a.name)] or able
    base = of_architecture(max(taken, key=lambda a: capability(a.name)))
    return base.with_figures(
        units=device.units, clock=1e3 * device.clock or base.machine.clock,
        bandwidth=device.bandwidth or base.gpu.bandwidth, l2=device.l2 or base.machine.l2,
    )  # fmt: skip
