"""The kernels that OpenCL GPUs get, compiled without a GPU: by Intel's ocloc, and as AMD code by LLVM. This
counts registers and spills.

    python benchmarks/gpu_compilers.py [NETWORK ...] [--ocloc PATH] [--save]

Debian's package intel-opencl-icd has ocloc. It needn't be installed: `dpkg -x` unpacks it and the packages
libigc1, libigdfcl1, libopencl-clang14 and libllvmspirvlib14 into one folder, whose libraries LD_LIBRARY_PATH
names. AMD code needs clang 14 or later.

With --save each row replaces that of the same network and compiler in benchmarks/results.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpu_networks import NETWORKS, arguments
from sections import Section, Table, rows_of

from jangin.backends.opencl.backend import source
from jangin.compiler.pipeline import plan_model
from jangin.options import Options
from jangin.runtime.threads import default_threads
from jangin.targets.gpu import Gpu
from jangin.targets.opencl import INTEL_SUMS, ROWS
from jangin.targets.target import Target

NAME = "gpu_compilers"
AMD = ("gfx90a", "gfx1030")
INTEL = "dg2"
GPU = Gpu(clock=1.5e9, units=64, group=256, shared=64 << 10)
"""A device of middle size. Its figures choose tiles, and AMD's and Intel's groups have 64 KiB."""
AMD_NAMES = (Path(__file__).parent / "amd_opencl.h").read_text()
"""OpenCL's functions as LLVM's own, because its library for AMD isn't in Debian. A function that is missing
there would be called, and the assembler's text says so."""


@dataclass(frozen=True)
class Counted:
    """One kernel. `registers` is 0 if the compiler doesn't tell. `spilled` counts registers or bytes, as the
    compiler does."""

    registers: int
    spilled: int


def target(gpu: Gpu = GPU, features: str = "") -> Target:
    identity = "gpu/any/" + features
    return Target(
        "opencl:0", "opencl", identity, features, ROWS, gpu, backend="opencl", device="opencl",
        outputs=("jgn",),
    )  # fmt: skip


def sources(network: str, gpu: Gpu) -> list[str]:
    """Return the OpenCL C of each distinct kernel of a network."""
    on = target(gpu)
    plans = plan_model(NETWORKS[network]("float32"), Options(on)).plans
    return [source(func, on) for plan in plans for func in plan.kernels.values()]


def amd(text: str, processor: str) -> Counted:
    """Return what LLVM needs for a kernel on an AMD GPU. Raises CalledProcessError if it can't be compiled,
    and ValueError if it calls a function."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.cl").write_text(AMD_NAMES + text)
        command = ["clang", "-x", "cl", "-cl-std=CL1.2", "-target", "amdgcn-amd-amdhsa", f"-mcpu={processor}"]
        command += ["-O3", "-nogpulib", "-w", "-Xclang", "-finclude-default-header", "-S", "-o", "-", "k.cl"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    if "s_swappc_b64" in done.stdout:
        raise ValueError("the kernel calls a function")
    found = {name: int(n) for name, n in re.findall(r"\.(\w+):\s+(\d+)", done.stdout)}
    stack = found["private_segment_fixed_size"]
    return Counted(found["vgpr_count"], found["vgpr_spill_count"] + found["sgpr_spill_count"] + stack)


def intel(text: str, ocloc: str) -> Counted:
    """Return what Intel's compiler spills. Its log names kernels that spill. Raises CalledProcessError if a
    kernel can't be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.cl").write_text(text)
        command = [ocloc, "compile", "-file", "k.cl", "-device", INTEL, "-options", "-cl-std=CL1.2"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    spilled = re.search(r"spilled around (\d+)", done.stdout + done.stderr)
    return Counted(0, int(spilled[1]) if spilled else 0)


def row(network: str, compiler: str, gpu: Gpu, count: Callable[[str], Counted]) -> list[str]:
    with ThreadPoolExecutor(default_threads()) as pool:
        found = [*pool.map(count, sources(network, gpu))]
    registers = sorted(k.registers for k in found)
    told = f"{registers[0]} / {statistics.median_low(registers)} / {registers[-1]}" if registers[-1] else ""
    wrong = [k.spilled for k in found if k.spilled]
    return [network, compiler, str(len(found)), told, str(len(wrong)), str(sum(wrong))]


COLUMNS = ("network", "compiler", "kernels", "registers, least / median / most", "that spill", "spilled")


def table(rows: Sequence[Sequence[str]]) -> Section:
    return Section("OpenCL kernels by two GPU compilers, counted", [
        "Counted by Intel's ocloc and LLVM's amdgcn (`python benchmarks/gpu_compilers.py --save`); no GPU "
        "was there, and nothing was timed. Networks are float32.",
        Table(COLUMNS, rows),
    ])  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ocloc", default=shutil.which("ocloc"), help="Intel's compiler, if not installed")
    args = parser.parse_args()
    compilers: dict[str, tuple[Gpu, Callable[[str], Counted]]] = {
        f"LLVM, {name}": (GPU, partial(amd, processor=name)) for name in AMD
    }
    if args.ocloc:
        compilers[f"ocloc, {INTEL}"] = replace(GPU, sums=INTEL_SUMS), partial(intel, ocloc=args.ocloc)
    rows = {tuple(r[:2]): r for r in rows_of(NAME)}
    for network in args.networks:
        for compiler, (gpu, count) in compilers.items():
            made = row(network, compiler, gpu, count)
            rows[tuple(made[:2])] = made
            print(" | ".join(made), flush=True)
            if args.save:
                table([*rows.values()]).save(NAME)


if __name__ == "__main__":
    main()
